//! Allocates space: tree blocks and data extents.
//!
//! # How it works
//! Only block groups are locked, one at a time, for a search in memory. Tree blocks are allocated
//! consecutively from a cursor, one cursor for log trees and one for all others, so that a commit
//! writes long runs, unless an address was chosen for a copy ([`places`](super::places)). Data is
//! placed at the hint (after the file's previous extent), otherwise in the smallest free extent that
//! holds all of it. If the groups in memory have no space, other groups are loaded; then a chunk is
//! allocated.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{BlockGroupFlags, objectid};

use super::group::{BlockGroup, Loaded};
use super::info::{DataReservation, Reservation, SpaceInfo};
use super::state::Space;
use super::write::SpaceWrite;
use crate::error::{Error, Result};
use crate::tree::Root;

impl Space {
    /// Allocates the address of a new block of tree `root_id`, from the handle's reservation as far
    /// as it suffices. `root`: the tree, if it is known already. `source`: address of the block that
    /// is copied to it, or of a neighbour. May be called with tree blocks locked.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no group has room and no chunk can be allocated.
    pub(crate) fn alloc_tree_block(
        &self,
        h: &mut dyn SpaceWrite,
        root_id: u64,
        root: Option<&Root>,
        source: u64,
    ) -> Result<u64> {
        let info = match root_id {
            objectid::CHUNK_TREE => &self.system,
            _ => &self.metadata,
        };
        let stream = usize::from(root_id == objectid::TREE_LOG);
        let bytenr = match self.chosen_place(source)? {
            Some(place) => place,
            None => self.with_groups(info, || self.take_block(info, stream))?,
        };
        match h.reservation() {
            Some(promise) if promise.is_of(info) => promise.hand_out(self.nodesize),
            _ => info.change(|sums| sums.reserved += self.nodesize),
        }
        if let Some(root) = root {
            let mut item = root.item();
            item.bytes_used = item.bytes_used.get().wrapping_add(self.nodesize).into();
        }
        Ok(bytenr)
    }

    fn take_block(&self, info: &SpaceInfo, stream: usize) -> Option<u64> {
        let cursor = &info.cursors[stream];
        let at = cursor.load(Ordering::Relaxed);
        let groups = info.groups.read();
        let first = groups.iter().position(|group| group.contains(at));
        let (before, after) = groups.split_at(first.unwrap_or(0));
        let mut all = after.iter().chain(before);
        let bytenr = all.find_map(|group| group.take_block(at.max(group.start), self.nodesize))?;
        cursor.store(bytenr + self.nodesize, Ordering::Relaxed);
        Some(bytenr)
    }

    /// Tries `take`. If it finds nothing, loads groups, then allocates chunks, and tries again.
    fn with_groups<T>(
        &self,
        info: &Arc<SpaceInfo>,
        mut take: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        loop {
            let seen = info.sums().total;
            if let Some(found) = take() {
                return Ok(found);
            }
            if !self.load_one(info)? {
                self.allocate_chunk(info, Some(seen))?;
            }
        }
    }

    /// Loads a group that is not in memory yet. Returns false if there is none.
    pub(super) fn load_one(&self, info: &SpaceInfo) -> Result<bool> {
        let unloaded = |group: &&Arc<BlockGroup>| {
            let state = group.lock();
            state.loaded != Loaded::Yes && !state.removing
        };
        let found = info.groups.read().iter().find(unloaded).cloned();
        found.map_or(Ok(false), |group| self.ensure_loaded(&group).map(|()| true))
    }

    /// Allocates between `min` and `want` bytes (multiples of the sector size) for data, at `hint`
    /// if possible, from `promise`, which must hold at least `min`. Returns address and length.
    /// Either [`insert_data_extent`](Self::insert_data_extent) or
    /// [`release_data_extent`](Self::release_data_extent) must follow.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no free extent has `min` bytes.
    pub(crate) fn reserve_data_extent(
        &self,
        promise: &Reservation,
        min: u64,
        want: u64,
        hint: u64,
    ) -> Result<(u64, u64)> {
        let info = &self.data;
        let mut least = want;
        loop {
            let found = self.with_groups(info, || self.take_data(info, hint, least, want));
            match found {
                Ok((bytenr, len)) => {
                    promise.hand_out(len);
                    return Ok((bytenr, len));
                }
                Err(Error::NoSpace) if least > min => least = min.max(least / 2),
                Err(err) => return Err(err),
            }
        }
    }

    /// Allocates one run of data for several extents, with the given number of bytes (multiples of
    /// the sector size) from each promise, in this order. Returns its address; `None` for no
    /// extents, or if no loaded group has such a run. As for
    /// [`reserve_data_extent`](Self::reserve_data_extent), the caller must continue for each.
    pub(crate) fn reserve_data_stretch(
        &self,
        parts: &[(Arc<DataReservation>, u64)],
    ) -> Option<u64> {
        let all = parts.iter().map(|(_, len)| len).sum();
        if all == 0 {
            return None;
        }
        let (bytenr, _) = self.take_data(&self.data, 0, all, all)?;
        for (promise, len) in parts {
            promise.hand_out(*len);
        }
        Some(bytenr)
    }

    fn take_data(&self, info: &SpaceInfo, hint: u64, min: u64, want: u64) -> Option<(u64, u64)> {
        let groups = info.groups.read();
        let first = groups.iter().position(|group| group.contains(hint));
        let (before, after) = groups.split_at(first.unwrap_or(0));
        let mut all = after.iter().chain(before);
        all.find_map(|group| group.take_data(hint, min, want, self.sector))
    }

    /// Allocates a range that was written but never committed. It must be free, and in one group of
    /// that content.
    ///
    /// # Errors
    /// [`Error::FreeSpace`], [`Error::Unmapped`]; [`Error::BadBlockGroup`] for a group of other
    /// content.
    pub(crate) fn take_exactly(
        &self,
        bytenr: u64,
        len: u64,
        content: BlockGroupFlags,
    ) -> Result<()> {
        let group = self.group_at(bytenr)?;
        if !group.flags().contains(content) {
            return Err(Error::BadBlockGroup {
                group: group.start,
                reason: format!("its content is not {content:?}"),
            });
        }
        self.ensure_loaded(&group)?;
        group.take_exactly(bytenr, len)
    }

    /// Returns a tree block that was allocated but never reached the extent tree, and that nothing
    /// on disk refers to any more.
    ///
    /// # Errors
    /// [`Error::FreeSpace`] if it was not taken.
    pub(crate) fn untake_tree_block(&self, bytenr: u64) -> Result<()> {
        self.group_at(bytenr)?.untake(bytenr, self.nodesize)
    }

    /// Returns a data extent that was never inserted.
    ///
    /// # Errors
    /// [`Error::FreeSpace`] if it was not taken.
    pub(crate) fn release_data_extent(&self, bytenr: u64, len: u64) -> Result<()> {
        self.group_at(bytenr)?.untake(bytenr, len)
    }
}
