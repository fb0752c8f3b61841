//! Block groups: descriptors, bitmaps, free blocks.
//!
//! # How it works
//! Every group has its own lock, and a create or an allocation takes no global lock. The lock
//! guards the descriptor, the bitmaps, and the [`Buddy`].
//!
//! **Descriptors** live in memory. Many groups share a descriptor block, so a change goes only into
//! the group's own state; the block is joined to the transaction (which costs no lock that others
//! wait for, and makes the handle's credits count it) and filled in [`Groups::write_dirty`], once
//! per commit, when no handle is open. Bitmap checksums are part of the descriptor and are computed
//! there too.
//!
//! **Bitmaps** are read when first needed, validated under the group's lock (so that a bitmap that
//! a thread is already changing is never compared with the checksum of its last commit), and stay
//! in the journal's cache. One that was never written (`BLOCK_UNINIT`, `INODE_UNINIT`) is computed,
//! and put into its block by the first change (`bitmaps`).
//!
//! **Freed blocks** have clear bits in the bitmap at once, but stay used in the buddy until the
//! transaction that freed them is durable: before that, a crash could bring back the file that had
//! them ([`Groups::committed`]).
//!
//! **Out of use**: a group whose descriptor or bitmap is wrong. One line in the log gives the
//! reason; nothing is allocated or freed there any more, while reads continue. Blocks that would be
//! freed there stay used, for `e2fsck` to find. (`damage_puts_a_group_out_of_use_and_no_other`,
//! `a_wrong_bitmap_puts_its_group_out_of_use_when_it_is_read`).

mod bitmaps;
mod buddy;
mod inode_map;
mod layout;
mod load;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sapwood_block::Device;
use sapwood_ext4_format::{BitmapKind, Geometry, GroupDesc, GroupFlags, bitmap};
use sapwood_jbd2::{Buffer, BufferRead, Cache, Closing, Handle, Tid};

pub(crate) use buddy::{Buddy, Extent, Piece};
pub(crate) use inode_map::{InodeMap, Recent, WORD};
pub(crate) use layout::LiveGeometry;
use layout::{Layout, Layouts};
pub(crate) use streams::Known;
use streams::Streams;

use crate::lock::{RankedMutex, RankedMutexGuard};
use crate::{Error, Result};

/// [`Group::largest`] of a group without a free block, or out of use.
const NONE: u8 = u8::MAX;
/// The bitmap was not read yet.
const UNKNOWN: u8 = u8::MAX - 1;

/// All groups of a file system.
pub(crate) struct Groups {
    layouts: Arc<Layouts>,
    cache: Arc<Cache>,
    discard: bool,
    /// Files that grow.
    streams: Streams,
    /// End of the last search for blocks that left its flex group.
    pub(crate) rotor: AtomicU32,
    /// Counts new directories, to use the groups in turn.
    turn: AtomicU32,
    /// Free blocks that may be allocated, with those that are kept for streams.
    free: AtomicI64,
    /// Blocks that were freed in a transaction that is not durable.
    freed: AtomicI64,
    /// Groups to write before the next commit.
    dirty: RankedMutex<BTreeSet<u32>>,
    /// Groups with freed blocks, by the transaction.
    waiting: RankedMutex<BTreeMap<Tid, BTreeSet<u32>>>,
}

/// One group.
pub(crate) struct Group {
    /// Number.
    pub(crate) number: u32,
    /// First block.
    pub(crate) first_block: u64,
    blocks: AtomicU32,
    /// Its space may be allocated. False for a group that was added and is not durable.
    open: AtomicBool,
    /// First block of the inode table; `None` if it lies outside the file system.
    table: Option<u64>,
    /// Blocks of the two bitmaps.
    bitmaps: [u64; 2],
    /// Inodes.
    inode_count: u32,
    /// The descriptor has the number of inodes that were never used.
    knows_unused: bool,
    state: RankedMutex<GroupState>,
    /// Inodes in use; present after the first search.
    pub(crate) inodes: OnceLock<InodeMap>,
    // Copies of the state's numbers, to choose a group without its lock.
    free_blocks: AtomicU32,
    largest: AtomicU8,
    free_inodes: AtomicU32,
    used_dirs: AtomicU32,
    search_limit: AtomicU32,
    /// See [`small_goal`](Group::small_goal).
    small_goal: AtomicU64,
}

