//! Images and edits that depend on their input alone, not on the host's file system, the order of
//! its directories, the user, the number of processors or the time. Each test is a script.

/// Prelude of these scripts, after the builders' prelude. `shuffled FROM TO`: a copy whose names
/// are made in a random order. `host FS`: `h` is a file system of this type. `same A B`: two files
/// are equal.
pub(super) const PRELUDE: &str = r#"
export SOURCE_DATE_EPOCH=1700000000
mkdir h; trap 'for at in m h; do mountpoint -q $at && umount $at; done; true' EXIT
equal() { cmp "$1" "$2" || { echo "$3"; exit 1; }; }
shuffled() {
    mkdir -p "$2"
    (cd "$1"; { find . ! -type d -print0 | shuf -z; find . -depth -type d -print0; } |
        tar -c --no-recursion --null -T - --format=pax --numeric-owner --xattrs --xattrs-include='*') |
        tar -x -p --delay-directory-restore --numeric-owner --xattrs --xattrs-include='*' -C "$2"
}
host() {
    case $1 in
        tmpfs) mount -t tmpfs none h;;
        *)
            truncate -s 400M host.$1
            case $1 in
                xfs) mkfs.xfs -q host.xfs;;
                *) env -u SOURCE_DATE_EPOCH "$SAPWOOD" mkfs -q -t $1 host.$1;;
            esac
            mount -o loop host.$1 h;;
    esac
}
more() {
    chmod a+r "$1/d/text"; chmod 700 "$1/d/e"; chmod 755 "$1/d/e"
    mkdir "$1/many"; for i in $(seq 300); do echo $i > "$1/many/name-$i"; done
    ln "$1/many/name-7" "$1/d/seven"; ln "$1/many/name-7" "$1/many/again"
    setfattr -n user.b -v 1 "$1/many/name-9"; setfattr -n user.a -v 2 "$1/many/name-9"
    setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 "$1/d/e/large"
    # XFS has numbers of devices with 18 bits at most.
    rm "$1/block"; mknod "$1/block" b 259 200000
    truncate -s 1M "$1/zeros"; head -c 70000 /dev/zero > "$1/written"; echo end >> "$1/written"
    find "$1" -depth -exec touch -h -d '2001-02-03 04:05:06.789' {} +
}
user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
"#;

/// Sources by name: the command that makes them of the tree `r`, and the options of mkfs with
/// `TREE` for a directory.
pub(super) const SOURCES: &[(&str, &str, &str)] = &[
    ("directories", "", "-r TREE --clamp-mtime"),
    (
        "tar_archives",
        "tar -c --format=pax --sparse --xattrs -f t.tar -C r .",
        "--tar t.tar",
    ),
    (
        "cpio_archives",
        "(cd r; find . -print0 | sort -z | cpio -0 -o -H newc --quiet) > t.cpio",
        "--cpio t.cpio",
    ),
    (
        "container_images",
        r#"mkdir -p oci/blobs/sha256 wh/d; touch wh/d/.wh.text
        blob() { local sum; sum=$(sha256sum "$1" | cut -d' ' -f1); cp "$1" oci/blobs/sha256/$sum
            printf '{"mediaType":"%s","digest":"sha256:%s","size":%s}' "$2" $sum $(stat -c %s "$1"); }
        tar -c --format=pax -f one.tar -C r .; tar -cf two.tar -C wh .
        layer=application/vnd.oci.image.layer.v1.tar
        printf '{"layers":[%s,%s]}' "$(blob one.tar $layer)" "$(blob two.tar $layer)" > manifest
        printf '{"manifests":[%s]}' "$(blob manifest application/vnd.oci.image.manifest.v1+json)" > oci/index.json"#,
        "--oci oci",
    ),
    (
        "mixed_sources_with_a_manifest",
        r#"mkdir wh; echo x > wh/new; tar -cf t.tar -C wh .; (cd wh; echo new | cpio -o -H newc --quiet) > t.cpio
        printf '#mtree\n./d/text type=file uid=5 gid=6 mode=0640\n./dev type=dir mode=0755\n./dev/null type=char device=native,1,3\n' > list"#,
        "--tar t.tar -r TREE --cpio t.cpio --manifest list --uid-map 1234:9:1",
    ),
];

