//! `sapwood umount`, and being the helper of umount(8).

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FlockOperation, Mode, OFlags};
use sapwood::block::Operand;
use sapwood::mount::control::Daemon;
use sapwood::mount::{self, MountEntry, control};

use super::failure::{FAILED, Failure, Result, USAGE};
use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory that an image is mounted on
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Detach it now even if it is in use
    #[arg(short, long)]
    lazy: bool,
    /// Give up waiting after so many seconds; the daemon goes on [default: wait]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Report each step on standard output, for the process that waits
    #[arg(long, hide = true, conflicts_with = "timeout")]
    step_by_step: bool,
}

/// Begins the last line of the process that unmounts; an error follows if there is one.
const DONE: &str = "done: ";
/// How long nothing is said about a wait.
const SILENCE: Duration = Duration::from_secs(3);
/// How often a condition is looked at that cannot be waited for.
const INTERVAL: Duration = Duration::from_millis(20);

/// The arguments of umount(8)'s helper, as those of `sapwood umount`: `DIR [-flnrv] [-N NS]
/// [-t TYPE]`. `None` if the process was not started as one.
pub(super) fn helper_arguments(args: &[OsString]) -> Option<Result<Vec<OsString>>> {
    let called = Path::new(args.first()?).file_name()?.to_str()?;
    let ours = [
        "umount.sapwood",
        "umount.fuse.sapwood",
        "umount.fuseblk.sapwood",
    ];
    ours.contains(&called)
        .then(|| translate(args.get(1..).unwrap_or_default()))
}

fn translate(args: &[OsString]) -> Result<Vec<OsString>> {
    let mut out: Vec<OsString> = vec!["sapwood".into(), "umount".into()];
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-t" | "-N") => {
                args.next()
                    .ok_or_else(|| Failure::new(USAGE, "an option lacks its value"))?;
            }
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                if flags.contains('l') {
                    out.push("--lazy".into());
                }
            }
            _ => out.push(arg.clone()),
        }
    }
    Ok(out)
}

/// Unmounts, and waits until the daemon has completed the image and released it.
pub(super) fn run(args: &Args) -> Result<()> {
    let dir = resolve(&args.dir)?;
    let entry = mount::mounted_on(&dir)
        .filter(MountEntry::is_ours)
        .ok_or_else(|| {
            Failure::local(
                &dir,
                "no Sapwood image is mounted here; `findmnt` lists mounts",
            )
        })?;
    if args.step_by_step {
        let done = unmount(&dir, &entry, args.lazy);
        let why = done.as_ref().map_err(ToString::to_string).err();
        // A line for each step.
        let why = why.unwrap_or_default().replace('\n', " ");
        return output::line(format_args!("{DONE}{why}"));
    }
    let end = args
        .timeout
        .and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    wait(&dir, &start(&dir, args.lazy)?, end)
}

/// Starts the process that unmounts. Neither the kernel nor a daemon promises to answer, and a
/// process that waits for them cannot even end.
fn start(dir: &Path, lazy: bool) -> Result<mpsc::Receiver<Step>> {
    use std::process::{Command, Stdio};

    let failed = |error| Failure::local(dir, error);
    let mut child = Command::new("/proc/self/exe")
        .args(["umount", "--step-by-step"])
        .args(lazy.then_some("--lazy"))
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let lines = child
        .stdout
        .take()
        .ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
    let (steps, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(lines)
            .lines()
            .map_while(std::result::Result::ok)
        {
            let step = match line.strip_prefix(DONE) {
                Some("") => Step::Done(Ok(())),
                Some(why) => Step::Done(Err(Failure::new(FAILED, why))),
                None => Step::Waits(line),
            };
            if steps.send(step).is_err() {
                return;
            }
        }
    });
    Ok(told)
}

/// The directory without symbolic links; also of a mount whose daemon has died, which cannot be
/// looked at itself.
fn resolve(dir: &Path) -> Result<PathBuf> {
    let whole = dir.canonicalize();
    let resolved = whole.or_else(|error| {
        let absolute = std::path::absolute(dir)?;
        match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
            _ => Err(error),
        }
    });
    resolved.map_err(|error| Failure::local(dir, error))
}

/// What the process that unmounts reports.
enum Step {
    /// What it waits for now.
    Waits(String),
    Done(Result<()>),
}

