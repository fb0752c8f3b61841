//! Bitmap blocks: read and validated when first needed, or computed if they were never written.

use std::sync::Arc;

use sapwood_ext4_format::{
    BitmapKind, GroupFlags, bitmap, validate_block_bitmap, validate_inode_bitmap,
};
use sapwood_jbd2::{Buffer, BufferWrite, Handle};

use super::{Buddy, Group, GroupState, Groups, InodeMap, slot};
use crate::lock::RankedMutexGuard;
use crate::{Error, Result};

/// [`Buffer::kind`] of a validated block bitmap.
const BLOCK_BITMAP: u8 = 0xb0;
/// [`Buffer::kind`] of a validated inode bitmap.
const INODE_BITMAP: u8 = 0xb1;

impl Groups {
    /// The block of a bitmap. A block that was never written has no content yet:
    /// [`change_bitmap`](Self::change_bitmap) gives it one. Takes the group's lock, reads the
    /// device without it.
    ///
    /// # Errors
    /// The group is out of use, or is put out of use because the bitmap is wrong or cannot be read.
    pub(crate) fn bitmap(&self, group: &Group, kind: BitmapKind) -> Result<Arc<Buffer>> {
        let validated = match kind {
            BitmapKind::Block => BLOCK_BITMAP,
            BitmapKind::Inode => INODE_BITMAP,
        };
        let block = group.bitmaps[slot(kind)];
        let known = self.cache.peek(block);
        if let Some(buffer) = known.filter(|buffer| buffer.kind() == validated) {
            return Ok(buffer);
        }
        {
            let mut state = group.lock();
            state.check(group)?;
            if let Some(buffer) = &state.unwritten[slot(kind)] {
                return Ok(Arc::clone(buffer));
            }
            if state.unwritten(kind) {
                let buffer = self.cache.get_new(block)?;
                buffer.set_kind(validated);
                state.unwritten[slot(kind)] = Some(Arc::clone(&buffer));
                return Ok(buffer);
            }
        }
        let buffer = match self.cache.get(block) {
            Ok(buffer) => buffer,
            Err(error) => {
                let reason = format!("{kind} cannot be read: {error}");
                return Err(self.put_out_of_use(group, &mut group.lock(), reason));
            }
        };
        if buffer.kind() != validated {
            let mut state = group.lock();
            // A thread that changes it validates it first, under this lock; so an unvalidated block
            // is unchanged, and the descriptor has its checksum.
            if buffer.kind() != validated {
                self.validate(group, &state, kind, &buffer)
                    .map_err(|reason| self.put_out_of_use(group, &mut state, reason))?;
                buffer.set_kind(validated);
            }
        }
        Ok(buffer)
    }

    fn validate(
        &self,
        group: &Group,
        state: &GroupState,
        kind: BitmapKind,
        buffer: &Buffer,
    ) -> Result<(), String> {
        let check = match kind {
            BitmapKind::Block => validate_block_bitmap,
            BitmapKind::Inode => validate_inode_bitmap,
        };
        check(group.number, &buffer.read(), &state.desc, self.geometry()).map_err(|e| e.to_string())
    }

