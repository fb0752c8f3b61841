//! A bound on the dirty bytes of all files together.
//!
//! # How it works
//! A writer *enters* bytes before it copies them, and waits while all files together would exceed
//! the bound; they *leave* when they are on disk or gone. From half of the bound on writeback is
//! asked for, with every entry: a thread that is asked has to see that it does not begin twice.
//!
//! Bytes may have to stay, because the host has no space for them. Then a thread that waits for
//! room is told so and gives up ([`refuse`](ByteBound::refuse)).
//!
//! The trouble cases: a write larger than the bound passes alone, or it would wait for ever
//! (`a_write_larger_than_the_bound_passes_alone`); bytes that leave between the look and the sleep
//! are seen, because the look is repeated under the lock after writeback was asked for
//! (`writers_never_exceed_the_bound`).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Condvar;

use crate::lock::{Rank, RankedMutex};

/// Counts the dirty bytes of all files.
#[derive(Debug)]
pub struct ByteBound<R: Rank> {
    limit: u64,
    bytes: RankedMutex<R, u64>,
    /// How often bytes stayed that were to be written.
    refusals: AtomicU64,
    room: Condvar,
}

impl<R: Rank> ByteBound<R> {
    /// A bound of `limit` bytes; `rank` is that of its lock, under which no other is taken.
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

    /// Bytes that entered and did not leave.
    pub fn bytes(&self) -> u64 {
        *self.bytes.lock()
    }

    /// Waits until `bytes` more may be dirty, and counts them. `relieve` asks for writeback; it
    /// must not wait for it. False, and nothing is counted, if there is no room and what should have
    /// made some was refused meanwhile. Hold no lock that writeback needs.
    #[must_use]
    pub fn enter(&self, bytes: u64, relieve: impl Fn()) -> bool {
        let exceeds = |total: u64| total > 0 && total.saturating_add(bytes) > self.limit;
        let mut total = self.bytes.lock();
        let refusals = self.refusals.load(Ordering::SeqCst);
        while exceeds(*total) {
            drop(total);
            relieve();
            total = self.bytes.lock();
            if sapwood_fault::planted(206) {
                break;
            }
            if exceeds(*total) {
                let refused = self.refusals.load(Ordering::SeqCst) != refusals;
                if refused && !sapwood_fault::planted(217) {
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

    /// Bytes were to be written, and stay: the host has no space for them.
    pub fn refuse(&self) {
        let _bytes = self.bytes.lock();
        self.refusals.fetch_add(1, Ordering::SeqCst);
        self.room.notify_all();
    }

    /// A writer entered `counted` bytes and brought `added`, because some were dirty already, or
    /// because it had to bring the rest of a block.
    pub fn correct(&self, counted: u64, added: u64) {
        if added < counted {
            self.leave(counted - added);
        } else if added > counted {
            let mut total = self.bytes.lock();
            if !sapwood_fault::planted(207) {
                *total = total.saturating_add(added - counted);
            }
        }
    }

    /// These bytes are no longer in memory.
    pub fn leave(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut total = self.bytes.lock();
        if !sapwood_fault::planted(216) {
            *total = total.saturating_sub(bytes);
        }
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Place;

    impl Rank for Place {
        type Order = Self;

        fn place(self) -> u16 {
            0
        }
    }

    #[test]
    fn a_write_larger_than_the_bound_passes_alone() {
        let bound = ByteBound::new(Place, 100);
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
    fn a_writer_beyond_the_bound_sleeps_until_bytes_leave() {
        let bound = ByteBound::new(Place, 10);
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
    fn a_writer_beyond_the_bound_gives_up_when_nothing_can_be_written() {
        let bound = ByteBound::new(Place, 10);
        assert!(bound.enter(8, || ()));
        let (ended, waiting) = mpsc::channel();
        let entered = std::thread::scope(|scope| {
            let bound = &bound;
            scope.spawn(move || {
                // A writer that ignores the refusal waits, and the test is to end.
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
        let bound = ByteBound::new(Place, LIMIT);
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
