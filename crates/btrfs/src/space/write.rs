//! The interface of space changes to a transaction, and the changes that they collect in it.

use std::sync::Arc;

use sapwood_base::RangeSet;

use super::delayed::DelayedRefs;
use super::group::BlockGroup;
use super::info::Reservation;
use crate::error::Result;
use crate::lock::{Rank, RankedMutex};
use crate::tree::TreeWrite;

/// Ranges that one transaction freed. They must not be reused before the transaction is durable,
/// because the trees of the last commit, and the logs built on it, still refer to them.
#[derive(Debug)]
pub(crate) struct Pinned {
    ranges: RankedMutex<RangeSet>,
}

impl Default for Pinned {
    fn default() -> Self {
        Self {
            ranges: RankedMutex::new(Rank::Leaf, RangeSet::new()),
        }
    }
}

impl Pinned {
    /// Pins a range.
    pub(crate) fn add(&self, bytenr: u64, len: u64) {
        self.ranges
            .lock()
            .insert(bytenr, bytenr.saturating_add(len));
    }

    /// Takes all ranges (start, end).
    pub(crate) fn take(&self) -> Vec<(u64, u64)> {
        let ranges = std::mem::take(&mut *self.ranges.lock());
        ranges.iter().collect()
    }
}

/// Changes of space that one transaction collects.
#[derive(Debug)]
pub(crate) struct SpaceChanges {
    /// Ref changes that are not in the extent tree yet.
    pub(crate) delayed: DelayedRefs,
    /// Freed ranges.
    pub(crate) pinned: Pinned,
    /// Groups whose items are deleted; their chunks stay mapped until that is durable.
    pub(crate) removed: RankedMutex<Vec<Arc<BlockGroup>>>,
}

impl Default for SpaceChanges {
    fn default() -> Self {
        Self {
            delayed: DelayedRefs::default(),
            pinned: Pinned::default(),
            removed: RankedMutex::new(Rank::Leaf, Vec::new()),
        }
    }
}

/// A transaction handle, or a small stand-in in tests.
pub(crate) trait SpaceWrite: TreeWrite {
    /// The changes that its transaction collects.
    fn changes(&self) -> Arc<SpaceChanges>;
    /// The handle's reservation.
    fn reservation(&self) -> Option<&Reservation>;
    /// Deletes the checksums of a data range that is freed.
    fn delete_checksums(&mut self, bytenr: u64, len: u64) -> Result<()>;
}
