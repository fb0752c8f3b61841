//! Trees that are copied into images and out again without a mount: `mkfs --rootdir` and `cp -a`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_testing::tree::{Detail, Facts, Tree, TreeInode};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(120);

/// Small files enough to keep all threads busy, and one of each thing that can go wrong.
const TREE: &str = r#"
set -e
umask 022
for dir in a a/b a/b/c "two words" empty; do mkdir "$dir"; done
for number in $(seq 400); do
    printf '%05000d' "$number" > "a/b/file-$number"
    printf 'short %s' "$number" > "two words/$number"
done
: > nothing
head -c 3000000 /dev/urandom > large
truncate -s 5000000 sparse; printf middle | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
truncate -s 300000 hole
ln large a/large-too; ln large a/b/c/large-again; ln "a/b/file-7" "two words/of-b"
ln -s ../large a/link; ln -s nowhere a/dangling; ln a/link a/link-too
mkfifo pipe; ln pipe "two words/pipe"
chmod 4751 large; chmod 1777 empty; chmod 700 a/b/c; chmod 0 nothing
for number in $(seq 20); do setfattr -n "user.number" -v "$number" "a/b/file-$number"; done
setfattr -n user.of-dir -v yes "two words"
chown 1000:1001 sparse; chown -h 12:34 a/link
find . -depth -exec touch -h -d '2001-02-03 04:05:06.123456789' {} +
touch -d '1999-09-09 09:09:09' a/b
"#;

fn trials() -> Vec<Trial> {
    let needs = [Need::Program("setfattr"), machine::KERNEL];
    let ext4 = [Need::Program("setfattr"), machine::KERNEL_EXT4];
    let programs = ["setfacl", "setfattr", "getfattr"].map(Need::Program);
    let kernel = [machine::OVERLAY, machine::KERNEL, machine::KERNEL_EXT4];
    let overlay = [&programs[..], &kernel].concat();
    let acls = ["setfacl", "getfacl", "cpio"].map(Need::Program);
    let acls = [&acls[..], &[machine::KERNEL, machine::KERNEL_EXT4]].concat();
    vec![
        trial("btrfs::in_and_out", &needs, || in_and_out(Kind::Btrfs)),
        trial("ext4::in_and_out", &ext4, || in_and_out(Kind::Ext4)),
        trial("btrfs::from_archives", &needs, || {
            from_archives(Kind::Btrfs)
        }),
        trial("ext4::from_archives", &ext4, || from_archives(Kind::Ext4)),
        trial("btrfs::acls_of_several_sources", &acls, || {
            several_sources(Kind::Btrfs)
        }),
        trial("ext4::acls_of_several_sources", &acls, || {
            several_sources(Kind::Ext4)
        }),
        trial("btrfs::layers_of_overlayfs", &overlay, || {
            overlays(Kind::Btrfs)
        }),
        trial("ext4::layers_of_overlayfs", &overlay, || {
            overlays(Kind::Ext4)
        }),
        trial("overlayfs::refused", &overlay, refused_overlays),
        trial("btrfs::over_what_is_there", &needs, || over(Kind::Btrfs)),
        trial("btrfs::too_much", &[], || too_much(Kind::Btrfs, "128M")),
        trial("ext4::too_much", &[], || too_much(Kind::Ext4, "16M")),
    ]
}

/// Everything that a copy keeps is the same. What the kind of file system determines is left out.
fn same(expected: &Path, found: &Path) -> Outcome {
    let listed = |root: &Path| -> Result<Tree, String> {
        let mut tree = Tree::of_mount(root, Detail::Sums)?;
        for (ino, node) in &mut tree.nodes {
            Arc::make_mut(&mut node.xattrs).retain(|name, _| name.starts_with(b"user."));
            if *ino == tree.root {
                Arc::make_mut(&mut node.entries).remove(&b"lost+found"[..]);
            }
        }
        Ok(tree)
    };
    let (expected, found) = (listed(expected)?, listed(found)?);
    let names = expected.paths().len();
    assert!(names > 800, "{names}");
    let kept = |_: &str, node: &TreeInode, _: &TreeInode| node.plain() | Facts::DATA | Facts::MTIME;
    Ok(expected.compare(&found, kept)?)
}

fn source(dir: &Path) -> Result<(), String> {
    process::shell(dir, TREE, LIMIT).map(drop)
}

fn run(args: &[&Path]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), LIMIT)
}

/// An image made of a directory shows the same when the kernel mounts it, and gives it back.
fn in_and_out(kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree)?;
    source(&tree)?;
    let args = format!("-t {} --rootdir {}", kind.name(), tree.display());
    let image = TempImage::new(&Mkfs {
        kind,
        ..Mkfs::ours(&args)
    })?;
    image.check()?;
    let mount = Driver::Kernel.mount(image.path(), "ro")?;
    same(&tree, mount.path())?;
    mount.unmount()?;
    let (inside, back) = (
        format!("{}:/", image.path().display()),
        dir.path().join("back"),
    );
    run(&["cp".as_ref(), "-aq".as_ref(), inside.as_ref(), &back])?;
    same(&tree, &back)
}

