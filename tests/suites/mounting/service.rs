//! The daemon as a service: confined, ended by a signal, mounted by fstab, and watched by a service
//! manager.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{DETACH_COPIES, Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Outcome, process, scratch};

use super::{PATIENT, Point, image, succeeds, umount};

pub(super) fn trials() -> Vec<Trial> {
    let kernel = [machine::KERNEL, Need::Fuse];
    vec![
        machine::trial("the_daemon_of_root_is_confined", &kernel, confined),
        machine::trial(
            "the_daemon_of_a_user_is_confined",
            &[
                Need::Fuse,
                Need::Program("setpriv"),
                Need::Program("fusermount3"),
                Need::Other(out_of_reach),
            ],
            confined_user,
        ),
        machine::trial(
            "every_form_of_a_line_in_fstab_mounts",
            &[machine::KERNEL, Need::Fuse, Need::Program("unshare")],
            fstab,
        ),
        machine::trial("a_service_manager_is_told", &kernel, notify),
        machine::trial("the_journal_gets_the_chosen_levels", &kernel, journal),
        machine::trial("a_mount_that_is_stuck_is_committed", &kernel, stuck),
    ]
}

/// A field of `/proc/PID/status`.
fn status_of(process: u32, field: &str) -> Result<String, String> {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.map_err(|error| format!("process {process}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    Ok(line.unwrap_or_default().trim().to_owned())
}

/// The required properties of a confined daemon.
const CONFINED: [(&str, &str); 5] = [
    ("NoNewPrivs:", "1"),
    ("Seccomp:", "2"),
    ("CapEff:", "0000000000000000"),
    ("CapPrm:", "0000000000000000"),
    ("CapAmb:", "0000000000000000"),
];

/// Fails if a process has a ring of io_uring: no seccomp filter sees the requests in it.
fn has_no_ring(process: u32) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("process {process}: {error}");
    for file in fs::read_dir(format!("/proc/{process}/fd")).map_err(failed)? {
        let file = fs::read_link(file.map_err(failed)?.path()).map_err(failed)?;
        if file.to_string_lossy().contains("io_uring") {
            return Err(format!("process {process} has {}", file.display()));
        }
    }
    Ok(())
}

/// Fails if a process lacks one of the properties of a confined daemon.
fn is_confined(process: u32) -> Result<(), String> {
    for (field, wanted) in CONFINED {
        let found = status_of(process, field)?;
        if found != wanted {
            return Err(format!("{field} {found}, not {wanted}"));
        }
    }
    Ok(())
}

/// Ends the mount as a shutdown of the system does. A file stays open meanwhile if `busy`.
fn terminate(running: SapwoodMount, busy: bool) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let held = fs::File::open(running.path().join("file")).map_err(failed)?;
    if !busy {
        drop(held);
    }
    running.tell_to_end()?;
    running.unmounted()
}

/// Mounts, works, examines the daemon's rights, and ends the mount in every way.
fn confined() -> Outcome {
    // Where the kernel offers no rings, a daemon that would use them shows none either.
    let _switched = machine::SwitchedOn::new();
    for btrfs in [true, false] {
        let image = if btrfs {
            image()?
        } else {
            TempImage::new(&Mkfs::ext4("").sized(160 << 20))?
        };
        let rounds = [
            "sandbox=on",
            "sandbox=on,fuseblk=off,io_uring=off,threads=1",
        ];
        for (round, options) in rounds.iter().enumerate() {
            let running = SapwoodMount::new(image.path(), options)?;
            let daemon = running.daemon().ok_or("no daemon")?;
            is_confined(daemon)?;
            has_no_ring(daemon)?;
            let point = running.path();
            let content = vec![u8::try_from(round)?; 3 << 20];
            fs::write(point.join("file"), &content)?;
            fs::File::open(point.join("file"))?.sync_all()?;
            let point = point.as_os_str();
            if btrfs {
                let to = running.path().join(format!("snapshot-{round}"));
                let to = to.as_os_str();
                succeeds(&["subvolume".as_ref(), "snapshot".as_ref(), point, to])?;
            }
            succeeds(&["sync".as_ref(), point])?;
            succeeds(&["stats".as_ref(), point])?;
            terminate(running, round == 0)?;
            image.check()?;
            let again = SapwoodMount::new(image.path(), "sandbox=off")?;
            let daemon = again.daemon().ok_or("no daemon")?;
            let (filter, kept) = (
                status_of(daemon, "Seccomp:")?,
                fs::read(again.path().join("file"))?,
            );
            umount(again.path())?;
            again.unmounted()?;
            if filter != "0" || kept != content {
                return Err(format!("sandbox=off: {filter}; {} bytes", kept.len()).into());
            }
        }
    }
    Ok(())
}

