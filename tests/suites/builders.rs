//! The program in image builders: the calls of `mke2fs` and `mkfs.btrfs` that they make, one
//! builder unmodified, and exports of the built images. Each test is a script.

mod contents;
mod debian_kernel;
mod deltas;
mod disks;
mod exports;
mod reproducible;
mod verity;

use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_testing::machine::E2FSPROGS;
use sapwood_testing::oracle::Kind;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

use exports::{EXPORT_PRELUDE, EXPORTS, SNAPSHOT};

const LIMIT: Duration = Duration::from_secs(300);

/// Prelude of the scripts. The names of the tools lead to the program. `tree DIR`: a mixed tree;
/// `listing DIR`: everything in a directory; `kernel IMAGE`: the kernel finds the files listed in
/// `expected`; `sound IMAGE`: the tools report no error; `not COMMAND`: it fails (`!` ends no
/// script).
const PRELUDE: &str = r#"
umask 022; export LC_ALL=C
U=11111111-2222-3333-4444-555555555555
mkdir bin m; trap 'mountpoint -q m && umount m || true' EXIT
for name in mke2fs mkfs.ext2 mkfs.ext3 mkfs.ext4 mkfs.btrfs; do ln -s "$SAPWOOD" bin/$name; done
PATH=$PWD/bin:$PATH
tree() {
    mkdir -p "$1/d/e" "$1/sub/deep"; chmod 755 "$1"
    echo text > "$1/d/text"; : > "$1/d/empty"; head -c 3000000 /dev/urandom > "$1/d/e/large"
    truncate -s 5M "$1/sparse"; printf x | dd of="$1/sparse" bs=1 seek=3000000 conv=notrunc status=none
    ln "$1/d/text" "$1/d/e/hard"; ln -s text "$1/d/link"
    ln -s "$(printf 'long/%.0s' {1..30})end" "$1/d/longlink"
    touch "$1/$(printf 'n%.0s' {1..200})" "$1/d/ a"$'\n'"b" "$1/d/ü"
    mkfifo "$1/fifo"; mknod "$1/char" c 5 300; mknod "$1/block" b 259 1048575
    chown 1234:70000 "$1/d/text"; chmod 4751 "$1/d/text"; chmod 2775 "$1/sub"
    setfattr -n user.note -v value "$1/d/text"; setfattr -n user.dir -v "$(head -c 300 /dev/zero | tr '\0' x)" "$1/sub"
    echo in > "$1/sub/deep/file"
    find "$1" -depth -exec touch -h -d '2001-02-03 04:05:06.789' {} +
}
listing() {
    (cd "$1"
    find . -mindepth 1 ! -path ./lost+found \( -type d -printf '%P d %m %U %G %T@\n' \
        -o -printf '%P %y %m %U %G %s %n %l %T@\n' \) | sort
    find . -type f -print0 | sort -z | xargs -0 sha256sum
    find . \( -type b -o -type c \) -exec stat -c '%n %t:%T' {} + | sort
    find . ! -path ./lost+found -print0 | sort -z | xargs -0 getfattr -hd -m -)
}
same() { diff "$1" "$2" > diff.txt || { head -20 diff.txt; exit 1; }; }
kernel() {
    mount -o ro,loop "$1" m; listing m > found; umount m; same expected found
}
sound() {
    case $(blkid -p -s TYPE -o value "$1") in
        btrfs) btrfs check --readonly --check-data-csum "$1" > check.txt 2>&1 && ! grep -q ERROR check.txt;;
        *) e2fsck -fn "$1" > check.txt 2>&1;;
    esac || { cat check.txt; exit 1; }
}
not() { ! "$@" || { echo "succeeded: $*"; exit 1; }; }
refused() {
    local hint=$1 code=0; shift
    "$@" > out.txt 2> err.txt || code=$?
    [ $code = 1 ] || { echo "exit code $code: $*"; exit 1; }
    grep -q -- "$hint" err.txt || { echo "$* says:"; cat err.txt; exit 1; }
}
"#;

