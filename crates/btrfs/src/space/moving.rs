//! Moves a chunk to other places or another profile, while other threads use it.
//!
//! The address and the length of a chunk stay, so extents and free space do not change.
//! [`Volume`](crate::devices::Volume) moves the bytes. This module changes the items, and the
//! allocated ranges of the devices.

use std::sync::Arc;

use sapwood_btrfs_format::ChunkItem;

use super::chunk::{chunk_key, group_item, group_key};
use super::devices::stripes;
use super::group::BlockGroup;
use super::replace::Replaced;
use super::state::Space;
use super::write::SpaceWrite;
use crate::error::Result;

/// A block group that moves. It is not removed while this exists.
pub(crate) struct MovingGroup {
    group: Arc<BlockGroup>,
}

impl Drop for MovingGroup {
    fn drop(&mut self) {
        self.group.end_move();
    }
}

impl MovingGroup {
    /// The ranges that must be copied (start, end): all that are not free. Writes that begin later
    /// go to both places.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        self.group.not_free()
    }
}

impl Space {
    /// Keeps the group at `start` for a move. `None` if it is being removed, or has no items yet.
    ///
    /// # Errors
    /// Unreadable blocks; [`Error::Unmapped`](crate::Error::Unmapped).
    pub(crate) fn begin_move(&self, start: u64) -> Result<Option<MovingGroup>> {
        let group = self.group_at(start)?;
        self.ensure_loaded(&group)?;
        let known = group.lock().item_used.is_some();
        Ok((known && group.begin_move()).then_some(MovingGroup { group }))
    }

    /// The device ranges that a chunk leaves and gets. No other chunk gets the new ones. `None` if
    /// one of these is not free any more.
    pub(crate) fn take_new_places(&self, old: &ChunkItem, new: &ChunkItem) -> Option<Replaced> {
        let replaced = Replaced::new(stripes(old).collect(), stripes(new).collect());
        self.claim_places(&replaced).then_some(replaced)
    }

    /// Records the new places and the profile of a group, whose chunk the map has in its new
    /// places. In a commit, when no other handle is open.
    ///
    /// # Errors
    /// Unreadable blocks, no space. The transaction must not be committed then.
    pub(crate) fn record_move(
        &self,
        h: &mut dyn SpaceWrite,
        moving: &MovingGroup,
        old: &ChunkItem,
    ) -> Result<()> {
        let group = &moving.group;
        let (start, new) = self.volume.chunk_at(group.start)?;
        self.delete_device_extents(h, old)?;
        self.insert_device_extents(h, start, &new)?;
        self.trees.chunk.put(h, &chunk_key(start), &new.encode())?;
        if group.flags() != new.flags {
            group.set_flags(new.flags);
            let used = group.lock().item_used.unwrap_or(0);
            let item = group_item(group, used);
            self.group_tree().put(h, &group_key(group), item.bytes())?;
        }
        Ok(())
    }
}