/// Waits for that process; names what is waited for, and gives up at `end`.
fn wait(dir: &Path, told: &mpsc::Receiver<Step>, end: Option<Instant>) -> Result<()> {
    let mut what = String::new();
    let mut said = Some(Instant::now() + SILENCE);
    loop {
        let next = [said, end].into_iter().flatten().min();
        let step = match next {
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(next) => told.recv_timeout(next.saturating_duration_since(Instant::now())),
        };
        match step {
            Ok(Step::Done(result)) => return result,
            Ok(Step::Waits(now)) => {
                what = now;
                said = Some(Instant::now() + SILENCE);
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::local(dir, "the unmounting process was ended"));
            }
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                if end.is_some_and(|end| now >= end) {
                    return Err(Failure::local(
                        dir,
                        format_args!("gave up waiting for {what}"),
                    ));
                }
                if said.is_some_and(|said| now >= said) {
                    output::message(format_args!("{}: waiting for {what}", dir.display()));
                    said = None;
                }
            }
        }
    }
}

fn unmount(dir: &Path, entry: &MountEntry, lazy: bool) -> Result<()> {
    // A process that gave up waiting has closed the pipe: then the mount stays.
    let waits = |what: String| output::line(what);
    let image = Path::new(&entry.source);
    let mut daemon = None;
    let mut end = None;
    let mut synced = Ok(());
    let mut first = None;
    // The users of a dead mount can do nothing there but close their files.
    let mut dead = false;
    if !lazy {
        waits("the daemon to answer".to_owned())?;
        let answer = control::daemon(dir);
        dead = matches!(&answer, Err(error) if error.raw_os_error() == Some(libc::ENOTCONN));
        daemon = answer.ok();
        waits(format!(
            "{} to write {}",
            named(daemon.as_ref()),
            image.display()
        ))?;
        if daemon.is_some() {
            synced = control::sync(dir);
            end = control::report_end(dir).ok();
            first = control::first_error(dir).ok().flatten();
        }
    }
    waits("the kernel to unmount".to_owned())?;
    mount::unmount(dir, lazy || dead).map_err(|error| {
        let busy = matches!(error, mount::UnmountError::Busy(_));
        let failure = Failure::local(dir, error);
        match busy {
            true => {
                failure.advise("`fuser -vm` shows by what, `sapwood umount --lazy` detaches it")
            }
            false => failure,
        }
    })?;
    if !lazy && !is_mounted(entry) {
        waits(format!(
            "{} to release {}",
            named(daemon.as_ref()),
            image.display()
        ))?;
        match daemon.and_then(|daemon| daemon.process) {
            Some((process, _)) => wait_for_end(&process),
            None => wait_for_release(image),
        }
        match end.map(|end| end.result()) {
            Some(Some(Err(why))) => return Err(Failure::new(FAILED, why)),
            Some(None) => {
                let why = "the daemon died before it had written everything";
                return Err(Failure::local(image, why));
            }
            Some(Some(Ok(()))) | None => {}
        }
    }
    match (first, synced) {
        (Some(first), _) => Err(incomplete(image, &first)),
        (None, Err(error)) => Err(incomplete(image, &error.to_string())),
        (None, Ok(())) => Ok(()),
    }
}

/// Something that was written to the mount of `image` is not in it, since this error.
pub(super) fn incomplete(image: &Path, error: &str) -> Failure {
    Failure::local(image, format_args!("not everything was written: {error}"))
}

fn named(daemon: Option<&Daemon>) -> String {
    match daemon.and_then(|daemon| daemon.process.as_ref()) {
        Some((_, number)) => format!("the daemon (process {number})"),
        None => "the daemon".to_owned(),
    }
}

/// Whether the file system of `entry` is still mounted, on another directory.
fn is_mounted(entry: &MountEntry) -> bool {
    let table = mount::mount_table().unwrap_or_default();
    table
        .iter()
        .any(|other| other.device == entry.device && other.is_ours())
}

fn wait_for_end(process: &OwnedFd) {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut fds, None) {}
}

/// Waits for the lock on an image to go, if the daemon cannot be waited for.
fn wait_for_release(image: &Path) {
    let image = Operand::file_of(image);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    if image.metadata().is_ok_and(|found| found.is_file()) {
        if let Ok(image) = rustix::fs::open(&image, flags, Mode::empty()) {
            // A file that cannot be locked cannot be waited for either.
            let _ = rustix::fs::flock(&image, FlockOperation::LockShared);
        }
        return;
    }
    let claim = || rustix::fs::open(&image, flags | OFlags::EXCL, Mode::empty());
    while let Err(rustix::io::Errno::BUSY) = claim() {
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn umount_helper_arguments_are_understood() {
        let helper = |args: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            helper_arguments(&args).map(|out| out.unwrap())
        };
        assert_eq!(helper(&["/usr/bin/sapwood", "umount", "/mnt"]), None);
        let given = ["/sbin/umount.fuseblk.sapwood", "/mnt", "-lv", "-t", "fuse"];
        let wanted = ["sapwood", "umount", "/mnt", "--lazy"];
        assert!(helper(&given).is_some_and(|out| out == wanted));
    }
}
