//! The interface of a transaction that changes of space need.

use std::sync::Arc;

use super::delayed::DelayedRefs;
use super::group::BlockGroup;
use super::info::Reservation;
use super::pinned::Pinned;
use crate::error::Result;
use crate::lock::{Rank, RankedMutex};
use crate::tree::TreeWrite;

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
