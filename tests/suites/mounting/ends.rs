//! The end of a mount: descriptors that the daemon and its processes keep, other mount namespaces,
//! other users, and a dead daemon.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{DETACH_COPIES, Mounted, SapwoodMount, sapwood};
use sapwood_tests::process::Said;
use sapwood_tests::{Outcome, process, scratch};

use super::{Point, Stopped, image, run, umount};

/// Exit code of `umount` if the image is in use yet.
const HELD: i32 = 4;
/// An ordinary user with a name: `fusermount3` refuses other ids.
const USER: &str = "65534";

pub(super) fn trials() -> Vec<Trial> {
    let kernel = [machine::KERNEL, Need::Fuse];
    let spaces = [machine::KERNEL, Need::Fuse, Need::Program("unshare")];
    let users = [machine::KERNEL, Need::Fuse, Need::Program("setpriv")];
    vec![
        machine::trial(
            "no_process_of_a_mount_keeps_what_it_inherits",
            &kernel,
            inherited,
        ),
        machine::trial("umount_names_a_mount_namespace_that_holds", &spaces, held),
        machine::trial(
            "umount_waits_for_a_mount_namespace_that_ends",
            &spaces,
            released,
        ),
        machine::trial(
            "umount_of_another_users_mount_is_not_permitted",
            &users,
            other_user,
        ),
        machine::trial(
            "an_error_names_the_command_that_clears_a_dead_mount",
            &kernel,
            dead,
        ),
    ]
}

/// A command with an open descriptor of `file` besides the standard streams.
fn holding(file: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec 9>\"$0\"; exec \"$@\""])
        .arg(file)
        .arg(sapwood());
    command
}

/// The processes that have `file` open.
fn users_of(file: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let open = |process: &PathBuf| {
        let descriptors = fs::read_dir(process.join("fd"));
        descriptors.is_ok_and(|mut all| {
            all.any(|one| one.is_ok_and(|one| fs::read_link(one.path()).is_ok_and(|to| to == file)))
        })
    };
    all.map(|entry| entry.path()).filter(open).collect()
}

fn inherited() -> Outcome {
    let dir = scratch::directory();
    let lock = dir.path().canonicalize()?.join("lock");
    let released = |step: &str| match users_of(&lock) {
        users if users.is_empty() => Ok(()),
        users => Err(format!("{step}: {users:?} have the lock")),
    };
    for options in ["rw", "sandbox=off,fuseblk=off", "auto_unmount"] {
        let (image, point) = (image()?, Point::new());
        let mut command = holding(&lock);
        command
            .args(["mount", "-o", options])
            .args([image.path(), point.path()]);
        process::succeed(&mut command, process::ORDINARY)?;
        let mounted = released(options);
        umount(point.path())?;
        mounted?;
    }
    let image = image()?;
    let running = SapwoodMount::with(image.path(), "rw", &mut holding(&lock))?;
    released("in the foreground")?;
    // The process that unmounts stays when the command gives up.
    let stopped = Stopped::new(running.daemon().ok_or("no daemon")?)?;
    let mut command = holding(&lock);
    command.args(["umount", "--timeout=0"]).arg(running.path());
    let said = process::finish(&mut command, process::ORDINARY)?;
    let unmounting = released("umount");
    drop(stopped);
    Box::new(running).unmount()?;
    unmounting?;
    if said.status.success() {
        Err("a stopped daemon has answered".into())
    } else {
        Ok(())
    }
}

/// A process in its own mount namespace, which ends when dropped.
struct Namespace(Child);