/// Calls of builders that fill an image, with the size of the existing file (0: none) and the
/// output of `blkid` (type, label). `IMAGE`, `ROOT` and `UUID` are placeholders.
const FILLING: &[(&str, &str, &str, &str)] = &[
    (
        "systemd_repart_252_ext4",
        "96M",
        "mkfs.ext4 -q -L L -U UUID -I 256 -O has_journal -m 0 -E nodiscard,lazy_itable_init=1 \
         IMAGE -d ROOT",
        "ext4 L",
    ),
    (
        "systemd_repart_256_ext4_with_options_of_mkosi",
        "96M",
        "mkfs.ext4 -L L -U UUID -I 256 -m 0 -E nodiscard,lazy_itable_init=1 -b 4096 -T default \
         IMAGE -d ROOT -q -E hash_seed=UUID -O verity",
        "ext4 L",
    ),
    (
        "systemd_repart_btrfs",
        "512M",
        "mkfs.btrfs -L L -U UUID IMAGE --nodiscard -r ROOT -q",
        "btrfs L",
    ),
    (
        "systemd_repart_btrfs_with_subvolumes_and_compression",
        "512M",
        "mkfs.btrfs -L L -U UUID IMAGE --nodiscard -r ROOT -q --subvol rw:d --subvol ro:sub/deep \
         --compress zstd:3",
        "btrfs L",
    ),
    (
        "buildroot_ext2",
        "0",
        "mkfs.ext2 -d ROOT -r 1 -N 0 -m 5 -L rootfs -I 256 -O ^64bit IMAGE 60M",
        "ext2 rootfs",
    ),
    (
        "buildroot_ext3",
        "0",
        "mkfs.ext3 -d ROOT -r 1 -N 2000 -m 5 -L rootfs -I 256 IMAGE 61440",
        "ext3 rootfs",
    ),
    (
        "buildroot_ext4",
        "0",
        "mkfs.ext4 -d ROOT -r 1 -N 0 -m 5 -L rootfs -I 256 -O ^64bit IMAGE 60M",
        "ext4 rootfs",
    ),
    (
        "buildroot_btrfs",
        "0",
        "mkfs.btrfs -f -r ROOT -L rootfs --byte-count 200m --nodesize 16384 --sectorsize 4096 \
         --features no-holes IMAGE",
        "btrfs rootfs",
    ),
    (
        "genimage_ext4",
        "0",
        "mke2fs -t ext4 -T default -I 256 -E root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0 \
         -O ^large_file -O ^huge_file -d ROOT -L lab -O ^metadata_csum IMAGE 65536k",
        "ext4 lab",
    ),
    (
        "genimage_btrfs",
        "300M",
        "mkfs.btrfs -L lab -r ROOT IMAGE",
        "btrfs lab",
    ),
    (
        "yocto_ext4",
        "80M",
        "mkfs.ext4 -F -i 4096 IMAGE -d ROOT",
        "ext4 ",
    ),
    (
        "yocto_wic_ext4_at_an_offset",
        "0",
        "mkfs.ext4 -F -L root -J size=8 -G 4 -e remount-ro -v -D -K -E offset=0 -d ROOT IMAGE 80M",
        "ext4 root",
    ),
    (
        "yocto_btrfs",
        "0",
        "mkfs.btrfs -b 262144k -r ROOT IMAGE",
        "btrfs ",
    ),
    (
        "a_size_is_found_for_btrfs",
        "0",
        "mkfs.btrfs -q --rootd ROOT -m single -n 4k --csum xxhash IMAGE",
        "btrfs ",
    ),
];

/// The same of calls that make an empty one.
const EMPTY: &[(&str, &str, &str, &str)] = &[
    ("debos_ext4", "100M", "mkfs.ext4 -L name IMAGE", "ext4 name"),
    (
        "debos_btrfs",
        "200M",
        "mkfs.btrfs -L name -f IMAGE",
        "btrfs name",
    ),
    (
        "kiwi_ext4",
        "300M",
        "mkfs.ext4 -O ^has_journal -L ROOT -U UUID IMAGE 102400k",
        "ext4 ROOT",
    ),
    (
        "kiwi_btrfs",
        "300M",
        "mkfs.btrfs -L ROOT -U UUID --byte-count 268435456 IMAGE",
        "btrfs ROOT",
    ),
];

