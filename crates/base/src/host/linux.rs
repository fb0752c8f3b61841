//! Sleeping on a futex; the machine's name and its clock.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

/// The name of this machine.
pub(crate) fn node_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// The time since the machine booted, with the time in which it was suspended.
pub(crate) fn awake_or_asleep() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Sleeping threads. The kernel has their queue.
#[derive(Debug, Default)]
pub(crate) struct Sleep;

impl Sleep {
    /// Sleeps while `word` is `seen`, until a wake-up, which may be spurious.
    pub(crate) fn while_equal(&self, word: &AtomicU32, seen: u32) {
        // An interrupted or failed wait is a spurious wake-up.
        let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
    }

    /// Wakes at most `most` threads that sleep on `word`, after `word` was changed.
    pub(crate) fn wake(&self, word: &AtomicU32, most: u32) {
        // Fails only for an invalid address, which this is not.
        let _ = futex::wake(word, futex::Flags::PRIVATE, most);
    }
}
