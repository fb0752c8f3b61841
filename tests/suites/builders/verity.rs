//! Files with hash trees of fs-verity. Each test is a script.

/// The tests.
pub(super) const SCRIPTS: &[(&str, &str)] = &[
    ("files_with_hash_trees_of_fs_verity_ext4", FILES),
    ("files_with_hash_trees_of_fs_verity_btrfs", FILES_OF_BTRFS),
    ("files_get_hash_trees_through_a_mount", IOCTLS),
];

/// Prelude of the scripts: `digest FILE`, `mk`, `wrong_byte IMAGE`, and the tree `t` with its copy `r`.
pub(super) const PRELUDE: &str = r#"
digest() { fsverity digest --compact "$@"; }
mkdir -p r/usr/bin r/etc; : > r/usr/bin/empty; echo x > r/usr/bin/small
head -c 3000000 /dev/urandom > r/usr/bin/large; head -c 65536 /dev/urandom > r/usr/bin/even
truncate -s 2M r/usr/bin/holes; printf y | dd of=r/usr/bin/holes bs=1 seek=1000000 conv=notrunc status=none
ln r/usr/bin/small r/usr/bin/again; echo conf > r/etc/conf; head -c 700000 /dev/urandom > r/etc/later
cp -a r t; find t -exec touch -h -d '2001-02-03 04:05:06' {} +
mk() { "$SAPWOOD" mkfs -q "$@"; }
# A byte of usr/bin/large is wrong in the image.
wrong_byte() { python3 - "$1" t/usr/bin/large << 'END'
import sys
image = open(sys.argv[1], 'r+b'); data = image.read()
at = data.index(open(sys.argv[2], 'rb').read()[1503232:1507328])
image.seek(at + 100); image.write(bytes([data[at + 100] ^ 1]))
END
}"#;

/// Files of ext4 that are sealed when the image is made and later, read, changed and damaged.
const FILES: &str = r#"
mk -t ext4 -b 4096 --reproducible --free 8M --fs-verity 'usr/bin' -r t i; sound i; "$SAPWOOD" check i
mk -t ext4 -b 4096 --reproducible --free 8M --fs-verity 'usr/bin' -r t j; cmp i j
dumpe2fs -h i 2> /dev/null | grep -q '^Filesystem features:.* verity'
for name in empty small large even holes again; do
    "$SAPWOOD" cat i:usr/bin/$name | cmp - t/usr/bin/$name
    [ "$("$SAPWOOD" verity measure i:/usr/bin/$name)" = "sha256:$(digest t/usr/bin/$name) /usr/bin/$name" ]
    debugfs -R "stat usr/bin/$name" i 2> /dev/null | grep -q 'Flags: 0x1[08]0000'
    cp i new; refused 'not permitted' "$SAPWOOD" truncate -s 10 new:/usr/bin/$name
    "$SAPWOOD" cat new:usr/bin/$name | cmp - t/usr/bin/$name
done
refused 'no hash tree' "$SAPWOOD" verity measure i:/etc/conf

# Later, with other parameters and a signature.
head -c 675 /dev/urandom | base64 -w0 > sig
[ "$("$SAPWOOD" verity enable --hash-alg sha512 --block-size 1024 --salt 00ff --signature sig i:/etc/later)" = \
    "sha512:$(digest --hash-alg=sha512 --block-size=1024 --salt=00ff t/etc/later) /etc/later" ]
sound i; "$SAPWOOD" check i; "$SAPWOOD" cat i:/etc/later | cmp - t/etc/later
"$SAPWOOD" verity measure i:/etc/later | grep -q "^sha512:"
refused 'xists' "$SAPWOOD" verity enable i:/etc/later
grep -qaF "$(cat sig)" i
code=0; "$SAPWOOD" verity enable --block-size 512 i:/etc/conf 2> err.txt || code=$?; [ $code = 2 ]
"$SAPWOOD" chmod 640 i:/etc/later; "$SAPWOOD" mv i:/etc/later i:/etc/moved; "$SAPWOOD" cat i:/etc/moved | cmp - t/etc/later

