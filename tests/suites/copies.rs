//! Trees that are copied into images and out again without a mount: `mkfs --rootdir` and `cp -a`.

mod overlays;

use std::fs;
use std::path::{Path, PathBuf};
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

/// A tree with enough small files to keep all threads busy, and every kind of inode, link, mode,
/// time and hole.
const TREE: &str = r#"
umask 022
for dir in a a/b a/b/c "two words" empty; do
    mkdir "$dir"
done
for number in $(seq 400); do
    printf '%05000d' "$number" > "a/b/file-$number"
    printf 'short %s' "$number" > "two words/$number"
done
: > nothing
head -c 3000000 /dev/urandom > large
truncate -s 5000000 sparse
printf middle | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
truncate -s 300000 hole
ln large a/large-too
ln large a/b/c/large-again
ln "a/b/file-7" "two words/of-b"
ln -s ../large a/link
ln -s nowhere a/dangling
ln a/link a/link-too
mkfifo pipe
ln pipe "two words/pipe"
chmod 4751 large
chmod 1777 empty
chmod 700 a/b/c
chmod 0 nothing
for number in $(seq 20); do
    setfattr -n "user.number" -v "$number" "a/b/file-$number"
done
setfattr -n user.of-dir -v yes "two words"
chown 1000:1001 sparse
chown -h 12:34 a/link
find . -depth -exec touch -h -d '2001-02-03 04:05:06.123456789' {} +
touch -d '1999-09-09 09:09:09' a/b
"#;

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [Need::Program("setfattr"), machine::KERNEL];
    let ext4 = [Need::Program("setfattr"), machine::KERNEL_EXT4];
    let programs = ["setfacl", "setfattr", "getfattr"].map(Need::Program);
    let kernel = [
        Need::Linux("attributes of special files"),
        machine::OVERLAY,
        machine::KERNEL,
        machine::KERNEL_EXT4,
    ];
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
            overlays::layers(Kind::Btrfs)
        }),
        trial("ext4::layers_of_overlayfs", &overlay, || {
            overlays::layers(Kind::Ext4)
        }),
        trial("overlayfs::refused", &overlay, overlays::refused),
        trial("btrfs::over_what_is_there", &needs, || over(Kind::Btrfs)),
        trial("btrfs::too_much", &[], || too_much(Kind::Btrfs, "128M")),
        trial("ext4::too_much", &[], || too_much(Kind::Ext4, "16M")),
    ]
}

/// Fails unless a copy is equal, except for properties that depend on the format.
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

/// A directory with [`TREE`] in its subdirectory `tree`, whose path is returned, too.
fn source() -> Result<(tempfile::TempDir, PathBuf), String> {
    let dir = scratch::directory();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).map_err(|error| error.to_string())?;
    process::shell(&tree, TREE, LIMIT)?;
    Ok((dir, tree))
}

/// A sound image that `sapwood mkfs` makes with these arguments.
fn image_of(kind: Kind, args: &str) -> Result<TempImage, String> {
    let args = format!("-t {} {args}", kind.name());
    let image = TempImage::new(&Mkfs {
        kind,
        ..Mkfs::ours(&args)
    })?;
    image.check()?;
    Ok(image)
}

fn run(args: &[&Path]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), LIMIT)
}

