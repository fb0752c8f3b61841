//! Everyday use of images without a mount, and of commands that the daemon of a mount executes in
//! process: owners, streams, unreadable files, names, sizes and times. Each test is a script;
//! `$KIND` is the format.

mod commands;
mod mounted;
mod new_files;
mod pages;
mod subvolumes;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::mount::{DETACH_COPIES, sapwood, workspace};
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(600);

/// Prelude of the scripts. `fails CODE HINT COMMAND...`: it exits with this code and one line that
/// contains the hint; `owner PLACE UID GID`: checks the owner; `tools IMAGE`: the tools of its
/// format report no error; `not COMMAND`: it fails (`!` ends no script).
const PRELUDE: &str = r#"
umask 022
image() { "$SAPWOOD" mkfs -q -t $KIND --size 128M "$@"; }
user() { setpriv --reuid 1234 --regid 1235 --clear-groups "$@"; }
owner() {
    local found; found=$("$SAPWOOD" stat "$1" | grep -F "  mode"); grep -q "uid $2, gid $3\$" <<< "$found" || { echo "$1: $found"; exit 1; }
}
fails() {
    local code=0 expected=$1 hint=$2; shift 2
    timeout 60 "$SAPWOOD" "$@" > out.txt 2> err.txt || code=$?
    [ $code = $expected ] || { echo "exit code $code: $*"; cat err.txt; exit 1; }
    grep -q -- "$hint" err.txt || { echo "$* says:"; cat err.txt; exit 1; }
    [ $expected = 2 ] || [ $(wc -l < err.txt) = 1 ] || { echo "$* says more:"; cat err.txt; exit 1; }
}
tools() { [ $KIND = ext4 ] && check=(e2fsck -fn) || check=(btrfs check --check-data-csum); "${check[@]}" "$1" > tools.txt 2>&1 || { cat tools.txt; exit 1; }; }
not() { ! "$@" || { echo "succeeded: $*"; exit 1; }; }
mkdir t; echo text > f
"#;

