//! Chosen addresses for the copies of tree blocks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use sapwood_btrfs_format::BlockGroupFlags;

use super::state::Space;
use crate::error::{Error, Result};
use crate::lock::{Rank, RankedMutex};

/// Addresses that are allocated for the copies of certain blocks.
#[derive(Debug)]
pub(super) struct Places {
    /// Whether there are any, which is rare.
    any: AtomicBool,
    /// Address of the copy, by the address of the block.
    chosen: RankedMutex<HashMap<u64, u64>>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            chosen: RankedMutex::new(Rank::Leaf, HashMap::new()),
        }
    }
}

impl Places {
    fn take(&self, bytenr: u64) -> Option<u64> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.chosen.lock().remove(&bytenr)
    }
}

impl Space {
    /// Takes the free address `to`, so that only a copy of the tree block at `from` gets it. False
    /// if it is not free, or not in a group for such blocks.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn hold_place(&self, from: u64, to: u64) -> Result<bool> {
        let kinds = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let (group, now) = match (self.group_at(to), self.group_at(from)) {
            (Ok(group), Ok(now)) => (group, now),
            (Err(Error::Unmapped { .. }), _) | (_, Err(Error::Unmapped { .. })) => {
                return Ok(false);
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        if (group.flags() & kinds) != (now.flags() & kinds) || group.lock().removing {
            return Ok(false);
        }
        self.ensure_loaded(&group)?;
        if !to.is_multiple_of(self.sector) || group.take_exactly(to, self.nodesize).is_err() {
            return Ok(false);
        }
        self.places.chosen.lock().insert(from, to);
        self.places.any.store(true, Ordering::Release);
        Ok(true)
    }

    /// Frees the addresses of [`hold_place`](Self::hold_place) that no copy got.
    ///
    /// # Errors
    /// [`Error::FreeSpace`] if space is accounted wrongly.
    pub(crate) fn release_places(&self) -> Result<()> {
        self.places.any.store(false, Ordering::Release);
        let left = std::mem::take(&mut *self.places.chosen.lock());
        for to in left.into_values() {
            self.untake_tree_block(to)?;
        }
        Ok(())
    }

    /// The address for a copy of the block at `bytenr`, if one was chosen. It is allocated, but not
    /// counted as such.
    pub(super) fn chosen_place(&self, bytenr: u64) -> Result<Option<u64>> {
        let Some(to) = self.places.take(bytenr) else {
            return Ok(None);
        };
        let group = self.group_at(to)?;
        group.info.change(|sums| sums.reserved -= self.nodesize);
        Ok(Some(to))
    }
}
