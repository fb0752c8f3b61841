//! Images that keep the blocks of an older one. Each test is a script.

/// An image like an older one, whose tree has changes of every kind. The prelude of the
/// reproducible images comes before it.
pub(super) const LIKE: &str = r#"
tree r; more r; mkdir r/lib-1.17 r/gone r/swap; for i in 1 2 3 4 5 6; do
    head -c $((i * 9000)) /dev/urandom > r/lib-1.17/m$i; echo secret-$i > r/gone/secret-$i; done
ln -s secret-target r/gone/link; setfattr -n user.secret -v secret-value r/gone/secret-1
printf 'secret%.0s' {1..100} > r/d/tail; echo a > r/swap/a; echo b > r/swap/b; mkdir r/kind; : > r/kind/file
echo fixed > r/fixed; ln r/d/e/large r/d/secret-name
setfacl -m u:12:rw r/many/name-20; setfacl -d -m u:12:rwx r/sub
"$SAPWOOD" mkfs -q -t $KIND --reproducible --size 140M -r r v1
[ "$("$SAPWOOD" cat v1:gone/secret-1)" = secret-1 ]

# Nothing changes.
"$SAPWOOD" mkfs -q --like v1 -r r same; sound same; equal v1 same 'an unchanged tree'; rm same

cp -a r s; rm -r s/gone s/kind/file s/d/secret-name; mkdir s/kind/file; echo x > s/kind/file/x
mv s/lib-1.17 s/lib-1.18; printf YYYY | dd of=s/lib-1.18/m6 bs=1 seek=20000 conv=notrunc status=none
printf X | dd of=s/d/e/large bs=1 seek=2000000 conv=notrunc status=none; truncate -s 5 s/d/tail
mv s/swap/a s/swap/c; mv s/swap/b s/swap/a; mv s/swap/c s/swap/b; mv s/many/name-40 s/sub/moved
rm s/many/name-7; ln s/many/name-8 s/again; ln s/d/e/large s/large
chmod 600 s/many/name-10; chown 5:6 s/many/name-11; setfattr -x user.b s/many/name-9; setfattr -n user.c -v 3 s/many/name-9
setfacl -b s/many/name-20; setfacl -m u:13:r s/many/name-21
ln -sf other s/d/link; rm s/char; mknod s/char c 6 301; touch -d '2003-03-04 05:06:07.891' s/many/name-12
printf y | dd of=s/sparse bs=1 seek=1000000 conv=notrunc status=none; fallocate -p -o 2998272 -l 4096 s/sparse
head -c 2000000 /dev/urandom > s/d/new; for i in $(seq 400); do echo $i > s/many/more-$i; done
"$SAPWOOD" mkfs -q --like v1 -r s v2; sound v2; "$SAPWOOD" check v2
sleep 1.1; "$SAPWOOD" mkfs -q --like v1 -r s again; equal v2 again again; rm again
tar -c --format=pax --xattrs --xattrs-include='*' --acls --sparse -f s.tar -C s .
for from in 'DIR s' 'TAR s.tar'; do
    case $from in DIR*) source='-r s';; TAR*) source='--tar s.tar';; esac
    "$SAPWOOD" mkfs -q --like v1 $source v3; "$SAPWOOD" mkfs -q -t $KIND --reproducible --size 140M $source fresh
    mount -o ro,loop fresh m; listing m > expected; umount m; kernel v3; sound v3
    "$SAPWOOD" diff --content fresh v3 > diff.txt; same /dev/null diff.txt
    rm v3 fresh
done
if grep -qa secret v2; then grep -ao '.\{20\}secret.\{20\}' v2 | od -c | head; exit 1; fi
[ "$(blkid -p -s UUID -o value v1)" = "$(blkid -p -s UUID -o value v2)" ]
changed=$({ cmp -l v1 v2 || true; } | awk '{ at = int(($1 - 1) / 4096); if (at != last) n++; last = at } END { print n }')
[ $changed -lt LIMIT ] || { echo "$changed blocks changed"; exit 1; }

# Back again, to other sizes, and into other formats.
"$SAPWOOD" mkfs -q --like v2 -r r v1b; mount -o ro,loop v1 m; listing m > expected; umount m; kernel v1b; sound v1b
for size in 130M 170M; do
    "$SAPWOOD" mkfs -q --like v1 -r s --size $size v4; [ $(stat -c %s v4) = $((${size%M} << 20)) ]; sound v4
    "$SAPWOOD" diff --content v2 v4 > diff.txt; same /dev/null diff.txt; rm v4