const SCRIPTS: &[(&str, &str)] = &[
    (
        "what_a_user_makes_belongs_to_the_user",
        r#"chmod 777 .; user "$SAPWOOD" mkfs -q -t $KIND --size 128M a.img; owner a.img 1234 1235
        mkdir -p t/d; echo x > t/d/f; user "$SAPWOOD" cp -q f a.img:; owner a.img:f 1234 1235
        user "$SAPWOOD" cp -qr t/d a.img:; owner a.img:d 1234 1235; owner a.img:d/f 1234 1235
        user "$SAPWOOD" mkdir -p a.img:m/n; owner a.img:m/n 1234 1235
        user "$SAPWOOD" cp -q a.img:f a.img:g; owner a.img:g 1234 1235
        user "$SAPWOOD" cp -qa f a.img:kept; owner a.img:kept 0 0
        [ $KIND = ext4 ] || { user "$SAPWOOD" subvolume create a.img:s; owner a.img:s 1234 1235; }"#,
    ),
    (
        "an_owner_can_be_chosen",
        r#"image a.img --owner 7:8; owner a.img 7 8; "$SAPWOOD" cp -q --owner 7:8 f a.img:; owner a.img:f 7 8
        "$SAPWOOD" cp -qa --owner 9:8 t a.img:; owner a.img:t 9 8; "$SAPWOOD" mkdir --owner 7:8 a.img:d; owner a.img:d 7 8
        [ $KIND = ext4 ] || { "$SAPWOOD" subvolume create --owner 7:8 a.img:s; owner a.img:s 7 8; }
        fails 2 'into an image' cp --owner 7:8 a.img:f out; fails 2 'UID:GID' cp --owner root f a.img:"#,
    ),
    (
        "new_directories_and_files_heed_the_umask",
        r#"image a.img; umask 077; touch g; chmod 666 g; "$SAPWOOD" mkdir a.img:d; "$SAPWOOD" cp -q g a.img:g
        "$SAPWOOD" ls -l a.img | grep -c '^drwx------ .* d$'; "$SAPWOOD" ls -l a.img | grep -c '^-rw------- .* g$'"#,
    ),
    (
        "streams_are_copied_by_content",
        r#"image a.img; echo one | "$SAPWOOD" cp -q - a.img:f1; [ $("$SAPWOOD" cat a.img:f1) = one ]
        echo two | "$SAPWOOD" cp -q /dev/stdin a.img:f2; [ $("$SAPWOOD" cat a.img:f2) = two ]
        mkfifo p; echo three > p & "$SAPWOOD" cp -q p a.img:f3; [ $("$SAPWOOD" cat a.img:f3) = three ]
        "$SAPWOOD" cp -q a.img:f1 - | grep -cx one; "$SAPWOOD" cp -q a.img:f1 /dev/stdout | grep -cx one
        "$SAPWOOD" cp -qr p a.img:p; "$SAPWOOD" stat a.img:p | grep -c fifo
        fails 1 'no content' cp -q a.img:p out; [ ! -e out ]; fails 1 'no name' cp -q - a.img:/ < f
        printf a | "$SAPWOOD" cat - a.img:f1 | tr -d '\n' | grep -cx aone"#,
    ),
    (
        "an_archive_is_put_into_an_image",
        r#"mkdir -p t/d; echo x > t/d/f; chown 7:8 t/d/f; chmod 640 t/d/f; ln t/d/f t/hard; ln -s d/f t/soft; tar cf a.tar t
        image a.img --tar a.tar; owner a.img:t/d/f 7 8; [ $("$SAPWOOD" cat a.img:t/hard) = x ]; owner a.img 0 0
        image b.img; "$SAPWOOD" mkdir b.img:in; gzip -c a.tar | "$SAPWOOD" untar -q - b.img:in; owner b.img:in/t/d/f 7 8
        "$SAPWOOD" stat b.img:in/t/soft | grep -c 'd/f'; zstd -q a.tar; "$SAPWOOD" untar -q a.tar.zst b.img:; owner b.img:t/hard 7 8
        "$SAPWOOD" check -q a.img && "$SAPWOOD" check -q b.img
        fails 2 'is an image' untar a.tar a.img; fails 1 'none' untar none.tar a.img:; fails 1 'nowhere' untar a.tar a.img:nowhere
        head -c 2000 a.tar > cut.tar; fails 1 'cut.tar' untar -q cut.tar a.img:
        fails 1 'cut.tar' mkfs -q -t $KIND --size 128M --tar cut.tar c.img; [ ! -e c.img ]
        "$SAPWOOD" mkfs -q -t $KIND --size 128M --tar a.tar -r t m.img; owner m.img:t/d/f 7 8; owner m.img:hard 7 8; "$SAPWOOD" check -q m.img"#,
    ),
    (
        "an_image_without_a_size_is_as_large_as_needed",
        r#"mkdir -p t/d; for i in $(seq 300); do head -c $((i * 97)) /dev/urandom > t/d/f$i; done; truncate -s 50M t/sparse
        "$SAPWOOD" mkfs -q -t $KIND -r t a.img; size() { stat -c %s "$1"; }; [ $(size a.img) -lt 100000000 ]
        "$SAPWOOD" cp -qr a.img:/d out; diff -r t/d out; "$SAPWOOD" check -q a.img; tools a.img
        tar cf - -C t . | "$SAPWOOD" mkfs -q -t $KIND --tar - b.img; [ $(size b.img) -lt 100000000 ]; "$SAPWOOD" check -q b.img; tools b.img
        "$SAPWOOD" mkfs -q -t $KIND -r t --free 64M --free-inodes 5000 c.img; [ $(size c.img) -gt $(size a.img) ]; available() { "$SAPWOOD" df --json "$1" | grep -o '"available": [0-9]*' | tr -dc 0-9; }
        [ $(available c.img) -ge 67108864 ]; tools c.img
        "$SAPWOOD" mkfs -q -t $KIND -r t --free 50% d.img; [ $(available d.img) -ge $(($(size a.img) * 45 / 100)) ]
        mkdir s; truncate -s 2G s/f; echo x | dd of=s/f bs=1M seek=1000 conv=notrunc status=none; tar cSf s.tar -C s .; "$SAPWOOD" mkfs -q -t $KIND -r s f.img
        "$SAPWOOD" mkfs -q -t $KIND --tar s.tar g.img; [ $(size g.img) -le $(($(size f.img) * 11 / 10)) ]; tools g.img
        fails 1 'does not exist' mkfs -t $KIND e.img; fails 2 'percentage' mkfs -t $KIND -r t --free x% e.img; [ ! -e e.img ]"#,
    ),
    (
        "an_image_changes_its_size_and_gives_back_free_space",
        r#"mkdir -p t/d; for i in $(seq 100); do head -c $((i * 997)) /dev/urandom > t/d/f$i; done; head -c 30M /dev/urandom > big
        image a.img -r t; "$SAPWOOD" cp -q big a.img:; same() { rm -rf out; "$SAPWOOD" cp -qr a.img:/d out; diff -r t/d out; "$SAPWOOD" check -q a.img; tools a.img; }
        for size in 300M 200M +10M -20M min +50M; do "$SAPWOOD" resize -q a.img $size; same; done
        [ $(stat -c %s a.img) -ge 52428800 ]; "$SAPWOOD" resize a.img --json min | grep -c '"after"'
        "$SAPWOOD" resize -q a.img 400M; [ $(stat -c %s a.img) = 419430400 ]; "$SAPWOOD" rm a.img:big
        before=$(stat -c %b a.img); "$SAPWOOD" trim a.img | grep -c trimmed; [ $(($(stat -c %b a.img) + 50000)) -lt $before ]; same
        fails 1 'fit\|inodes' resize a.img 2M; fails 2 'not min' resize a.img most; fails 1 'has only' resize a.img -900M; fails 3 'o such file' resize none.img min; same"#,
    ),
    (
        "holes_are_zeros_in_a_stream",
        r#"truncate -s 3M h; echo x | dd of=h bs=1 seek=2000000 conv=notrunc status=none; image a.img; "$SAPWOOD" cp -q h a.img:
        "$SAPWOOD" cp -q a.img:h - | cmp - h; [ $("$SAPWOOD" stat --json a.img:h | grep -oP '"allocated": \K\d+') -lt 100000 ]"#,
    ),
    (
        "unreadable_files_are_left_out_and_named",
        r#"mkdir -p t/a; echo x > t/a/1; echo x > t/a/2; echo x > t/z; chmod 0 t/a/1; mkdir -m 0 t/b; chmod 777 .
        image a.img; chmod 666 a.img; code=0; user "$SAPWOOD" cp -qr t a.img: 2> err.txt || code=$?; [ $code = 1 ]
        [ $(wc -l < err.txt) = 2 ]; grep -q 't/a/1: ' err.txt; grep -q 't/b: ' err.txt
        [ $("$SAPWOOD" cat a.img:t/a/2 a.img:t/z | wc -l) = 2 ]; "$SAPWOOD" ls a.img:t/a | grep -cx 2
        code=0; user "$SAPWOOD" mkfs -q -t $KIND --size 128M -r t b.img 2> err.txt || code=$?; [ $code = 1 ]
        [ $(wc -l < err.txt) = 3 ]; grep -q 'without 2' err.txt; [ $("$SAPWOOD" cat b.img:z) = x ]"#,
    ),
    (
        "nodes_that_a_user_cannot_make_are_left_out",
        r#"mkdir t/d; mknod t/d/c c 1 3; echo x > t/d/z; image a.img -r t; chmod 644 a.img; mkdir -m 777 o; chmod 755 .
        code=0; user "$SAPWOOD" cp -qa a.img:d o 2> err.txt || code=$?; [ $code = 1 ]; [ $(wc -l < err.txt) = 1 ]
        grep -q 'o/d/c: ' err.txt; [ $(cat o/d/z) = x ]"#,
    ),
    (
        "a_failed_mkfs_leaves_no_file",
        r#"head -c 60000000 /dev/urandom > t/big
        fails 1 'a.img' mkfs -q -t $KIND --size 16k a.img || fails 3 'a.img' mkfs -q -t $KIND --size 16k a.img; [ ! -e a.img ]
        fails 1 'space' mkfs -q -t $KIND --size 40M -r t a.img || fails 1 'a.img' mkfs -q -t $KIND --size 40M -r t a.img
        [ ! -e a.img ]; fails 1 'nowhere: No such file' mkfs -q -t $KIND --size 128M -r nowhere a.img; [ ! -e a.img ]; image a.img
        echo mine > b.img; fails 1 'exists' mkfs -q -t $KIND --size 128M b.img; [ $(cat b.img) = mine ]
        fails 1 'nowhere: No such file' mkfs -q -f -t $KIND --size 128M -r nowhere b.img; [ -e b.img ]"#,
    ),
    (
        "a_missing_image_is_no_local_name",
        r#"image a.img -r t; "$SAPWOOD" cp -q f a.img:a; ls > before
        fails 3 'other.img: no such image' mv a.img:a other.img:b; fails 3 'typo.img: no such image' cp -r a.img:/ typo.img:
        fails 3 'typo.img: no such image' cp f typo.img:x; fails 3 'typo.img: no such image' ls typo.img:x
        fails 3 'typo.img: no such image' cp typo.img:x out; fails 3 'typo.img: no such image' cp f $PWD/typo.img:x
        rm -f out.txt err.txt; ls | diff - before; [ "$("$SAPWOOD" ls a.img | grep -c img)" = 0 ]
        "$SAPWOOD" cp -q a.img:a ./new:name; [ $(cat new:name) = text ]; "$SAPWOOD" cp -q a.img:a new:name"#,
    ),
    (
        "a_slash_at_the_end_means_a_directory",
        r#"image a.img; "$SAPWOOD" cp -q f a.img:a; fails 1 'no such directory' cp f a.img:nodir/; fails 1 'not a directory' cp f a.img:a/
        fails 1 'no such directory' cp a.img:a nodir/; fails 1 'not a directory' mv a.img:a a.img:b/
        fails 1 'not a directory' cp a.img:a/ out; [ "$("$SAPWOOD" ls a.img | grep -v lost)" = a ]"#,
    ),
    (
        "messages_name_the_path_that_is_wrong",
        r#"image a.img; "$SAPWOOD" mkdir -p a.img:p/q; fails 1 '^sapwood: /nope: no such file' mv a.img:nope p
        fails 1 'root directory' rm -r a.img:/; fails 1 'has to be a name' rm -r a.img:p/.; fails 1 'into itself' mv a.img:p a.img:p/q
        fails 1 'into itself' mv a.img:p p/q/r; fails 1 '/p: is a directory' rm a.img:p; fails 1 'root directory' mkdir a.img:/
        fails 2 'not a size' mkfs --size 1.5 x.img; "$SAPWOOD" mkfs -q -t $KIND --size 0.25G b.img; [ $(stat -c %s b.img) = 268435456 ]"#,
    ),
    (
        "an_image_has_one_identity_under_two_names",
        r#"image a.img; ln -s a.img l.img; "$SAPWOOD" cp -q f a.img:a; "$SAPWOOD" mv a.img:a ./a.img:b; "$SAPWOOD" cp -q a.img:b l.img:c
        "$SAPWOOD" mv a.img:c l.img:d; [ $("$SAPWOOD" cat a.img:d) = text ]"#,
    ),
    (
        "times_have_a_zone",
        r#"touch -d '2025-07-01 00:00:00.5 UTC' t/f; image a.img -r t; export TZ=CET-1CEST,M3.5.0,M10.5.0/3
        "$SAPWOOD" ls -l a.img | grep -c '2025-07-01 02:00:00 f'; "$SAPWOOD" stat a.img:f | grep -c 'modify  2025-07-01 02:00:00.500000000 +0200'
        for command in stat 'ls -l' ls tree; do "$SAPWOOD" $command --json a.img:f 2> err.txt | grep -c '"mtime": *"2025-07-01T00:00:00.500000000Z"' ||
            { [ "$command" = tree ] || { echo $command; exit 1; }; }; done
        "$SAPWOOD" tree --json a.img | grep -c '"mtime": *"2025-07-01T00:00:00.500000000Z"'"#,
    ),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![trial(
        "install_makes_its_directories",
        &[Need::Program("make")],
        install,
    )];
    trials.extend(pages::trials());
    for (name, script) in subvolumes::SCRIPTS {
        let run = move || everyday("btrfs", "", script);
        trials.push(trial(format!("btrfs::{name}"), &[], run));
    }
    let needs = [Need::Root, Need::Fuse];
    let mount = || everyday("btrfs", mounted::PRELUDE, subvolumes::MOUNT);
    trials.push(trial(
        "btrfs::an_image_and_its_mount_mean_the_same",
        &needs,
        mount,
    ));
    for kind in ["btrfs", "ext4"] {
        for (name, script) in SCRIPTS.iter().chain(commands::SCRIPTS) {
            let run = move || everyday(kind, "", script);
            let needs = [&[Need::Root], parts(name, script)].concat();
            trials.push(trial(format!("{kind}::{name}"), &needs, run));
        }
        for (name, script) in new_files::SCRIPTS {
            let run = move || everyday(kind, new_files::PRELUDE, script);
            let programs = ["strace", "cpio", "unshare", "nbdkit"].map(Need::Program);
            let needs = [&[Need::Root][..], parts(name, script), &programs].concat();
            trials.push(trial(format!("{kind}::{name}"), &needs, run));
        }
        for (name, script) in mounted::SCRIPTS {
            let run = move || everyday(kind, mounted::PRELUDE, script);
            let programs = ["getfattr", "setfattr", "setfacl", "getfacl"].map(Need::Program);
            let needs = [&[Need::Root, Need::Fuse][..], &programs].concat();
            trials.push(trial(format!("{kind}::{name}"), &needs, run));
        }
    }
    trials
}