/// Archives of the tree in several formats, and a container image with a layer that restores what
/// another one hides.
const ARCHIVES: &str = r#"
set -e
rm "tree/two words/pipe" # tar(1) keeps no second name of a fifo
pack() { tar --create --sparse --xattrs --xattrs-include='user.*' --directory tree "$@" .; }
pack --format pax | zstd -q > pax.tar
pack --format pax --sparse-version 0.1 --acls > acl.tar
tar -cf dir.tar --format pax --no-recursion -C tree a
mkdir -p oci/blobs/sha256
blob() { local sum; sum=$(sha256sum "$1" | cut -d' ' -f1); cp "$1" oci/blobs/sha256/$sum; \
    printf '{"mediaType":"%s","digest":"sha256:%s","size":%s}' "$2" $sum $(stat -c %s "$1"); }
pack --format pax > base.tar; mkdir -p wh/empty; touch wh/.wh.large wh/.wh.a wh/empty/.wh..wh..opq
tar -cf hidden.tar -C wh .
layer=application/vnd.oci.image.layer.v1.tar
printf '{"layers":[%s,%s,%s]}' "$(blob base.tar $layer)" "$(blob hidden.tar $layer)" \
    "$(blob pax.tar $layer+zstd)" > manifest
printf '{"manifests":[%s]}' "$(blob manifest application/vnd.oci.image.manifest.v1+json)" \
    > oci/index.json
"#;

/// An image made of archives shows what they have when the kernel mounts it.
fn from_archives(kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree)?;
    source(&tree)?;
    process::shell(dir.path(), ARCHIVES, LIMIT)?;
    let at = |name: &str| dir.path().join(name).display().to_string();
    let sources = [
        format!("--tar {}", at("pax.tar")),
        format!("--rootdir {} --tar {}", at("wh/empty"), at("acl.tar")),
        format!("--oci {}", at("oci")),
    ];
    for source in sources {
        let args = format!("-t {} --exclude .wh.* {source}", kind.name());
        let image = TempImage::new(&Mkfs {
            kind,
            ..Mkfs::ours(&args)
        })?;
        image.check()?;
        let mount = Driver::Kernel.mount(image.path(), "ro")?;
        same(&tree, mount.path()).map_err(|error| format!("{source}: {error:?}"))?;
        mount.unmount()?;
    }
    Ok(())
}

/// A first source with ACLs that a later one has not, and what coreutils makes of the two. A
/// directory that no source has an entry for has no ACL either.
const ACLS: &str = r#"
set -e
umask 022
mkdir -p one/d/sub two/d/sub two/d/new made/d/made; echo 1 > one/d/f; echo 2 > two/d/f; echo 3 > two/d/sub/g
chmod 664 two/d/f; chmod 4755 two/d/sub/g; mkfifo two/d/p; ln -s f two/d/l; touch two/h; ln two/h two/d/h
for dir in one one/d one/d/sub; do setfacl -d -m u:50005:rwx,g:50006:rwx,o:rwx $dir; done; setfacl -m u:50005:rwx one/d one/d/f
cp -a two plain; cp -a one/. ref-plain; cp -a plain/. ref-plain; (cd plain; find . | cpio --quiet -o -H newc) > plain.cpio
setfacl -m u:50007:rw two/d/sub/g; setfacl -d -m u:50007:rx two/d/new; cp -a one/. ref; cp -a two/. ref
tar -cf two.tar --acls --format pax -C two .; tar -cf plain.tar -C plain .
echo 4 > made/d/made/f; tar -cf made.tar -C made d/made/f; cp -a one/. ref-made; cp -a made/d/made ref-made/d
printf '#mtree\n./d/made type=dir mode=0755\n./d/made/f type=file mode=0644 size=0\n./d/more type=dir\n' > list
cp -a ref-made ref-list; mkdir ref-list/d/more; setfacl -b ref-list/d/more; chmod 755 ref-list/d/more
"#;

