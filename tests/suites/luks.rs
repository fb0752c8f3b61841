//! LUKS volumes with a file system in them. `cryptsetup` makes and opens them, and `qemu-img`
//! decrypts what we wrote. Each test is a script.

use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(300);

/// Prelude of the scripts: a key, a wrong one, a tree, and a function that expects an exit code.
const PRELUDE: &str = r#"
set -e; umask 022; export LC_ALL=C
printf 'key\nof two lines' > key; printf wrong > wrong
mkdir -p tree/dir; seq 20000 > tree/numbers; head -c 300000 /dev/urandom > tree/dir/noise; ln -s numbers tree/link
fails() { local expected=$1 code=0; shift; "$@" > out 2> err || code=$?; [ $code = $expected ] || { echo "$*: $code"; cat err; exit 1; }; }
filled() {
    "$SAPWOOD" mkfs -q -t $KIND --key-file key "$1"
    "$SAPWOOD" cp -r --key-file key tree "$1":/
    same "$1" --key-file key
    "$SAPWOOD" check --key-file key "$1"
}
same() { rm -rf back; "$SAPWOOD" cp -r "${@:2}" "$1":/tree back; diff -r --no-dereference tree back; }
kernel_check() {
    case $KIND in
    ext4) e2fsck -fn "$1" > check.txt 2>&1 ;;
    btrfs) btrfs check --readonly --check-data-csum "$1" > check.txt 2>&1 ;;
    esac || { cat check.txt; exit 1; }
}
"#;

const OURS: &str = r#"
"$SAPWOOD" luks format --size 200M --pbkdf-memory 64 --label home --uuid 11111111-2222-3333-4444-555555555555 --key-file key i
"$SAPWOOD" luks dump i > out; grep -q '11111111-2222-3333-4444-555555555555' out
fails 1 "$SAPWOOD" luks format --size 200M --key-file key i
fails 1 "$SAPWOOD" luks format --key-file key i; grep -q 'a LUKS volume already' err
fails 2 "$SAPWOOD" luks format i
fails 2 "$SAPWOOD" luks format --size 200M --key-file key --pbkdf nothing new
fails 1 "$SAPWOOD" luks format --size 200M --key-file key --sector-size 100 new; [ ! -e new ]
fails 1 "$SAPWOOD" luks format --size 1M --key-file key new; [ ! -e new ]
filled i
fails 3 "$SAPWOOD" ls i; grep -q -e '--key-file' err
fails 3 "$SAPWOOD" ls --key-file wrong i; grep -q 'opens none of the 1 key slots' err
fails 3 "$SAPWOOD" ls --key-file nothing i
fails 3 "$SAPWOOD" ls --key-file /dev/null i
"$SAPWOOD" ls --key-file - i < key > /dev/null
fails 3 "$SAPWOOD" ls --key-file key key
grep -q 19999 i && exit 1
"$SAPWOOD" info --key-file key i > /dev/null; "$SAPWOOD" scrub --key-file key i; "$SAPWOOD" trim --key-file key i; "$SAPWOOD" dump --key-file key i super > /dev/null
printf 'mkdir /made\n' > script; "$SAPWOOD" apply --key-file key i script; "$SAPWOOD" stat --key-file key i:/made > out
same i --key-file key
# Only what the file system reads is written.
mkdir all; cp -a tree all/; "$SAPWOOD" mkfs -q -t $KIND --size 1G -r all --key-file key large
[ $(stat -c %s large) = $((1 << 30)) ]; [ $(du -m large | cut -f1) -lt 200 ]
same large --key-file key; "$SAPWOOD" check --key-file key large
"#;

const CRYPTSETUP: &str = r#"
"$SAPWOOD" luks format --size 40M --pbkdf-memory 64 --key-file key ours
cryptsetup open --test-passphrase --key-file key ours
fails 2 cryptsetup open --test-passphrase --key-file wrong ours
"$SAPWOOD" luks format --size 40M --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --sector-size 512 --key-file key ours2
cryptsetup open --test-passphrase --key-file key ours2
# a second key slot that cryptsetup adds opens for us
cryptsetup luksAddKey -q --key-file key --pbkdf pbkdf2 --pbkdf-force-iterations 1000 ours2 wrong
"$SAPWOOD" luks dump ours2 > out; grep -q 'Key slot 1' out; "$SAPWOOD" mkfs -q -t ext4 --key-file wrong ours2; "$SAPWOOD" ls --key-file key ours2 > /dev/null
for sector in 512 4096; do
    for pbkdf in argon2i argon2id pbkdf2; do
        cost='--pbkdf-memory 64 --pbkdf-force-iterations 4'; [ $pbkdf = pbkdf2 ] && cost='--pbkdf-force-iterations 1000'
        rm -f i; truncate -s 160M i
        cryptsetup luksFormat -q --type luks2 --sector-size $sector --pbkdf $pbkdf $cost i key
        filled i
        cryptsetup open --test-passphrase --key-file key i
        fails 3 "$SAPWOOD" ls --key-file wrong i
    done
done
rm i; truncate -s 160M i; cryptsetup luksFormat -q --type luks1 --key-size 256 --pbkdf-force-iterations 1000 i key
filled i
qemu-img convert --object secret,id=key,file=key --image-opts driver=luks,key-secret=key,file.filename=i -O raw raw
kernel_check raw; same raw
# the same data with a header of LUKS2
cryptsetup convert -q --type luks2 i
same i --key-file key
rm i; truncate -s 160M i; cryptsetup luksFormat -q --type luks1 --cipher aes-cbc-essiv:sha256 --key-size 256 --pbkdf-force-iterations 1000 i key
fails 3 "$SAPWOOD" ls --key-file key i; grep -q aes-cbc-essiv err
"#;