/// What a script needs of the build and of FUSE.
fn parts(name: &str, script: &str) -> &'static [Need] {
    match name {
        _ if script.contains("\"$SAPWOOD\" mount") => &[Need::Fuse],
        "an_image_changes_its_size_and_gives_back_free_space" => &[machine::DISCARDS],
        "a_command_that_a_signal_ends_leaves_no_file"
        | "a_signal_while_a_source_blocks_leaves_nothing" => &[machine::UNNAMED_FILES],
        _ => &[],
    }
}

fn everyday(kind: &str, more: &str, script: &str) -> Outcome {
    let dir = scratch::directory();
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c"])
        .arg(format!("{PRELUDE}\n{more}\n{script}"))
        .env("SAPWOOD", sapwood())
        .envs([("KIND", kind), ("TZ", "UTC")])
        .env("DETACH_COPIES", DETACH_COPIES)
        .current_dir(dir.path());
    process::succeed(&mut command, LIMIT)?;
    Ok(())
}

/// Into an empty directory, with a program that was built before.
fn install() -> Outcome {
    let dir = scratch::directory();
    let make = |binary: &Path| {
        let mut make = Command::new("make");
        make.arg("install")
            .arg(format!("DESTDIR={}", dir.path().join("new").display()))
            .arg(format!("BINARY={}", binary.display()))
            .current_dir(workspace());
        process::succeed(&mut make, LIMIT)
    };
    if make(&dir.path().join("not-built")).is_ok() {
        return Err("it installed, or built, what was not there".into());
    }
    make(sapwood())?;
    let new = dir.path().join("new/usr");
    for helper in ["mount.sapwood", "mount.fuse.sapwood"] {
        let link = new.join("sbin").join(helper);
        process::run("test", &["-x".as_ref(), link.as_os_str()])?;
    }
    let share = new.join("share");
    for file in [
        "man/man1/sapwood.1",
        "man/man1/sapwood-subvolume-create.1",
        "man/man8/mount.fuse.sapwood.8",
        "bash-completion/completions/sapwood",
        "zsh/vendor-completions/_sapwood",
        "fish/vendor_completions.d/sapwood.fish",
    ] {
        process::run("test", &["-s".as_ref(), share.join(file).as_os_str()])?;
    }
    verify_unit(&dir.path().join("new"))?;
    Ok(())
}

/// systemd finds nothing wrong with the installed unit. It looks for the program below the root.
fn verify_unit(root: &Path) -> Result<(), String> {
    let unit = root.join("usr/lib/systemd/system/sapwood@.service");
    let text = std::fs::read_to_string(&unit).map_err(|error| error.to_string())?;
    if !machine::installed("systemd-analyze") {
        return Ok(());
    }
    let dir = scratch::directory();
    let copy = dir.path().join("sapwood@test.service");
    let program = root.join("usr/bin/sapwood").display().to_string();
    std::fs::write(&copy, text.replace("/usr/bin/sapwood", &program))
        .map_err(|error| error.to_string())?;
    let verify = ["verify".as_ref(), "--man=no".as_ref(), copy.as_os_str()];
    let mut command = process::command("systemd-analyze", &verify);
    let said = process::finish(&mut command, LIMIT)?;
    // Errors in other units of the machine do not count.
    let ours = |line: &&str| line.contains("sapwood@");
    match said.all().lines().find(ours) {
        None => Ok(()),
        Some(line) => Err(line.to_owned()),
    }
}