/// The other tests, as scripts.
const SCRIPTS: &[(&str, &str)] = &[
    (
        "a_size_that_cannot_change_is_given_before_anything_is_written",
        r#"mkdir r; echo x > r/f; mk() { "$SAPWOOD" mkfs -q -t ext4 -b 4096 "$@"; }
        mk -O journal_dev --size 8M j; cp j before; truncate -s 64M i; cp i zeros
        refused "its journal on another device cannot change its size" mk -J device=j -r r new; cmp j before
        refused "a journal device has no files" mk -O journal_dev --size 8M -r r new
        refused "a journal device has no files" mk -O journal_dev -r r i
        refused "a journal device has no files" mkfs.ext4 -O journal_dev -d r i
        [ ! -e new ]; cmp i zeros; [ -z "$(ls -A | grep sapwood-)" ]
        mk -O quota,project -r r new; sound new; mk -f -O quota --size 64M -r r new; sound new
        for tool in 'mk -J device=j -r r' 'mkfs.ext4 -q -b 4096 -J device=j -d r'; do
            $tool i; e2fsck -fn -j j i > check.txt 2>&1
            [ "$("$SAPWOOD" cat --journal-device j i:f)" = x ]; cp before j; cp zeros i
        done"#,
    ),
    (
        "what_cannot_be_served_is_refused_by_name_with_1",
        r#"truncate -s 200M i; cp i before
        refused "-c: a search for bad blocks is not supported" mkfs.ext4 -c i
        refused "-n: a run that makes nothing is not supported" mke2fs -n i
        refused "feature bigalloc is not supported" mkfs.ext4 -O bigalloc i
        refused "unknown feature turbo" mkfs.ext4 -O turbo i
        refused "/dev/null: n[a-z]* a regular file" mkfs.ext4 -J device=/dev/null i
        refused "extended option quotatype" mkfs.ext4 -E quotatype=usr i
        refused "-r 0 is not supported" mkfs.ext2 -r 0 i
        refused "-t xfs is not supported" mke2fs -t xfs i
        refused "unexpected argument '-Z'" mkfs.ext4 -Z i
        refused "does not exist, and no size was given" mkfs.ext4 none
        refused "is no size" mkfs.ext4 i 12q
        refused "-d raid5 is not supported" mkfs.btrfs -d raid5 i
        refused "data profile raid1 needs 2 devices, 1 given" mkfs.btrfs -f -d raid1 i
        refused "in use" mkfs.btrfs -f i i
        refused "--sectorsize 65536 is not supported" mkfs.btrfs -s 65536 i
        refused "unknown feature raid56" mkfs.btrfs -O raid56 i
        refused "--reflink is not supported" mkfs.btrfs --reflink i
        refused "--subvol needs --rootdir" mkfs.btrfs --subvol x i
        refused "--inode-flags needs --rootdir" mkfs.btrfs --inode-flags nodatacow:x i
        mkdir r; refused "no path below the root" mkfs.btrfs -r r --subvol ../r i
        refused "r/x: .*has to be a directory" mkfs.btrfs -r r --subvol x i
        refused "several .* default" mkfs.btrfs -r r --subvol default:x --subvol default:y i
        refused "is no inode flag" mkfs.btrfs -r r --inode-flags nodatagone:x i
        refused "required" mkfs.btrfs; refused "required" mkfs.ext4
        cmp i before; [ ! -e none ]"#,
    ),
    (
        "nothing_is_overwritten_by_mkfs_btrfs_without_force",
        r#"truncate -s 200M i; mkfs.ext4 -q i; cp i before
        refused "contains" mkfs.btrfs i; cmp i before
        mkfs.btrfs -q -f i; sound i
        mkfs.ext4 -q i; sound i; [ "$(blkid -p -s TYPE -o value i)" = ext4 ]"#,
    ),
    (
        "a_failed_fill_leaves_no_new_file",
        r#"mkdir r; head -c 30000000 /dev/urandom > r/f
        refused "space" mkfs.ext4 -q -d r new 16M; [ ! -e new ]
        refused "o such file" mkfs.ext4 -q -d nowhere new 16M; [ ! -e new ]
        refused "o such file" mkfs.btrfs -q -r nowhere new; [ ! -e new ]"#,
    ),
    (
        "a_file_system_at_an_offset_leaves_the_rest_alone",
        r#"head -c 1048576 /dev/urandom > i; cp i before; tree r; listing r > expected
        mkfs.ext4 -q -E offset=1048576 -d r i 50M
        cmp -n 1048576 i before; [ $(stat -c %s i) = 53477376 ]
        tail -c +1048577 i > part; sound part; kernel part"#,
    ),
    (
        "the_root_directory_is_that_of_mke2fs",
        r#"mkdir -m 700 r; chown 7:8 r; setfattr -n user.x -v y r
        mkfs.ext4 -q -d r i 20M; mount -o ro,loop i m
        [ "$(stat -c '%a %u %g' m)" = "755 0 0" ]; getfattr -d m | grep user.x; umount m
        mkfs.ext4 -q -E root_owner=5:6,root_perms=711 -d r i 20M; mount -o ro,loop i m
        [ "$(stat -c '%a %u %g' m)" = "711 5 6" ]; umount m
        mkfs.btrfs -q -r r b; mount -o ro,loop b m
        [ "$(stat -c '%a %u %g' m)" = "700 7 8" ]"#,
    ),
    (
        "subvolumes_are_as_they_are_asked_for",
        r#"tree r; ln r/d/text r/sub/other; mkfs.btrfs -q -r r --subvol default:sub --subvol ro:sub/deep i; sound i
        "$SAPWOOD" subvolume list i > list
        grep -q 'sub (default)' list; grep -q 'sub/deep (read-only)' list; [ $(wc -l < list) = 2 ]
        mount -o loop i m; [ -e m/deep/file ]; [ $(stat -c %n m/other) = m/other ]
        cmp m/other r/d/text; not touch m/deep/new 2> /dev/null; touch m/new"#,
    ),
    (
        "files_are_stored_as_they_are_asked_for",
        r#"tree r; mkdir -p r/logs r/db/sub; : > r/db/none; for n in 1 2 3; do seq -f "line $n %g" 30000 > r/d/t$n; done
        cp r/d/t1 r/sub/copy; cp r/d/t1 r/db/copy; ln r/d/t2 r/d/e/t2; cp r/d/t3 r/logs/x.log
        ln r/d/text r/sub/other; find r -exec touch -h -d '2001-02-03 04:05:06.789' {} +
        set -- -q -r r --subvol ro:sub --compress zstd --compress no='*.log' --compress zlib:9=/d/e/large \
            --inode-flags nodatacow:db --inode-flags immutable,noatime:d/t3 --dedupe
        "$SAPWOOD" mkfs "$@" i; sound i
        mount -o ro,loop i m
        map() { filefrag -v m/$1 | awk '$1 == "0:" {print $4, $NF}'; }
        is() { map $1 > map.txt; grep -q $2 map.txt; }; isnt() { map $1 > map.txt; not grep -q $2 map.txt; }
        is d/t2 encoded; is d/t3 encoded; isnt d/e/large encoded; isnt logs/x.log encoded; isnt db/copy encoded
        is d/t1 shared; [ "$(map d/t1)" = "$(map sub/copy)" ]; isnt db/copy shared
        lsattr -d m/db m/db/copy m/db/sub m/db/none m/d/t3 m/d/t1 | tee flags.txt
        grep -qx -- '-*C-* *m/db' flags.txt; grep -qx -- '-*C-* *m/db/copy' flags.txt
        grep -qx -- '-*C-* *m/db/sub' flags.txt; grep -qx -- '-*C-* *m/db/none' flags.txt
        grep -qx -- '-*i-*A-* *m/d/t3' flags.txt; grep -qx -- '-* *m/d/t1' flags.txt
        (cd r; find . -type f -exec cmp {} ../m/{} \;); (cd r; find . -exec stat -c '%n %Y %a %U' {} +) | sort > a
        (cd m; find . -exec stat -c '%n %Y %a %U' {} +) | sort > b; same a b; umount m
        "$SAPWOOD" subvolume list i | grep -q 'sub (read-only)'
        SOURCE_DATE_EPOCH=1000000000 "$SAPWOOD" mkfs "$@" --reproducible one
        SOURCE_DATE_EPOCH=1000000000 taskset -c 0 "$SAPWOOD" mkfs "$@" --reproducible two; cmp one two"#,
    ),
    (
        "files_have_no_checksums_where_they_are_to_have_none",
        r#"mkdir -p r/db/e r/other; seq 30000 > r/db/a; cp r/db/a r/other/a; cp r/db/a r/other/b; cp r/db/a r/one; : > r/db/e/empty
        truncate -s 2M r/db/sparse; echo x >> r/db/sparse; find r -exec touch -h -d '2001-02-03 04:05:06.789' {} +; listing r > expected
        "$SAPWOOD" mkfs -q -r r --compress zstd --dedupe --inode-flags nodatasum:db --inode-flags nodatasum,noatime:one i; sound i; kernel i
        flags() { btrfs inspect-internal dump-tree -t 5 i | awk -v ino="($(stat -c %i m/$1) INODE_ITEM 0) itemoff" 'index($0, ino) { on = 1 } on && /flags 0x/ { print; on = 0 }'; }
        encoded() { filefrag -v m/$1 | awk '/encoded/ { n++ } END { print n + 0 }'; }
        mount -o ro,loop i m
        for f in db/a db/sparse db/e/empty one; do flags $f | grep -c NODATASUM; [ $(encoded $f) = 0 ]; done
        for f in other/a other/b; do flags $f > flags.txt; not grep NODATASUM flags.txt; [ $(encoded $f) != 0 ]; done; lsattr m/one | grep -c A; umount m
        # A wrong byte goes unseen there, and only there.
        "$SAPWOOD" mkfs -q -r r --inode-flags nodatasum:db j
        python3 -c 'data = open("j", "rb").read(); open("j", "wb").write(data.replace(b"\n29990\n", b"\n29099\n"))'
        "$SAPWOOD" cat j:db/a > found; [ $(cmp -l found r/db/a | wc -l) = 2 ]; not "$SAPWOOD" cat j:other/a > out.txt 2> err.txt; grep -c checksum err.txt
        "$SAPWOOD" mkfs -q -r r --compress zstd --inode-flags nodatasum:db --reproducible one.img; "$SAPWOOD" mkfs -q -r r --compress zstd --inode-flags nodatasum:db --reproducible two.img; cmp one.img two.img"#,
    ),
    (
        "files_with_the_same_content_take_its_space_once",
        r#"mkdir r; head -c 20000000 /dev/urandom > r/0; for n in 1 2 3 4; do cp r/0 r/$n; done
        "$SAPWOOD" mkfs -q -r r --dedupe any; sound any
        # The size of other images depends on the order in which threads copy files.
        mk() { "$SAPWOOD" mkfs -q --reproducible -r r "$@"; }; mk plain; mk --dedupe shared; sound shared
        [ $(stat -c %s shared) -lt $(($(stat -c %s plain) / 2)) ]
        "$SAPWOOD" mkfs -q -r r --dedupe --size 200M fixed; sound fixed
        for n in 0 1 2 3 4; do "$SAPWOOD" cat fixed:$n | cmp - r/0; done"#,
    ),
    (
        "an_empty_image_gets_its_subvolumes",
        r#""$SAPWOOD" mkfs -q --size 200M --subvol default:@ --subvol @/var/log --subvol ro:snap i; sound i
        "$SAPWOOD" subvolume list i > list; grep -q '@ (default)' list; grep -q '@/var/log' list
        grep -q 'snap (read-only)' list; mount -o ro,loop,subvolid=5 i m; [ $(stat -c %a m/@/var) = 755 ]"#,
    ),
    (
        "storage_that_makes_no_sense_is_refused",
        r#"mkdir r; echo > r/file
        asks() { local hint=$1 code=0; shift; "$SAPWOOD" mkfs -q "$@" i > out.txt 2> err.txt || code=$?
            [ $code != 0 ] || { echo "accepted: $*"; exit 1; }
            grep -q -- "$hint" err.txt || { echo "$* says:"; cat err.txt; exit 1; }; [ ! -e i ]; }
        asks 'is no compression' -r r --compress zstd:99; asks 'is no compression' -r r --compress gzip='*'
        asks 'compress' -r r --compress 'zstd=['; asks 'is no inode flag' -r r --inode-flags fast:file
        asks 'not FLAGS:PATH' -r r --inode-flags nodatacow; asks 'missing' -r r --inode-flags nodatacow:missing
        asks 'no kind of subvolume' -r r --subvol rx:file; asks 'no path below' -r r --subvol a/../..
        asks 'several .* default' -r r --subvol default:a --subvol default:b
        not "$SAPWOOD" mkfs -q -r r --subvol file i 2> err; grep -q 'i:/file: is a directory' err; rm i
        for option in '--subvol x' '--compress zstd' '--dedupe' '--inode-flags nodatacow:file' '--inode-flags nodatasum:file'; do
            asks 'only btrfs' -t ext4 -r r $option
        done
        "$SAPWOOD" mkfs -q -t ext4 -r r --inode-flags immutable:file i; sound i"#,
    ),
    (
        "numbers_and_behaviours_are_those_asked_for",
        r#"mkfs.ext4 -q -b 2048 -I 512 -N 4096 -m 1 -g 8192 -G 8 -e panic -U clear -L 12345678901234567 i 100M
        dumpe2fs -h i > h 2>/dev/null
        grep -q 'Block size: *2048' h; grep -q 'Inode size:[[:space:]]*512' h; grep -q 'Inode count: *4088' h
        grep -q 'Flex block group size: *8' h; grep -q 'Errors behavior: *Panic' h
        grep -q 'Blocks per group: *8192' h; grep -q 'volume name: *1234567890123456$' h
        grep -q 'UUID: *<none>' h; grep -q 'Reserved block count: *512' h; sound i
        mkfs.ext4 -q -T largefile i 2g; [ "$(dumpe2fs -h i 2>/dev/null | sed -n 's/^Inode count: *//p')" = 2048 ]
        mkfs.ext4 -q -b 1024 i 65536; dumpe2fs -h i 2>/dev/null | grep -c 'Block count: *65536'
        mke2fs -q j 10M; [ "$(blkid -p -s TYPE -o value j)" = ext2 ]
        mke2fs -q -j j 10M; [ "$(blkid -p -s TYPE -o value j)" = ext3 ]
        mke2fs -V; mkfs.btrfs --version; mkfs.btrfs -O list-all | grep -c no-holes; mkfs.ext4 --help | grep -c -- -E"#,
    ),
];

