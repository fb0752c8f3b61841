//! Grows a mounted file system, which stays in use.
//!
//! # How it works
//! Each step adds groups in this order:
//!
//! 1. The metadata of the new groups, the blocks of the descriptor table that lie in them, and
//!    their copies of the superblock are written past the old end, where no reader looks. A flush.
//! 2. One transaction changes the superblock, the descriptor table, the resize inode, and the
//!    bitmap of the last of the old groups. It ends after the engine knows the new groups.
//! 3. A checkpoint, which writes the superblock last: a kernel reads the descriptors of all groups
//!    that the superblock counts before it recovers the journal. A recovery by this engine takes no
//!    block past the end, so nothing is allocated in the new groups before.
//! 4. The space of the new groups is opened for allocation ([`Groups::open_added`]).
//! 5. The older copies of the superblock and of the descriptor table are renewed.
//!
//! A power cut leaves the old size, the new one, or the size between two steps. Several steps are
//! taken only if the journal is too small for one.
//!
//! [`Groups::open_added`]: crate::group::Groups::open_added

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{
    BitmapKind, Compat, Geometry, GroupDesc, INDIRECT_DIRECT, Incompat, Inode, SuperBlock,
    SuperState, bitmap, special_ino,
};
use sapwood_jbd2::{Buffer, Handle};

use super::grow::{Placed, ReservedBlocks, larger, new_group, place};
use super::meta_groups::loses_resize_inode;
use super::{ResizeError, Result};
use crate::Error;
use crate::block_alloc::{self, Extent};
use crate::inode::table_place;
use crate::mount::{Ext4, refuse_external_journal};
use crate::store::Store;

/// Credits of a step beyond the blocks that depend on the sizes: the superblock, the last group,
/// the resize inode and its block of pointers.
const FEW: u32 = 12;
/// Groups between two calls of the callback.
const OFTEN: usize = 8;

/// The size that a mounted file system is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountedSize {
    /// A number of bytes.
    Exactly(u64),
    /// More bytes than now.
    More(u64),
    /// All of the device, or the file as it is now.
    Max,
}

/// The sizes before and after, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// Bytes before.
    pub before: u64,
    /// Bytes now.
    pub after: u64,
}

/// Progress callback: groups that are prepared, and all that are added.
pub type OnStep<'p> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 'p;

/// Grows a mounted file system to this size, or the next smaller one that it can have. The device
/// is made longer first, if it is a file. One thread grows a mount at a time.
///
/// # Errors
/// - [`ResizeError::Shrinks`], [`ResizeError::NoJournalMounted`], [`ResizeError::PastEnd`],
///   [`ResizeError::TooLarge`], [`ResizeError::Unclean`], [`ResizeError::SmallJournal`],
///   [`ResizeError::TooOften`], [`ResizeError::NoRoom`], before any change of the file system.
/// - [`ResizeError::Interrupted`] if the callback stopped it.
/// - [`ResizeError::Engine`] for errors of the device and of the journal.
///
/// The file system then has its old size, or the size after an earlier step.
pub fn grow_mounted(fs: &Ext4, size: MountedSize, step: &mut OnStep<'_>) -> Result<Grown> {
    let store: &Store = &fs.engine;
    let bits = store.geometry.block_bits();
    let bytes = || store.geometry.blocks_count() << bits;
    let before = bytes();
    let wanted = match size {
        MountedSize::Exactly(bytes) => bytes,
        MountedSize::More(more) => before.saturating_add(more),
        MountedSize::Max => store.device.renew_size().map_err(Error::from)?,
    };
    let blocks = wanted >> bits;
    if blocks < store.geometry.blocks_count() {
        return Err(ResizeError::Shrinks { size: before });
    }
    check(store)?;
    // An impossible size is refused before the file becomes longer.
    let mut next = Step::next(store, blocks)?;
    if next.is_some() {
        lengthen(store, blocks << bits)?;
    }
    while let Some(planned) = next {
        planned.run(step)?;
        next = Step::next(store, blocks)?;
    }
    Ok(Grown {
        before,
        after: bytes(),
    })
}

/// Refuses a file system that cannot grow while it is mounted.
fn check(store: &Store) -> Result<()> {
    store.check()?;
    refuse_external_journal(&*store.device)?;
    if store.journal.log().is_none() {
        return Err(ResizeError::NoJournalMounted);
    }
    let features = store.geometry.features();
    let both =
        features.has_compat(Compat::RESIZE_INODE) && features.has_incompat(Incompat::META_BG);
    let state = store.super_block.lock().state();
    if both || state.contains(SuperState::ERROR) {
        return Err(ResizeError::Unclean);
    }
    Ok(())
}

