//! Releases space after a commit, and removes groups that are not needed any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{ChunkItem, Key, kind};

use super::chunk::{chunk_key, group_key};
use super::devices::stripes;
use super::free_space_tree::key_range;
use super::group::BlockGroup;
use super::state::Space;
use super::write::{SpaceChanges, SpaceWrite};
use crate::error::{Error, Result};

impl Space {
    /// Frees space that a durable transaction pinned, and the device space of groups that it
    /// removed. `discard`: discard it on the device. The commit roots must have been exchanged
    /// before.
    ///
    /// # Errors
    /// [`Error::FreeSpace`] if space is accounted wrongly. A failed discard is only logged.
    pub(crate) fn unpin(&self, changes: &SpaceChanges, discard: bool) -> Result<()> {
        let _reuse = self.reuse.write();
        for (start, end) in changes.pinned.take() {
            if discard {
                self.discard(start, end - start);
            }
            let mut at = start;
            while at < end {
                let group = self.group_at(at)?;
                let stop = end.min(group.end());
                group.unpin(at, stop - at)?;
                at = stop;
            }
        }
        let removed = std::mem::take(&mut *changes.removed.lock());
        for group in removed {
            if discard {
                for (start, end) in group.excluded.gaps(group.start, group.end()) {
                    self.discard(start, end - start);
                }
            }
            if let Some(chunk) = self.volume.remove_chunk(group.start) {
                self.devices.lock().give(&chunk);
                for info in [&self.data, &self.metadata, &self.system] {
                    info.full.store(false, Ordering::Relaxed);
                }
            }
        }
        self.update_global_reserve();
        Ok(())
    }

    fn discard(&self, start: u64, len: u64) {
        if let Err(err) = self.volume.discard(start, len) {
            log::warn!("discard of {len} bytes at {start}: {err}");
        }
    }

    /// Removes empty groups, but leaves each kind of space at least one and spare room. Returns how
    /// many were removed, so that the caller continues with another handle.
    ///
    /// # Errors
    /// No space, unreadable blocks; the transaction is aborted if it happens half-way.
    pub(crate) fn delete_empty_block_groups(&self, h: &mut dyn SpaceWrite) -> Result<usize> {
        for group in self.all_groups() {
            if self.claim_empty(&group)? {
                let result = self.remove_group(h, &group);
                if let Err(err) = &result {
                    h.abort(err);
                }
                return result.map(|()| 1);
            }
        }
        Ok(0)
    }

    /// Whether [`delete_empty_block_groups`](Self::delete_empty_block_groups) may find a group.
    pub(crate) fn has_empty_block_groups(&self) -> bool {
        self.all_groups().iter().any(|g| is_empty(g) && spare(g))
    }

    /// Takes an empty group away from its kind of space. Its device space counts as unallocated
    /// from then on (`statfs`), but no chunk gets it before the removal is durable.
    fn claim_empty(&self, group: &Arc<BlockGroup>) -> Result<bool> {
        let info = &group.info;
        if !spare(group) {
            return Ok(false);
        }
        let (_, chunk) = self.volume.chunk_at(group.start)?;
        let mut devices = self.devices.lock();
        let mut groups = info.groups.write();
        if !has_sibling(&groups, group) {
            return Ok(false);
        }
        let mut state = group.lock();
        if !empty(&state) {
            return Ok(false);
        }
        state.removing = true;
        drop(state);
        groups.retain(|g| !Arc::ptr_eq(g, group));
        drop(groups);
        devices.leave(&chunk);
        info.change(|sums| {
            sums.total -= group.len;
            sums.read_only -= group.super_bytes();
            sums.device_total -= group.on_device(group.len);
        });
        // Held until now, so that `statfs` counts the group's bytes once.
        drop(devices);
        Ok(true)
    }

    fn remove_group(&self, h: &mut dyn SpaceWrite, group: &Arc<BlockGroup>) -> Result<()> {
        let (_, chunk) = self.volume.chunk_at(group.start)?;
        self.delete_chunk_items(h, group, &chunk)?;
        self.groups.write().remove(&group.start);
        h.changes().removed.lock().push(group.clone());
        Ok(())
    }

    /// Deletes the items of a group and its chunk.
    pub(super) fn delete_chunk_items(
        &self,
        h: &mut dyn SpaceWrite,
        group: &BlockGroup,
        chunk: &ChunkItem,
    ) -> Result<()> {
        let root = self.group_tree().clone();
        let key = group_key(group);
        if !root.delete(h, &key)? {
            let root = root.id();
            return Err(Error::ItemNotFound { root, key });
        }
        if let Some(tree) = &self.trees.free_space {
            let (first, last) = key_range(&self.span(group));
            tree.delete_range(h, &first, &last)?;
        }
        self.delete_device_extents(h, chunk)?;
        self.trees.chunk.delete(h, &chunk_key(group.start))?;
        Ok(())
    }

    pub(super) fn delete_device_extents(
        &self,
        h: &mut dyn SpaceWrite,
        chunk: &ChunkItem,
    ) -> Result<()> {
        for (devid, offset, len) in stripes(chunk) {
            let key = Key::new(devid, kind::DEV_EXTENT, offset);
            self.trees.device.delete(h, &key)?;
            self.change_device_used(h, devid, -(len as i64))?;
        }
        Ok(())
    }
}

fn empty(state: &super::group::GroupState) -> bool {
    let busy = state.used + state.reserved + state.pinned;
    busy == 0 && !state.removing && !state.moving && !state.flushing && state.item_used == Some(0)
}

fn is_empty(group: &BlockGroup) -> bool {
    empty(&group.lock())
}

/// Whether a kind of space can do without one of its groups: the others have room for everything in
/// use and promised, and one of them has the same profile.
fn spare(group: &BlockGroup) -> bool {
    let sums = group.info.sums();
    let left = sums.total.saturating_sub(group.len);
    let fits = sums.taken() + sums.global <= left;
    fits && has_sibling(&group.info.groups.read(), group)
}

fn has_sibling(groups: &[Arc<BlockGroup>], group: &BlockGroup) -> bool {
    let same = |g: &&Arc<BlockGroup>| g.flags() == group.flags();
    groups.iter().filter(same).count() > 1
}