/// State under the lock of a group.
pub(crate) struct GroupState {
    /// The descriptor as it will be written.
    pub(crate) desc: GroupDesc,
    /// Free blocks; present after the first search.
    pub(crate) buddy: Option<Buddy>,
    /// Freed and not durable: free in the bitmap, used in the buddy.
    freed: Vec<(Tid, Piece)>,
    /// Inodes deleted lately; empty with a journal.
    pub(crate) recent: Recent,
    /// The reason why it is out of use.
    out_of_use: Option<Arc<str>>,
    /// Bitmap blocks that do not have their content yet, because none was ever written.
    unwritten: [Option<Arc<Buffer>>; 2],
    /// The descriptor changed in this transaction.
    dirty: bool,
    /// The block bitmap changed in this transaction; the inode bitmap did.
    dirty_bitmaps: [bool; 2],
}

fn slot(kind: BitmapKind) -> usize {
    usize::from(kind == BitmapKind::Inode)
}

impl Group {
    /// Blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks.load(Ordering::Acquire)
    }

    /// Free blocks, as far as is known without the lock; 0 if the group is out of use.
    pub(crate) fn free_blocks(&self) -> u32 {
        self.free_blocks.load(Ordering::Relaxed)
    }

    /// Whether a free chunk of this order is worth a look.
    pub(crate) fn may_have(&self, order: u32) -> bool {
        match self.largest.load(Ordering::Relaxed) {
            NONE => false,
            UNKNOWN => self.free_blocks() >> order.min(31) > 0,
            largest => u32::from(largest) >= order,
        }
    }

    /// Free inodes, as far as is known without the lock; 0 if the group is out of use.
    pub(crate) fn free_inodes(&self) -> u32 {
        self.free_inodes.load(Ordering::Relaxed)
    }

    /// Directories, as far as is known without the lock.
    pub(crate) fn used_dirs(&self) -> u32 {
        self.used_dirs.load(Ordering::Relaxed)
    }

    /// Best first block for the content of the next small file of this group: after the content of
    /// the last one, which may be in another group.
    pub(crate) fn small_goal(&self) -> u64 {
        self.small_goal.load(Ordering::Relaxed)
    }

    /// Records the end of a small file's content.
    pub(crate) fn set_small_goal(&self, block: u64) {
        self.small_goal.store(block, Ordering::Relaxed);
    }

    /// Locks it. The state shows whether the group is in use.
    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, GroupState> {
        self.state.lock()
    }

    /// Whether a bitmap was never written. Takes the group's lock.
    pub(crate) fn is_unwritten(&self, kind: BitmapKind) -> bool {
        self.lock().unwritten(kind)
    }

    /// Locks it if no thread has it.
    pub(crate) fn try_lock(&self) -> Option<RankedMutexGuard<'_, GroupState>> {
        self.state.try_lock()
    }

    /// Updates the copies that are read without the lock.
    pub(crate) fn publish(&self, state: &GroupState) {
        let desc = &state.desc;
        let usable = state.out_of_use.is_none() && self.open.load(Ordering::Acquire);
        let (free, largest) = match &state.buddy {
            _ if !usable => (0, NONE),
            None => (desc.free_clusters(), UNKNOWN),
            Some(buddy) => {
                let largest = buddy.largest().and_then(|order| u8::try_from(order).ok());
                (buddy.free(), largest.unwrap_or(NONE))
            }
        };
        self.free_blocks.store(free, Ordering::Relaxed);
        self.largest.store(largest, Ordering::Relaxed);
        let inodes = if usable { desc.free_inodes() } else { 0 };
        self.free_inodes.store(inodes, Ordering::Relaxed);
        self.used_dirs.store(desc.used_dirs(), Ordering::Relaxed);
        let zeroed = desc.flags().contains(GroupFlags::INODE_ZEROED);
        let limit = if zeroed {
            self.inode_count
        } else {
            self.first_never_used(state)
        };
        self.search_limit.store(limit, Ordering::Relaxed);
    }

    /// Index of the first of the inodes at the end of the table that were never used. Their blocks
    /// of the table have no meaning, unless the group's table was zeroed.
    pub(crate) fn first_never_used(&self, state: &GroupState) -> u32 {
        if !self.knows_unused {
            return self.inode_count;
        }
        if state.desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return 0;
        }
        self.inode_count.saturating_sub(state.desc.itable_unused())
    }

    /// Last index at which a search for an inode may begin, so that it skips no uninitialized table
    /// block. As far as is known without the lock; it only grows.
    pub(crate) fn search_limit(&self) -> u32 {
        self.search_limit.load(Ordering::Relaxed)
    }
}

