//! State of a directory in memory: index items that the tree does not have yet, and entries that
//! the log does not have yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::lock::{Rank, RankedMutex};

/// State of a directory in memory.
pub(crate) struct DirState {
    names: RankedMutex<Pending>,
}

/// Index items that the tree does not show yet.
#[derive(Default)]
pub(crate) struct Pending {
    /// The index that the next name gets, once it was looked up.
    pub(crate) next_index: Option<u64>,
    /// Bound of the last listing that began at the start, for a directory whose positions do not
    /// carry it (`namespace::position`).
    pub(crate) listing_end: Option<u64>,
    /// Encoded entries to insert.
    pub(crate) added: BTreeMap<u64, Vec<u8>>,
    /// Indexes to delete.
    pub(crate) removed: BTreeSet<u64>,
    /// The directory's default ACL, once it was looked up.
    pub(crate) default_acl: Option<Option<Arc<[u8]>>>,
    /// Entries that the log of a transaction does not have yet.
    unlogged: Unlogged,
}

/// Entries that were added or removed in one transaction and are not in its log.
#[derive(Default)]
struct Unlogged {
    transid: u64,
    added: BTreeSet<u64>,
    removed: BTreeSet<u64>,
    /// There were too many to keep.
    overflow: bool,
}

/// Most entries that are recorded for the log.
const MOST_UNLOGGED: usize = 1 << 16;

impl Unlogged {
    fn of(&mut self, transid: u64) -> &mut Self {
        if self.transid != transid {
            *self = Self {
                transid,
                ..Self::default()
            };
        }
        if self.added.len() + self.removed.len() >= MOST_UNLOGGED {
            self.overflow = true;
            self.added.clear();
            self.removed.clear();
        }
        self
    }
}

/// Indexes of entries that were added to and removed from a directory.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) added: Vec<u64>,
    /// The last commit may or may not have these entries.
    pub(crate) removed: Vec<u64>,
    /// There were too many: the changes are unknown.
    pub(crate) overflow: bool,
}

impl DirState {
    pub(super) fn new() -> Self {
        Self {
            names: RankedMutex::new(Rank::DirNames, Pending::default()),
        }
    }

    pub(crate) fn lock(&self) -> impl std::ops::DerefMut<Target = Pending> + '_ {
        self.names.lock()
    }

    /// Bytes that it holds on the heap.
    pub(super) fn footprint(&self) -> usize {
        /// Estimated bytes of a pending entry, with its index.
        const ENTRY: usize = 128;
        const INDEX: usize = 16;
        let names = self.names.lock();
        let unlogged = &names.unlogged;
        let indexes = [&names.removed, &unlogged.added, &unlogged.removed];
        let count: usize = indexes.iter().map(|set| set.len()).sum();
        names.added.len() * ENTRY + count * INDEX
    }

    /// Number of pending changes.
    pub(super) fn pending(&self) -> usize {
        let names = self.names.lock();
        names.added.len() + names.removed.len()
    }

    pub(crate) fn add(&self, index: u64, entry: Vec<u8>, transid: u64) {
        let mut names = self.names.lock();
        names.added.insert(index, entry);
        let unlogged = names.unlogged.of(transid);
        if !unlogged.overflow {
            unlogged.added.insert(index);
        }
    }

    pub(crate) fn remove(&self, index: u64, transid: u64) {
        let mut names = self.names.lock();
        if names.added.remove(&index).is_none() {
            names.removed.insert(index);
        }
        let unlogged = names.unlogged.of(transid);
        if !unlogged.added.remove(&index) && !unlogged.overflow {
            unlogged.removed.insert(index);
        }
    }

    /// Changes of transaction `transid` that were not logged.
    pub(crate) fn changes(&self, transid: u64) -> Changes {
        let mut names = self.names.lock();
        let unlogged = names.unlogged.of(transid);
        Changes {
            added: unlogged.added.iter().copied().collect(),
            removed: unlogged.removed.iter().copied().collect(),
            overflow: unlogged.overflow,
        }
    }

    /// Records that the log of transaction `transid` has these entries now.
    pub(crate) fn logged(
        &self,
        transid: u64,
        added: impl Iterator<Item = u64>,
        removed: impl Iterator<Item = u64>,
    ) {
        let mut names = self.names.lock();
        let unlogged = names.unlogged.of(transid);
        for index in added {
            unlogged.added.remove(&index);
        }
        for index in removed {
            unlogged.removed.remove(&index);
        }
    }
}
