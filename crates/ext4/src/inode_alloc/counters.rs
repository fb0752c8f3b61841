//! What the inode allocator counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the inode allocator. Relaxed: sums, nothing is decided by them.
#[derive(Debug, Default)]
pub(crate) struct AllocCounters {
    /// Inodes given.
    pub(crate) given: AtomicU64,
    /// Inodes freed.
    pub(crate) freed: AtomicU64,
    /// Searches without the lock.
    pub(crate) searches: AtomicU64,
    /// Bits that another thread took between search and claim.
    pub(crate) lost_races: AtomicU64,
    /// Searches with the lock held.
    pub(crate) second_searches: AtomicU64,
    /// Groups that were searched.
    pub(crate) groups_visited: AtomicU64,
    /// Claims that found the group's lock taken.
    pub(crate) lock_waits: AtomicU64,
    /// Time they waited, in nanoseconds.
    pub(crate) lock_wait_ns: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl AllocCounters {
    /// All by name.
    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        [
            ("given", &self.given),
            ("freed", &self.freed),
            ("searches", &self.searches),
            ("lost_races", &self.lost_races),
            ("second_searches", &self.second_searches),
            ("groups_visited", &self.groups_visited),
            ("lock_waits", &self.lock_waits),
            ("lock_wait_ns", &self.lock_wait_ns),
        ]
        .into_iter()
        .map(|(name, value)| (name, value.load(Ordering::Relaxed)))
        .collect()
    }
}