/// Owners that `fakeroot` pretends to an ordinary user.
const FAKEROOT: &str = r#"mkdir -m 777 u; chmod 755 .; cd u
    setpriv --reuid 1234 --regid 1234 --clear-groups env PATH="$PATH" fakeroot sh -c '
        mkdir r; echo x > r/f; chown 33:44 r/f; mknod r/null c 1 3; mkfs.ext4 -q -d r i 20M; mkfs.btrfs -q -r r b'
    cd ..; sound u/i; sound u/b
    for image in u/i u/b; do
        mount -o ro,loop $image m; [ "$(stat -c '%u %g' m/f)" = "33 44" ]
        [ "$(stat -c '%u %F %t:%T' m/null)" = "0 character special file 1:3" ]; umount m
    done"#;

/// `genimage`, with Sapwood in the search path in place of `mke2fs` and `mkfs.btrfs`. It calls the
/// `debugfs` and `e2fsck` of e2fsprogs on the results.
const GENIMAGE: &str = r#"tree r; listing r > expected; mkdir input; truncate -s 200M input/data.btrfs
    cat > config <<END
    image root.ext4 {
        ext4 { use-mke2fs = true
            label = "lab"
            features = "^metadata_csum"
            extraargs = "-U $U"
            fs-timestamp = "20200101000000"
            usage-type = "default" }
        mountpoint = "/"
        size = 64M
    }
    image old.ext3 {
        ext3 { use-mke2fs = true }
        mountpoint = "/"
        size = 64M
    }
    image data.btrfs {
        file { }
        exec-pre = "mkfs.btrfs -q -f -L data -r $PWD/r $PWD/input/data.btrfs"
    }
    image disk.img {
        hdimage { partition-table-type = "gpt"
            align = 1M }
        partition root { image = "root.ext4"
            partition-type-uuid = "L" }
        partition data { image = "data.btrfs"
            partition-type-uuid = "L" }
    }
