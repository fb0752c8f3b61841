//! Layers of overlayfs in the sources of an image.

use sapwood::Kind;
use sapwood_tests::mount::{Driver, sapwood};
use sapwood_tests::{Outcome, process, scratch};

use super::{LIMIT, image_of};

/// A tree and layers over it: two that overlayfs makes, with its attributes in either namespace,
/// and one whose whiteouts are files. `NAME.txt` lists the kernel's view of each.
const LAYERS: &str = r#"
umask 022
trap 'umount merged 2> /dev/null || true' EXIT
mkdir lower merged
for dir in opaque kept/deep gone/deep to_file merged_attributes xattrs shut; do
    mkdir -p "lower/$dir"
    echo "$dir" > "lower/$dir/f"
done
for file in one two three to_dir appended linked renamed .wh.name; do
    echo $file > lower/$file
done
echo f > lower/kept/f
ln lower/linked lower/kept/linked
ln -s kept lower/link
ln -s kept lower/link_to_dir
mkfifo lower/pipe
mknod lower/zero c 1 5
setfattr -n user.old -v x lower/xattrs lower/merged_attributes
setfacl -d -m u:50005:rwx lower/kept
setfacl -m u:50006:rwx lower/merged_attributes lower/kept/f
find lower -exec touch -h -d '2001-02-03 04:05:06.125' {} +
chmod 4755 lower/two
chown 7:8 lower/kept
change() {
    cd merged
    rm one three kept/deep/f zero
    rm -r gone opaque to_file
    mkdir opaque
    echo new > opaque/new
    echo now > to_file
    rm to_dir link_to_dir
    mkdir -p to_dir/in link_to_dir
    echo x > to_dir/in/f
    echo more > link_to_dir/more
    echo more >> appended
    mv renamed new_name
    setfattr -x user.old xattrs
    setfattr -n user.new -v y xattrs
    setfacl -b merged_attributes
    chmod 2711 merged_attributes
    chown 9:10 kept/f
    mkdir kept/new
    echo y > kept/new/f
    ln -s f kept/new/l
    mkfifo kept/new/p
    mknod kept/new/d b 7 1
    echo z > kept/new/h
    ln kept/new/h kept/new/h2
    echo > .wh.other
    chmod 500 shut
    chmod 4711 two
    cd ..
}
listing() {
    (cd "$1"
    find . ! -path './lost+found*' -printf '%p %y %m %U %G %T@ %l\n' | sort
    find . -type f -printf '%p %s\n' | sort
    find . -type f -print0 | sort -z | xargs -0 sha256sum
    find . \( -type b -o -type c \) -exec stat -c '%n %t:%T' {} + | sort
    find . ! -path './lost+found*' -print0 | sort -z | xargs -0 getfattr -hd -m -)
}
for form in trusted user; do
    mkdir $form work-$form
    case $form in user) more=,userxattr;; *) more=;; esac
    dirs=lowerdir=lower,upperdir=$form,workdir=work-$form$more
    # Not every kernel knows the options that turn these features off.
    mount -t overlay overlay -o $dirs,redirect_dir=off,metacopy=off merged 2> /dev/null ||
        mount -t overlay overlay -o $dirs merged
    change
    listing merged > $form.txt
    umount merged
    [ "$(find $form -type c | wc -l)" = 6 ]
    getfattr -d -m - $form/opaque 2> /dev/null | grep -c "^$form.overlay.opaque=\"y\""
    tar --xattrs --xattrs-include='*' --format=pax -cf $form.tar -C $form .
    zstd -q $form.tar
done
tar -tvf trusted.tar | grep -c '^h.* link to ' # Whiteouts share an inode.
mkdir -p files/kept
touch files/one files/kept/f files/kept/g
setfattr -n trusted.overlay.whiteout -v y files/one files/kept/f
setfattr -n trusted.overlay.opaque -v x files files/kept
mount -t overlay overlay -o ro,lowerdir=files:lower merged
listing merged > files.txt
umount merged
[ "$(grep -c '/one ' files.txt)" = 0 ]
"#;

/// An image of a tree and a layer equals the overlay of both.
pub(super) fn layers(kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let script = format!("{LAYERS}\ndeclare -f listing > functions");
    process::shell(dir.path(), &script, LIMIT)?;
    for layer in ["trusted", "user", "files", "trusted.tar", "user.tar.zst"] {
        let at = |name: &str| dir.path().join(name).display().to_string();
        let (lower, upper) = (at("lower"), at(layer));
        let image = image_of(kind, &format!("--rootdir {lower} --overlay {upper}"))?;
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

/// Layers that refer to lower ones or make no sense. `refused MESSAGE LAYER`: `$program` refuses
/// the layer with the message, and leaves no image.
const REFUSED: &str = r#"
umask 022
trap 'umount merged 2> /dev/null || true' EXIT
mkdir -p lower/d lower/e merged
echo x > lower/f
echo y > lower/d/g
refused() {
    local code=0
    "$program" mkfs -q -t ext4 --rootdir lower --overlay $2 a.img 2> err.txt || code=$?
    [ $code = 1 ] && grep -q "$1" err.txt && [ ! -e a.img ] ||
        { echo "$code: $1 $2"; cat err.txt; exit 1; }
}
for what in redirect metacopy; do
    mkdir $what work-$what
done
over=lowerdir=lower,upperdir
mount -t overlay overlay -o $over=redirect,workdir=work-redirect,redirect_dir=on merged
mv merged/d merged/e/moved
umount merged
mount -t overlay overlay -o $over=metacopy,workdir=work-metacopy,metacopy=on merged
chmod 600 merged/f
umount merged
for what in redirect metacopy; do
    refused "overlay.$what: " $what
    tar --xattrs --xattrs-include='*' -cf $what.tar -C $what .
    refused "overlay.$what: " $what.tar
done
grep -q 'metacopy.tar: \./f: ' err.txt
for bad in opaque=z:d opaque=y:f whiteout=y:f overlay.opaque=y:d; do
    mkdir -p bad/d
    echo text > bad/f
    setfattr -n user.overlay.${bad%%=*} -v $(sed 's/.*=\(.*\):.*/\1/' <<< $bad) bad/${bad##*:}
    refused "${bad##*:}: overlay.${bad%%[.=]*}" bad
    rm -r bad
done
refused 'none: ' none
ln -s d lower/l
mkdir through
echo x > f
tar -cf through.tar --transform 's,f,l/f,' f
refused 'symbolic link' through.tar
"#;

/// Layers that refer to lower ones, or make no sense, are refused by name, and leave no image.
pub(super) fn refused() -> Outcome {
    let dir = scratch::directory();
    let program = sapwood().display();
    let script = format!("program='{program}'\n{REFUSED}");
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}
