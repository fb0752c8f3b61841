//! The interface of space changes to a transaction, and the changes that they collect in it.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_base::RangeSet;
use sapwood_btrfs_format::objectid;

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

/// Bytes of extents that one transaction added or removed, by the tree that they were allocated
/// for: files' trees only.
#[derive(Debug)]
pub(crate) struct Owned {
    sums: RankedMutex<OwnedBytes>,
}

/// Bytes by tree.
#[derive(Debug, Default)]
pub(crate) struct OwnedBytes {
    /// Changes of the sums.
    pub(crate) changes: HashMap<u64, i64>,
    /// The owner of an extent could not be read.
    pub(crate) unknown: bool,
}

impl Default for Owned {
    fn default() -> Self {
        Self {
            sums: RankedMutex::new(Rank::Leaf, OwnedBytes::default()),
        }
    }
}

impl Owned {
    /// Records that an extent was added, or removed.
    pub(crate) fn add(&self, owner: Option<u64>, bytes: u64, added: bool) {
        let Some(owner) = owner.filter(|owner| objectid::is_fs_tree(*owner)) else {
            return;
        };
        let change = i64::try_from(bytes).unwrap_or(i64::MAX);
        let change = if added { change } else { -change };
        let mut sums = self.sums.lock();
        let sum = sums.changes.entry(owner).or_default();
        *sum = sum.saturating_add(change);
    }

    /// Records that the owner of a removed extent could not be read.
    pub(crate) fn add_unknown(&self) {
        self.sums.lock().unknown = true;
    }

    /// Takes all sums.
    pub(crate) fn take(&self) -> OwnedBytes {
        std::mem::take(&mut *self.sums.lock())
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
    /// Bytes by owner, if they are recorded.
    pub(crate) owned: Owned,
    /// Groups whose items are deleted; their chunks stay mapped until that is durable.
    pub(crate) removed: RankedMutex<Vec<Arc<BlockGroup>>>,
}

impl Default for SpaceChanges {
    fn default() -> Self {
        Self {
            delayed: DelayedRefs::default(),
            pinned: Pinned::default(),
            traced: Traced::default(),
            owned: Owned::default(),
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
