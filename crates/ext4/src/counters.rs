//! The counters of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

use sapwood_base::Health;
use sapwood_jbd2::Journal;

use crate::commit_reason::FastCommitCounters;

/// Counters of the engine; the journal has its own.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// fsyncs that needed at most a flush.
    pub(crate) fsyncs_clean: AtomicU64,
    /// fsyncs that waited for a commit of a transaction.
    pub(crate) fsyncs_committed: AtomicU64,
    /// Fast commits.
    pub(crate) fast_commits: FastCommitCounters,
    /// Inode allocation.
    pub(crate) inode_alloc: AllocCounters,
}

impl Counters {
    /// All counters with their names.
    pub(crate) fn all(&self, journal: &Journal) -> Vec<(String, u64)> {
        let own = [
            ("fsyncs_clean", &self.fsyncs_clean),
            ("fsyncs_committed", &self.fsyncs_committed),
        ];
        let mut all: Vec<(String, u64)> = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.load(Ordering::Relaxed)))
            .collect();
        let area = journal
            .log()
            .map_or(0, sapwood_jbd2::Log::fast_commit_blocks);
        all.push(("fast_commit_area_blocks".to_owned(), area));
        for (name, value) in self.fast_commits.all() {
            all.push((format!("fast_commit_{name}"), value));
        }
        for (name, value) in self.inode_alloc.all() {
            all.push((format!("inode_alloc_{name}"), value));
        }
        for (name, value) in journal.counters().list() {
            all.push((format!("journal_{name}"), value));
        }
        all
    }

    /// All counters as a JSON object.
    pub(crate) fn to_json(&self, journal: &Journal, health: &Health) -> String {
        let mut map: serde_json::Map<String, serde_json::Value> = self
            .all(journal)
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect();
        if let Some(error) = health.first_error() {
            map.insert("first_error".to_owned(), error.into());
        }
        serde_json::Value::Object(map).to_string()
    }
}

/// Counters of the inode allocator. Relaxed: no decision depends on them.
#[derive(Debug, Default)]
pub(crate) struct AllocCounters {
    /// Inodes allocated.
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
    /// Total time of these waits, in nanoseconds.
    pub(crate) lock_wait_ns: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl AllocCounters {
    /// All counters with their names.
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
