//! Contents of partitions that are no btrfs or ext4, and the tables around them. Each test is a
//! script, as in `builders`.

/// Prelude of these scripts. `place N`: first sector and sectors of partition N of `disk`; `part N
/// FILE`: copies it.
pub(crate) const PRELUDE: &str = r#"
place() { sfdisk -d disk | sed -n "s/^disk$1 : start= *\([0-9]*\), size= *\([0-9]*\),.*/\1 \2/p"; }
part() { local start size; read -r start size < <(place $1); dd if=disk of=$2 bs=1M iflag=skip_bytes,count_bytes skip=$((start * 512)) count=$((size * 512)) conv=sparse status=none; }
"#;

/// The tests, with the programs that they need.
pub(crate) const SCRIPTS: &[(&str, &[&str], &str)] = &[
    (
        "a_fat_partition_is_what_the_tools_and_the_kernel_take",
        &["fsck.vfat", "mcopy", "sfdisk"],
        r#"mkdir -p r/EFI/BOOT r/loader/entries r/empty; head -c 3000000 /dev/urandom > r/EFI/BOOT/BOOTX64.EFI; : > r/none
        echo default > r/loader/loader.conf; for n in $(seq 300); do echo $n > "r/loader/entries/entry number $n.conf"; done
        echo ü > "r/Grüße 日本 and more.txt"; truncate -s 2M r/hole; echo end >> r/hole; ln r/loader/loader.conf r/loader/again
        find r -exec touch -h -d '2021-02-03 04:05:06' {} +; (cd r; find . -type f -exec sha256sum {} + | sort) > expected
        times() { (cd $1; TZ=UTC find . -type f -printf '%P %s %TY-%Tm-%Td %TH:%TM:%TS\n' | sort); }; times r > expected.times
        same_files() { (cd $1; find . -type f -exec sha256sum {} + | sort) > found; same expected found; times $1 > found.times; same expected.times found.times; [ -d $1/empty ]; }
        tar -c --numeric-owner -f t.tar -C r .
        for field in fat:rootdir=r fat:tar=t.tar:size=8M fat12:rootdir=r:size=20M fat16:tar=t.tar:size=100M:free=3M fat32:rootdir=r fat:rootdir=r:size=520M:label=efi fat16:rootdir=r:size=1G; do
            "$SAPWOOD" mkdisk -qf disk --part esp:$field; part 1 esp; fsck.vfat -n esp > check.txt 2>&1 || { echo $field; cat check.txt; exit 1; }
            not grep -iE 'differ|dirty|wrong|free cluster|bad|orphan' check.txt
            case $field in fat12:*) want=FAT12;; fat16:*) want=FAT16;; fat32:*|*520M*) want=FAT32;; *:tar*) want=FAT16;; *) want=FAT12;; esac
            blkid -p -s VERSION -o value esp | grep -qx $want || { blkid -p esp; echo "$field: not $want"; exit 1; }
            rm -rf back; mkdir back; LC_ALL=C.UTF-8 mcopy -s -Q -m -i esp ::* back/; same_files back
            if grep -qw vfat /proc/filesystems; then mount -t vfat -o ro,loop,utf8,tz=UTC esp m; same_files m; umount m; fi
        done
        "$SAPWOOD" mkdisk -qf disk --part esp:fat:rootdir=r:size=520M:label=efi; part 1 esp; blkid -p -s LABEL -o value esp | grep -cx EFI
        mcopy -i esp r/EFI/BOOT/BOOTX64.EFI ::new; mdeltree -i esp ::loader; mdir -i esp ::EFI/BOOT | grep -c 'BOOTX64.*EFI.*2021-02-03'; fsck.vfat -n esp > check.txt 2>&1
        sfdisk -d disk | grep -c 'type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B'
        "$SAPWOOD" mkdisk -qf disk --part esp:fat:size=33M --part x:fat32:size=40M; for n in 1 2; do part $n esp; fsck.vfat -n esp > check.txt 2>&1; done"#,
    ),
    (
        "a_fat_partition_is_reproducible",
        &["fsck.vfat", "sfdisk"],
        r#"mkdir -p r/d; echo one > r/d/one; touch -d 2020-01-01 r/d/one r/d r; tar -c -f t.tar -C r d/one
        make() { "$SAPWOOD" mkdisk -qf "$1" "${@:2}" --part esp:fat:tar=t.tar:label=x --part esp2:fat32:rootdir=r; }
        make one --reproducible; make two --reproducible; cmp one two
        export SOURCE_DATE_EPOCH=1600000000; make three -U $U; make four -U $U; cmp three four; not cmp -s one three
        make five -U 22222222-2222-3333-4444-555555555555; not cmp -s four five"#,
    ),
    (
        "files_that_fat_has_not_are_refused_by_name",
        &[],
        r#"mkdir -p r/d; bad() { refused "$1" "$SAPWOOD" mkdisk disk --part esp:fat:rootdir=r"${2-}"; [ ! -e disk ]; [ -z "$(ls -A | grep '^\.sapwood')" ]; rm -rf r/d/*; }
        ln -s x r/d/link; bad '/d/link: FAT has no symbolic links'; mkfifo r/d/pipe; bad '/d/pipe: FAT has no pipes'; mknod r/d/null c 1 3; bad '/d/null: FAT has no device nodes'
        : > r/d/a:b; bad '/d/a:b: FAT has no names with'; : > r/d/a.; bad 'a dot or a space at the end'; : > r/d/Same; : > r/d/same; bad '/d/same: another name differs'
        truncate -s 4G r/d/huge; bad '/d/huge: 4294967296 bytes are too many'; head -c 3000000 /dev/urandom > r/d/f; bad 'do not fit into 1.0M' :size=1M; : > r/d/f; bad 'no FAT volume has 1024 bytes' :size=1k
        refused 'no FAT32 volume has' "$SAPWOOD" mkdisk disk --part esp:fat32:size=20M; refused 'no FAT16 volume has' "$SAPWOOD" mkdisk disk --part esp:fat16:size=3G
        refused 'no FAT12 volume has' "$SAPWOOD" mkdisk disk --part esp:fat12:size=300M; [ ! -e disk ]
        usage() { local code=0; "$SAPWOOD" mkdisk disk --part "$2" 2> err.txt || code=$?; [ $code = 2 ]; grep -qF -- "$1" err.txt || { cat err.txt; exit 1; }; [ ! -e disk ]; }
        usage 'at most 11' 'esp:fat:label=much too long'; usage 'one format' esp:fat:ext4; usage 'opt= is for' esp:fat:opt=inode-size=512
        usage 'FAT stores files in one way' esp:fat:rootdir=r:subvol=d; usage 'is a size' esp:fat:free=5%; usage 'swap space has no field tar' s:swap:tar=t"#,
    ),
    (
        "swap_space_is_what_the_kernel_uses",
        &["sfdisk", "swaplabel"],
        r#"trap 'swapoff $loop 2> /dev/null || true; losetup -d $loop 2> /dev/null || true' EXIT; loop=
        "$SAPWOOD" mkdisk -q disk --part a:swap:size=64M:label=swapped -U $U; "$SAPWOOD" mkdisk -q two --part a:swap:size=64M:label=swapped -U $U; cmp disk two
        sfdisk -d disk | grep -c type=0657FD6D; part 1 swap; swaplabel swap | grep -c 'LABEL: swapped'; blkid -p -s TYPE -o value swap | grep -cx swap; chmod 600 swap
        loop=$(losetup --find --show swap); if swapon $loop; then swapon --show=NAME,SIZE --bytes --noheadings | grep -c "$loop *67104768"; swapoff $loop; fi; losetup -d $loop; loop=
        refused 'at least 40 KiB' "$SAPWOOD" mkdisk no --part a:swap:size=20k; refused 'needs a size' "$SAPWOOD" mkdisk no --part a:swap; [ ! -e no ]
        "$SAPWOOD" mkdisk -qf disk --size 100M --part a:swap:size=rest; part 1 swap; swaplabel swap > out.txt"#,
    ),
    (
        "an_mbr_is_what_the_tools_take",
        &["sfdisk", "fsck.vfat"],
        r#"mkdir r; echo x > r/f; "$SAPWOOD" mkdisk -q --table mbr disk -U $U --part boot:fat:rootdir=r:size=10M:boot --part root:ext4:rootdir=r --part swap:swap:size=8M --part other:size=1M:type=da
        sfdisk --verify disk > check.txt 2>&1; grep -q 'No errors detected' check.txt; sfdisk -d disk > table; grep -c 'label: dos' table; grep -c 'label-id: 0x11111111' table
        grep -c 'disk1 : start= *2048, size= *20480, type=c, bootable' table; grep -c 'disk2 : .*type=83$' table; grep -c 'disk3 : .*size= *16384, type=82$' table; grep -c 'disk4 : .*type=da$' table
        part 1 esp; fsck.vfat -n esp > check.txt 2>&1; part 2 root; sound root; "$SAPWOOD" cat disk#2:f | grep -cx x
        "$SAPWOOD" mkdisk -q --table mbr two -U $U --part boot:fat:rootdir=r:size=10M:boot --part root:ext4:rootdir=r --part swap:swap:size=8M --part other:size=1M:type=da; not cmp -s disk two
        refused '5 partitions: at least 1, at most 4' "$SAPWOOD" mkdisk --table mbr no --part a:size=1M --part b:size=1M --part c:size=1M --part d:size=1M --part e:size=1M
        refused 'its type has no number in an MBR' "$SAPWOOD" mkdisk --table mbr no --part a:size=1M:type=bios; refused 'at most 2 TiB' "$SAPWOOD" mkdisk --table mbr no --part a:size=1M --part b:size=3T --part c:size=1M; [ ! -e no ]
        "$SAPWOOD" mkdisk -q --table mbr whole --size 20M --part a:size=rest; sfdisk -d whole | grep -c 'size= *38912,'"#,
    ),
    (
        "a_disk_with_a_hash_tree_is_what_veritysetup_takes",
        &["veritysetup", "sfdisk", "python3"],
        r#"mkdir r; seq 200000 > r/numbers; printf data > r/f; head -c 1048576 /dev/urandom > raw
        "$SAPWOOD" mkdisk -q disk --part root:ext4:rootdir=r:verity:root-hash-file=root.hash --part usr:btrfs:rootdir=r:type=usr-arm64:verity=hashes --part hashes:size=8M --part data:file=raw:verity --json > made.json
        sfdisk --verify disk > check.txt 2>&1; grep -q 'No errors detected' check.txt; sfdisk -d disk > table; [ $(grep -c '^disk' table) = 6 ]; root=$(cat root.hash); [ ${#root} = 64 ]
        of() { python3 -c 'import json, sys; print(next(part["root_hash"] for part in json.load(open("made.json"))["partitions"] if part["name"] == sys.argv[1]))' $1; }
        uuid() { local hash=$1; printf '%s-%s-%s-%s-%s' ${hash:0:8} ${hash:8:4} ${hash:12:4} ${hash:16:4} ${hash:20:12} | tr a-f A-F; }
        [ "$(of root)" = $root ]; grep -c "disk1 : .*uuid=$(uuid $root), name=\"root\"" table; grep -c "disk2 : .*uuid=$(uuid ${root:32}), name=\"root-verity\"" table
        case $(uname -m) in x86_64) grep -c 'disk1 .*type=4F68BCE3' table; grep -c 'disk2 .*type=2C7357ED' table;; esac
        grep -c "disk3 : .*type=B0E01050-EE5F-4390-949A-9101B17104E9, uuid=$(uuid $(of usr))" table; grep -c 'disk4 : .*size= *16384, type=6E11A4E7-FBCA-4DED-B9E9-E1A512BB664E' table
        for pair in '1 2 root' '3 4 usr' '5 6 data'; do set -- $pair; part $1 data; part $2 tree; veritysetup verify data tree $(of $3); "$SAPWOOD" verity verify -q disk#$1 tree $(of $3); done
        part 2 tree2; "$SAPWOOD" cat --root-hash $root --hash-device tree2 disk#1:f | grep -c data
        part 1 data; printf X | dd of=data bs=1 seek=70000 conv=notrunc status=none; not veritysetup verify data tree2 $root > out.txt 2>&1
        "$SAPWOOD" mkdisk -qf disk --size 200M --part data:file=raw:verity=tree:root-hash-file=root.hash --part tree:size=rest; part 1 data; part 2 tree; veritysetup verify data tree $(cat root.hash)
        make() { "$SAPWOOD" mkdisk -q $1 --reproducible --part root:ext4:rootdir=r:verity; }; make one; make two; cmp one two
        bad() { refused "$1" "$SAPWOOD" mkdisk no "${@:2}"; [ ! -e no ]; }
        bad 'needs a size of its own' --size 1G --part root:ext4:rootdir=r:verity:size=rest; bad 'is for a file system or a file' --part a:swap:size=1M:verity
        bad 'no other content' --part root:ext4:rootdir=r:verity=x --part x:file=raw; bad 'no other content' --part a:file=raw:verity=x --part b:file=raw:verity=x; echo odd > odd; bad 'odd\|multiple\|blocks' --part a:file=odd:verity; bad 'do not fit' --part a:file=raw:verity=x --part x:size=4k"#,
    ),
    (
        "a_disk_that_a_key_signs_is_verified_with_its_certificate",
        &["openssl"],
        r#"mkdir r; seq 20000 > r/numbers
        no() { local hint=$1 code=0; shift; "$@" > out.txt 2> err.txt || code=$?; [[ $code = [123] ]]; grep -q -- "$hint" err.txt || { cat err.txt; exit 1; }; }
        for name in a b; do openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout $name.key -out $name.pem 2> /dev/null; done
        finger() { openssl x509 -in $1.pem -noout -fingerprint -sha256 | cut -d= -f2 | tr -d :; }
        make() { "$SAPWOOD" mkdisk -q --reproducible $1 --part root:ext4:rootdir=r:verity:root-hash-file=hash:$2; }
        make one verity-key=a.key:verity-cert=a.pem
        tr -d '\n' < hash | openssl smime -sign -binary -noattr -signer a.pem -inkey a.key -outform der -out sig
        make two verity-sig=sig:fingerprint=$(finger a); cmp one two
        verify() { "$SAPWOOD" verity verify -q --certificate "$@"; }
        verify a.pem one#root; verify a.pem one#root one#root-verity; "$SAPWOOD" verity verify -q --root-hash-file hash one#root
        no 'another certificate' verify b.pem one#root; no 'no certificate' verify hash one#root
        make forged verity-sig=sig:fingerprint=$(finger b); no 'openssl: ' verify b.pem forged#root
        cp one bad; printf X | dd of=bad bs=1 seek=1200000 conv=notrunc status=none; no '' verify a.pem bad#root
        no 'DISK#NAME' verify a.pem one; no 'root-verity-sig\|no signature' verify a.pem one#root-verity
        bad() { no "$1" make new "$2"; [ ! -e new ]; }
        bad 'need each other' verity-key=a.key; bad 'or verity-key' verity-key=a.key:verity-cert=a.pem:verity-sig=sig
        bad 'no certificate' verity-key=a.key:verity-cert=hash; bad 'openssl: ' verity-key=b.key:verity-cert=a.pem; bad 'none' verity-key=a.key:verity-cert=none
        no 'needs verity' "$SAPWOOD" mkdisk new --part root:ext4:rootdir=r:verity-key=a.key:verity-cert=a.pem
        mkdir empty; no 'not installed' env PATH=$PWD/empty "$SAPWOOD" mkdisk new --part root:ext4:rootdir=r:verity:verity-key=a.key:verity-cert=a.pem"#,
    ),
    (
        "a_disk_with_a_signed_root_hash_is_what_openssl_and_systemd_take",
        &["openssl", "sfdisk", "python3"],
        r#"mkdir r; seq 20000 > r/numbers; openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout key.pem -out cert.pem 2> /dev/null
        finger=$(openssl x509 -in cert.pem -noout -fingerprint -sha256 | cut -d= -f2 | tr -d :)
        make() { "$SAPWOOD" mkdisk -q --reproducible "$@" --part home:btrfs:rootdir=r; }
        make one --part root:ext4:rootdir=r:type=root-x86-64:verity:root-hash-file=root.hash
        for form in der pem; do
            tr -d '\n' < root.hash | openssl smime -sign -binary -noattr -signer cert.pem -inkey key.pem -outform $form -out sig.$form
            make $form --part root:ext4:rootdir=r:type=root-x86-64:verity:verity-sig=sig.$form:fingerprint=$finger:root-hash-file=again
            cmp root.hash again; sfdisk --verify $form > check.txt 2>&1; grep -q 'No errors detected' check.txt
            sfdisk -d $form | grep -c 'type=41092B05-9FC8-4523-994F-2DEF0408B176, .*name="root-verity-sig"'
            cp $form disk; part 4 sig; [ $(($(stat -c %s sig) % 4096)) = 0 ]
            python3 - "$finger" << 'END'
import base64, json, sys
found = json.loads(open('sig', 'rb').read().rstrip(b'\0'))
assert found['certificateFingerprint'] == sys.argv[1].lower()
assert found['rootHash'] == open('root.hash').read().strip()
open('out.der', 'wb').write(base64.b64decode(found['signature']))
END
            tr -d '\n' < root.hash > signed; openssl smime -verify -binary -inform der -in out.der -content signed -CAfile cert.pem -purpose any > /dev/null 2>&1
        done
        # It fails while other tests make and remove partitions of loop devices.
        signed() { systemd-dissect pem 2> dissect.txt | grep '^ro root ' | grep -q ' signed '; }
        ! command -v systemd-dissect > /dev/null || signed || { sleep 2; signed; } || { sleep 8; signed; } || { cat dissect.txt; false; }
        "$SAPWOOD" mkdisk -q --from pem new --part root:ext4:rootdir=r:verity:verity-sig=sig.pem:fingerprint=$finger; sfdisk --verify new > check.txt 2>&1
        bad() { local code=0; "$SAPWOOD" mkdisk no "${@:2}" 2> err.txt || code=$?; [ $code = 2 ] || [ $code = 1 ]; grep -q "$1" err.txt; [ ! -e no ]; }
        bad 'need each other' --part root:ext4:verity:verity-sig=sig.der; bad 'needs verity' --part root:ext4:verity-sig=sig.der:fingerprint=$finger
        bad 'no PKCS#7' --part root:ext4:verity:verity-sig=root.hash:fingerprint=$finger; bad 'SHA-256' --part root:ext4:verity:verity-sig=sig.der:fingerprint=00
        bad 'no other content' --part root:ext4:rootdir=r:verity:verity-sig=sig.der:fingerprint=$finger --part root-verity-sig:file=sig"#,
    ),
    (
        "an_image_with_its_hash_tree_is_what_veritysetup_takes",
        &["veritysetup", "python3"],
        r#"mkdir r; seq 200000 > r/numbers
        for kind in ext4 btrfs; do
            rm -f i; "$SAPWOOD" mkfs -f -t $kind -r r --verity hashes --root-hash-file root.hash i > out.txt; root=$(cat root.hash); grep -cx "root hash: $root" out.txt; veritysetup verify i hashes $root; "$SAPWOOD" verity verify -q i hashes $root
        done
        "$SAPWOOD" mkfs -f -t ext4 --size 64M --verity hashes --json i > made.json; root=$(python3 -c 'import json; print(json.load(open("made.json"))["root_hash"])'); veritysetup verify i hashes $root
        for n in 1 2; do "$SAPWOOD" mkfs -q -t ext4 -r r --reproducible --verity hashes.$n --root-hash-file root.$n i.$n; done; cmp i.1 i.2; cmp hashes.1 hashes.2; cmp root.1 root.2
        "$SAPWOOD" mkfs -q -t ext4 -r r --reproducible --output-format qcow2 --verity hashes.3 --root-hash-file root.3 i.3; cmp hashes.1 hashes.3
        refused exists "$SAPWOOD" mkfs -q -t ext4 -r r --verity hashes.1 new; [ ! -e new ]; refused exists "$SAPWOOD" mkfs -q -t ext4 -r r --verity new new; [ ! -e new ]
        refused 'o such file' "$SAPWOOD" mkfs -q -r none --verity new.hash new; [ ! -e new ]; [ ! -e new.hash ]
        code=0; "$SAPWOOD" mkfs -t ext4 -f i --verity new.hash 2> err.txt || code=$?; [ $code = 2 ]; grep -c 'is for a new file' err.txt; [ ! -e new.hash ]"#,
    ),
    (
        "partitions_and_images_are_encrypted_when_they_are_made",
        &["cryptsetup", "sfdisk"],
        r#"mkdir r; seq 200000 > r/numbers; printf 'key\nof two lines' > key; printf wrong > wrong
        opens() { cryptsetup open --test-passphrase --key-file key $1; not cryptsetup open --test-passphrase --key-file wrong $1 > out.txt 2>&1; cryptsetup luksDump $1 > dump.txt; grep -c 'Version:[[:space:]]*2' dump.txt; not grep -q 19999 $1; }
        for kind in ext4 btrfs; do
            "$SAPWOOD" mkdisk -qf disk --part root:$kind:rootdir=r:luks=key --part other:size=1M; part 1 luks; opens luks
            "$SAPWOOD" cat --key-file key disk#root:numbers | cmp - r/numbers; "$SAPWOOD" check -q --key-file key disk#root
            rm -f i; "$SAPWOOD" mkfs -qf -t $kind -r r --key-file key i; opens i; "$SAPWOOD" check -q --key-file key i; "$SAPWOOD" cat --key-file key i:numbers | cmp - r/numbers
            "$SAPWOOD" mkfs -qf -t $kind --size 200M --key-file key i; [ $(stat -c %s i) = 209715200 ]; "$SAPWOOD" cp -q --key-file key r/numbers i:/; "$SAPWOOD" check -q --key-file key i; opens i
        done
        "$SAPWOOD" mkdisk -qf disk --part esp:fat:rootdir=r:luks=key:size=64M --part s:swap:luks=key:size=32M; sfdisk -d disk | grep -c 'disk1 .*size= *131072,'; for n in 1 2; do part $n luks; opens luks; done
        bad() { refused "$1" "$SAPWOOD" mkdisk no "${@:2}"; [ ! -e no ]; [ -z "$(ls -A | grep '^\.sapwood')" ]; }
        bad 'do not fit into 16' --part a:ext4:luks=key:size=16M; bad 'differs each time' --reproducible --part a:ext4:rootdir=r:luks=key; bad 'needs a content' --part a:size=40M:luks=key
        bad 'has a key, so' --part a:ext4:rootdir=r:luks=key:verity; bad 'none' --part a:ext4:rootdir=r:luks=none; : > empty; bad 'it is empty' --part a:ext4:rootdir=r:luks=empty
        usage() { local code=0; "$SAPWOOD" mkfs -t ext4 -r r --key-file key "${@:2}" no 2> err.txt || code=$?; [ $code = 2 ]; grep -qF -- "$1" err.txt || { cat err.txt; exit 1; }; [ ! -e no ]; }
        usage 'not --reproducible' --reproducible; usage 'exclude each other' --verity hashes; [ ! -e hashes ]"#,
    ),
    (
        "a_partition_grows_into_the_room_after_it",
        &["sfdisk", "sgdisk"],
        r#"mkdir r; seq 100000 > r/numbers
        for kind in ext4 btrfs; do for table in gpt mbr; do
            two=2; [ $table = mbr ] || two=root
            "$SAPWOOD" mkdisk -qf disk --table $table --size 600M --part first:size=4M --part root:$kind:rootdir=r; before=$(sfdisk -d disk | grep "^disk1")
            "$SAPWOOD" resize -q disk#$two +100M; sfdisk --verify disk > check.txt 2>&1; grep -q 'No errors detected' check.txt; part 2 root; sound root; "$SAPWOOD" cat disk#$two:numbers | cmp - r/numbers; [ "$(sfdisk -d disk | grep "^disk1")" = "$before" ]
            refused 'at most .*up to the end of the disk' "$SAPWOOD" resize disk#$two 1G
            truncate -s 1200M disk; "$SAPWOOD" resize -q disk#$two 1G; part 2 root; sound root; "$SAPWOOD" check -q disk#$two; "$SAPWOOD" cat disk#$two:numbers | cmp - r/numbers
            [ $table = mbr ] || sgdisk -v disk | grep -c 'No problems found'; sfdisk --verify disk > check.txt 2>&1; grep -q 'No errors detected' check.txt
            [ $(stat -c %s root) -ge 1073741824 ]; "$SAPWOOD" resize -q disk#$two min; "$SAPWOOD" cat disk#$two:numbers | cmp - r/numbers
        done; done
        "$SAPWOOD" mkdisk -qf disk --size 600M --part root:ext4:rootdir=r --part last:size=4M; cp --sparse=always disk old; refused 'up to partition 2' "$SAPWOOD" resize disk#root +100M; cmp disk old"#,
    ),
];
