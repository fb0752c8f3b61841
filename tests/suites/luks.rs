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
            named("a_volume_is_mounted"),
            &[Need::Fuse],
            move || run(MOUNTED, kind),
        ));
    }
    trials
}
