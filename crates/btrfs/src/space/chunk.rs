//! Allocates chunks: in memory first; their items are inserted later.
//!
//! A chunk is allocated when an operation runs out of room, with any locks held. So the allocation
//! happens only in memory, under the lock of the device map. [`Space::finish_pending_chunks`]
//! inserts the items (chunk, device extents, device, block group, free space), at the latest in the
//! commit of the transaction that first uses the chunk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{
    Block, BlockGroupFlags, BlockGroupItem, ChunkItem, DevExtent, DevItem, Key, kind, objectid,
};

use super::devices::{BY_REDUNDANCY, DeviceSpace, Devices, Layout, STRIPE_LEN, stripes, wanted};
use super::free_space_tree;
use super::group::BlockGroup;
use super::info::SpaceInfo;
use super::state::Space;
use super::store::TreeStore;
use super::write::SpaceWrite;
use crate::error::{Error, Result};

/// Number of chunk-tree blocks for which there must be room before a chunk is allocated: for its
/// items, and for the items of a system chunk that may follow.
const SYSTEM_BLOCKS: u64 = 16;

impl Space {
    /// Allocates a chunk for a kind of space. Does nothing if its total is no longer `seen`,
    /// because another thread allocated one.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no device has room.
    pub(super) fn allocate_chunk(&self, info: &Arc<SpaceInfo>, seen: Option<u64>) -> Result<()> {
        let mut devices = self.devices.lock();
        if seen.is_some_and(|seen| info.sums().total != seen) {
            return Ok(());
        }
        let system = self.system.sums().free();
        if !Arc::ptr_eq(info, &self.system) && system < SYSTEM_BLOCKS * self.nodesize {
            // Without room for its item the new chunk would be useless.
            let made = self.make_chunk(&mut devices, &self.system);
            if system < SYSTEM_BLOCKS / 4 * self.nodesize {
                made?;
            }
        }
        let result = self.make_chunk(&mut devices, info);
        let full = matches!(result, Err(Error::NoSpace));
        info.full.store(full, Ordering::Relaxed);
        result
    }

    /// Flags of the next chunk, of a profile that is in use and that the devices which are there
    /// allow: the most redundant one over several devices, else the larger of DUP and single.
    pub(super) fn chunk_flags(&self, info: &SpaceInfo) -> BlockGroupFlags {
        let groups = info.groups.read();
        let bytes = |profile: BlockGroupFlags| -> u64 {
            let same = groups.iter().filter(|g| g.flags().profile() == profile);
            same.map(|g| g.len).sum()
        };
        let devices = self.volume.written_ids().len();
        let mut several = BY_REDUNDANCY.into_iter();
        if let Some(best) = several.find(|p| bytes(*p) > 0 && Layout::of(*p).least <= devices) {
            return info.content | best;
        }
        let dup = BlockGroupFlags::DUP;
        let single = BlockGroupFlags::empty();
        let data_only = info.content == BlockGroupFlags::DATA;
        let use_dup = bytes(dup) > bytes(single) || (groups.is_empty() && !data_only);
        info.content | if use_dup { dup } else { single }
    }

    /// Device bytes that must stay unallocated for metadata reserved beyond its groups.
    fn owed_to_metadata(&self) -> u64 {
        let sums = self.metadata.sums();
        let owed = (sums.taken() + sums.global).saturating_sub(sums.total);
        owed * Layout::of(self.chunk_flags(&self.metadata)).copies
    }

    /// Bytes that chunks of a profile can get from the devices that are written.
    pub(super) fn room(&self, devices: &Devices, flags: BlockGroupFlags) -> u64 {
        let layout = Layout::of(flags);
        let written = |devid| self.volume.is_written(devid);
        devices.room(&layout, &written, DeviceSpace::unallocated)
    }

    fn make_chunk(&self, devices: &mut Devices, info: &Arc<SpaceInfo>) -> Result<()> {
        let flags = self.chunk_flags(info);
        let layout = Layout::of(flags);
        let owed = if info.content.contains(BlockGroupFlags::DATA) && !self.mixed {
            self.owed_to_metadata()
        } else {
            0
        };
        let room = self.room(devices, flags).saturating_sub(owed) / layout.copies;
        let largest = self.largest_chunk.load(Ordering::Relaxed);
        let want = wanted(info.content, self.total_bytes())
            .min(room)
            .min(largest);
        if want < STRIPE_LEN {
            return Err(Error::NoSpace);
        }
        let logical = devices.next_logical.next_multiple_of(STRIPE_LEN);
        let written = |devid| self.volume.is_written(devid);
        let placed = devices.place(&layout, want, &written);
        let placed = placed.filter(|p| p.length > 0).ok_or(Error::NoSpace)?;
        let length = placed.length;
        let chunk = ChunkItem {
            length,
            owner: objectid::EXTENT_TREE,
            stripe_len: STRIPE_LEN,
            flags,
            io_align: STRIPE_LEN as u32,
            io_width: STRIPE_LEN as u32,
            sector_size: self.sector as u32,
            sub_stripes: Layout::sub_stripes(flags),
            stripes: placed.stripes,
        };
        devices.take(logical, &chunk);
        self.volume.add_chunk(logical, chunk)?;
        let group = self.add_group(logical, length, flags, None);
        self.fresh.lock().push(group);
        Ok(())
    }

