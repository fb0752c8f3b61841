//! A bound on the dirty bytes of all files together.
//!
//! # How it works
//! A writer *enters* bytes before it copies them, and waits while all files together would exceed
//! the bound. The bytes *leave* when they are on disk or discarded. While more than half of the
//! bound is used, every entry requests writeback; the callee must ignore a request while it runs.
//!
//! If the host has no space, bytes have to stay. A writer that waits for room then gives up
//! ([`refuse`](ByteBound::refuse)).
//!
//! Trouble cases:
//! - A write larger than the bound is admitted when no other bytes are dirty. Otherwise it would
//!   wait for ever (`a_write_larger_than_the_bound_passes_alone`).
//! - Bytes may leave between a writer's check and its sleep. The writer checks again under the lock
//!   after it requested writeback (`writers_never_exceed_the_bound`).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Condvar;

use crate::lock::{Rank, RankedMutex};

/// Counts the dirty bytes of all files.
#[derive(Debug)]
pub struct ByteBound<R: Rank> {
    limit: u64,
    bytes: RankedMutex<R, u64>,
    /// Number of times that bytes could not be written.
    refusals: AtomicU64,
    room: Condvar,
}

impl<R: Rank> ByteBound<R> {
    /// A bound of `limit` bytes. `rank` is that of its lock, under which no other lock is taken.
    pub fn new(rank: R, limit: u64) -> Self {
        Self {
            limit,
            bytes: RankedMutex::new(rank, 0),
            refusals: AtomicU64::new(0),
            room: Condvar::new(),
        }
    }

    /// The bound, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that entered and have not left.
    pub fn bytes(&self) -> u64 {
        *self.bytes.lock()
    }

    /// Waits until `bytes` more may be dirty, and counts them. `relieve` requests writeback and
    /// must not wait for it. Returns false, and counts nothing, if there is no room and a writeback
    /// was refused meanwhile. The caller must not hold a lock that writeback needs.
    #[must_use]
    pub fn enter(&self, bytes: u64, relieve: impl Fn()) -> bool {
        let exceeds = |total: u64| total > 0 && total.saturating_add(bytes) > self.limit;
        let mut total = self.bytes.lock();
        let refusals = self.refusals.load(Ordering::SeqCst);
        while exceeds(*total) {
            drop(total);
            relieve();
            total = self.bytes.lock();
            if exceeds(*total) {
                let refused = self.refusals.load(Ordering::SeqCst) != refusals;
                if refused {
                    return false;
                }
                total.wait(&self.room);
            }
        }
        *total = total.saturating_add(bytes);
        let much = *total > self.limit / 2;
        drop(total);
        if much {
            relieve();
        }
        true
    }

    /// Records that bytes could not be written because the host has no space. They stay.
    pub fn refuse(&self) {
        let _bytes = self.bytes.lock();
        self.refusals.fetch_add(1, Ordering::SeqCst);
        self.room.notify_all();
    }

    /// Corrects the count of a writer that entered `counted` bytes and added `added`: some were
    /// dirty already, or it had to add the rest of a block.
    pub fn correct(&self, counted: u64, added: u64) {
        if added < counted {
            self.leave(counted - added);
        } else if added > counted {
            let mut total = self.bytes.lock();
            *total = total.saturating_add(added - counted);
        }
    }

    /// Records that these bytes are no longer in memory.
    pub fn leave(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut total = self.bytes.lock();
        *total = total.saturating_sub(bytes);
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct TestRank;

    impl Rank for TestRank {
        type Order = Self;

        fn place(self) -> u16 {
            0
        }
    }

    #[test]
    fn a_write_larger_than_the_bound_passes_alone() {
        let bound = ByteBound::new(TestRank, 100);
        let asked = AtomicU64::new(0);
        let relieve = || {
            asked.fetch_add(1, Ordering::SeqCst);
        };
        assert!(bound.enter(10, relieve));
        assert_eq!(asked.load(Ordering::SeqCst), 0);
        bound.correct(10, 4);
        assert_eq!(bound.bytes(), 4);
        bound.leave(4);
        assert!(bound.enter(1000, relieve));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        bound.correct(1000, 1010);
        assert_eq!(bound.bytes(), 1010);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_writer_above_the_bound_sleeps_until_bytes_leave() {
        let bound = ByteBound::new(TestRank, 10);
        assert!(bound.enter(8, || ()));
        let entered = AtomicU64::new(0);
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(bound.enter(3, || ()));
                entered.store(1, Ordering::SeqCst);
            });
            while bound.bytes.asleep() == 0 && entered.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let seen = entered.load(Ordering::SeqCst);
            bound.leave(8);
            seen
        });
        assert_eq!((seen, bound.bytes()), (0, 3));
    }

    #[test]
    fn a_writer_above_the_bound_gives_up_when_nothing_can_be_written() {
        let bound = ByteBound::new(TestRank, 10);
        assert!(bound.enter(8, || ()));
        let (ended, waiting) = mpsc::channel();
        let entered = std::thread::scope(|scope| {
            let bound = &bound;
            scope.spawn(move || {
                // If the writer ignores the refusal and waits, this ends the test.
                if waiting.recv_timeout(Duration::from_secs(10)).is_err() {
                    bound.leave(8);
                }
            });
            let entered = bound.enter(3, || bound.refuse());
            ended.send(()).unwrap();
            entered
        });
        assert_eq!((entered, bound.bytes()), (false, 8));
    }

    #[test]
    fn writers_never_exceed_the_bound() {
        const LIMIT: u64 = 10;
        let bound = ByteBound::new(TestRank, LIMIT);
        let (dirty, written) = mpsc::channel::<u64>();
        std::thread::scope(|scope| {
            let bound = &bound;
            scope.spawn(move || {
                for bytes in written {
                    assert!(bound.bytes() <= LIMIT);
                    bound.leave(bytes);
                }
            });
            for writer in 0..3u64 {
                let dirty = dirty.clone();
                scope.spawn(move || {
                    for nth in 0..2000 {
                        let bytes = 1 + (nth + writer) % LIMIT;
                        assert!(bound.enter(bytes, || ()));
                        dirty.send(bytes).unwrap();
                    }
                });
            }
            drop(dirty);
        });
        assert_eq!(bound.bytes(), 0);
    }
}