/// Makes the device at least this long, durably.
fn lengthen(store: &Store, size: u64) -> Result<()> {
    let grown = store.device.grow(size);
    grown.map_err(|error| match error {
        sapwood_block::Error::OutOfRange {
            device, size: has, ..
        } => ResizeError::PastEnd {
            device,
            size: has,
            wanted: size,
        },
        error => error.into(),
    })?;
    store.device.flush()?;
    store.cache.renew_size();
    Ok(())
}

/// A step of the growth.
struct Step<'s> {
    store: &'s Store,
    old: Geometry,
    new: Geometry,
    /// The superblock with its new numbers.
    sb: SuperBlock,
    credits: u32,
}

/// The new groups, as they are written.
struct Added {
    descs: Vec<GroupDesc>,
}

impl<'s> Step<'s> {
    /// The largest step towards this size for which the journal has room. `None`: the file system
    /// has that size, or one that cannot grow by so little.
    fn next(store: &'s Store, mut blocks: u64) -> Result<Option<Self>> {
        let old = (*store.geometry).clone();
        let mut sb = store.super_block.lock().clone();
        // Features that operations set meanwhile count from the next mount on.
        sb.set_features(old.features());
        loop {
            if blocks <= old.blocks_count() {
                return Ok(None);
            }
            let Some((sb, new)) = larger(&sb, &old, blocks)? else {
                return Ok(None);
            };
            let credits = credits(&old, &new);
            if credits <= most_credits(store) {
                if !store.groups.may_grow() {
                    return Err(ResizeError::TooOften);
                }
                let old = old.clone();
                return Ok(Some(Self {
                    store,
                    old,
                    new,
                    sb,
                    credits,
                }));
            }
            let added = new.group_count() - old.group_count();
            if added <= 1 {
                return Err(ResizeError::SmallJournal { blocks: credits });
            }
            let groups = u64::from(old.group_count() + added / 2);
            let first = u64::from(old.first_data_block());
            blocks = first + groups * u64::from(old.blocks_per_group());
        }
    }

    fn run(&self, step: &mut OnStep<'_>) -> Result<()> {
        let store = self.store;
        let added = self.prepare(step)?;
        let table = self.table(&added)?;
        self.write_past_end(&table)?;
        let super_block = self.old.super_block();
        store.journal.write_late(Some(super_block));
        let changed = self.change(&added, &table);
        let durable = changed.and_then(|tid| {
            store.journal.commit(tid)?;
            Ok(store.journal.checkpoint()?)
        });
        store.journal.write_late(None);
        durable?;
        store.space.renew(&store.super_block.lock().clone());
        let groups = self.old.group_count()..self.new.group_count();
        store.groups.open_added(groups)?;
        self.write_copies(&[], 0..self.old.blocks_count())?;
        store.device.flush()?;
        Ok(())
    }

    /// Writes the bitmaps and the tables of the new groups.
    fn prepare(&self, step: &mut OnStep<'_>) -> Result<Added> {
        let Placed { groups, used } = place(&self.old, &self.new)?;
        let device = &*self.store.device;
        let (first, total) = (self.old.group_count(), groups.len() as u64);
        let mut descs = Vec::with_capacity(groups.len());
        for (nth, (group, place)) in (first..).zip(&groups).enumerate() {
            if nth % OFTEN == 0 && step(nth as u64, total).is_break() {
                return Err(ResizeError::Interrupted);
            }
            let (mut desc, bytes) = new_group(device, &self.new, group, *place, &used)?;
            bitmap::set_bitmap_checksum(BitmapKind::Block, &bytes, &mut desc, &self.new)?;
            desc.set_checksum(group, &self.new);
            device.write_at(desc.block_bitmap() << self.new.block_bits(), &bytes)?;
            descs.push(desc);
        }
        Ok(Added { descs })
    }

    /// Blocks of the descriptor table with entries of new groups, by their index.
    fn table(&self, added: &Added) -> Result<Vec<(u32, Vec<u8>)>> {
        let size = usize::from(self.new.desc_size());
        let per_block = self.new.descs_per_block();
        let first = self.old.group_count();
        let mut table = Vec::new();
        // Blocks of the classic table that have no entry yet belong to it, too.
        for index in first / per_block..self.new.desc_blocks() {
            let mut bytes = match self.store.groups.desc_block(index) {
                Some(buffer) => buffer.read().to_vec(),
                None => vec![0; self.new.block_size() as usize],
            };
            let group = index * per_block;
            for (slot, place) in (group..).zip(bytes.chunks_exact_mut(size)) {
                let nth = slot.checked_sub(first).map(|nth| nth as usize);
                if let Some(desc) = nth.and_then(|nth| added.descs.get(nth)) {
                    desc.write(place)?;
                }
            }
            table.push((index, bytes));
        }
        Ok(table)
    }