    /// Whether there are chunks without items.
    pub(crate) fn has_pending_chunks(&self) -> bool {
        !self.fresh.lock().is_empty()
    }

    /// Inserts the items of chunks that have none. Returns whether there were any.
    ///
    /// # Errors
    /// No space, unreadable blocks; the transaction is aborted then.
    pub(crate) fn finish_pending_chunks(&self, h: &mut dyn SpaceWrite) -> Result<bool> {
        let mut any = false;
        loop {
            let next = {
                let mut fresh = self.fresh.lock();
                if fresh.is_empty() {
                    break;
                }
                fresh.remove(0)
            };
            any = true;
            if let Err(err) = self.insert_chunk_items(h, &next) {
                h.abort(&err);
                return Err(err);
            }
        }
        Ok(any)
    }

    pub(super) fn insert_chunk_items(
        &self,
        h: &mut dyn SpaceWrite,
        group: &Arc<BlockGroup>,
    ) -> Result<()> {
        let (logical, chunk) = self.volume.chunk_at(group.start)?;
        let key = chunk_key(logical);
        self.trees.chunk.insert(h, &key, &chunk.encode())?;
        self.insert_device_extents(h, logical, &chunk)?;
        if let Some(tree) = &self.trees.free_space {
            let mut store = TreeStore {
                root: tree,
                blocks: &self.blocks,
                h,
            };
            free_space_tree::create(&mut store, &self.span(group))?;
        }
        // This item records the used bytes now; later changes make the group dirty.
        let used = group.lock().used;
        let item = group_item(group, used);
        let key = group_key(group);
        self.group_tree().insert(h, &key, item.bytes())?;
        group.lock().item_used = Some(used);
        Ok(())
    }

    pub(super) fn insert_device_extents(
        &self,
        h: &mut dyn SpaceWrite,
        logical: u64,
        chunk: &ChunkItem,
    ) -> Result<()> {
        for (devid, offset, len) in stripes(chunk) {
            let item = DevExtent {
                chunk_tree: objectid::CHUNK_TREE.into(),
                chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
                chunk_offset: logical.into(),
                length: len.into(),
                chunk_tree_uuid: self.chunk_tree_uuid(),
            };
            let key = Key::new(devid, kind::DEV_EXTENT, offset);
            self.trees.device.insert(h, &key, item.bytes())?;
            self.change_device_used(h, devid, len as i64)?;
        }
        Ok(())
    }

    /// The uuid in the headers of all blocks.
    fn chunk_tree_uuid(&self) -> [u8; 16] {
        let top = self.trees.chunk.node().snapshot();
        let block = Block::new(&top);
        block
            .map(|b| b.header().chunk_tree_uuid)
            .unwrap_or_default()
    }

    /// Adds to a device's bytes in use, in its item and in memory.
    pub(super) fn change_device_used(
        &self,
        h: &mut dyn SpaceWrite,
        devid: u64,
        change: i64,
    ) -> Result<()> {
        let key = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, devid);
        let root = objectid::CHUNK_TREE;
        let found = self.trees.chunk.get(self, &key)?;
        let found = found.ok_or(Error::ItemNotFound { root, key })?;
        let bad = |source| Error::BadItem { root, key, source };
        let mut item = DevItem::read(&found).map_err(bad)?;
        let used = item.bytes_used.get().saturating_add_signed(change);
        item.bytes_used = used.into();
        self.trees.chunk.put(h, &key, item.bytes())?;
        if let Some(device) = self.devices.lock().by_id.get_mut(&devid) {
            device.used = used;
        }
        Ok(())
    }

    /// The system chunks that have items, for the superblock's array.
    pub(crate) fn system_chunks(&self) -> Vec<(u64, Arc<ChunkItem>)> {
        let has_items = |start: u64| {
            let group = self.group_at(start);
            group.is_ok_and(|group| {
                let state = group.lock();
                state.item_used.is_some() && !state.removing
            })
        };
        let mut chunks = self.volume.chunks();
        chunks.retain(|(start, chunk)| {
            chunk.flags.contains(BlockGroupFlags::SYSTEM) && has_items(*start)
        });
        chunks
    }
}

/// Key of a chunk item.
pub(super) fn chunk_key(logical: u64) -> Key {
    Key::new(objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, logical)
}

/// Key of a group's item.
pub(super) fn group_key(group: &BlockGroup) -> Key {
    Key::new(group.start, kind::BLOCK_GROUP_ITEM, group.len)
}

/// A group's item.
pub(super) fn group_item(group: &BlockGroup, used: u64) -> BlockGroupItem {
    BlockGroupItem {
        used: used.into(),
        chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
        flags: group.flags().bits().into(),
    }
}