/// An image of several sources has the ACLs that coreutils gives a directory of them.
fn several_sources(kind: Kind) -> Outcome {
    const LIST: &str = "find . -mindepth 1 ! -path './lost+found*' ! -type l -print0 | sort -z \
         | xargs -0 getfacl -n";
    let dir = scratch::directory();
    process::shell(dir.path(), ACLS, LIMIT)?;
    let at = |name: &str| dir.path().join(name).display().to_string();
    for (option, later, expected) in [
        ("rootdir", "two", "ref"),
        ("tar", "two.tar", "ref"),
        ("rootdir", "plain", "ref-plain"),
        ("tar", "plain.tar", "ref-plain"),
        ("cpio", "plain.cpio", "ref-plain"),
        ("tar", "made.tar", "ref-made"),
        ("manifest", "list", "ref-list"),
    ] {
        let (kind_name, one, later) = (kind.name(), at("one"), at(later));
        let args = format!("-t {kind_name} --rootdir {one} --{option} {later}");
        let image = TempImage::new(&Mkfs {
            kind,
            ..Mkfs::ours(&args)
        })?;
        image.check()?;
        let mount = Driver::Kernel.mount(image.path(), "ro")?;
        let found = process::shell(mount.path(), LIST, LIMIT)?;
        let expected = process::shell(&dir.path().join(expected), LIST, LIMIT)?;
        assert!(found.lines().count() > 20, "{found}");
        if found != expected {
            return Err(format!("{option} {later}:\n{found}\ninstead of\n{expected}").into());
        }
        mount.unmount()?;
    }
    Ok(())
}

/// A tree, and layers over it: two that overlayfs makes, with its attributes in either namespace,
/// and one whose whiteouts are files. `NAME.txt` lists what the kernel shows of each.
const OVERLAYS: &str = r#"
set -e
umask 022; trap 'umount merged 2> /dev/null || true' EXIT
mkdir lower merged
for dir in opaque kept/deep gone/deep to_file merged_attributes xattrs shut; do mkdir -p "lower/$dir"; echo "$dir" > "lower/$dir/f"; done
for file in one two three to_dir appended linked renamed .wh.name; do echo $file > lower/$file; done
echo f > lower/kept/f; ln lower/linked lower/kept/linked; ln -s kept lower/link; ln -s kept lower/link_to_dir; mkfifo lower/pipe; mknod lower/zero c 1 5
setfattr -n user.old -v x lower/xattrs lower/merged_attributes; setfacl -d -m u:50005:rwx lower/kept; setfacl -m u:50006:rwx lower/merged_attributes lower/kept/f
find lower -exec touch -h -d '2001-02-03 04:05:06.125' {} +; chmod 4755 lower/two; chown 7:8 lower/kept
change() {
    cd merged; rm one three kept/deep/f zero; rm -r gone opaque to_file; mkdir opaque; echo new > opaque/new; echo now > to_file
    rm to_dir link_to_dir; mkdir -p to_dir/in link_to_dir; echo x > to_dir/in/f; echo more > link_to_dir/more; echo more >> appended; mv renamed new_name
    setfattr -x user.old xattrs; setfattr -n user.new -v y xattrs; setfacl -b merged_attributes; chmod 2711 merged_attributes; chown 9:10 kept/f
    mkdir kept/new; echo y > kept/new/f; ln -s f kept/new/l; mkfifo kept/new/p; mknod kept/new/d b 7 1; echo z > kept/new/h; ln kept/new/h kept/new/h2
    echo > .wh.other; chmod 500 shut; chmod 4711 two; cd ..
}
listing() { (cd "$1"; find . ! -path './lost+found*' -printf '%p %y %m %U %G %T@ %l\n' | sort; find . -type f -printf '%p %s\n' | sort
    find . -type f -print0 | sort -z | xargs -0 sha256sum; find . \( -type b -o -type c \) -exec stat -c '%n %t:%T' {} + | sort
    find . ! -path './lost+found*' -print0 | sort -z | xargs -0 getfattr -hd -m -); }
for form in trusted user; do
    mkdir $form work-$form; case $form in user) more=,userxattr;; *) more=;; esac
    mount -t overlay overlay -o lowerdir=lower,upperdir=$form,workdir=work-$form$more,redirect_dir=off,metacopy=off merged 2> /dev/null ||
        mount -t overlay overlay -o lowerdir=lower,upperdir=$form,workdir=work-$form$more merged
    change; listing merged > $form.txt; umount merged
    [ "$(find $form -type c | wc -l)" = 6 ]; getfattr -d -m - $form/opaque 2> /dev/null | grep -c "^$form.overlay.opaque=\"y\""
    tar --xattrs --xattrs-include='*' --format=pax -cf $form.tar -C $form .; zstd -q $form.tar
done
tar -tvf trusted.tar | grep -c '^h.* link to ' # Whiteouts share an inode.
mkdir -p files/kept; touch files/one files/kept/f files/kept/g; setfattr -n trusted.overlay.whiteout -v y files/one files/kept/f; setfattr -n trusted.overlay.opaque -v x files files/kept
mount -t overlay overlay -o ro,lowerdir=files:lower merged; listing merged > files.txt; umount merged; [ "$(grep -c '/one ' files.txt)" = 0 ]
"#;