/// Images of the sources in `OPTIONS`, made in all ways.
pub(super) const IMAGES: &str = r#"
tree r; more r; SOURCE
tree=r
for size in '' '--size 300M'; do
    make() { local tree=$1 image=$2; shift 2; "$@" "$SAPWOOD" mkfs -q -t $KIND --reproducible OPTIONS $size $image; }
    make r one env; sound one; sleep 1.1; make r two taskset -c 0; equal one two 'one processor'
    rm two; mkdir -p out; chmod 777 out .; make r out/user user; equal one out/user 'an ordinary user'
    if [ "$DIRECTORY" = 1 ]; then for fs in tmpfs ext4 btrfs xfs; do
        host $fs; shuffled r h/tree; make h/tree two env; umount h; rm -f host.$fs
        equal one two "$fs"; rm two
    done; fi
    "$SAPWOOD" mkfs -q -t $KIND -U $U OPTIONS $size two; "$SAPWOOD" mkfs -q -t $KIND -U $U OPTIONS $size three
    equal two three 'with a UUID'; rm two three
    if [ -z "$size" ]; then "$SAPWOOD" export one --tar one.out; fi
    rm -f one out/user
done"#;

/// Edits with the commands, of images on all kinds of hosts.
pub(super) const EDITS: &str = r#"
tree r; more r; tar -c --format=pax -f t.tar -C r d many; "$SAPWOOD" mkfs -q -t $KIND -U $U --size 300M -r r base
edit() {
    local i=$1 r=$2
    run() { $pre "$SAPWOOD" "$@"; }
    run mkdir -p $i:/a/b/c; run cp -qa $r/. $i:/copy; run cp -q $r/d/e/large $i:/a/large
    run mv $i:/copy/many $i:/a/moved; run rm -r $i:/copy/sub; run ln $i:/a/large $i:/a/hard; run ln -s large $i:/a/soft
    echo text | run write $i:/a/text; run chmod 600 $i:/a/text; run chown 5:6 $i:/a/text
    run xattr set user.k v $i:/a/text
    run touch $i:/a/new; run truncate -s 100k $i:/a/large; run mkdir $i:/tar; run untar -q t.tar $i:/tar
    run cp -qa $i:/tar/d $i:/again; run rm -r $i:/tar
    [ $KIND != btrfs ] || { run subvolume create $i:/vol; run cp -qa $r/many $i:/vol/; run subvolume snapshot $i:/vol $i:/snap
        run rm -r $i:/snap/many; run subvolume delete $i:/vol; }
    run resize -q $i +40M; run rm -r $i:/copy; run resize -q $i min; run trim -q $i
}
pre=; cp base one; edit one r; sound one; sleep 1.1; cp base two; pre='taskset -c 0'; edit two r; pre=; equal one two 'one processor'
for fs in tmpfs ext4 btrfs xfs; do
    host $fs; shuffled r h/r; cp base h/two; edit h/two h/r; equal one h/two $fs; umount h; rm -f host.$fs
done
cp base two; unset SOURCE_DATE_EPOCH; edit two r; ! cmp -s one two"#;

/// Disks and exports.
pub(super) const DISK: &str = r#"
tree r; more r; tar -c --format=pax -f t.tar -C r .; head -c 3000000 /dev/urandom > esp
make() { "$SAPWOOD" mkdisk -qf "$@" --part esp:file=esp --part root:ext4:tar=t.tar --part data:btrfs:rootdir=$tree --part rest:ext4:rootdir=$tree:size=100M; }
tree=r; make one --reproducible; sleep 1.1; make two --reproducible; equal one two again
for fs in tmpfs xfs; do host $fs; shuffled r h/tree; tree=h/tree; make two --reproducible; umount h; rm -f host.$fs; equal one two $fs; done
tree=r; make two -U $U; make three -U $U; equal two three 'with a UUID'; ! cmp -s one two
"$SAPWOOD" export one#root --tar a; "$SAPWOOD" export two#root --tar b; equal a b export
"$SAPWOOD" export -f one#data --oci-layer a > /dev/null; "$SAPWOOD" export -f two#data --oci-layer b > /dev/null; equal a b layer"#;

/// The tools' own names, as builders call them.
pub(super) const TOOLS: &str = r#"
tree r; more r; host tmpfs; shuffled r h/r
for dir in r h/r; do
    rm -f e b; mkfs.ext4 -q -U $U -E hash_seed=$U -d $dir e 100M; truncate -s 300M b; mkfs.btrfs -q -U $U -r $dir --subvol ro:sub --compress zstd b
    sha256sum e b >> sums; sleep 1.1
done
[ $(sort -u sums | wc -l) = 2 ] || { cat sums; exit 1; }
mkfs.ext4 -q -U $U e2 100M; mkfs.ext4 -q -U $U e3 100M; equal e2 e3 'an empty ext4'
dumpe2fs -h e 2> /dev/null | grep -c '^Filesystem created: *Tue Nov 14 22:13:20 2023'"#;