    /// Locks a bitmap for a change: the caller's handle has write access to the buffer, and the
    /// group's lock is held. The first change of an unwritten bitmap gives it its computed content.
    ///
    /// # Errors
    /// Errors of the journal.
    pub(crate) fn change_bitmap<'b>(
        &self,
        h: &Handle,
        group: &Group,
        state: &mut GroupState,
        kind: BitmapKind,
        buffer: &'b Arc<Buffer>,
    ) -> Result<BufferWrite<'b>> {
        let mut content = h.modify(buffer)?;
        if state.unwritten(kind) {
            content.copy_from_slice(&self.computed(group, kind));
            let flags = state.desc.flags();
            let written = match kind {
                BitmapKind::Block => GroupFlags::BLOCK_UNINIT,
                BitmapKind::Inode => {
                    state.desc.set_itable_unused(group.inode_count)?;
                    GroupFlags::INODE_UNINIT
                }
            };
            state.desc.set_flags(flags.difference(written));
        }
        // The transaction holds it from here on.
        state.unwritten[slot(kind)] = None;
        Ok(content)
    }

    /// The content of a bitmap that was never written: only metadata, and bits past the end of the
    /// group, are in use.
    pub(crate) fn computed(&self, group: &Group, kind: BitmapKind) -> Vec<u8> {
        let mut bytes = vec![0; self.geometry().block_size() as usize];
        let bits = self.geometry().block_size().saturating_mul(8);
        match kind {
            BitmapKind::Inode => {
                bitmap::set_range(&mut bytes, self.geometry().inodes_per_group(), bits);
            }
            BitmapKind::Block => {
                let (first, end) = (
                    group.first_block,
                    group.first_block + u64::from(group.blocks()),
                );
                let system = &self.layout().system;
                let from = system.partition_point(|(_, stop)| *stop <= first);
                let runs = system.get(from..).unwrap_or_default().iter();
                for (start, stop) in runs.take_while(|(start, _)| *start < end) {
                    let bit = |block: u64| (block.clamp(first, end) - first) as u32;
                    bitmap::set_range(&mut bytes, bit(*start), bit(*stop));
                }
                bitmap::set_range(&mut bytes, group.blocks(), bits);
            }
        }
        bytes
    }

    /// Locks the group, with its free blocks in memory. Reads the bitmap the first time, without
    /// the lock.
    ///
    /// # Errors
    /// The group is out of use, or is put out of use because its bitmap is wrong or unreadable; the
    /// bitmap contradicts the descriptor.
    pub(crate) fn lock_blocks<'a>(
        &self,
        group: &'a Group,
    ) -> Result<RankedMutexGuard<'a, GroupState>> {
        {
            let state = group.lock();
            state.check(group)?;
            if state.buddy.is_some() {
                return Ok(state);
            }
        }
        let buffer = self.bitmap(group, BitmapKind::Block)?;
        let mut state = group.lock();
        state.check(group)?;
        if state.buddy.is_none() {
            let mut buddy = if state.unwritten(BitmapKind::Block) {
                Buddy::from_bitmap(&self.computed(group, BitmapKind::Block), group.blocks())
            } else {
                Buddy::from_bitmap(&buffer.read(), group.blocks())
            };
            let counted = state.desc.free_clusters();
            if buddy.free() != counted {
                let reason = format!(
                    "{} blocks are free in its bitmap, {counted} in its descriptor",
                    buddy.free()
                );
                return Err(self.put_out_of_use(group, &mut state, reason));
            }
            for (_, (start, len)) in &state.freed {
                if !buddy.take(*start, *len) {
                    let reason = "blocks were freed twice";
                    return Err(self.put_out_of_use(group, &mut state, reason));
                }
            }
            state.buddy = Some(buddy);
            group.publish(&state);
        }
        Ok(state)
    }

    /// The group's inodes in use, for searches without the lock. Reads the bitmap the first time,
    /// without the lock.
    ///
    /// # Errors
    /// The group is out of use, or is put out of use because its bitmap is wrong or unreadable; the
    /// bitmap contradicts the descriptor.
    pub(crate) fn inodes<'a>(&self, group: &'a Group) -> Result<&'a InodeMap> {
        if let Some(map) = group.inodes.get() {
            return Ok(map);
        }
        let buffer = self.bitmap(group, BitmapKind::Inode)?;
        let mut state = group.lock();
        state.check(group)?;
        if let Some(map) = group.inodes.get() {
            return Ok(map);
        }
        let bits = self.geometry().inodes_per_group();
        let map = if state.unwritten(BitmapKind::Inode) {
            InodeMap::new(&self.computed(group, BitmapKind::Inode), bits)
        } else {
            InodeMap::new(&buffer.read(), bits)
        };
        if let Some(reason) = Self::contradiction(group, &state, &map) {
            return Err(self.put_out_of_use(group, &mut state, reason));
        }
        Ok(group.inodes.get_or_init(|| map))
    }

    fn contradiction(group: &Group, state: &GroupState, map: &InodeMap) -> Option<String> {
        let (free, counted) = (map.free(), state.desc.free_inodes());
        if free != counted {
            return Some(format!(
                "{free} inodes are free in its bitmap, {counted} in its descriptor"
            ));
        }
        let never_used = group.first_never_used(state);
        map.highest()
            .filter(|index| *index >= never_used)
            .map(|index| {
                format!("inode {index} is in use, but those from {never_used} on were never used")
            })
    }

    /// Like [`inodes`](Self::inodes), if the bitmap was read already.
    pub(crate) fn inodes_if_known<'a>(&self, group: &'a Group) -> Option<&'a InodeMap> {
        group.inodes.get()
    }

    /// A zeroed block of an inode table in which no inode was ever used, in place of reading it.
    /// The group's lock is held. A thread that reads the block afterwards gets this buffer, as long
    /// as the caller holds it.
    ///
    /// # Errors
    /// The block is outside the device.
    pub(crate) fn new_table_block(&self, block: u64) -> Result<Arc<Buffer>, Error> {
        Ok(self.cache.get_new(block)?)
    }
}