    /// Writes what the new groups have of the descriptor table and of the superblock.
    fn write_past_end(&self, table: &[(u32, Vec<u8>)]) -> Result<()> {
        let device = &*self.store.device;
        for (index, bytes) in table {
            let block = self.new.desc_table_block(*index);
            if block >= self.old.blocks_count() {
                device.write_at(block << self.new.block_bits(), bytes)?;
            }
        }
        self.write_copies(table, self.old.blocks_count()..self.new.blocks_count())?;
        Ok(device.flush()?)
    }

    /// Writes the copies of the superblock and of the descriptor table in a range of blocks. Blocks
    /// of the table that are not in `table` are those of the engine.
    fn write_copies(&self, table: &[(u32, Vec<u8>)], range: std::ops::Range<u64>) -> Result<()> {
        let (device, bits) = (&*self.store.device, self.new.block_bits());
        for index in 0..self.new.desc_blocks() {
            let copies = self.new.desc_table_backups(index);
            let mut copies = copies
                .iter()
                .filter(|block| range.contains(block))
                .peekable();
            if copies.peek().is_none() {
                continue;
            }
            let changed = table.iter().find(|(changed, _)| *changed == index);
            let bytes = match (changed, self.store.groups.desc_block(index)) {
                (Some((_, bytes)), _) => bytes.clone(),
                (None, Some(buffer)) => buffer.read().to_vec(),
                (None, None) => continue,
            };
            for block in copies {
                device.write_at(block << bits, &bytes)?;
            }
        }
        for group in 1..self.new.group_count() {
            let block = self.new.backup_super_block(group);
            let Some(block) = block.filter(|block| range.contains(block)) else {
                continue;
            };
            let mut copy = self.store.super_block.lock().clone();
            self.renumber(&mut copy)?;
            // Numbers beyond 16 bits do not fit; nothing uses them.
            copy.block_group_nr = (group as u16).into();
            copy.set_state(copy.state() - SuperState::VALID);
            copy.set_checksum();
            device.write_at(block << bits, copy.bytes())?;
        }
        Ok(())
    }

    /// Gives a superblock the new numbers, and keeps all others.
    fn renumber(&self, sb: &mut SuperBlock) -> Result<()> {
        sb.set_blocks_count(self.new.blocks_count())?;
        sb.inodes_count = self.sb.inodes_count;
        sb.reserved_gdt_blocks = self.sb.reserved_gdt_blocks;
        sb.first_meta_bg = self.sb.first_meta_bg;
        sb.set_reserved_blocks_count(self.sb.reserved_blocks_count())?;
        sb.overhead_clusters = self.sb.overhead_clusters;
        let (planned, mut features) = (self.sb.features(), sb.features());
        if planned.has_incompat(Incompat::META_BG) {
            features.incompat |= Incompat::META_BG;
        }
        if !planned.has_compat(Compat::RESIZE_INODE) {
            features.compat -= Compat::RESIZE_INODE;
        }
        sb.set_features(features);
        Ok(())
    }

    /// Makes the change in one transaction, whose number it returns.
    fn change(&self, added: &Added, table: &[(u32, Vec<u8>)]) -> Result<u64> {
        let store = self.store;
        // Refused before the first change.
        self.renumber(&mut store.super_block.lock().clone())?;
        store.groups.check_last()?;
        if self.old.features().has_compat(Compat::RESIZE_INODE) {
            self.resize_inode()?;
        }
        let h = store.start(self.credits)?;
        let changed = self.change_in(&h, added, table);
        if let Err(error) = &changed {
            // A part of the change must not become durable.
            h.abort(error);
            store.health.fail(error);
        }
        changed.map(|()| h.tid())
    }

