//! `sapwood umount`, and being the helper of umount(8).
//!
//! # How it works
//!
//! A second process unmounts and reports each step, because a process that waits for the kernel or
//! a daemon may not even end. The command waits for it, names the cause of a long wait, and gives
//! up at the end of `--timeout`. Without that option it gives up only on another mount namespace
//! with a copy of the mount: the kernel's `umount` does not wait for such a namespace at all, and
//! it may exist for ever.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::host::mount::{self, MountEntry, control, daemon};

use super::failure::{DEAD, FAILED, Failure, HELD, Result, USAGE};
use super::output;

mod release;

use release::Sign;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Mount point
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Detach it now even if it is in use, and do not wait: the daemon completes the image when the
    /// last file in it is closed and no process works in it
    #[arg(short, long)]
    lazy: bool,
    /// Give up waiting after this many seconds; the daemon continues [default: wait, but only 5 for
    /// another mount namespace]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Report each step on standard output, for the process that waits
    #[arg(long, hide = true, conflicts_with = "timeout")]
    step_by_step: bool,
}

/// Begins the last line of the process that unmounts; an error follows if there is one.
const DONE: &str = "done: ";
/// Begin its other lines.
const WAITS: &str = "waits: ";
const RELEASES: &str = "releases: ";
const HOLDS: &str = "held: ";
/// Time before the first message about a wait.
const SILENCE: Duration = Duration::from_secs(3);
/// Time to wait for another mount namespace without `--timeout`.
const PATIENCE: Duration = Duration::from_secs(5);

/// The arguments of umount(8)'s helper, translated to arguments of `sapwood umount`: `DIR [-flnrv]
/// [-N NS] [-t TYPE]`. `None` if the process was not started as one.
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
        return output::line(Step::Done(why));
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
    // The process may outlive this one, and must not keep descriptors that this one inherited.
    daemon::close_inherited().map_err(failed)?;
    let mut child = Command::new("/proc/self/exe")
        .args(["umount", "--step-by-step"])
        .args(lazy.then_some("--lazy"))
        .arg(dir)
        .current_dir("/")
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
            if Step::parse(&line).is_none_or(|step| steps.send(step).is_err()) {
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

/// A step that the unmounting process reports.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// The cause of a wait before the directory is unmounted.
    Waits(String),
    /// The directory is unmounted; the cause of the wait now.
    Releases(String),
    /// The directory is unmounted; another holder has the file system mounted.
    Held(String),
    /// The end, with an error if there was one.
    Done(Option<String>),
}

impl Step {
    /// A line that [`Display`](std::fmt::Display) made.
    fn parse(line: &str) -> Option<Self> {
        let after = |start| line.strip_prefix(start).map(str::to_owned);
        after(WAITS)
            .map(Self::Waits)
            .or_else(|| after(RELEASES).map(Self::Releases))
            .or_else(|| after(HOLDS).map(Self::Held))
            .or_else(|| after(DONE).map(|why| Self::Done(Some(why).filter(|why| !why.is_empty()))))
    }

    /// The failure of a command that gives up in this step.
    fn given_up(&self, dir: &Path) -> Failure {
        match self {
            Self::Held(what) => Failure::local(
                dir,
                format_args!(
                    "unmounted here, but not in {what}: its daemon completes the image when that \
                     mount ends"
                ),
            )
            .with_code(HELD),
            Self::Releases(what) => {
                let line = format_args!("unmounted, but gave up waiting for {what}");
                Failure::local(dir, line).with_code(HELD)
            }
            Self::Waits(what) => Failure::local(dir, format_args!("gave up waiting for {what}")),
            Self::Done(_) => Failure::local(dir, "gave up waiting"),
        }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (start, text) = match self {
            Self::Waits(text) => (WAITS, text.as_str()),
            Self::Releases(text) => (RELEASES, text.as_str()),
            Self::Held(text) => (HOLDS, text.as_str()),
            Self::Done(why) => (DONE, why.as_deref().unwrap_or_default()),
        };
        // A line for each step.
        write!(f, "{start}{}", text.replace('\n', " "))
    }
}

/// Waits for that process; prints the causes of waits, and gives up at `end`.
fn wait(dir: &Path, told: &mpsc::Receiver<Step>, end: Option<Instant>) -> Result<()> {
    let mut step = Step::Waits("the process that unmounts".to_owned());
    let mut said = Some(Instant::now() + SILENCE);
    let mut give_up = end;
    loop {
        let next = [said, give_up].into_iter().flatten().min();
        let news = match next {
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(next) => told.recv_timeout(next.saturating_duration_since(Instant::now())),
        };
        match news {
            Ok(Step::Done(None)) => return Ok(()),
            Ok(Step::Done(Some(why))) => return Err(Failure::new(FAILED, why)),
            Ok(now) => {
                let held = matches!(now, Step::Held(_));
                let patience = held.then(|| Instant::now() + PATIENCE);
                give_up = end.or(give_up.filter(|_| held)).or(patience);
                said = Some(Instant::now() + SILENCE);
                step = now;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::local(dir, "the unmounting process was ended"));
            }
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                if give_up.is_some_and(|end| now >= end) {
                    return Err(step.given_up(dir));
                }
                if said.is_some_and(|said| now >= said) {
                    if let Step::Waits(what) | Step::Releases(what) | Step::Held(what) = &step {
                        output::message(format_args!("{}: waiting for {what}", dir.display()));
                    }
                    said = None;
                }
            }
        }
    }
}

fn unmount(dir: &Path, entry: &MountEntry, lazy: bool) -> Result<()> {
    // A process that gave up waiting has closed the pipe: then the mount stays.
    let waits = |what: String| output::line(Step::Waits(what));
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
        let failed = answer.as_ref().err().and_then(std::io::Error::raw_os_error);
        dead = failed.is_some_and(|number| DEAD.contains(&number));
        daemon = answer.ok();
        let number = daemon.as_ref().and_then(|daemon| daemon.process.as_ref());
        let who = release::named(number.map(|(_, number)| *number));
        waits(format!("{who} to write {}", image.display()))?;
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
        if busy {
            failure.advise("`fuser -vm` shows its users, `sapwood umount --lazy` detaches it")
        } else {
            failure
        }
    })?;
    if !lazy && !is_mounted(entry) {
        let sign = match daemon.and_then(|daemon| daemon.process) {
            Some((process, number)) => Sign::End(process, number),
            None => Sign::Lock(image.to_owned()),
        };
        release::wait(entry, &sign, |step| output::line(step))?;
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

/// Whether the file system of `entry` is still mounted, on another directory.
fn is_mounted(entry: &MountEntry) -> bool {
    let table = mount::mount_table().unwrap_or_default();
    table
        .iter()
        .any(|other| other.device == entry.device && other.is_ours())
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
