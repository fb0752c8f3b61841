//! [`EventCount`]: wakes all who wait at once.
//!
//! # How it works
//! A condition variable hands its mutex from one woken thread to the next, each of which is woken
//! by the one before: of sixteen callers whose log commit is done, the last comes sixteen changes
//! of thread later. Here all are woken by one system call, and no thread has to lock anything
//! again.
//!
//! The count of events is read under the lock that guards the condition; a thread that changes the
//! condition under that lock raises the count afterwards. So a sleeper either sees the change, or
//! the count that it sleeps on is an old one and it does not sleep (`no_event_is_missed`). It may
//! wake for nothing and has to look again.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use crate::lock::{Rank, RankedMutexGuard};

/// Something that may happen many times and is waited for.
#[derive(Debug, Default)]
pub struct EventCount {
    count: AtomicU32,
    sleepers: AtomicU32,
}

impl EventCount {
    /// Unlocks and sleeps until there is a next event, or for nothing. Call it with the lock held under which
    /// the condition was found to be false.
    pub fn wait<R: Rank, T>(&self, guard: RankedMutexGuard<'_, R, T>) {
        let seen = self.count.load(Ordering::Acquire);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        drop(guard);
        // An interrupted or refused wait is one that ended for nothing.
        let _ = futex::wait(&self.count, futex::Flags::PRIVATE, seen, None);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes all who wait. Call it after the condition was changed, with the lock or after it.
    pub fn notify_all(&self) {
        self.notify(i32::MAX as u32);
    }

    /// Wakes one of those who wait.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    fn notify(&self, most: u32) {
        if !sapwood_fault::planted(205) {
            self.count.fetch_add(1, Ordering::Release);
        }
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            // Fails for no address of our own.
            let _ = futex::wake(&self.count, futex::Flags::PRIVATE, most);
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
    fn every_event_changes_what_a_sleeper_sleeps_on() {
        let event = EventCount::default();
        event.notify_one();
        event.notify_all();
        assert_eq!(event.count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn all_hear_of_an_event() {
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
    fn an_event_for_one_leaves_the_others_asleep() {
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
        // Until one hears: a sleeper counts as one a moment before it sleeps.
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
