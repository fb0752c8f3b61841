//! Moves chunks to other places and devices, changes their profile, and cuts out their unused
//! parts.
//!
//! # How it works
//! Logical addresses never change, so no reference to an extent does: snapshots and clones stay
//! shared, and checksums stay valid. Only the chunk item, the device extents and the block group
//! contain the profile, the places and the length of a chunk.
//!
//! A chunk is *replaced* by one chunk or several that cover every extent of it, with the same or
//! another profile. Used bytes are copied to free places of the devices. The map in memory
//! changes, so that the transaction writes to the new places. The commit makes the new places
//! count. Until then the superblock leads to the old ones, which are not overwritten.
//!
//! The caller has committed everything before, and no other thread uses the file system. Device
//! space that becomes free is used again only after the commit: see [`Space::release_replaced`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, DevItem, Key, kind, objectid};

use super::devices::{Devices, stripes};
use super::free_space::RangeDelta;
use super::free_space_tree;
use super::group::BlockGroup;
use super::state::Space;
use super::store::TreeStore;
use super::write::SpaceWrite;
use crate::error::{Error, Result};
use sapwood_base::RangeSet;

/// A stripe of a chunk on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Logical address of the chunk.
    pub(crate) logical: u64,
    /// Number of the stripe.
    pub(crate) stripe: usize,
    /// Device id.
    pub(crate) devid: u64,
    /// Offset on the device.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Placed {
    /// First byte after it.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Device ranges that a transaction gave up and took.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    given: Vec<(u64, u64, u64)>,
    taken: Vec<(u64, u64, u64)>,
}

impl Replaced {
    /// Ranges that are given up and taken: device id, offset, bytes.
    pub(super) fn new(given: Vec<(u64, u64, u64)>, taken: Vec<(u64, u64, u64)>) -> Self {
        Self { given, taken }
    }

    /// The opposite change, for places that are not used after all.
    pub(crate) fn reversed(self) -> Self {
        Self {
            given: self.taken,
            taken: self.given,
        }
    }
}

impl Space {
    /// All stripes, in order of their offsets.
    pub(crate) fn placed(&self) -> Vec<Placed> {
        let mut all = Vec::new();
        for (logical, chunk) in self.volume.chunks() {
            let of_chunk = stripes(&chunk).enumerate();
            all.extend(of_chunk.map(|(stripe, (devid, offset, len))| Placed {
                logical,
                stripe,
                devid,
                offset,
                len,
            }));
        }
        all.sort_by_key(|placed| placed.offset);
        all
    }

    /// Free ranges of a device below `end`, without the places of superblocks: (start, end).
    pub(crate) fn clear_holes(&self, devid: u64, end: u64) -> Vec<(u64, u64)> {
        let devices = self.devices.lock();
        let device = devices.by_id.get(&devid);
        device.map_or_else(Vec::new, |device| device.clear_holes(end))
    }

    /// Ranges of all devices that belong to no chunk: device id, start, end.
    pub(crate) fn unused_ranges(&self) -> Vec<(u64, u64, u64)> {
        let devices = self.devices.lock();
        let each = devices.by_id.values().flat_map(|device| {
            let unused = device.unused().into_iter();
            unused.map(|(from, to)| (device.devid, from, to))
        });
        each.collect()
    }

    /// Makes further chunks end before `limit`.
    pub(crate) fn limit_chunks(&self, limit: u64) {
        for device in self.devices.lock().by_id.values_mut() {
            device.limit = limit;
        }
    }

