//! [`EventCount`]: wakes all waiters at once.
//!
//! # How it works
//! A condition variable passes its mutex from one woken thread to the next, so the last of many
//! callers that wait for one commit runs only after all others. On Linux one system call wakes all
//! waiters, and they need not take a lock.
//!
//! A waiter reads the event count under the lock that guards the condition. A thread that changes
//! the condition under that lock increments the count afterwards. So a waiter either sees the
//! change, or sleeps on a stale count and returns at once (`no_event_is_missed`). A wake-up may be
//! spurious: the waiter must check the condition again.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::host::Sleep;
use crate::lock::{Rank, RankedMutexGuard};

/// An event that happens many times, and that threads wait for.
#[derive(Debug, Default)]
pub struct EventCount {
    count: AtomicU32,
    sleepers: AtomicU32,
    sleep: Sleep,
}

impl EventCount {
    /// Unlocks and sleeps until the next event, or until a spurious wake-up. The caller holds the
    /// lock under which it found the condition to be false.
    pub fn wait<R: Rank, T>(&self, guard: RankedMutexGuard<'_, R, T>) {
        let seen = self.count.load(Ordering::Acquire);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        drop(guard);
        self.sleep.while_equal(&self.count, seen);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes all waiters. Call it after the condition was changed, with the lock held or released.
    pub fn notify_all(&self) {
        self.notify(i32::MAX as u32);
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    fn notify(&self, most: u32) {
        self.count.fetch_add(1, Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.sleep.wake(&self.count, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::lock::RankedMutex;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Only;

    impl Rank for Only {
        type Order = Self;

        fn place(self) -> u16 {
            0
        }
    }

    fn sleep_until(shared: &(RankedMutex<Only, u32>, EventCount), wanted: u32) {
        loop {
            let value = shared.0.lock();
            if *value >= wanted {
                return;
            }
            shared.1.wait(value);
        }
    }

    #[test]
    fn every_event_changes_the_count() {
        let event = EventCount::default();
        event.notify_one();
        event.notify_all();
        assert_eq!(event.count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn notify_all_wakes_all_waiters() {
        let shared = Arc::new((RankedMutex::new(Only, 0), EventCount::default()));
        let sleepers: Vec<_> = (0..8)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || sleep_until(&shared, 1))
            })
            .collect();
        while shared.1.sleepers.load(Ordering::Relaxed) < 8 {
            thread::yield_now();
        }
        *shared.0.lock() = 1;
        shared.1.notify_all();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }

    #[test]
    fn notify_one_wakes_one_waiter() {
        let shared = Arc::new((RankedMutex::new(Only, 0), EventCount::default()));
        let woken = Arc::new(AtomicU32::new(0));
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let (shared, woken) = (Arc::clone(&shared), Arc::clone(&woken));
                thread::spawn(move || {
                    sleep_until(&shared, 1);
                    woken.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        while shared.1.sleepers.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        *shared.0.lock() = 1;
        // A thread counts as a waiter shortly before it sleeps, so one notification may find none
        // asleep.
        while woken.load(Ordering::Relaxed) == 0 {
            shared.1.notify_one();
            thread::yield_now();
        }
        shared.1.notify_all();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }

    #[test]
    fn no_event_is_missed() {
        let shared = Arc::new((RankedMutex::new(Only, 0), EventCount::default()));
        let other = Arc::new((RankedMutex::new(Only, 0), EventCount::default()));
        let thread = {
            let (shared, other) = (Arc::clone(&shared), Arc::clone(&other));
            thread::spawn(move || {
                for turn in 1..=20_000 {
                    sleep_until(&shared, turn);
                    *other.0.lock() = turn;
                    other.1.notify_one();
                }
            })
        };
        for turn in 1..=20_000 {
            *shared.0.lock() = turn;
            shared.1.notify_one();
            sleep_until(&other, turn);
        }
        thread.join().unwrap();
    }
}
