//! A kernel of Debian, in a virtual machine, reads what the program made, and makes what the program
//! reads. `scripts/debian-vm DIR` makes the machine, and `SAPWOOD_DEBIAN_VM=DIR` names it. Each test
//! is a script, after the prelude of the files with hash trees.

/// The tests.
pub(super) const SCRIPTS: &[(&str, &str)] = &[
    ("a_kernel_reads_and_makes_hash_trees_of_files", FS_VERITY),
    ("a_kernel_opens_a_disk_with_a_hash_tree", DM_VERITY),
];

/// Reads sealed files and a damaged one of both formats, seals others, and looks at the digests.
const FS_VERITY: &str = r#"
cat > vm.sh << 'END'
for disk in vda vdb; do
    mount -o ro /dev/$disk /mnt
    for name in empty small large even holes; do
        fsverity measure /mnt/usr/bin/$name; sha256sum < /mnt/usr/bin/$name
    done
    umount /mnt
done
for disk in vdc vdd; do
    mount -o ro /dev/$disk /mnt
    cat /mnt/usr/bin/large > /dev/null && echo "read a wrong byte of $disk"
    umount /mnt
done
for disk in vda vdb; do
    mount /dev/$disk /mnt
    fsverity enable /mnt/etc/later; fsverity enable --hash-alg=sha512 --salt=0102 /mnt/etc/conf
    echo x 2> /dev/null >> /mnt/usr/bin/small && echo "wrote to a sealed file of $disk"
    umount /mnt
done
true
END
for kind in btrfs ext4; do
    block=; [ $kind = btrfs ] || block='-b 4096'
    mk -t $kind $block --free 20M --fs-verity usr/bin -r t $kind.img
    flags=; [ $kind = ext4 ] || flags='--inode-flags nodatasum:usr'
    mk -t $kind $block $flags --free 20M --fs-verity usr/bin -r t $kind.bad
    wrong_byte $kind.bad
done
"$SAPWOOD_DEBIAN_VM/boot" vm.sh btrfs.img ext4.img btrfs.bad ext4.bad > vm.txt || { cat vm.txt; exit 1; }
for disk in vda vdb; do
    for name in empty small large even holes; do
        echo "sha256:$(digest t/usr/bin/$name) /mnt/usr/bin/$name"; sha256sum < t/usr/bin/$name
    done
done > expected
grep -E '^sha256:|^[0-9a-f]{64}  -$' vm.txt > found; same expected found
not grep -E 'read a wrong|wrote to' vm.txt
[ "$(grep -c 'Input/output error' vm.txt)" = 2 ]
for kind in btrfs ext4; do
    sound $kind.img; "$SAPWOOD" check $kind.img
    [ "$("$SAPWOOD" verity measure $kind.img:/etc/later)" = "sha256:$(digest t/etc/later) /etc/later" ]
    [ "$("$SAPWOOD" verity measure $kind.img:/etc/conf)" = "sha512:$(digest --hash-alg=sha512 --salt=0102 t/etc/conf) /etc/conf" ]
    for name in later conf; do "$SAPWOOD" cat $kind.img:/etc/$name | cmp - t/etc/$name; done
    refused 'not permitted' "$SAPWOOD" truncate -s 1 $kind.img:/etc/later
done"#;

/// Opens a partition with its hash tree, and finds a wrong byte.
const DM_VERITY: &str = r#"
for kind in ext4 btrfs; do
    rm -f disk root.hash
    "$SAPWOOD" mkdisk -q disk --part root:$kind:rootdir=t:verity:root-hash-file=root.hash
    cat > vm.sh << END
for disk in vda vdb; do
    veritysetup open /dev/\${disk}1 \$disk /dev/\${disk}2 $(cat root.hash) || exit 1
    mount -o ro /dev/mapper/\$disk /mnt && sha256sum < /mnt/usr/bin/large
    umount /mnt
done
true
END
    cp disk bad
    wrong_byte bad
    "$SAPWOOD_DEBIAN_VM/boot" vm.sh disk bad > vm.txt || { cat vm.txt; exit 1; }
    sha256sum < t/usr/bin/large > expected; grep -E '^[0-9a-f]{64}  -$' vm.txt > found; same expected found
done"#;