/// A command as a user without privileges.
fn as_nobody(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--",
        program,
    ]);
    command
}

/// The reason why that user cannot run the program or mount with it.
fn out_of_reach() -> Option<String> {
    let mut command = as_nobody("sh");
    command.args(["-c", "test -x \"$0\" && test -w /dev/fuse"]);
    let reached = process::finish(command.arg(sapwood()), process::ORDINARY);
    let reached = reached.is_ok_and(|said| said.status.success());
    (!reached).then(|| "an ordinary user reaches no /dev/fuse or not this program".to_owned())
}

/// The daemon in the background of the mount on `point`.
fn daemon_on(point: &Path) -> Result<u32, String> {
    let processes = fs::read_dir("/proc").map_err(|error| error.to_string())?;
    let mut numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let shown = point.to_string_lossy().into_owned();
    let serves = |number: &u32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|&byte| byte == 0).collect();
        words.contains(&shown.as_bytes()) && !words.contains(&&b"--broker"[..])
    };
    let found = numbers.find(serves);
    found.ok_or_else(|| format!("no daemon serves {shown}"))
}

/// The daemon of an ordinary user is confined, and ends by a signal and by an unmount.
fn confined_user() -> Outcome {
    use std::os::unix::fs::{PermissionsExt, chown};

    let image = image()?;
    chown(image.path(), Some(65534), Some(65534))?;
    let above = image.path().parent().ok_or("no directory")?;
    fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
    let program = sapwood().to_string_lossy();
    let ours = |words: &[&str], paths: &[&Path]| {
        process::succeed(
            as_nobody(&program).args(words).args(paths),
            process::ORDINARY,
        )
    };
    for ended_by in ["SIGTERM", "umount"] {
        let point = Point::new();
        chown(point.path(), Some(65534), Some(65534))?;
        let options = "sandbox=on,no_default_permissions";
        ours(
            &["mount", "-q", "-o", options],
            &[image.path(), point.path()],
        )?;
        let daemon = daemon_on(point.path())?;
        is_confined(daemon)?;
        let mut write = as_nobody("sh");
        write.args(["-c", "echo \"$1\" >\"$0/file\" && sync \"$0/file\""]);
        process::succeed(write.arg(point.path()).arg(ended_by), process::ORDINARY)?;
        ours(&["sync"], &[point.path()])?;
        ours(&["stats"], &[point.path()])?;
        if ended_by == "umount" {
            ours(&["umount", PATIENT], &[point.path()])?;
        } else {
            process::run("kill", &["-TERM", &daemon.to_string()])?;
            let end = Instant::now() + Duration::from_secs(60);
            while Path::new(&format!("/proc/{daemon}")).exists() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if point.is_mounted() {
            return Err(format!("{ended_by}: still mounted").into());
        }
        image.check()?;
        let again = SapwoodMount::new(image.path(), "ro")?;
        let kept = fs::read_to_string(again.path().join("file"))?;
        Box::new(again).unmount()?;
        if kept.trim() != ended_by {
            return Err(format!("{ended_by}: {kept:?} is left").into());
        }
    }
    Ok(())
}

/// Mounts by lines of fstab, in a mount namespace with the helpers installed. Arguments: the
/// program, the image, the mount point, a directory for files.
const FSTAB: &str = r#"
program=$1 image=$2 dir=$3 work=$4
mount -t tmpfs none /usr/sbin
for name in mount.fuse.sapwood umount.fuse.sapwood umount.fuseblk.sapwood; do
    ln -s "$program" /usr/sbin/$name
done
# `!` ends no script.
not() {
    ! "$@" || exit 1
}
used() {
    test "$(findmnt -no SOURCE "$dir")" = "$image"
    echo "$1" >"$dir/file"
    umount "$dir"
}
for options in defaults noauto,user,x-systemd.automount,nofail rw,users,_netdev,comment=x \
    nofail,x-systemd.device-timeout=9,x-systemd.requires=a.service,allow_other,commit=9 \
    auto,noatime,nodev,nosuid,X-mount.mkdir,sandbox=on
do
    for spec in "$image $dir fuse.sapwood $options 0 0" "$image $dir fuse.sapwood $options"; do
        echo "$spec" >"$work/fstab"
        mount -T "$work/fstab" "$dir"
        used "$options"
        mount -T "$work/fstab" "$image"
        used "$options"
        mount -T "$work/fstab" -a
        case $options in
        noauto*) not findmnt "$dir" >/dev/null ;;
        *) used "$options" ;;
        esac
    done
