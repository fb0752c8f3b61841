//! Sleeping on a futex.

use std::sync::atomic::AtomicU32;

use rustix::thread::futex;

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
