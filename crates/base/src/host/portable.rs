//! Sleeping on a condition variable; a clock, and no name of the machine.
//!
//! A sleeper compares the word while it holds the mutex, and a waker takes the mutex after the word
//! was changed. So a sleeper that saw the old value sleeps before the waker notifies.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// No name: the standard library has none.
pub(crate) fn node_name() -> String {
    String::new()
}

/// The time since the first call, without the time in which the machine was suspended.
pub(crate) fn awake_or_asleep() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Sleeping threads.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Sleep {
    /// Sleeps while `word` is `seen`, until a wake-up, which may be spurious.
    pub(crate) fn while_equal(&self, word: &AtomicU32, seen: u32) {
        let mut guard = self.mutex.lock();
        if word.load(Ordering::Acquire) == seen {
            self.changed.wait(&mut guard);
        }
    }

    /// Wakes one thread that sleeps on `word`, or all if `most` is more than one, after `word` was
    /// changed.
    pub(crate) fn wake(&self, _word: &AtomicU32, most: u32) {
        drop(self.mutex.lock());
        if most == 1 {
            self.changed.notify_one();
        } else {
            self.changed.notify_all();
        }
    }
}