done
"$SAPWOOD" mkfs -q --like v1 -r s --output-format qcow2 q; "$SAPWOOD" diff --content v2 q > diff.txt; same /dev/null diff.txt
cp v1 v5; "$SAPWOOD" mkfs -qf --like v1 -r s v5; cmp v5 v2"#;

/// An ext4 of other tools, without checksums, in which directories give projects to new files.
pub(super) const FOREIGN: &str = r#"
tree r; more r; mkdir r/d/stays; echo a moved file > r/moved; cp -a r t; mkdir t/d/gone
for i in $(seq 300); do : > t/d/gone/secret-$i; echo rm d/gone/secret-$i; done > commands
for i in 1 2 3; do : > t/d/stays/secret-$i; echo rm d/stays/secret-$i; done >> commands
PATH=${PATH#"$PWD/bin:"} mke2fs -q -t ext4 -O project,^metadata_csum -I 256 -d t old 300M
# The flag of a directory that gives its project to new files.
printf '%s\n' 'sif d flags 0x20080000' 'sif d projid 7' 'sif d/text projid 9' >> commands
debugfs -w -f commands old > /dev/null 2>&1; grep -qa secret- old; mv r/moved r/d/; echo new > r/d/new
for size in 300M 280M; do
    "$SAPWOOD" mkfs -q --like old -r r --size $size v; sound v; "$SAPWOOD" mkfs -q -t ext4 --reproducible --size 300M -r r fresh
    "$SAPWOOD" diff --content fresh v > diff.txt; same /dev/null diff.txt
    mount -o ro,loop v m; { lsattr -pR m 2> /dev/null || true; } | grep -E '^ *[0-9]+ ' > projects; umount m; [ -s projects ]
    not grep -vE '^ *0 [^P]* ' projects; not grep -qa secret- v
    debugfs -R 'dump <8> log' v 2> /dev/null; [ -s log ]; [ $(tail -c +4097 log | tr -d '\0' | wc -c) = 0 ]
    rm v fresh log
done"#;

/// Requests that cannot be served.
pub(super) const REFUSED: &str = r#"
fails() {
    local wanted=$1 hint=$2 code=0; shift 2; "$@" > out.txt 2> err.txt || code=$?
    [ $code = $wanted ] || { echo "exit code $code: $*"; exit 1; }
    grep -q -- "$hint" err.txt || { echo "$* says:"; cat err.txt; exit 1; }
}
mkdir r; echo x > r/f; "$SAPWOOD" mkfs -q -t ext4 --size 40M -r r old; cp old before; mk() { "$SAPWOOD" mkfs "$@"; }
fails 2 '--like needs a source' mk --like old new
fails 2 '--like and --label exclude each other' mk --like old -L x -r r new
fails 2 '--like and -N exclude' mk --like old -N 100 -r r new
fails 2 'old: is ext4, and -t is btrfs' mk --like old -t btrfs -r r new
fails 2 'cannot be used with' mk --like old --free 1M -r r new
fails 2 'one device' mk --like old -r r new other
fails 3 'none: .*o such file' mk --like none -r r new
fails 3 'neither btrfs nor ext4' mk --like r/f -r r new
fails 2 'one file' mk -f --like old -r r old; cp old there; fails 1 'exists' mk --like old -r r there
refused 'o such file' mk --like old -r nowhere new
mkdir big; head -c 60000000 /dev/urandom > big/f
refused 'space' mk --like old -r big new
mk -q -t ext4 -O journal_dev --size 8M j; mk -q -t ext4 -b 4096 -J device=j --size 40M outside
refused 'outside: the journal is on another device' mk --like outside -r r new
mk -q -d raid1 -m raid1 --size 200M a b; fails 3 'device' mk --like a -r r new
debugfs -w -R 'feature needs_recovery' old 2> /dev/null; refused 'was not unmounted' mk --like old -r r new
cp before old; [ ! -e new ]; [ -z "$(ls -A | grep sapwood-)" ]
chmod 755 .; chmod -R a+rX r old; mkdir -m 777 u
setpriv --reuid 65534 --regid 65534 --clear-groups "$SAPWOOD" mkfs -q --like old -r r u/new; sound u/new
cmp before old"#;