impl Namespace {
    /// A namespace that has a copy of the mount on `kept`, and of no other mount of Sapwood.
    fn new(kept: &Path) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        let script = format!("{DETACH_COPIES} echo up; read line");
        command.args(["--mount", "--propagation=private", "sh", "-c", &script]);
        command.env("kept", kept);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let out = child.stdout.take().ok_or("no output")?;
        let namespace = Self(child);
        let mut line = String::new();
        let read = BufReader::new(out).read_line(&mut line);
        if read.is_ok() && line == "up\n" {
            Ok(namespace)
        } else {
            Err("no mount namespace".to_owned())
        }
    }

    fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn held() -> Outcome {
    for (options, timeout) in [("rw", Some("--timeout=1")), ("fuseblk=off", None)] {
        let image = image()?;
        let running = SapwoodMount::new(image.path(), options)?;
        let dir = running.path().to_owned();
        fs::write(dir.join("file"), b"content")?;
        let namespace = Namespace::new(&dir)?;
        let mut command = Command::new(sapwood());
        command.arg("umount").args(timeout).arg(&dir);
        let Said { status, stderr, .. } = process::finish(&mut command, process::ORDINARY)?;
        let mounted = scratch::mounts_below(&dir);
        let holder = format!("sh (process {})", namespace.process());
        drop(namespace);
        // Now nothing has it mounted, so the daemon completes the image and ends.
        running.unmounted()?;
        image.check()?;
        if status.code() != Some(HELD) || !stderr.contains(&holder) || !mounted.is_empty() {
            return Err(format!("{status}, {mounted:?}: {stderr}").into());
        }
    }
    Ok(())
}

fn released() -> Outcome {
    let image = image()?;
    let running = SapwoodMount::new(image.path(), "rw")?;
    let dir = running.path().to_owned();
    let namespace = Namespace::new(&dir)?;
    let mut command = Command::new(sapwood());
    command.args(["umount", "--timeout=300"]).arg(&dir);
    let mut waiting = command.spawn()?;
    while !scratch::mounts_below(&dir).is_empty() {
        std::thread::yield_now();
    }
    let early = waiting.try_wait()?;
    drop(namespace);
    let ended = process::wait(&mut waiting, process::ORDINARY);
    running.unmounted()?;
    match (early, ended) {
        (None, Some(status)) if status.success() => Ok(()),
        found => Err(format!("{found:?}").into()),
    }
}

fn other_user() -> Outcome {
    let image = image()?;
    for options in ["rw", "allow_other"] {
        let running = SapwoodMount::new(image.path(), options)?;
        let mut said = Vec::new();
        for lazy in [None, Some("--lazy")] {
            let mut command = Command::new("setpriv");
            command
                .arg(format!("--reuid={USER}"))
                .arg(format!("--regid={USER}"));
            command
                .arg("--clear-groups")
                .arg(sapwood())
                .arg("umount")
                .args(lazy);
            said.push(process::finish(
                command.arg(running.path()),
                process::ORDINARY,
            )?);
        }
        let mounted = !scratch::mounts_below(running.path()).is_empty();
        Box::new(running).unmount()?;
        for Said { status, stderr, .. } in said {
            if status.code() != Some(1) || !stderr.contains("not permitted") || !mounted {
                return Err(format!("{options}: {status}: {stderr}").into());
            }
        }
    }
    Ok(())
}

fn dead() -> Outcome {
    let image = image()?;
    for options in ["rw", "fuseblk=off"] {
        let mut running = SapwoodMount::new(image.path(), options)?;
        running.kill_daemon();
        let dir = running.path().to_owned();
        let advice = format!(
            "`sapwood umount {}`",
            dir.canonicalize().as_deref().unwrap_or(&dir).display()
        );
        let mut without = Vec::new();
        for args in [
            &["sync"][..],
            &["stats"],
            &["subvolume", "list"],
            &["mount", "-o", "remount,ro"],
        ] {
            let mut all: Vec<&std::ffi::OsStr> = args.iter().map(AsRef::as_ref).collect();
            all.push(dir.as_os_str());
            let said = run(&all)?;
            if said.status.success() || !said.stderr.contains(&advice) {
                without.push(format!("{args:?}: {}", said.stderr));
            }
        }
        let said = run(&["mount".as_ref(), image.path().as_os_str(), dir.as_os_str()])?;
        if said.status.success() || !said.stderr.contains(&advice) {
            without.push(said.stderr);
        }
        running.cleaned()?;
        if !without.is_empty() {
            return Err(format!("{without:?}").into());
        }
    }
    Ok(())
}
