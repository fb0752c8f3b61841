//! The interface of space changes to a transaction, and the changes that they collect in it.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_base::RangeSet;

use super::delayed::{DelayedRefs, Extent};
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

/// Extents whose refs one transaction changed, also if the changes cancelled out: the trees that
/// reach such an extent may differ from those of the last commit.
#[derive(Debug)]
pub(crate) struct Traced {
    extents: RankedMutex<HashMap<u64, Extent>>,
}

impl Default for Traced {
    fn default() -> Self {
        Self {
            extents: RankedMutex::new(Rank::Leaf, HashMap::new()),
        }
    }
}

impl Traced {
    /// Records an extent. An address that is used again within the transaction has the newest one.
    pub(crate) fn add(&self, extent: Extent) {
        self.extents.lock().insert(extent.bytenr, extent);
    }

    /// Number of recorded extents.
    pub(crate) fn count(&self) -> usize {
        self.extents.lock().len()
    }

    /// Takes all extents.
    pub(crate) fn take(&self) -> Vec<Extent> {
        let extents = std::mem::take(&mut *self.extents.lock());
        extents.into_values().collect()
    }
}

/// Changes of space that one transaction collects.
#[derive(Debug)]
pub(crate) struct SpaceChanges {
    /// Ref changes that are not in the extent tree yet.
    pub(crate) delayed: DelayedRefs,
    /// Freed ranges.
    pub(crate) pinned: Pinned,
    /// Extents whose refs changed, if that is recorded.
    pub(crate) traced: Traced,
    /// Groups whose items are deleted; their chunks stay mapped until that is durable.
    pub(crate) removed: RankedMutex<Vec<Arc<BlockGroup>>>,
}

impl Default for SpaceChanges {
    fn default() -> Self {
        Self {
            delayed: DelayedRefs::default(),
            pinned: Pinned::default(),
            traced: Traced::default(),
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