mk -t ext4 -b 1024 --free 4M --fs-verity etc -r t small; sound small; "$SAPWOOD" check small
[ "$("$SAPWOOD" verity measure small:/etc/later)" = "sha256:$(digest --block-size=1024 t/etc/later) /etc/later" ]
[ "$("$SAPWOOD" verity enable small:/usr/bin/even)" = "sha256:$(digest --block-size=1024 t/usr/bin/even) /usr/bin/even" ]
"$SAPWOOD" cat small:/etc/later | cmp - t/etc/later; sound small

# A wrong byte in the data, and one in the tree.
damage() { # NAME OFFSET
    cp i bad; local block
    block=$(debugfs -R "bmap /usr/bin/large $(($2 / 4096))" bad 2> /dev/null); [ $block -gt 0 ]
    printf '\377\376\375' | dd of=bad bs=1 seek=$((block * 4096 + $2 % 4096)) conv=notrunc status=none
    refused 'input/output error: inode [0-9]*: block .* does not match' "$SAPWOOD" cat bad:/usr/bin/large
    grep -q '/usr/bin/large' err.txt
}
damage data 1500000; damage tree 3014656
"$SAPWOOD" cat bad:/usr/bin/small | cmp - t/usr/bin/small

# Copies, a shrink, and an image like it.
"$SAPWOOD" cp -a i:/usr/bin/large out; cmp out t/usr/bin/large
cp i k; "$SAPWOOD" resize -q k +20M; "$SAPWOOD" resize -q k min; sound k
"$SAPWOOD" cat k:/usr/bin/large | cmp - t/usr/bin/large; "$SAPWOOD" verity measure k:/usr/bin/large > /dev/null
echo more > t/usr/bin/small; echo z > t/usr/bin/new
mk --like j --fs-verity usr/bin -r t l; sound l; "$SAPWOOD" check l
mk -t ext4 -b 4096 --reproducible --fs-verity usr/bin -r t f; "$SAPWOOD" diff --content f l > diff.txt; same /dev/null diff.txt
for name in large small new; do
    [ "$("$SAPWOOD" verity measure l:/usr/bin/$name)" = "sha256:$(digest t/usr/bin/$name) /usr/bin/$name" ]
done
mk --like l -r t p; sound p; refused 'no hash tree' "$SAPWOOD" verity measure p:/usr/bin/large
"$SAPWOOD" cat p:/usr/bin/large | cmp - t/usr/bin/large
"$SAPWOOD" rm i:/usr/bin/large; sound i"#;

/// The same for btrfs: inline, compressed and shared extents; snapshots, copies, streams.
const FILES_OF_BTRFS: &str = r#"
seq 250000 > t/usr/bin/text
mk -t btrfs --compress zstd --reproducible --free 20M --fs-verity 'usr/bin' -r t i; sound i; "$SAPWOOD" check i
mk -t btrfs --compress zstd --reproducible --free 20M --fs-verity 'usr/bin' -r t j; cmp i j
btrfs inspect-internal dump-super i | grep -q '^compat_ro_flags.*0xf$'
for name in empty small large even holes again text; do
    "$SAPWOOD" cat i:usr/bin/$name | cmp - t/usr/bin/$name
    [ "$("$SAPWOOD" verity measure i:/usr/bin/$name)" = "sha256:$(digest t/usr/bin/$name) /usr/bin/$name" ]
    refused 'not permitted' "$SAPWOOD" truncate -s 10 i:/usr/bin/$name
done
refused 'no hash tree' "$SAPWOOD" verity measure i:/etc/conf
"$SAPWOOD" check i

# Later, with other parameters and a signature of several items.
head -c 7675 /dev/urandom | base64 -w0 > sig
[ "$("$SAPWOOD" verity enable --hash-alg sha512 --block-size 1024 --salt 00ff --signature sig i:/etc/later)" = \
    "sha512:$(digest --hash-alg=sha512 --block-size=1024 --salt=00ff t/etc/later) /etc/later" ]