impl GroupState {
    /// Checks that blocks and inodes may be allocated and freed here.
    ///
    /// # Errors
    /// [`Error::BadGroup`] if the group is out of use.
    pub(crate) fn check(&self, group: &Group) -> Result<()> {
        match &self.out_of_use {
            None => Ok(()),
            Some(reason) => Err(Error::BadGroup {
                group: group.number,
                reason: reason.to_string(),
            }),
        }
    }

    /// Whether it is out of use.
    pub(crate) fn is_out_of_use(&self) -> bool {
        self.out_of_use.is_some()
    }

    /// Whether the bitmap was never written.
    fn unwritten(&self, kind: BitmapKind) -> bool {
        self.desc.flags().contains(match kind {
            BitmapKind::Block => GroupFlags::BLOCK_UNINIT,
            BitmapKind::Inode => GroupFlags::INODE_UNINIT,
        })
    }
}

impl Groups {
    /// A group.
    ///
    /// # Errors
    /// No group has this number.
    pub(crate) fn group(&self, number: u32) -> Result<&Group> {
        let found = self.layout().all.get(number as usize).map(|group| &**group);
        Ok(found.ok_or(sapwood_ext4_format::FormatError::NoGroup {
            group: number,
            count: self.count(),
        })?)
    }

    /// Number of groups.
    pub(crate) fn count(&self) -> u32 {
        self.geometry().group_count()
    }

    /// The groups as they are now.
    fn layout(&self) -> &Layout {
        self.layouts.current()
    }

    /// Sizes and places, as they are at each use.
    pub(crate) fn live_geometry(&self) -> LiveGeometry {
        LiveGeometry::new(&self.layouts)
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        self.cache.device()
    }