    /// Content and profile, and bytes, of the group at an address.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(crate) fn group_shape(&self, logical: u64) -> Result<(BlockGroupFlags, u64)> {
        let group = self.group_at(logical)?;
        Ok((group.flags(), group.len))
    }

    /// The extents of a group as of the last commit: (start, bytes), in order.
    ///
    /// # Errors
    /// Unreadable blocks; [`Error::Unmapped`].
    pub(crate) fn extents_of(&self, logical: u64) -> Result<Vec<(u64, u64)>> {
        let group = self.group_at(logical)?;
        let mut found = Vec::new();
        let first = Key::new(group.start, 0, 0);
        let extent = &self.trees.extent;
        extent.walk_committed(self, &first, &mut |key, _| {
            if key.objectid >= group.end() {
                return Ok(false);
            }
            match key.kind {
                kind::EXTENT_ITEM => found.push((key.objectid, key.offset)),
                kind::METADATA_ITEM => found.push((key.objectid, self.nodesize)),
                _ => {}
            }
            Ok(true)
        })?;
        Ok(found)
    }

    /// Moves a stripe to the free place `to` of its device.
    ///
    /// # Errors
    /// Errors of the device; unreadable blocks; no space. The transaction must not be committed
    /// then.
    pub(crate) fn move_stripe(
        &self,
        h: &mut dyn SpaceWrite,
        placed: &Placed,
        to: u64,
    ) -> Result<Replaced> {
        let (logical, chunk) = self.volume.chunk_at(placed.logical)?;
        let mut moved = (*chunk).clone();
        if let Some(stripe) = moved.stripes.get_mut(placed.stripe) {
            stripe.offset = to;
        }
        self.replace_chunk(h, logical, vec![(logical, moved)])
    }

    /// Replaces the chunk at `logical` by `chunks` (address, chunk) that cover parts of it, in
    /// order. Every extent lies in one of them. Their stripes lie where they were, or in free
    /// places, to which the used bytes are copied.
    ///
    /// # Errors
    /// Errors of the devices; unreadable blocks; no space. The transaction must not be committed
    /// then.
    pub(crate) fn replace_chunk(
        &self,
        h: &mut dyn SpaceWrite,
        logical: u64,
        chunks: Vec<(u64, ChunkItem)>,
    ) -> Result<Replaced> {
        let group = self.group_at(logical)?;
        let (_, chunk) = self.volume.chunk_at(logical)?;
        let used = merged(&self.extents_of(logical)?);
        let replaced = Replaced {
            given: stripes(&chunk).collect(),
            taken: chunks.iter().flat_map(|(_, new)| stripes(new)).collect(),
        };
        // No chunk that this transaction allocates gets the new places.
        take(&mut self.devices.lock(), &replaced.taken);
        for (start, new) in &chunks {
            for (from, to) in within(&used, *start, new.length).iter() {
                self.volume.copy_to((from, to - from), (*start, new))?;
            }
        }
        self.detach(&group)?;
        self.volume.replace_chunk(logical, chunks.clone());
        let mut groups = Vec::new();
        for (start, new) in &chunks {
            let (start, len) = (*start, new.length);
            let inside = within(&used, start, len);
            let group = self.add_group(start, len, new.flags, Some(inside.bytes()));
            let free = inside.gaps(start, start + len);
            group.load(|| Ok(free))?;
            groups.push((group, inside));
        }
        self.delete_chunk_items(h, &group, &chunk)?;
        for (group, used) in &groups {
            self.insert_chunk_items(h, group)?;
            self.record_used(h, group, used)?;
        }
        Ok(replaced)
    }

    /// Records the ranges that are taken, if none of those that are not given up belongs to a chunk
    /// or is being discarded.
    pub(super) fn claim_places(&self, replaced: &Replaced) -> bool {
        let mut devices = self.devices.lock();
        let mut new = replaced.taken.iter();
        let free = new.all(|place| {
            let (devid, offset, len) = place;
            let device = devices.by_id.get(devid);
            replaced.given.contains(place)
                || device.is_some_and(|device| device.is_free(*offset, *len))
        });
        if free {
            take(&mut devices, &replaced.taken);
        }
        free
    }

    /// Records the used ranges of a group in the free-space tree, which has it as all free.
    fn record_used(
        &self,
        h: &mut dyn SpaceWrite,
        group: &BlockGroup,
        used: &RangeSet,
    ) -> Result<()> {
        let Some(root) = &self.trees.free_space else {
            return Ok(());
        };
        let mut delta = RangeDelta::default();
        for (from, to) in used.iter() {
            delta.take(from, to);
        }
        let mut store = TreeStore {
            root,
            blocks: &self.blocks,
            h,
        };
        free_space_tree::update(&mut store, &self.span(group), &delta)
    }

    /// Removes an unused group from memory.
    fn detach(&self, group: &Arc<BlockGroup>) -> Result<()> {
        let state = group.lock();
        let busy = state.reserved > 0 || state.pinned > 0 || !state.delta.is_empty();
        let used = state.used;
        drop(state);
        if busy {
            return Err(Error::BadBlockGroup {
                group: group.start,
                reason: "it changes while it is replaced".to_owned(),
            });
        }
        self.groups.write().remove(&group.start);
        let mut groups = group.info.groups.write();
        groups.retain(|other| !Arc::ptr_eq(other, group));
        drop(groups);
        group.info.change(|sums| {
            sums.total -= group.len;
            sums.used -= used;
            sums.read_only -= group.super_bytes();
            sums.device_total -= group.on_device(group.len);
            sums.device_used -= group.on_device(used);
        });
        Ok(())
    }

    /// Records device space that a durable transaction gave up.
    pub(crate) fn release_replaced(&self, replaced: &Replaced) {
        // A range may be in both lists, and must not be free in between.
        let mut devices = self.devices.lock();
        for (devid, offset, len) in &replaced.given {
            if let Some(device) = devices.by_id.get_mut(devid) {
                device.give(*offset, *len);
            }
        }
        take(&mut devices, &replaced.taken);
        drop(devices);
        for info in [&self.data, &self.metadata, &self.system] {
            info.full.store(false, Ordering::Relaxed);
        }
    }

    /// Sets the size of a device.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn set_device_size(
        &self,
        h: &mut dyn SpaceWrite,
        devid: u64,
        size: u64,
    ) -> Result<()> {
        let key = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, devid);
        let root = objectid::CHUNK_TREE;
        let found = self.trees.chunk.get(self, &key)?;
        let found = found.ok_or(Error::ItemNotFound { root, key })?;
        let mut item =
            DevItem::read(&found).map_err(|source| Error::BadItem { root, key, source })?;
        item.total_bytes = size.into();
        self.trees.chunk.put(h, &key, item.bytes())?;
        let mut devices = self.devices.lock();
        if let Some(device) = devices.by_id.get_mut(&devid) {
            device.total = size;
        }
        let totals = devices.by_id.values().map(|device| device.total);
        let total = totals.fold(0, u64::saturating_add);
        self.total_bytes.store(total, Ordering::Relaxed);
        drop(devices);
        for info in [&self.data, &self.metadata, &self.system] {
            info.full.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Records ranges of devices as belonging to chunks.
fn take(devices: &mut Devices, places: &[(u64, u64, u64)]) {
    for (devid, offset, len) in places {
        if let Some(device) = devices.by_id.get_mut(devid) {
            device.take(*offset, *len);
        }
    }
}

/// Extents that touch, as one range: (start, bytes).
fn merged(extents: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, len) in extents {
        match ranges.last_mut() {
            Some((from, bytes)) if *from + *bytes >= *start => {
                *bytes = (*bytes).max(start + len - *from);
            }
            _ => ranges.push((*start, *len)),
        }
    }
    ranges
}

/// The part of ranges (start, bytes) that lies in one range.
fn within(ranges: &[(u64, u64)], start: u64, len: u64) -> RangeSet {
    let mut inside = RangeSet::new();
    for (from, bytes) in ranges {
        let (from, to) = ((*from).max(start), (from + bytes).min(start + len));
        if from < to {
            inside.insert(from, to);
        }
    }
    inside
}