done
echo "$image.missing $dir fuse.sapwood nofail 0 0" >"$work/fstab"
not findmnt "$dir" >/dev/null
not mount -T "$work/fstab" "$dir" 2>"$work/said"
grep -q missing "$work/said"
"#;

/// Every usual form of options mounts: by directory, by image and by `mount -a`.
fn fstab() -> Outcome {
    let image = image()?;
    let (point, work) = (Point::new(), scratch::directory());
    let mut command = Command::new("unshare");
    let script = format!("set -e; mount --make-rprivate /; {DETACH_COPIES} {FSTAB}");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.args([sapwood(), image.path(), point.path(), work.path()]);
    process::succeed(&mut command, process::ORDINARY)?;
    image.check()?;
    let again = SapwoodMount::new(image.path(), "ro")?;
    let kept = fs::read_to_string(again.path().join("file"))?;
    Box::new(again).unmount()?;
    if kept.starts_with("auto,noatime") {
        Ok(())
    } else {
        Err(kept.into())
    }
}

/// A daemon in the foreground reports that it is up and that it ends, from inside its sandbox.
fn notify() -> Outcome {
    let (image, dir) = (image()?, scratch::directory());
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let state = || -> Result<String, String> {
        let mut state = [0; 200];
        let len = socket.recv(&mut state).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&state[..len]).into_owned())
    };
    let mut command = Command::new(sapwood());
    let command = command.env("NOTIFY_SOCKET", &path);
    let running = SapwoodMount::with(image.path(), "sandbox=on", command)?;
    let up = state()?;
    running.tell_to_end()?;
    let ends = state()?;
    running.unmounted()?;
    if up.starts_with("READY=1") && ends.starts_with("STOPPING=1") {
        Ok(())
    } else {
        Err(format!("{up:?}, {ends:?}").into())
    }
}

/// A service logs the messages of its level, each line with its priority, from inside its sandbox.
fn journal() -> Outcome {
    let image = image()?;
    // A service manager marks standard error as the journal in this way.
    let as_service = "JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2) exec \"$0\" \"$@\"";
    let mounted = "<6>mounted\n";
    let ended = "<6>unmounted: the image is complete\n";
    for (options, told) in [
        ("log=info", true),
        ("sandbox=on", false),
        ("log=error", false),
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", as_service]).arg(sapwood());
        let running = SapwoodMount::with(image.path(), options, &mut command)?;
        let file = fs::File::create(running.path().join("file"))?;
        file.sync_all()?;
        drop(file);
        running.tell_to_end()?;
        running.unmounted()?;
        let mut log = image.path().as_os_str().to_owned();
        log.push(".log");
        let said = fs::read_to_string(log)?;
        if said.contains(mounted) != told || said.contains(ended) != told {
            return Err(format!("{options}: {said:?}").into());
        }
    }
    Ok(())
}

/// A daemon that a signal ends, but that cannot unmount, logs the reason, makes everything durable,
/// and continues.
fn stuck() -> Outcome {
    let image = image()?;
    let mut running = SapwoodMount::new(image.path(), "commit=300,fuseblk=off")?;
    let daemon = running.daemon().ok_or("no daemon")?;
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    let broker = fs::read_to_string(children)?.trim().to_owned();
    fs::write(running.path().join("file"), b"content")?;
    process::run("kill", &["-KILL", &broker])?;
    running.tell_to_end()?;
    let end = Instant::now() + Duration::from_secs(60);
    while !running
        .said()
        .contains("the mount stays; everything written until now is durable")
    {
        if Instant::now() > end {
            return Err(running.said().into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if fs::read(running.path().join("file"))? != b"content" {
        return Err("the mount does not answer".into());
    }
    running.kill_daemon();
    running.cleaned()?;
    let again = SapwoodMount::new(image.path(), "ro")?;
    let kept = fs::read(again.path().join("file"))?;
    Box::new(again).unmount()?;
    if kept == b"content" {
        Ok(())
    } else {
        Err(format!("{} bytes are left", kept.len()).into())
    }
}
