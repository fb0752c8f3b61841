//! Waiting until the daemon of a directory that was unmounted has released its image.
//!
//! The daemon ends when the last mount of the file system does. Another mount namespace may have a
//! copy of the mount and keep it for any time, so the wait names such a namespace: the process that
//! waits for this one then gives up in time.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::host::mount::{self, MountElsewhere, MountEntry};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use sapwood::block::Operand;

use super::{Result, Step};

/// Time between two looks at a condition that has no wait.
const INTERVAL: Duration = Duration::from_millis(20);
/// Time between two looks at the other mount namespaces.
const LOOK: Duration = Duration::from_millis(200);

/// Evidence that an image is released.
pub(super) enum Sign {
    /// The end of the daemon, and its process id.
    End(OwnedFd, i32),
    /// The image's lock, if the daemon is in another PID namespace.
    Lock(PathBuf),
}

impl Sign {
    /// Waits for the sign for a while. True if it has come.
    fn comes_within(&self, time: Duration) -> bool {
        match self {
            Self::End(process, _) => {
                let mut fds = [PollFd::new(process, PollFlags::IN)];
                let time = Timespec::try_from(time).ok();
                matches!(rustix::event::poll(&mut fds, time.as_ref()), Ok(1..))
            }
            Self::Lock(image) => {
                let end = Instant::now() + time;
                while is_locked(image) {
                    if Instant::now() >= end {
                        return false;
                    }
                    std::thread::sleep(INTERVAL);
                }
                true
            }
        }
    }

    fn process(&self) -> Option<i32> {
        match self {
            Self::End(_, number) => Some(*number),
            Self::Lock(_) => None,
        }
    }
}

/// A daemon with its process id, if that is known.
pub(super) fn named(process: Option<i32>) -> String {
    match process {
        Some(number) => format!("the daemon (process {number})"),
        None => "the daemon".to_owned(),
    }
}

/// Waits for the sign of a file system that this mount namespace no longer has mounted, and reports
/// each change of the cause.
///
/// # Errors
/// No process waits for the report any more.
pub(super) fn wait(
    entry: &MountEntry,
    sign: &Sign,
    report: impl Fn(&Step) -> Result<()>,
) -> Result<()> {
    let image = Path::new(&entry.source).display();
    let mut reported = None;
    let mut time = INTERVAL;
    while !sign.comes_within(time) && !reader_is_gone() {
        let holders = mount::mounted_elsewhere(entry);
        let step = match holders.split_first() {
            Some((one, others)) => Step::Held(held(one, others.len())),
            None => Step::Releases(format!("{} to release {image}", named(sign.process()))),
        };
        if reported.as_ref() != Some(&step) {
            report(&step)?;
            reported = Some(step);
        }
        time = LOOK;
    }
    Ok(())
}

/// Whether the process that waits for this one has given up.
fn reader_is_gone() -> bool {
    let stdout = rustix::stdio::stdout();
    let mut fds = [PollFd::from_borrowed_fd(stdout, PollFlags::empty())];
    let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

fn held(one: &MountElsewhere, others: usize) -> String {
    let MountElsewhere { process, point } = one;
    let more = match others {
        0 => String::new(),
        1 => ", and one more".to_owned(),
        others => format!(", and {others} more"),
    };
    format!(
        "the mount namespace of {process}, which has it on {}{more}",
        point.display()
    )
}

/// Whether the daemon still has the lock on its image. A file that cannot be locked is not waited
/// for.
fn is_locked(image: &Path) -> bool {
    let image = Operand::file_of(image);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    if !image.metadata().is_ok_and(|found| found.is_file()) {
        let claimed = rustix::fs::open(&image, flags | OFlags::EXCL, Mode::empty());
        return claimed.is_err_and(|error| error == Errno::BUSY);
    }
    rustix::fs::open(&image, flags, Mode::empty())
        .and_then(|image| rustix::fs::flock(&image, FlockOperation::NonBlockingLockShared))
        .is_err_and(|error| error == Errno::WOULDBLOCK)
}