const MOUNTED: &str = r#"
"$SAPWOOD" luks format --size 200M --pbkdf-memory 64 --key-file key i
filled i
mkdir m; trap '"$SAPWOOD" umount m 2> /dev/null || true' EXIT
fails 32 "$SAPWOOD" mount i m
fails 32 "$SAPWOOD" mount -o luks.keyfile=wrong i m
for how in '-o luks.keyfile=key' '--key-file key'; do
    "$SAPWOOD" mount $how i m
    diff -r --no-dereference tree m/tree
    echo "$how" > m/written; sync m/written
    if [ $KIND = btrfs ]; then
        truncate -s 64M new
        fails 1 "$SAPWOOD" device add m new
        grep -q encrypted err
    fi
    "$SAPWOOD" umount m
    [ "$("$SAPWOOD" cat --key-file key i:/written)" = "$how" ]
done
"$SAPWOOD" check --key-file key i
"#;

const SEVERAL_KEYS: &str = r#"
printf second > second; printf third > third; printf fourth > fourth; truncate -s 160M i
cryptsetup luksFormat -q --type luks2 --pbkdf argon2id --pbkdf-memory 64 --pbkdf-force-iterations 4 i key
add() { cryptsetup luksAddKey -q --key-file key "$@"; }
add --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash sha512 --key-slot 7 i second
add --pbkdf argon2i --pbkdf-memory 64 --pbkdf-force-iterations 4 i third
add --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash sha256 i fourth
filled i
for one in second third fourth; do same i --key-file $one; done
fails 3 "$SAPWOOD" ls --key-file wrong i; grep -q 'opens none of the 4 key slots' err
cryptsetup luksKillSlot -q --key-file third i 0
fails 3 "$SAPWOOD" ls --key-file key i; grep -q 'opens none of the 3 key slots' err
for one in second third fourth; do same i --key-file $one; done
rm i; truncate -s 160M i; cryptsetup luksFormat -q --type luks1 --key-size 512 --pbkdf-force-iterations 1000 i key
add --pbkdf-force-iterations 1000 --key-slot 5 i second
filled i; same i --key-file second
"#;

/// Volumes that are refused by name, and stay as they are.
const REFUSED: &str = r#"
cheap='--pbkdf-force-iterations 1000'
refused() {
    cp --sparse=always "$1" before
    for command in ls check info "mkfs -q -t $KIND"; do
        fails 3 "$SAPWOOD" $command --key-file key "$1"; grep -q "$2" err || { echo "$command:"; cat err; exit 1; }
    done
    cmp "$1" before
}
for type in luks1 luks2; do
    truncate -s 40M data
    cryptsetup luksFormat -q --type $type $cheap --pbkdf pbkdf2 --header header data key
    truncate -s 120M header
    refused header 'with a detached header'
    fails 3 "$SAPWOOD" ls --key-file key data; grep -q 'no LUKS volume' err
    rm header data
done
truncate -s 40M i; cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 $cheap i key
# cryptsetup needs a kernel with dm-integrity to make such a volume, but not to read its header.
python3 - <<'END'
import hashlib, json
with open("i", "r+b") as volume:
    for copy in (0, 16384):
        volume.seek(copy)
        header = bytearray(volume.read(16384))
        meta = json.loads(header[4096:].split(b"\0")[0])
        meta["segments"]["0"]["integrity"] = {
            "type": "hmac(sha256)", "journal_encryption": "none", "journal_integrity": "none"}
        header[4096:] = json.dumps(meta, separators=(",", ":")).encode().ljust(12288, b"\0")
        header[448:512] = bytes(64)
        header[448:480] = hashlib.sha256(header).digest()
        volume.seek(copy)
        volume.write(header)
END
cryptsetup luksDump i | grep -q 'integrity: hmac(sha256)'
refused i 'with authenticated encryption'
"#;

fn run(script: &str, kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let sapwood = sapwood().display();
    let script = format!("SAPWOOD='{sapwood}'; KIND={kind}\n{PRELUDE}\n{script}");
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let oracles = ["cryptsetup", "qemu-img", "e2fsck", "btrfs"].map(Need::Program);
    let mut trials = Vec::new();
    for kind in Kind::ALL {
        let named = |what| format!("{kind}::{what}");
        trials.push(trial(
            named("a_volume_of_ours_holds_an_image"),
            &[],
            move || run(OURS, kind),
        ));
        trials.push(trial(
            named("cryptsetup_and_qemu_agree_with_us"),
            &oracles,
            move || run(CRYPTSETUP, kind),
        ));
        trials.push(trial(
            named("each_of_several_keys_opens_a_volume"),
            &oracles,
            move || run(SEVERAL_KEYS, kind),
        ));
        trials.push(trial(
            named("detached_headers_and_authenticated_modes_are_refused_by_name"),
            &[Need::Program("cryptsetup"), Need::Program("python3")],
            move || run(REFUSED, kind),
        ));
        trials.push(trial(
            named("a_volume_is_mounted"),
            &[Need::Fuse],
            move || run(MOUNTED, kind),
        ));
    }
    trials
}