/// An image made of a directory shows the same when the kernel mounts it, and gives it back.
fn in_and_out(kind: Kind) -> Outcome {
    let (dir, tree) = source()?;
    let image = image_of(kind, &format!("--rootdir {}", tree.display()))?;
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

/// Archives of the tree in several formats, and a container image with a layer that restores a
/// hidden file.
const ARCHIVES: &str = r#"
rm "tree/two words/pipe" # tar(1) keeps no second name of a fifo
pack() { tar --create --sparse --xattrs --xattrs-include='user.*' --directory tree "$@" .; }
pack --format pax | zstd -q > pax.tar
pack --format pax --sparse-version 0.1 --acls > acl.tar
tar -cf dir.tar --format pax --no-recursion -C tree a
mkdir -p oci/blobs/sha256
blob() { local sum; sum=$(sha256sum "$1" | cut -d' ' -f1); cp "$1" oci/blobs/sha256/$sum; \
    printf '{"mediaType":"%s","digest":"sha256:%s","size":%s}' "$2" $sum $(stat -c %s "$1"); }
pack --format pax > base.tar
mkdir -p wh/empty
touch wh/.wh.large wh/.wh.a wh/empty/.wh..wh..opq
tar -cf hidden.tar -C wh .
layer=application/vnd.oci.image.layer.v1.tar
printf '{"layers":[%s,%s,%s]}' "$(blob base.tar $layer)" "$(blob hidden.tar $layer)" \
    "$(blob pax.tar $layer+zstd)" > manifest
printf '{"manifests":[%s]}' "$(blob manifest application/vnd.oci.image.manifest.v1+json)" \
    > oci/index.json
"#;

/// The kernel's mount of an image made of archives shows their files.
fn from_archives(kind: Kind) -> Outcome {
    let (dir, tree) = source()?;
    process::shell(dir.path(), ARCHIVES, LIMIT)?;
    let at = |name: &str| dir.path().join(name).display().to_string();
    let sources = [
        format!("--tar {}", at("pax.tar")),
        format!("--rootdir {} --tar {}", at("wh/empty"), at("acl.tar")),
        format!("--oci {}", at("oci")),
    ];
    for source in sources {
        let image = image_of(kind, &format!("--exclude .wh.* {source}"))?;
        let mount = Driver::Kernel.mount(image.path(), "ro")?;
        same(&tree, mount.path()).map_err(|error| format!("{source}: {error:?}"))?;
        mount.unmount()?;
    }
    Ok(())
}

/// A first source with ACLs that a later one lacks, and the tree that coreutils makes of both. A
/// directory without an entry in any source has no ACL.
const ACLS: &str = r#"
umask 022
mkdir -p one/d/sub two/d/sub two/d/new made/d/made
echo 1 > one/d/f
echo 2 > two/d/f
echo 3 > two/d/sub/g
chmod 664 two/d/f
chmod 4755 two/d/sub/g
mkfifo two/d/p
ln -s f two/d/l
touch two/h
ln two/h two/d/h
for dir in one one/d one/d/sub; do
    setfacl -d -m u:50005:rwx,g:50006:rwx,o:rwx $dir
done
setfacl -m u:50005:rwx one/d one/d/f
cp -a two plain
cp -a one/. ref-plain
cp -a plain/. ref-plain
(cd plain; find . | cpio --quiet -o -H newc) > plain.cpio
setfacl -m u:50007:rw two/d/sub/g
setfacl -d -m u:50007:rx two/d/new
cp -a one/. ref
cp -a two/. ref
tar -cf two.tar --acls --format pax -C two .
tar -cf plain.tar -C plain .
echo 4 > made/d/made/f
tar -cf made.tar -C made d/made/f
cp -a one/. ref-made
cp -a made/d/made ref-made/d
printf '%s\n' '#mtree' './d/made type=dir mode=0755' './d/made/f type=file mode=0644 size=0' \
    './d/more type=dir' > list
cp -a ref-made ref-list
mkdir ref-list/d/more
setfacl -b ref-list/d/more
chmod 755 ref-list/d/more
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
        let (one, later) = (at("one"), at(later));
        let image = image_of(kind, &format!("--rootdir {one} --{option} {later}"))?;
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

/// Existing files are replaced; existing directories get the new files.
fn over(kind: Kind) -> Outcome {
    let (dir, tree) = source()?;
    let back = dir.path().join("back");
    fs::create_dir_all(back.join("a/b"))?;
    fs::write(back.join("large"), "old and short")?;
    fs::write(back.join("a/b/file-3"), vec![b'x'; 10_000])?;
    let image = image_of(kind, &format!("--rootdir {}", back.display()))?;
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
