//! Disk images of `sapwood mkdisk`. Each test is a script, as in `builders`.

/// The tests of whole disks.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    (
        "a_disk_is_what_the_tools_and_the_kernel_take",
        r#"trap 'mountpoint -q m && umount m || true; [ -z "${loop:-}" ] || losetup -d $loop' EXIT
        tree r
        listing r > expected
        tar -c --xattrs --numeric-owner --format=pax -f root.tar -C r .
        head -c 3000000 /dev/urandom > esp.img
        "$SAPWOOD" mkdisk disk --part esp:file=esp.img \
            --part root:ext4:tar=root.tar:label=rootfs:type=root-x86-64:opt=inode-size=512 \
            --part data:btrfs:rootdir=r:size=300M:uuid=22222222-3333-4444-5555-666666666666 \
            --part swap:size=8M --uuid $U
        sfdisk --verify disk > check.txt 2>&1
        grep -q 'No errors detected' check.txt
        [ $(stat -c %a disk) = 644 ]
        sgdisk -v disk | grep -c 'No problems found'
        sfdisk -d disk > table
        grep -q "label-id: ${U^^}" table
        [ $(grep -c '^disk' table) = 4 ]
        grep -q 'disk1 : start= *2048, .*C12A7328-F81F-11D2-BA4B-00A0C93EC93B.*name="esp"' table
        grep -q 'disk2 : .*4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709.*name="root"' table
        grep -q 'disk3 : .*size= *614400, type=0FC63DAF.*name="data"' table
        grep -q 'disk3 : .*uuid=22222222-3333-4444-5555-666666666666,' table
        grep -q 'disk4 : .*size= *16384, type=0657FD6D.*name="swap"' table
        for start in $(sed -n 's/.*start= *\([0-9]*\),.*/\1/p' table); do
            [ $((start % 2048)) = 0 ]
        done
        cmp -n 3000000 -i 1048576:0 disk esp.img
        "$SAPWOOD" check 'disk#root'
        "$SAPWOOD" check 'disk#3'
        "$SAPWOOD" cat 'disk#2:sub/deep/file' | grep -cx in
        # Not every machine has nodes for the partitions of a loop device.
        for part in 2 3; do
            place="disk$part : start= *\([0-9]*\), size= *\([0-9]*\)"
            read -r start size < <(sed -n "s/^$place,.*/\1 \2/p" table)
            loop=$(losetup --find --show --offset $((start * 512)) --sizelimit $((size * 512)) disk)
            mount -o ro $loop m
            listing m > found
            umount m
            same expected found
            case $part in
                2) blkid -p -s LABEL -o value $loop | grep -cx rootfs
                   e2fsck -fn $loop > check.txt 2>&1;;
                3) btrfs check --readonly $loop > check.txt 2>&1;;
            esac
            losetup -d $loop
            loop=
        done"#,
    ),
    (
        "partitions_have_the_sources_of_mkfs",
        r#"tree one
        mkdir -p two/d two/sub three/d
        echo two > two/d/text
        echo two > two/new
        echo three > three/d/text
        echo three > three/more
        find one two three -depth -exec touch -h -d '2001-02-03 04:05:06.789' {} +
        for tree in one two three; do
            tar -c --xattrs --numeric-owner --format=pax -f $tree.tar -C $tree .
        done
        (cd two; find . | sort | cpio --quiet -o -H newc > ../two.cpio)
        mkdir -p oci/blobs/sha256 up/d
        mknod up/fifo c 0 0
        setfattr -n trusted.overlay.opaque -v y up/d
        echo up > up/d/up
        # Adds FILE to the layout as a blob of TYPE, and prints its descriptor.
        blob() {
            local sum; sum=$(sha256sum < "$1" | cut -d' ' -f1); cp "$1" oci/blobs/sha256/$sum
            printf '{"mediaType":"application/vnd.oci.image.%s",' "$2"
            printf '"digest":"sha256:%s","size":%s}' $sum $(stat -c %s "$1")
        }
        printf '{"layers":[%s]}' "$(blob one.tar layer.v1.tar)" > manifest
        at='"annotations":{"org.opencontainers.image.ref.name":"12"}'
        manifest=$(blob manifest manifest.v1+json | sed "s/}$/,$at}/")
        printf '{"manifests":[%s]}' "$manifest" > oci/index.json
        "$SAPWOOD" mkdisk -q disk --part 'a:ext4:oci=oci\:12:cpio=two.cpio' \
            --part b:btrfs:rootdir=one:overlay=up:tar=three.tar \
            --part c:ext4:tar=three.tar:overlay=up --part d:ext4:overlay=up:tar=three.tar \
            --part e:ext4:cpio=-:rootdir=three < two.cpio
        for part in 'a ext4 --oci oci:12 --cpio two.cpio' \
            'b btrfs --rootdir one --overlay up --tar three.tar' \
            'c ext4 --tar three.tar --overlay up' 'd ext4 --overlay up --tar three.tar' \
            'e ext4 --cpio two.cpio --rootdir three'; do
            set -- $part
            name=$1 kind=$2
            shift 2
            "$SAPWOOD" mkfs -q -t $kind "$@" $name.img
            "$SAPWOOD" export -f disk#$name --tar found.tar
            "$SAPWOOD" export -f $name.img --tar expected.tar
            cmp found.tar expected.tar
            "$SAPWOOD" check -q disk#$name
            sound $name.img
        done
        [ "$("$SAPWOOD" cat disk#a:d/text)" = two ]
        [ "$("$SAPWOOD" cat disk#a:sub/deep/file)" = in ]
        [ "$("$SAPWOOD" ls disk#b:d | tr '\n' ' ')" = 'text up ' ]
        "$SAPWOOD" ls disk#b > names.txt
        not grep fifo names.txt
        [ "$("$SAPWOOD" ls disk#c:d)" = up ]
        [ "$("$SAPWOOD" ls disk#d:d | tr '\n' ' ')" = 'text up ' ]
        [ "$("$SAPWOOD" cat disk#e:d/text)" = three ]
        mkdir out
        "$SAPWOOD" cp -qa disk#b:/ out/b
        listing out/b > found
        cp -a one expected.dir
        rm -r expected.dir/d expected.dir/fifo
        cp -a up/d expected.dir/d
        setfattr -x trusted.overlay.opaque expected.dir/d
        cp -a three/. expected.dir
        listing expected.dir > expected
        same expected found"#,
    ),
    (
        "a_disk_with_a_uuid_is_the_same_each_time",
        r#"head -c 3000000 /dev/urandom > a
        make() {
            "$SAPWOOD" mkdisk -q "$@" --part a:file=a --part swap:size=1M --part b:file=a:size=4M
        }
        make one -U $U
        make two -U $U
        cmp one two
        make three
        not cmp -s one three
        sgdisk -v three | grep -c 'No problems found'
        [ "$(sfdisk -d one | grep -o 'uuid=[^,]*' | sort -u | wc -l)" = 3 ]"#,
    ),
    (
        "the_rest_of_a_disk_is_filled",
        r#"mkdir r
        echo x > r/f
        "$SAPWOOD" mkdisk disk --size 500M --align 4M --part 'first:size=10M' \
            --part root:btrfs:rootdir=r:size=rest --part last:size=10M:type=lvm
        [ $(stat -c %s disk) = 524288000 ]
        sgdisk -v disk | grep -c 'No problems found'
        "$SAPWOOD" check disk#root
        sfdisk -d disk > table
        grep -q 'disk2 : start= *32768, size= *' table
        size=$(sed -n 's/.*disk2 .*size= *\([0-9]*\),.*/\1/p' table)
        [ $size -ge 950000 ]
        [ "$("$SAPWOOD" cat disk#root:f)" = x ]
        cp r/f 'a:b'
        truncate -s 1M 'a:b'
        "$SAPWOOD" mkdisk -q other --part 'x:file=a\:b'
        cmp -n 1048576 -i 1048576:0 other 'a:b'"#,
    ),
    (
        "partitions_take_what_mkfs_takes",
        r#"mkdir -p r/keep r/sub r/log
        printf 'z%.0s' {1..200000} > r/keep/zs
        head -c 50000 /dev/urandom > r/keep/a
        cp r/keep/a r/sub/b
        echo x > r/log/x.log
        chown -R 5:6 r/keep
        printf '#mtree\n./keep mode=0700 uid=9 gid=8 type=dir\n' > list
        # lost+found has the time of this moment otherwise.
        export SOURCE_DATE_EPOCH=1700000000
        b='b:btrfs:rootdir=r:subvol=ro\:sub:compress=zstd\:3:dedupe:exclude=*.log:all-root'
        e='e:ext4:rootdir=r:uid-map=5\:7\:1:gid-map=6\:70\:1:manifest=list'
        "$SAPWOOD" mkdisk -q disk --part "$b:inode-flags=noatime\:keep:free=32M" \
            --part "$e:inode-flags=immutable\:keep/a:free-inodes=5000"
        "$SAPWOOD" mkfs -q -t btrfs b.img -r r --subvol ro:sub --compress zstd:3 --dedupe \
            --exclude '*.log' --all-root --inode-flags noatime:keep --free 32M
        "$SAPWOOD" mkfs -q -t ext4 e.img -r r --uid-map 5:7:1 --gid-map 6:70:1 --manifest list \
            --inode-flags immutable:keep/a --free-inodes 5000
        for part in b e; do
            [ "$("$SAPWOOD" ls -laR disk#$part:/)" = "$("$SAPWOOD" ls -laR $part.img:/)" ]
        done
        mkdir -p m
        trap 'umount -q m || true' EXIT
        part() {
            local start=$(sfdisk -d disk | sed -n "s/.*disk$1 : start= *\([0-9]*\),.*/\1/p")
            mount -o ro,loop,offset=$((start * 512)) disk m
        }
        part 1
        cmp m/keep/zs r/keep/zs
        cmp m/sub/b r/sub/b
        [ ! -e m/log/x.log ]
        [ "$(stat -c %u:%g m/keep/a)" = 0:0 ]
        btrfs subvolume show m/sub | grep -q readonly
        lsattr -d m/keep | grep -q A
        filefrag -v m/keep/zs | grep -q encoded
        umount m
        part 2
        [ "$(stat -c %u:%g:%a m/keep)" = 9:8:700 ]
        [ "$(stat -c %u:%g m/keep/zs)" = 7:70 ]
        lsattr m/keep/a | grep -q i
        [ "$(df --output=iavail m | tail -1)" -ge 5000 ]
        cmp m/keep/a r/keep/a
        umount m"#,
    ),
    (
        "a_partition_of_an_existing_disk_is_replaced",
        r#"tree r
        mkdir two
        echo new > two/version
        head -c 3000000 /dev/urandom > esp.img
        "$SAPWOOD" mkdisk -q old --part esp:file=esp.img --part root:ext4:rootdir=r:size=64M \
            --part data:btrfs:rootdir=r
        # Numbers with gaps, as on the images of distributions, and code before the first partition.
        sgdisk --transpose=1:14 old > sgdisk.txt
        printf boot | dd of=old bs=1 seek=17408 conv=notrunc status=none
        cp old before
        "$SAPWOOD" mkdisk --from old new --part root:ext4:rootdir=two:label=second \
            --json > made.json
        cmp old before
        [ "$(grep -o '"offset"' made.json | wc -l)" = 1 ]
        sgdisk -v new | grep -c 'No problems found'
        sfdisk -d old | sed 's/^old/disk/; /^device:/d' > expected
        sfdisk -d new | sed 's/^new/disk/; /^device:/d' > found
        same expected found
        [ "$("$SAPWOOD" cat 'new#root:version')" = new ]
        "$SAPWOOD" check -q 'new#root'
        # Nothing outside of the partition is different.
        place='disk2 : start= *\([0-9]*\), size= *\([0-9]*\)'
        read -r start size < <(sed -n "s/^$place,.*/\1 \2/p" found)
        cmp -n $((start * 512)) old new
        cmp -i $(((start + size) * 512)) old new
        # Several at once, by number and by name, in another format and from one.
        "$SAPWOOD" mkdisk -q --from old --output-format qcow2 new.qcow2 \
            --part root:ext4:rootdir=two --part data:btrfs:rootdir=two
        "$SAPWOOD" mkdisk -q --from new.qcow2 --reproducible again --part root:ext4:rootdir=r
        "$SAPWOOD" mkdisk -q --from new.qcow2 --reproducible again2 --part root:ext4:rootdir=r
        cmp again again2
        [ "$("$SAPWOOD" cat 'again#data:version')" = new ]
        # A VHD is a whole number of MiB, and has the backup of the table at its end.
        "$SAPWOOD" mkdisk -q --from old --output-format vhd new.vhd --part root:ext4:rootdir=two
        size=$(stat -c %s new.vhd)
        head -c $((size - 512)) new.vhd > raw
        sgdisk -v raw | grep -c 'No problems found'
        [ "$("$SAPWOOD" cat 'again#root:sub/deep/file')" = in ]"#,
    ),
    (
        "a_replaced_partition_has_a_new_hash_tree",
        r#"mkdir one two
        echo 1 > one/version
        head -c 3000000 /dev/urandom > two/version
        "$SAPWOOD" mkdisk -q old --part esp:size=1M --part root:ext4:rootdir=one:size=32M:verity
        "$SAPWOOD" mkdisk -q --from old new --part root:ext4:rootdir=two:verity:root-hash-file=hash
        sgdisk -v new | grep -c 'No problems found'
        "$SAPWOOD" verity verify 'new#root' 'new#root-verity' "$(cat hash)"
        refused 'root hash' "$SAPWOOD" verity verify 'old#root' 'old#root-verity' "$(cat hash)"
        first=$(head -c 32 hash | sed 's/\(.\{8\}\)\(.\{4\}\)\(.\{4\}\)\(.\{4\}\)/\1-\2-\3-\4-/')
        sfdisk -d new | grep -ci "uuid=$first, name=\"root\""
        # Both copies of the table have the new UUIDs.
        cp new damaged
        dd if=/dev/zero of=damaged bs=512 seek=1 count=1 conv=notrunc status=none
        sfdisk -d damaged 2> sfdisk.txt | grep -ci "uuid=$first, name=\"root\""
        # Without a partition for it there is no tree.
        "$SAPWOOD" mkdisk -q plain --part root:ext4:rootdir=one:size=32M
        refused 'root-verity' "$SAPWOOD" mkdisk --from plain none \
            --part root:ext4:rootdir=two:verity
        [ ! -e none ]"#,
    ),
    (
        "a_change_of_a_property_that_a_disk_keeps_is_refused",
        r#"head -c 3000000 /dev/urandom > a
        "$SAPWOOD" mkdisk -q old --part x:file=a:size=4M --part y:size=1M
        "$SAPWOOD" mkdisk -q --table mbr mbr --part x:file=a:size=4M --part y:size=1M
        "$SAPWOOD" mkfs -q -t ext4 --size 20M none.img
        bad() {
            local hint=$1 from=$2; shift 2
            refused "$hint" "$SAPWOOD" mkdisk --from $from disk "$@"
            [ ! -e disk ]
        }
        bad 'no partition z' old --part z:file=a
        bad 'the size of an existing partition stays' old --part x:file=a:size=5M
        bad 'the type of an existing partition stays' old --part x:file=a:type=swap
        bad 'the boot flag of an existing partition stays' old --part x:file=a:boot
        bad 'the UUID of an existing partition stays' mbr --part 1:file=a:uuid=$U
        bad '2.9M do not fit into 1.0M' old --part y:file=a
        bad 'needs a content' old --part y
        bad 'only one partition has it' old --part x:file=a --part 1:file=a
        bad 'no partition table' none.img --part x:file=a
        bad 'o such file' missing --part x:file=a
        refused 'needs another name' "$SAPWOOD" mkdisk -f --from old old --part x:file=a
        code=0
        "$SAPWOOD" mkdisk --from old disk --size 1G --part x:file=a 2> err.txt || code=$?
        [ $code = 2 ]
        "$SAPWOOD" mkdisk -q --from mbr disk --part 2:swap
        cmp -n 5242880 mbr disk
        sfdisk -d disk | grep -c 'label: dos'
        blkid -p -O 5242880 -S 1048576 -s TYPE -o value disk | grep -c swap"#,
    ),
    (
        "a_disk_that_cannot_be_made_is_refused_and_leaves_no_file",
        r#"head -c 3000000 /dev/urandom > a
        mkdir r
        bad() {
            local hint=$1; shift
            refused "$hint" "$SAPWOOD" mkdisk disk "$@"
            [ ! -e disk ]; [ -z "$(ls -A | grep '^\.sapwood')" ]
        }
        usage() {
            local code=0
            "$SAPWOOD" mkdisk disk "$@" 2> err.txt || code=$?
            [ $code = 2 ]; [ ! -e disk ]
        }
        bad '2.9M do not fit into 1.0M' --part x:file=a:size=1M
        bad 'are needed, and the disk has' --size 3M --part x:file=a
        bad 'x: needs a size' --part x
        bad 'the rest is for one partition' --part x:size=rest
        bad 'the rest is for one partition' --size 9M --part x:size=rest --part y:size=rest
        bad 'only one partition has it' --part x:size=1M --part x:size=1M
        bad 'has 1 to 36 characters' --part "$(printf 'x%.0s' {1..37}):size=1M"
        bad 'o such file' --part x:file=none
        bad 'power of two' --align 3M --part x:size=1M
        bad 'partition x' --part x:ext4:size=100k
        bad 'none' --part x:ext4:tar=none
        usage --part x:turbo=1
        usage --part x:tar=a
        usage --part x:ext4:tar=- --part y:ext4:cpio=-
        bad 'none' --part x:ext4:oci=none
        bad 'none' --part x:ext4:overlay=none
        bad 'none' --part x:ext4:cpio=none
        usage --part x:xfs
        usage --part x:type=none
        usage
        usage --part x:file=a:label=l
        part() { usage --part "$2"; grep -qF -- "$1" err.txt; }
        part 'unknown field turbo' x:ext4:turbo=1
        part 'formats are btrfs, ext4, fat' x:xfs
        part 'tar= needs a format before it' x:tar=a
        part 'compress needs a value' x:btrfs:compress
        part 'dedupe has no value' x:btrfs:dedupe=1
        part '--part x:ext4:subvol=a: ' x:ext4:subvol=a
        part '--compress: ' x:btrfs:compress=fast
        part 'free' x:ext4:free=much
        part 'all-root twice' x:ext4:all-root:all-root
        echo old > disk
        refused 'do not fit' "$SAPWOOD" mkdisk -f disk --part x:file=a:size=1M
        [ "$(cat disk)" = old ]
        "$SAPWOOD" mkdisk -qf disk --part x:file=a
        sgdisk -v disk | grep -c 'No problems found'"#,
    ),
];
