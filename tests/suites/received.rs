//! Streams received into directories of this machine, compared with the kernel's results.

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_testing::tree::{Detail, Facts, Tree};
use sapwood_tests::changes::Changing;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(120);

/// An ordinary user.
const USER: u32 = 65534;

pub(crate) fn trials() -> Vec<Trial> {
    let directories = machine::RECEIVED_DIRECTORIES;
    let kernel = [directories, machine::KERNEL, Need::Program("btrfs")];
    let user = [
        directories,
        Need::Root,
        Need::Program("setpriv"),
        Need::Program("setcap"),
    ];
    let mounts = [Need::Fuse, machine::KERNEL, Need::Program("btrfs")];
    vec![
        trial("a_directory_has_what_the_kernel_receives", &kernel, || {
            (1..=2).try_for_each(like_the_kernel)
        }),
        trial("an_ordinary_user_gets_a_report", &user, ordinary_user),
        trial(
            "a_mount_gets_subvolumes_that_are_parents_for_the_kernel",
            &mounts,
            into_a_mount,
        ),
        trial("a_sealed_stream_is_verified", &[directories], sealed_stream),
        trial(
            "the_daemon_of_a_mount_sends_and_receives",
            &[Need::Fuse, machine::KERNEL, Need::Program("setpriv")],
            by_the_daemon,
        ),
        trial(
            "a_receive_of_the_daemon_that_ends_early_is_resumed",
            &[Need::Fuse],
            ended_early,
        ),
    ]
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn btrfs(args: &[&str]) -> Result<String, String> {
    process::run("btrfs", args)
}

fn tree(path: &Path) -> Result<Tree, String> {
    Tree::of_mount(path, Detail::Sums).map_err(|error| error.to_string())
}

/// The kernel's streams of a chain of snapshots, received by the kernel and as directories, on the
/// kernel's btrfs and on the file system of temporary files.
fn like_the_kernel(version: u64) -> Outcome {
    let source = TempImage::by_kernel(&Mkfs::default())?;
    let destination = TempImage::by_kernel(&Mkfs::default())?;
    let from = Driver::Kernel.mount(source.path(), "noatime")?;
    let to = Driver::Kernel.mount(destination.path(), "noatime")?;
    let volume = from.path().join("volume");
    btrfs(&["subvolume", "create", text(&volume)])?;
    let (shared, plain) = (to.path().join("directories"), scratch::directory());
    std::fs::create_dir(&shared)?;
    let stream = source.beside("stream");
    let number = version.to_string();
    for step in 0..4 {
        Changing::new(&volume, 100 * version + step).change(60);
        let snapshot = from.path().join(format!("s{step}"));
        let parent = from.path().join(format!("s{}", step.saturating_sub(1)));
        let (snapshot, parent) = (text(&snapshot), text(&parent));
        btrfs(&["subvolume", "snapshot", "-r", text(&volume), snapshot])?;
        let mut args = vec!["send", "--proto", &number, "-f", text(&stream)];
        if version == 2 {
            args.push("--compressed-data");
        }
        if step > 0 {
            args.extend(["-p", parent]);
        }
        args.push(snapshot);
        btrfs(&args)?;
        btrfs(&["receive", "-f", text(&stream), text(to.path())])?;
        for dir in [&*shared, plain.path()] {
            let mut receive = Command::new(sapwood());
            receive.args(["receive", "-f"]).arg(&stream).arg(dir);
            process::succeed(&mut receive, LIMIT)?;
        }
        let name = format!("s{step}");
        let expected = tree(&to.path().join(&name))?;
        expected
            .compare(&tree(&shared.join(&name))?, |_, one, _| {
                one.plain() | Facts::MTIME | Facts::ATIME | Facts::DATA
            })
            .map_err(|error| format!("version {version}, {name}: {error}"))?;
        expected
            .compare(&tree(&plain.path().join(&name))?, |_, one, _| {
                // Comparing the parent has changed its access times there.
                one.plain() | Facts::MTIME
            })
            .map_err(|error| format!("version {version}, {name}, elsewhere: {error}"))?;
    }
    from.unmount()?;
    to.unmount()?;
    Ok(())
}

/// Owners, devices, capabilities and set-id bits are left out and reported. Everything else is
/// there, also below directories that their owner cannot write to, and after a difference.
fn ordinary_user() -> Outcome {
    let dir = scratch::directory();
    // The command is where every user can run it.
    let program = dir.path().join("sapwood");
    std::fs::copy(sapwood(), &program)?;
    std::fs::create_dir(dir.path().join("to"))?;
    chown(dir.path().join("to"), Some(USER), Some(USER))?;
    let script = r#"
        set -e; chmod 755 .
        ./sapwood mkfs -q --size 256M source; mkdir t; cd t
        mkdir -p closed/below; echo text > closed/below/file; echo secret > closed/secret; ln closed/secret link
        mknod null c 1 3; mkfifo fifo; ln -s /etc/passwd outside; cp /bin/true true; chmod 4755 true
        chown -R 12:34 closed/below; setcap cap_net_raw+ep closed/below/file; chmod 400 closed/secret; chmod 555 closed/below; chmod 500 closed; cd ..
        ./sapwood subvolume create source:/v; ./sapwood cp -q -a t source:/v/t; ./sapwood subvolume snapshot -r source:/v /a
        ./sapwood mv source:/v/t/closed/below/file /v/t/closed/below/moved; ./sapwood rm source:/v/t/null; echo more > more
        ./sapwood cp -q more source:/v/t/closed/below/more; ./sapwood cp -q more source:/v/t/closed/secret; ./sapwood subvolume snapshot -r source:/v /b
        ./sapwood send source:a -o a.stream; ./sapwood send source:b -p a -o b.stream; chmod 644 a.stream b.stream
        user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
        ! user ./sapwood receive --json to < a.stream > report || exit 1
        for what in owner set_id attribute special; do grep -q "\"$what\"" report || { cat report; exit 1; }; done
        ! user ./sapwood receive to < a.stream 2> error || exit 1; grep -q 'exists' error
        ! user ./sapwood receive to < b.stream 2> error || exit 1; grep -q 'owner not kept' error || { cat error; exit 1; }
        [ "$(ls -A to | tr '\n' ' ')" = ".sapwood-received a b " ]
        [ "$(stat -c %a to/b/t/closed to/b/t/closed/below to/a/t/closed/secret to/b/t/true | tr '\n' ' ')" = "500 555 400 755 " ]
        [ "$(cat to/b/t/closed/below/moved to/b/t/closed/secret to/a/t/link | tr '\n' ' ')" = "text more secret " ]
        [ to/a/t/closed/secret -ef to/a/t/link ]; [ "$(readlink to/b/t/outside)" = /etc/passwd ]; [ -p to/b/t/fifo ]
        [ -f to/a/t/null ]; [ ! -e to/b/t/null ]; [ ! -e to/b/t/closed/below/file ]
        [ "$(stat -c %u to/b/t/closed/below/moved)" = 65534 ]
        "#;
    process::shell(dir.path(), script, LIMIT)?;
    Ok(())
}

/// A chain of streams: the first, cut and resumed, into a mount of ours by system calls, because
/// another network namespace does not reach the daemon's socket; the second into the image, the third
/// into the mount by its daemon, the last by the kernel.
fn into_a_mount() -> Outcome {
    let dir = scratch::directory();
    let run = |script: &str| {
        let script = format!("set -e; SAPWOOD={}; {script}", text(sapwood()));
        process::shell(dir.path(), &script, LIMIT)
    };
    run(
        r#""$SAPWOOD" mkfs -q --size 256M source; "$SAPWOOD" subvolume create source:/v
        mkdir -p t/d; echo one > t/a; ln -s a t/l; head -c 300000 /dev/urandom > t/b; "$SAPWOOD" cp -q -a t source:/v/t
        for i in 1 2 3 4; do "$SAPWOOD" mv source:/v/t/b /v/t/d/c; echo $i > more; "$SAPWOOD" cp -q more source:/v/t/b
            "$SAPWOOD" subvolume snapshot -r source:/v /s$i; "$SAPWOOD" send -q source:s$i ${p:+-p $p} -o $i; p=s$i; done"#,
    )?;
    let target = TempImage::by_kernel(&Mkfs::default())?;
    let mount = Driver::Sapwood.mount(target.path(), "rw")?;
    let place = text(mount.path()).to_owned();
    run(&format!(
        r#"head -c 200000 1 > cut; alone() {{ unshare -n "$SAPWOOD" receive -q "$@"; }}
        if alone -f cut {place}; then exit 1; fi; [ -d {place}/s1.part ]; alone --resume -f 1 {place}; if touch {place}/s1/x; then exit 1; fi
        [ "$("$SAPWOOD" subvolume list {place} | grep -c read-only)" = 1 ]"#
    ))?;
    mount.unmount()?;
    let image = text(target.path()).to_owned();
    run(&format!(r#""$SAPWOOD" receive -q -f 2 {image}:"#))?;
    let mount = Driver::Sapwood.mount(target.path(), "rw")?;
    let place = text(mount.path()).to_owned();
    run(&format!(r#""$SAPWOOD" receive -q -f 3 {place}"#))?;
    mount.unmount()?;
    let mount = Driver::Kernel.mount(target.path(), "noatime")?;
    let stream = dir.path().join("4");
    btrfs(&["receive", "-f", text(&stream), text(mount.path())])?;
    for name in ["s1", "s2", "s3", "s4"] {
        run(&format!(
            r#"rm -rf out; "$SAPWOOD" cp -q -a source:/{name} out; diff -r --no-dereference out {}/{name}"#,
            mount.path().display()
        ))?;
    }
    mount.unmount()?;
    target.check()?;
    Ok(())
}

/// A stored stream is verified by its seal. A receive stops before a damaged part, and goes on with
/// the right stream.
fn sealed_stream() -> Outcome {
    let dir = scratch::directory();
    let script = r#"
        "$SAPWOOD" mkfs -q --size 256M source; "$SAPWOOD" subvolume create source:/v; head -c 3000000 /dev/urandom > f
        "$SAPWOOD" cp -q f source:/v/f; "$SAPWOOD" subvolume snapshot -r source:/v /s; "$SAPWOOD" send -q source:s --seal -o a
        "$SAPWOOD" send -q source:s --seal=b.seal > b; cmp a b; cmp a.seal b.seal
        if "$SAPWOOD" send -q source:s --seal > c 2> error; then exit 1; fi; grep -q 'seal=FILE' error
        if "$SAPWOOD" send -q source:s --seal=b.seal > c 2> error; then exit 1; fi; grep -q 'b.seal: exists' error
        if "$SAPWOOD" send -q source:s --seal=./new -o new 2> error; then exit 1; fi; grep -q 'same file' error; [ ! -e new ]
        "$SAPWOOD" receive --verify --seal -f a; "$SAPWOOD" receive --verify --seal=b.seal < a; "$SAPWOOD" receive --verify < a
        cp a bad; printf 'wxyz' | dd of=bad bs=1 seek=2000000 conv=notrunc 2> /dev/null; mkdir to
        if "$SAPWOOD" receive --verify --seal=b.seal -f bad 2> error; then exit 1; fi; grep -q 'chunk 1 (bytes 1048576 to 2097152) is damaged' error
        if "$SAPWOOD" receive --verify -f bad 2> error; then exit 1; fi; grep -q 'commands: the checksum' error
        if "$SAPWOOD" receive -q --seal=b.seal -f bad to 2> error; then exit 1; fi; grep -q 'chunk 1 ' error; [ -d to/s.part ]
        "$SAPWOOD" receive -q --resume --seal -f a to; cmp f to/s/f
        head -c 1500000 a > cut; if "$SAPWOOD" receive --verify --seal=a.seal < cut 2> error; then exit 1; fi; grep -q 'ends at byte 1500000' error
        mkfifo slow; "$SAPWOOD" receive --verify < slow 2> error & pid=$!; exec 9> slow; head -c 1000 a >&9
        while kill -INT $pid 2> kill.txt; do sleep 0.5; done; code=0; wait $pid || code=$?; exec 9>&-
        [ $code = 130 ]; grep -q 'not verified' error
        echo >> b.seal; if "$SAPWOOD" receive --verify --seal -f b 2> error; then exit 1; fi; grep -q 'the seal is damaged at line' error
        mkdir -p root/in; ln -s / root/out; "$SAPWOOD" receive -q -C root out/in < a; cmp f root/in/s/f
    "#;
    let script = format!("set -e; SAPWOOD={}; {script}", text(sapwood()));
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}

/// Snapshots of a mount in use, sent by its daemon: the same bytes as from the image. Received by the
/// daemon of another mount, whose caches know each name before.
fn by_the_daemon() -> Outcome {
    let source = TempImage::by_kernel(&Mkfs::default())?;
    let target = TempImage::by_kernel(&Mkfs::default())?;
    let (from, to) = (
        Driver::Sapwood.mount(source.path(), "allow_other")?,
        Driver::Sapwood.mount(target.path(), "rw")?,
    );
    let dir = scratch::directory();
    let run = |script: &str| {
        let (from, to) = (text(from.path()), text(to.path()));
        let script = format!(
            "SAPWOOD={}; FROM={from}; TO={to}; {script}",
            text(sapwood())
        );
        process::shell(dir.path(), &script, LIMIT)
    };
    run(r#""$SAPWOOD" subvolume create $FROM/v"#)?;
    for step in 1..=3 {
        Changing::new(&from.path().join("v"), step).change(60);
        run(&format!(
            r#""$SAPWOOD" subvolume snapshot -r $FROM/v $FROM/s{step}; p={}
            "$SAPWOOD" send -q $FROM/s{step} ${{p:+-p $FROM/$p}} -o {step} & echo more >> $FROM/v/more; wait $!
            ls -R $TO > known; [ ! -e $TO/s{step}/none ]; "$SAPWOOD" receive -q $TO < {step}; [ "$(ls $TO | grep -c '^s{step}$')" = 1 ]"#,
            if step == 1 {
                String::new()
            } else {
                format!("s{}", step - 1)
            },
        ))?;
        let name = format!("s{step}");
        same(&from.path().join(&name), &to.path().join(&name))?;
    }
    run(
        r#"fails() { local hint=$1 code=0; shift; "$SAPWOOD" "$@" > out 2> error || code=$?; [ $code = 1 ] && grep -q -- "$hint" error || { echo "$*: $code"; cat error; exit 1; }; }
        "$SAPWOOD" send -q $FROM/s3 -c $FROM/s1 -c $FROM/s2 --proto 2 --name other -o clones; "$SAPWOOD" send -q $FROM/s3 --seal -o sealed
        fails 'not read-only' send -q $FROM/v -o x; mkdir $FROM/plain; fails 'plain: not a subvolume' send -q $FROM/plain -o x; fails 'not a snapshot in a mount' send -q . -o x
        fails 'same image' send -q $FROM/s2 -p $TO/s1 -o x; fails 'exists' receive -q -f 1 $TO; [ ! -e x ]
        chmod 755 .; cp "$SAPWOOD" sapwood; chmod 755 sapwood; code=0; mkdir -m 777 out2; setpriv --reuid 65534 --regid 65534 --clear-groups ./sapwood send -q $FROM/s1 -o out2/x 2> error || code=$?
        [ $code = 1 ]; grep -q 'only root and the owner' error; [ -z "$(ls out2)" ]"#,
    )?;
    from.unmount()?;
    to.unmount()?;
    let offline = format!(
        r#"S={}; I={}; for n in 1 2 3; do "$S" send -q $I:s$n ${{p:+-p $p}} | cmp - $n; p=s$n; done
        "$S" send -q $I:s3 -c s1 -c s2 --proto 2 --name other | cmp - clones; "$S" receive --verify --seal -f sealed"#,
        text(sapwood()),
        text(source.path()),
    );
    process::shell(dir.path(), &offline, LIMIT)?;
    let (from, to) = (
        Driver::Kernel.mount(source.path(), "ro,noatime")?,
        Driver::Kernel.mount(target.path(), "ro,noatime")?,
    );
    for name in ["s1", "s2", "s3"] {
        same(&from.path().join(name), &to.path().join(name))?;
    }
    from.unmount()?;
    to.unmount()?;
    target.check()?;
    Ok(())
}

fn same(expected: &Path, found: &Path) -> Result<(), String> {
    let facts = Facts::PLAIN | Facts::MTIME;
    tree(expected)?
        .compare(&tree(found)?, |_, _, _| facts)
        .map_err(|error| format!("{}: {error}", found.display()))
}

/// The stream ends early, the client is killed or told to end, or the daemon is killed. The rest is
/// received by the daemon of the same or the next mount, or into the image.
fn ended_early() -> Outcome {
    let dir = scratch::directory();
    let script = r#"
        trap 'umount -l m 2> /dev/null || true' EXIT; mkdir m t
        for i in $(seq 40); do head -c $((i * 7000)) /dev/urandom > t/f$i; done; "$SAPWOOD" mkfs -q --size 256M source; "$SAPWOOD" subvolume create source:/v
        "$SAPWOOD" cp -q -a t source:/v/t; "$SAPWOOD" subvolume snapshot -r source:/v /s; "$SAPWOOD" send -q source:s -o stream; size=$(stat -c %s stream); mkfifo p
        start() { "$SAPWOOD" mkfs -qf --size 256M image; "$SAPWOOD" mount -q --foreground image m & daemon=$!; until mountpoint -q m; do sleep 0.05; done; }
        waiting() { until [ -n "$(ls -A m/s/t 2> ls.txt)" ]; do sleep 0.05; done; }
        whole() { diff -r t $1/s/t; if touch $1/s/x 2> touch.txt; then exit 1; fi; }
        ended() { "$SAPWOOD" umount m; wait $daemon; "$SAPWOOD" check -q image; }
        start; code=0; head -c 3000000 stream | "$SAPWOOD" receive -q m 2> error || code=$?; [ $code = 1 ]; grep -q 'ends early' error; [ -d m/s ]
        code=0; "$SAPWOOD" receive -q m < stream 2> error || code=$?; [ $code = 1 ]; grep -q exists error; "$SAPWOOD" receive -q --resume m < stream; whole m; ended
        for signal in INT KILL; do start; "$SAPWOOD" receive -q --checkpoint 300K m < p 2> error & client=$!; exec 5> p; head -c 3000000 stream >&5; waiting
        kill -$signal $client; exec 5>&-; code=0; wait $client || code=$?; [ $code -gt 128 ]; [ $signal = KILL ] || grep -q 'resume continues it' error
        "$SAPWOOD" receive -q --resume m < stream; whole m; ended; done
        start; "$SAPWOOD" receive -q --checkpoint 300K m < p 2> error & client=$!; exec 5> p; head -c 3000000 stream >&5; waiting
        kill -KILL $daemon; wait $daemon || true; umount -l m; code=0; exec 5>&-; wait $client || code=$?; [ $code = 1 ]; [ -s error ]
        "$SAPWOOD" mount -q image m; "$SAPWOOD" umount m; "$SAPWOOD" receive -q --resume image: < stream; rm -rf out; "$SAPWOOD" cp -qa image:s out; diff -r t out/t; "$SAPWOOD" check -q image
        start; mkdir b; mount --bind m b; mount -o remount,bind,ro b; code=0; "$SAPWOOD" receive -q b < stream 2> error || code=$?; [ $code = 1 ]; grep -qi 'read-only' error; umount b; [ -z "$(ls -A m)" ]; ended
    "#;
    let script = format!("set -e; SAPWOOD={}; {script}", text(sapwood()));
    process::shell(dir.path(), &script, LIMIT)?;
    Ok(())
}