    /// Sizes and places.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.layout().geometry
    }

    /// Files that grow.
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// A number that grows with each call, to use the groups in turn.
    pub(crate) fn next_turn(&self) -> u32 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// First block of a group's inode table.
    ///
    /// # Errors
    /// The group's descriptor is wrong.
    pub(crate) fn inode_table(&self, group: u32) -> Result<u64> {
        self.group(group)?.table.ok_or_else(|| Error::BadGroup {
            group,
            reason: "its inode table is outside the file system".into(),
        })
    }

    /// Free blocks of all groups that are in use, without those whose freeing is not durable.
    pub(crate) fn free_blocks(&self) -> u64 {
        u64::try_from(self.free.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Blocks that become free with the next commit.
    pub(crate) fn freed_blocks(&self) -> u64 {
        u64::try_from(self.freed.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// The group of an extent, and its first block counted from the group's.
    ///
    /// # Errors
    /// The extent is not within one group.
    pub(crate) fn place(&self, extent: Extent) -> Result<(&Group, u32)> {
        let (number, start) = self.geometry().group_of_block(extent.start)?;
        let group = self.group(number)?;
        let end = start.checked_add(extent.len);
        if end.is_none_or(|end| end > group.blocks()) {
            let after = extent.start.saturating_add(extent.len.into());
            self.geometry()
                .check_blocks(extent.start, extent.len.into())?;
            return Err(Error::BadGroup {
                group: number,
                reason: format!("blocks {} to {after} are not all in it", extent.start),
            });
        }
        Ok((group, start))
    }

    /// Counts blocks that were allocated (or, with `free`, given back).
    pub(crate) fn count_blocks(&self, blocks: u32, free: bool) {
        let blocks = i64::from(blocks);
        let change = if free { blocks } else { -blocks };
        self.free.fetch_add(change, Ordering::AcqRel);
    }

    /// Inodes that are free, in all groups that are in use.
    pub(crate) fn free_inodes(&self) -> u32 {
        let sum: u64 = self
            .layout()
            .all
            .iter()
            .map(|group| u64::from(group.free_inodes()))
            .sum();
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    /// Free blocks and inodes for the superblock: a group that is out of use counts with its
    /// descriptor's numbers, because its space is not lost.
    pub(crate) fn totals(&self) -> (u64, u32) {
        let (mut blocks, mut inodes) = (self.free_blocks(), u64::from(self.free_inodes()));
        for group in &self.layout().all {
            let state = group.lock();
            if state.is_out_of_use() {
                blocks += u64::from(state.desc.free_clusters().min(group.blocks()));
                let unpublished = state.desc.free_inodes().min(group.inode_count);
                inodes += u64::from(unpublished.saturating_sub(group.free_inodes()));
            }
        }
        (blocks, u32::try_from(inodes).unwrap_or(u32::MAX))
    }

    /// Whether one of these blocks belongs to a group's own metadata: superblock, descriptors,
    /// bitmaps, inode tables. No file can have it.
    pub(crate) fn is_system(&self, block: u64, len: u64) -> bool {
        let end = block.saturating_add(len);
        let system = &self.layout().system;
        let after = system.partition_point(|(_, stop)| *stop <= block);
        system.get(after).is_some_and(|(start, _)| *start < end)
    }

    /// Puts a group out of use. Returns the error for the caller.
    pub(crate) fn put_out_of_use(
        &self,
        group: &Group,
        state: &mut GroupState,
        reason: impl Into<Arc<str>>,
    ) -> Error {
        let number = group.number;
        if state.out_of_use.is_none() {
            let reason: Arc<str> = reason.into();
            log::error!("group {number}: {reason}; nothing is allocated or freed there");
            let free = match &state.buddy {
                Some(buddy) => buddy.free(),
                None => state.desc.free_clusters(),
            };
            if group.open.load(Ordering::Acquire) {
                self.count_blocks(free, false);
            }
            state.out_of_use = Some(reason);
            group.publish(state);
        }
        let reason = state.out_of_use.as_deref().unwrap_or_default().to_owned();
        Error::BadGroup {
            group: number,
            reason,
        }
    }

    /// Joins the group's descriptor block to the transaction. Takes no group lock and may wait.
    ///
    /// # Errors
    /// Errors of the journal.
    pub(crate) fn join_desc(&self, h: &Handle, group: u32) -> Result<()> {
        let index = group / self.geometry().descs_per_block();
        if let Some(buffer) = self.layout().desc_blocks.get(index as usize) {
            h.write_access(buffer)?;
        }
        Ok(())
    }

    /// Records that the descriptor changed: the commit writes it. The caller holds a handle that
    /// joined the [descriptor](Self::join_desc).
    pub(crate) fn mark_dirty(&self, group: &Group, state: &mut GroupState, kind: BitmapKind) {
        state.dirty_bitmaps[slot(kind)] = true;
        if !state.dirty {
            state.dirty = true;
            self.dirty.lock().insert(group.number);
        }
        group.publish(state);
    }

    /// Writes the descriptors of all groups that changed in this transaction. No handle is open, so
    /// nothing changes meanwhile.
    ///
    /// # Errors
    /// Errors of the journal.
    pub(crate) fn write_dirty(&self, closing: &Closing<'_>) -> Result<()> {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        for number in dirty {
            let group = self.group(number)?;
            let desc = self.finish_desc(group)?;
            let index = number / self.geometry().descs_per_block();
            let Some(buffer) = self.layout().desc_blocks.get(index as usize) else {
                continue;
            };
            let (_, offset) = self.geometry().descriptor_block(number)?;
            let mut content = closing.modify(buffer)?;
            desc.write(content.get_mut(offset as usize..).unwrap_or_default())?;
        }
        Ok(())
    }

    /// The group's descriptor with all checksums renewed.
    fn finish_desc(&self, group: &Group) -> Result<GroupDesc> {
        let (changed, places) = {
            let state = group.lock();
            (state.dirty_bitmaps, group.bitmaps)
        };
        let mut contents: [Option<BufferRead>; 2] = [None, None];
        for (index, block) in places.into_iter().enumerate() {
            if changed[index] {
                contents[index] = Some(self.cache.get(block)?.read());
            }
        }
        let mut state = group.lock();
        for (kind, content) in [BitmapKind::Block, BitmapKind::Inode]
            .into_iter()
            .zip(contents)
        {
            if let Some(content) = content {
                bitmap::set_bitmap_checksum(kind, &content, &mut state.desc, self.geometry())?;
            }
        }
        state.desc.set_checksum(group.number, self.geometry());
        state.dirty = false;
        state.dirty_bitmaps = [false; 2];
        Ok(state.desc.clone())
    }

    /// Records blocks that a transaction freed; their bits are clear. The group's lock is held.
    pub(crate) fn note_freed(&self, group: &Group, state: &mut GroupState, tid: Tid, piece: Piece) {
        state.freed.push((tid, piece));
        self.freed.fetch_add(i64::from(piece.1), Ordering::AcqRel);
        self.waiting
            .lock()
            .entry(tid)
            .or_default()
            .insert(group.number);
    }

    /// Releases the space that was freed up to this transaction, and discards it if the mount
    /// requests that.
    pub(crate) fn committed(&self, tid: Tid) {
        loop {
            let first = self.waiting.lock().first_key_value().map(|(tid, _)| *tid);
            let Some(due) = first.filter(|due| *due <= tid) else {
                return;
            };
            let numbers = self.waiting.lock().remove(&due).unwrap_or_default();
            for group in numbers
                .into_iter()
                .filter_map(|number| self.group(number).ok())
            {
                self.release_freed(group, due);
            }
        }
    }

    /// Releases the blocks that one transaction freed in one group.
    fn release_freed(&self, group: &Group, tid: Tid) {
        let due: Vec<Piece> = {
            let state = group.lock();
            let due = state.freed.iter().filter(|(freed, _)| *freed == tid);
            due.map(|(_, piece)| *piece).collect()
        };
        // Still used in the buddy, so that no thread writes there.
        for (start, len) in due.iter().copied().filter(|_| self.discard) {
            let size = u64::from(self.geometry().block_size());
            let first = group.first_block + u64::from(start);
            if let Err(error) = self
                .cache
                .device()
                .discard(first * size, u64::from(len) * size)
            {
                log::debug!("discard of {len} blocks from {first}: {error}");
            }
        }
        let mut state = group.lock();
        state.freed.retain(|(freed, _)| *freed != tid);
        for (start, len) in due {
            self.freed.fetch_sub(i64::from(len), Ordering::AcqRel);
            if state.is_out_of_use() {
                continue;
            }
            let given = match &mut state.buddy {
                Some(buddy) => buddy.give(start, len),
                None => true,
            };
            if given {
                self.count_blocks(len, true);
            } else {
                self.put_out_of_use(group, &mut state, "blocks were freed twice");
            }
        }
        group.publish(&state);
    }
}
