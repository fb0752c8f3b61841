//! Exclusive opens of block devices (`O_EXCL`).
//!
//! The kernel ends a claim with the last copy of its descriptor. A process that another thread has
//! just forked has such a copy until it executes its program. So an open that finds the device busy
//! is repeated for a short time.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

/// The first pause between two attempts. Each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Attempts after the first.
const REPEATS: u32 = 7;

/// Opens a device and claims it. `flags` are without `O_EXCL`.
///
/// # Errors
/// `EBUSY` if another open keeps its claim. Other errors are returned at once.
pub(super) fn open_exclusive(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::EXCL | OFlags::CLOEXEC;
    let attempt = || retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
    repeat_while_busy(attempt, std::thread::sleep)
}

fn repeat_while_busy<T>(
    mut attempt: impl FnMut() -> Result<T, Errno>,
    mut pause: impl FnMut(Duration),
) -> Result<T, Errno> {
    let mut length = FIRST_PAUSE;
    for _ in 0..REPEATS {
        match attempt() {
            Err(Errno::BUSY) => pause(length),
            result => return result,
        }
        length *= 2;
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result, the number of attempts and the time in pauses, if the first `busy` attempts
    /// find the device busy and the next one returns `last`.
    fn outcome(busy: u32, last: Result<(), Errno>) -> (Result<(), Errno>, u32, Duration) {
        let (mut attempts, mut paused) = (0, Duration::ZERO);
        let attempt = || {
            attempts += 1;
            if attempts > busy {
                last
            } else {
                Err(Errno::BUSY)
            }
        };
        let result = repeat_while_busy(attempt, |length| paused += length);
        (result, attempts, paused)
    }

    #[test]
    fn a_claim_that_ends_soon_does_not_refuse_an_open() {
        assert_eq!(outcome(0, Ok(())), (Ok(()), 1, Duration::ZERO));
        assert_eq!(outcome(1, Ok(())), (Ok(()), 2, FIRST_PAUSE));
        assert_eq!(outcome(REPEATS, Ok(())).1, REPEATS + 1);
    }

    #[test]
    fn a_claim_that_lasts_is_an_error_after_a_bounded_time() {
        let (result, attempts, paused) = outcome(u32::MAX, Ok(()));
        assert_eq!((result, attempts), (Err(Errno::BUSY), REPEATS + 1));
        assert!(paused < Duration::from_millis(200), "{paused:?}");
    }

    #[test]
    fn another_error_ends_the_attempts() {
        let refused = Err(Errno::ACCESS);
        assert_eq!(outcome(2, refused), (refused, 3, FIRST_PAUSE * 3));
    }
}