END
    genimage --config config --rootpath r --tmppath tmp --inputpath input --outputpath out --loglevel 2 > log 2>&1 || { tail -20 log; exit 1; }
    for image in out/root.ext4 out/old.ext3 out/data.btrfs; do sound $image; kernel $image; done
    dumpe2fs -h out/root.ext4 2> /dev/null > h
    grep -q 'volume name: *lab' h; grep -q "UUID: *$U" h; not grep -q metadata_csum h
    grep -q 'Filesystem created: *Wed Jan  1 00:00:00 2020' h
    "$SAPWOOD" check out/disk.img#1; "$SAPWOOD" check out/disk.img#data
    "$SAPWOOD" cat out/disk.img#root:sub/deep/file | grep -c in
    "$SAPWOOD" cat out/disk.img#data:sub/deep/file | grep -c in"#;

fn run(script: &str) -> Outcome {
    let dir = scratch::directory();
    let program = sapwood().display();
    std::fs::write(dir.path().join("prelude"), PRELUDE)?;
    let script = format!("SAPWOOD='{program}'; . ./prelude\n{script}");
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}

/// A call of a builder; `filled`: the result has the tree.
fn call(call: &(&str, &str, &str, &str), filled: bool) -> Outcome {
    let (_, before, command, wanted) = call;
    let command = command.replace("IMAGE", "i").replace("UUID", "$U");
    let command = if filled {
        command.replace("ROOT", "r")
    } else {
        command
    };
    let file = match *before {
        "0" => String::new(),
        size => format!("truncate -s {size} i"),
    };
    let tree = if filled {
        "kernel i"
    } else {
        "mount -o loop i m; touch m/new; umount m; sound i"
    };
    run(&format!(
        "tree r; listing r > expected\n{file}\n{command}\nsound i\n\
         found=\"$(blkid -p -s TYPE -o value i) $(blkid -p -s LABEL -o value i)\"\n\
         [ \"$found\" = '{wanted}' ] || {{ echo \"$found\"; exit 1; }}\n\
         case '{command}' in *-U*) [ $(blkid -p -s UUID -o value i) = $U ];; esac\n{tree}"
    ))
}

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [
        machine::KERNEL,
        Need::Kernel(Kind::Btrfs),
        Need::Program("blkid"),
        Need::Program("setfattr"),
        Need::Program("getfattr"),
    ];
    let with = |program| [&needs[..], &[Need::Program(program)]].concat();
    let filling = FILLING.iter().map(|one| (one, true));
    let calls = filling.chain(EMPTY.iter().map(|one| (one, false)));
    let calls = calls.map(|(one, filled)| {
        let name = format!("call_of_{}", one.0);
        trial(name, &needs, move || call(one, filled))
    });
    let scripts = SCRIPTS
        .iter()
        .map(|(name, script)| trial(*name, &needs, move || run(script)));
    let mut trials: Vec<Trial> = calls.chain(scripts).collect();
    trials.push(trial(
        "owners_of_fakeroot_are_kept",
        &[&with("fakeroot")[..], &[Need::Linux("owners of fakeroot")]].concat(),
        || run(FAKEROOT),
    ));
    trials.extend(deltas(&needs));
    for (name, script) in verity::SCRIPTS {
        let script = format!("{}{script}", verity::PRELUDE);
        trials.push(trial(*name, &with("fsverity"), move || run(&script)));
    }
    for (name, script) in debian_kernel::SCRIPTS {
        let script = format!("{}{script}", verity::PRELUDE);
        let needs = [&with("fsverity")[..], &[machine::DEBIAN_VM]].concat();
        trials.push(trial(*name, &needs, move || run(&script)));
    }
    let tools = ["sfdisk", "sgdisk", "cpio"].map(Need::Program);
    let for_disks = [&needs[..], &tools].concat();
    for (name, script) in disks::SCRIPTS {
        trials.push(trial(*name, &for_disks, move || run(script)));
    }
    for (name, programs, script) in contents::SCRIPTS {
        let programs: Vec<Need> = programs.iter().map(|name| Need::Program(name)).collect();
        let script = format!("{}\n{script}", contents::PRELUDE);
        let needs = [&needs[..], &programs].concat();
        trials.push(trial(*name, &needs, move || run(&script)));
    }
    let needs = [
        &with("setfacl")[..],
        &[Need::Program("bsdtar"), Need::Program("python3")],
    ]
    .concat();
    for (name, script) in EXPORTS {
        for kind in ["btrfs", "ext4"] {
            let script = format!("KIND={kind}\n{EXPORT_PRELUDE}\n{script}");
            let name = format!("{name}_{kind}");
            trials.push(trial(name, &needs, move || run(&script)));
        }
    }
    trials.extend(reproducible(&needs));
    trials.push(trial("changes_since_a_snapshot", &needs, || {
        run(&format!("{EXPORT_PRELUDE}\n{SNAPSHOT}"))
    }));
    trials.push(trial(
        "genimage_builds_a_disk_unmodified",
        &with("genimage"),
        || run(GENIMAGE),
    ));
    trials
}