    fn change_in(&self, h: &Handle, added: &Added, table: &[(u32, Vec<u8>)]) -> Result<()> {
        let store = self.store;
        let last = self.old.group_count() - 1;
        store.groups.extend_last(h, self.new.group_blocks(last))?;
        let mut fresh = Vec::new();
        for (index, bytes) in table {
            let block = self.new.desc_table_block(*index);
            let known = store.groups.desc_block(*index).cloned();
            let buffer = match &known {
                Some(buffer) => Arc::clone(buffer),
                None => store.block(block)?,
            };
            if block < self.old.blocks_count() {
                self.put_entries(h, (*index, &buffer), (known.is_some(), bytes), added)?;
            }
            if known.is_none() {
                fresh.push(buffer);
            }
        }
        if loses_resize_inode(&self.old, &self.new) {
            self.remove_resize_inode(h)?;
        } else if self.new.features().has_compat(Compat::RESIZE_INODE) {
            self.change_resize_inode(h)?;
        }
        let mut renumbered = Ok(());
        store.change_super(h, |sb| renumbered = self.renumber(sb))?;
        renumbered?;
        store.groups.add(&self.new, &added.descs, fresh)?;
        Ok(())
    }

    /// Puts the entries of the new groups into a block of the descriptor table. Entries of other
    /// groups belong to the commit.
    fn put_entries(
        &self,
        h: &Handle,
        (index, buffer): (u32, &Arc<Buffer>),
        (known, bytes): (bool, &[u8]),
        added: &Added,
    ) -> Result<()> {
        let mut content = h.modify(buffer)?;
        if !known {
            content.copy_from_slice(bytes);
            return Ok(());
        }
        let size = usize::from(self.new.desc_size());
        let (first, group) = (self.old.group_count(), index * self.new.descs_per_block());
        for (slot, place) in (group..).zip(content.chunks_exact_mut(size)) {
            let nth = slot.checked_sub(first).map(|nth| nth as usize);
            if let Some(desc) = nth.and_then(|nth| added.descs.get(nth)) {
                desc.write(place)?;
            }
        }
        Ok(())
    }

    /// The resize inode, and the block of pointers that it has.
    fn resize_inode(&self) -> Result<(Inode, u64)> {
        let (ino, size) = (special_ino::RESIZE, usize::from(self.old.inode_size()));
        let (buffer, offset) = table_place(self.store, ino)?;
        let content = buffer.read();
        let bytes = content.get(offset..offset + size).unwrap_or_default();
        let inode = Inode::read(bytes, &self.old)?;
        inode.verify_checksum(ino, &self.old)?;
        let table = u64::from(inode.block_word(INDIRECT_DIRECT as usize + 1));
        if table != 0 {
            self.old.check_blocks(table, 1)?;
        }
        Ok((inode, table))
    }

    fn put_resize_inode(&self, h: &Handle, mut inode: Inode) -> Result<()> {
        let ino = special_ino::RESIZE;
        let (buffer, offset) = table_place(self.store, ino)?;
        inode.set_checksum(ino, &self.old);
        let mut content = h.modify(&buffer)?;
        Ok(inode.write(content.get_mut(offset..).unwrap_or_default())?)
    }

    fn change_resize_inode(&self, h: &Handle) -> Result<()> {
        let (mut inode, table) = self.resize_inode()?;
        if table == 0 {
            return Ok(());
        }
        let reserved = ReservedBlocks::new(&self.new)?;
        let own = [(table, reserved.table)];
        for (number, bytes) in reserved.copies.iter().chain(&own) {
            let buffer = self.store.block(*number)?;
            if *buffer.read() != **bytes {
                h.modify(&buffer)?.copy_from_slice(bytes);
            }
        }
        inode.set_sectors(reserved.sectors, &self.new)?;
        self.put_resize_inode(h, inode)
    }

    /// Frees the block of pointers, and clears the inode: the blocks that it reserved belong to the
    /// descriptor table.
    fn remove_resize_inode(&self, h: &Handle) -> Result<()> {
        let (_, table) = self.resize_inode()?;
        if table != 0 {
            let extent = Extent {
                start: table,
                len: 1,
            };
            block_alloc::free(&self.store.groups, h, extent, true)?;
        }
        self.put_resize_inode(h, Inode::new(&self.old))
    }
}

/// Most credits of a step.
fn most_credits(store: &Store) -> u32 {
    let most = store.journal.most_credits();
    most.saturating_sub(store.quota.credits())
}

/// Credits of the transaction that grows a file system.
fn credits(old: &Geometry, new: &Geometry) -> u32 {
    let first = old.group_count() / old.descs_per_block();
    let table = (first..new.desc_blocks()).len() as u32;
    // Each of the reserved blocks names its copies in all groups with a superblock.
    let mut groups = old.group_count()..new.group_count();
    let renamed =
        new.features().has_compat(Compat::RESIZE_INODE) && groups.any(|group| new.has_super(group));
    let reserved = if renamed {
        u32::from(new.reserved_gdt_blocks())
    } else {
        0
    };
    table.saturating_add(reserved).saturating_add(FEW)
}