/// An image of a tree and a layer shows what overlayfs shows of them.
fn overlays(kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let script = format!("{OVERLAYS}\ndeclare -f listing > functions");
    process::shell(dir.path(), &script, LIMIT)?;
    for layer in ["trusted", "user", "files", "trusted.tar", "user.tar.zst"] {
        let at = |name: &str| dir.path().join(name).display().to_string();
        let (lower, upper) = (at("lower"), at(layer));
        let name = kind.name();
        let args = format!("-t {name} --rootdir {lower} --overlay {upper}");
        let image = TempImage::new(&Mkfs {
            kind,
            ..Mkfs::ours(&args)
        })?;
        image.check()?;
        let mount = Driver::Kernel.mount(image.path(), "ro")?;
        let expected = layer.split('.').next().unwrap_or_default();
        let (mounted, expected) = (mount.path().display(), at(&format!("{expected}.txt")));
        let compare = format!(". ./functions; listing {mounted} | diff {expected} -");
        let compared = process::shell(dir.path(), &compare, LIMIT);
        compared.map_err(|error| format!("{layer}: {error}"))?;
        mount.unmount()?;
    }
    Ok(())
}

/// Layers that refer to lower ones, or make no sense, are refused by name, and leave no image.
fn refused_overlays() -> Outcome {
    let dir = scratch::directory();
    let script = format!(
        r#"umask 022; trap 'umount merged 2> /dev/null || true' EXIT; mkdir -p lower/d lower/e merged; echo x > lower/f; echo y > lower/d/g
        refused() {{ local code=0; '{program}' mkfs -q -t ext4 --rootdir lower --overlay $2 a.img 2> err.txt || code=$?
            [ $code = 1 ] && grep -q "$1" err.txt && [ ! -e a.img ] || {{ echo "$code: $1 $2"; cat err.txt; exit 1; }}; }}
        for what in redirect metacopy; do mkdir $what work-$what; done
        mount -t overlay overlay -o lowerdir=lower,upperdir=redirect,workdir=work-redirect,redirect_dir=on merged; mv merged/d merged/e/moved; umount merged
        mount -t overlay overlay -o lowerdir=lower,upperdir=metacopy,workdir=work-metacopy,metacopy=on merged; chmod 600 merged/f; umount merged
        for what in redirect metacopy; do refused "overlay.$what: " $what; tar --xattrs --xattrs-include='*' -cf $what.tar -C $what .; refused "overlay.$what: " $what.tar; done
        grep -q 'metacopy.tar: \./f: ' err.txt
        for bad in opaque=z:d opaque=y:f whiteout=y:f overlay.opaque=y:d; do mkdir -p bad/d; echo text > bad/f
            setfattr -n user.overlay.${{bad%%=*}} -v $(sed 's/.*=\(.*\):.*/\1/' <<< $bad) bad/${{bad##*:}}; refused "${{bad##*:}}: overlay.${{bad%%[.=]*}}" bad; rm -r bad; done
        refused 'none: ' none; ln -s d lower/l; mkdir through; echo x > f; tar -cf through.tar --transform 's,f,l/f,' f; refused 'symbolic link' through.tar"#,
        program = sapwood().display()
    );
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}

/// What is there already is replaced, but for directories, which get what is new.
fn over(kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree)?;
    source(&tree)?;
    let back = dir.path().join("back");
    fs::create_dir_all(back.join("a/b"))?;
    fs::write(back.join("large"), "old and short")?;
    fs::write(back.join("a/b/file-3"), vec![b'x'; 10_000])?;
    let args = format!("-t {} --rootdir {}", kind.name(), back.display());
    let image = TempImage::new(&Mkfs {
        kind,
        ..Mkfs::ours(&args)
    })?;
    let everything = format!("{}/.", tree.display());
    let inside = format!("{}:/", image.path().display());
    run(&[
        "cp".as_ref(),
        "-aq".as_ref(),
        everything.as_ref(),
        inside.as_ref(),
    ])?;
    image.check()?;
    let mount = Driver::Kernel.mount(image.path(), "ro")?;
    same(&tree, mount.path())?;
    mount.unmount()?;
    Ok(())
}

/// A tree that does not fit ends in one line, with all threads.
fn too_much(kind: Kind, size: &str) -> Outcome {
    let dir = scratch::directory();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree)?;
    for number in 0..300 {
        fs::write(tree.join(number.to_string()), vec![number as u8; 1 << 20])?;
    }
    let image = dir.path().join("image");
    let mut command = Command::new(sapwood());
    command.args(["mkfs", "-q", "-t", kind.name(), "--size", size, "--rootdir"]);
    let said = process::finish(command.args([&tree, &image]), LIMIT)?;
    let lines = said.stderr.lines().count();
    if said.status.code() != Some(1) || lines != 1 || !said.stderr.contains("space") {
        return Err(said.all().into());
    }
    Ok(())
}

fn main() {
    machine::run(2, trials);
}