/// The tests of images like an older one.
fn deltas(needs: &[Need]) -> Vec<Trial> {
    let mut trials = Vec::new();
    let needs = [needs, &["setpriv", "setfacl"].map(Need::Program)].concat();
    let prelude = reproducible::PRELUDE;
    for (kind, limit) in [("btrfs", "720"), ("ext4", "900")] {
        let script = deltas::LIKE.replace("LIMIT", limit);
        let script = format!("KIND={kind}; {prelude}\n{script}");
        let name = format!("an_image_keeps_the_blocks_of_an_older_one_{kind}");
        trials.push(trial(name, &needs, move || run(&script)));
    }
    let script = format!("KIND=ext4; {prelude}\n{}", deltas::FOREIGN);
    trials.push(trial(
        "an_image_like_one_of_other_tools_has_only_the_new_tree",
        &[&needs[..], &E2FSPROGS].concat(),
        move || run(&script),
    ));
    trials.push(trial(
        "an_image_like_another_is_refused_with_the_reason",
        &needs,
        || run(deltas::REFUSED),
    ));
    trials
}

/// The tests that compare images byte for byte.
fn reproducible(needs: &[Need]) -> Vec<Trial> {
    let programs = ["setpriv", "taskset", "mkfs.xfs", "shuf", "cpio"];
    let needs = [needs, &programs.map(Need::Program)].concat();
    let mut trials = Vec::new();
    let prelude = reproducible::PRELUDE;
    for kind in ["btrfs", "ext4"] {
        for (name, source, options) in reproducible::SOURCES {
            let directory = u8::from(options.contains("TREE"));
            let options = options.replace("TREE", "$tree");
            let script = reproducible::IMAGES.replace("SOURCE", source);
            let script = script.replace("OPTIONS", &options);
            let script = format!("TZ=UTC; KIND={kind}; DIRECTORY={directory}; {prelude}\n{script}");
            let name = format!("{name}_give_the_same_bytes_{kind}");
            trials.push(trial(name, &needs, move || run(&script)));
        }
        let script = format!("KIND={kind}; {prelude}\n{}", reproducible::EDITS);
        let name = format!("edits_give_the_same_bytes_{kind}");
        trials.push(trial(name, &needs, move || run(&script)));
    }
    for (name, script) in [
        ("disks_give_the_same_bytes", reproducible::DISK),
        (
            "calls_of_the_tools_give_the_same_bytes",
            reproducible::TOOLS,
        ),
    ] {
        let script = format!("export TZ=UTC; {prelude}\n{script}");
        trials.push(trial(name, &needs, move || run(&script)));
    }
    trials
}