sound i; "$SAPWOOD" check i; "$SAPWOOD" cat i:/etc/later | cmp - t/etc/later
refused 'xists' "$SAPWOOD" verity enable i:/etc/later
"$SAPWOOD" chmod 640 i:/etc/later; "$SAPWOOD" mv i:/etc/later i:/etc/moved; "$SAPWOOD" cat i:/etc/moved | cmp - t/etc/later

# A wrong byte in a file without checksums.
mk -t btrfs --inode-flags nodatasum:usr --free 20M --fs-verity usr/bin -r t bad; sound bad
wrong_byte bad
sound bad
refused 'input/output error: tree 5 inode [0-9]*: block 367 of data does not match' "$SAPWOOD" cat bad:/usr/bin/large
grep -q '/usr/bin/large' err.txt; "$SAPWOOD" cat bad:/usr/bin/small | cmp - t/usr/bin/small

# Copies, shared extents, snapshots, a shrink, and an image like it.
"$SAPWOOD" cp -a i:/usr/bin/large out; cmp out t/usr/bin/large
cp i k; "$SAPWOOD" cp k:/usr/bin/large k:/copy; "$SAPWOOD" truncate -s 10 k:/copy
"$SAPWOOD" subvolume snapshot k:/ k:/snap
[ "$("$SAPWOOD" verity measure k:/snap/usr/bin/large)" = "sha256:$(digest t/usr/bin/large) /snap/usr/bin/large" ]
"$SAPWOOD" rm k:/usr/bin/large; "$SAPWOOD" cat k:/snap/usr/bin/large | cmp - t/usr/bin/large
"$SAPWOOD" resize -q k +20M; "$SAPWOOD" resize -q k min; sound k; "$SAPWOOD" check k
echo more > t/usr/bin/small; echo z > t/usr/bin/new
mk --like j --fs-verity usr/bin -r t l; sound l; "$SAPWOOD" check l
for name in large small new; do
    [ "$("$SAPWOOD" verity measure l:/usr/bin/$name)" = "sha256:$(digest t/usr/bin/$name) /usr/bin/$name" ]
done
"$SAPWOOD" rm -r i:/usr; sound i; "$SAPWOOD" check i"#;

/// The ioctls of fs-verity through a mount.
const IOCTLS: &str = r#"
for kind in btrfs ext4; do
    block=4096; rm -f i; mk -t $kind --free 30M -r t i; "$SAPWOOD" mount i m
    [ $kind = btrfs ] || block=$(stat -f -c %S m)
    not fsverity measure m/etc/later 2> err.txt; grep -q 'No data available' err.txt
    head -c 700 /dev/urandom > sig
    fsverity enable --block-size=$block --salt=0102 --hash-alg=sha512 --signature=sig m/etc/later
    fsverity enable --block-size=$block m/usr/bin/large
    [ "$(fsverity measure m/etc/later)" = "sha512:$(digest --block-size=$block --salt=0102 --hash-alg=sha512 t/etc/later) m/etc/later" ]
    not fsverity enable --block-size=$block m/etc/later 2> err.txt; grep -q 'File exists' err.txt
    not fsverity enable --block-size=65536 m/etc/conf 2> err.txt; grep -q 'Invalid argument' err.txt
    not fsverity enable m/etc 2> err.txt; grep -q 'Is a directory' err.txt
    not dd if=sig of=m/etc/later bs=1 count=1 conv=notrunc 2> err.txt; grep -q 'not permitted' err.txt
    not truncate -s 1 m/usr/bin/large 2> err.txt; grep -q 'not permitted' err.txt
    cmp m/etc/later t/etc/later; lsattr m/etc/later | grep -q '^[^ ]*V'
    chmod 755 m/usr/bin; chmod 666 m/usr/bin/even
    not setpriv --reuid 65534 --regid 65534 --clear-groups fsverity enable --block-size=$block m/usr/bin/even 2> err.txt
    grep -q 'Permission denied' err.txt
    "$SAPWOOD" umount m; sound i; "$SAPWOOD" check i
    "$SAPWOOD" verity measure i:/etc/later | grep -q "^sha512:"; "$SAPWOOD" cat i:/usr/bin/large | cmp - t/usr/bin/large
done"#;
