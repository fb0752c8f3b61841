//! Files with hash trees of fs-verity. Each test is a script.

/// Files that are sealed when the image is made and later, read, changed and damaged.
pub(super) const FILES: &str = r#"
digest() { fsverity digest --compact "$@"; }
mkdir -p r/usr/bin r/etc; : > r/usr/bin/empty; echo x > r/usr/bin/small
head -c 3000000 /dev/urandom > r/usr/bin/large; head -c 65536 /dev/urandom > r/usr/bin/even
truncate -s 2M r/usr/bin/holes; printf y | dd of=r/usr/bin/holes bs=1 seek=1000000 conv=notrunc status=none
ln r/usr/bin/small r/usr/bin/again; echo conf > r/etc/conf; head -c 700000 /dev/urandom > r/etc/later
cp -a r t; find t -exec touch -h -d '2001-02-03 04:05:06' {} +
mk() { "$SAPWOOD" mkfs -q "$@"; }
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
"$SAPWOOD" rm i:/usr/bin/large; sound i
code=0; mk -t btrfs --fs-verity usr -r t b 2> err.txt || code=$?; [ $code = 2 ]; grep -q 'only on ext4' err.txt; [ ! -e b ]
truncate -s 200M b; mk b; echo x | "$SAPWOOD" write b:/f; refused 'ot supported' "$SAPWOOD" verity enable b:/f"#;
