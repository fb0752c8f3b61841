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
    let kernel = [machine::KERNEL, Need::Program("btrfs")];
    let user = [
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
        trial("a_sealed_stream_is_verified", &[], sealed_stream),
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

/// A chain of streams: the first, cut and resumed, into a mount of ours, the second into the image,
/// the third into the mount, the last by the kernel.
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
        r#"head -c 200000 1 > cut; if "$SAPWOOD" receive -q -f cut {place}; then exit 1; fi; [ -d {place}/s1.part ]
        "$SAPWOOD" receive -q --resume -f 1 {place}; if touch {place}/s1/x; then exit 1; fi
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
