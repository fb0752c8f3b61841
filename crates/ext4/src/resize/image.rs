//! The metadata of an image that is not mounted: read from the device, changed in memory, and
//! written as one transaction (`commit`).

mod commit;
mod inodes;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use sapwood_base::RangeSet;
use sapwood_block::Device;
use sapwood_ext4_format::{
    Compat, Geometry, GroupDesc, GroupFlags, Incompat, SuperBlock, SuperState, bitmap,
    validate_block_bitmap,
};
use sapwood_jbd2::Log;
use sapwood_vfs::Timestamp;

use super::{ResizeError, Result};
use crate::mount::{folds_only, open_empty_log, read_super};
use crate::{Ext4, Options};

/// Bytes of one request of a copy.
const COPY_STEP: u64 = 1 << 20;

/// Bitmaps, descriptors, a superblock, and the journal's own blocks.
const FEW_GROUPS: u64 = 16;

/// The metadata of an image, and its changes that are not yet written.
pub(super) struct Image {
    pub(super) device: Arc<dyn Device>,
    /// The superblock to write.
    pub(super) sb: SuperBlock,
    /// Geometry of the superblock.
    pub(super) geometry: Geometry,
    pub(super) descs: Vec<GroupDesc>,
    /// Further entries of the table: descriptors of groups that the next commit removes.
    removed: Vec<GroupDesc>,
    /// The superblock as it is on the device.
    stored: SuperBlock,
    /// Blocks of the file system on the device.
    stored_blocks: u64,
    bitmaps: BTreeMap<u32, Vec<u8>>,
    /// Groups whose descriptor or bitmap changed.
    dirty: BTreeSet<u32>,
    changed: BTreeMap<u64, Vec<u8>>,
    /// Blocks taken since the last commit.
    taken: RangeSet,
    /// Blocks that become free with the next commit.
    freed: Vec<(u64, u64)>,
    /// Group where the search for free blocks continues.
    cursor: u32,
    log: Option<Log>,
    /// The time that commits record, if it is fixed.
    time: Option<Timestamp>,
}

impl Image {
    /// Opens an image after a recovery.
    ///
    /// # Errors
    /// [`ResizeError::Unclean`] if the file system has errors; [`ResizeError::Engine`] if it cannot
    /// be mounted for writing.
    pub(super) fn open(device: &Arc<dyn Device>, time: Option<Timestamp>) -> Result<Self> {
        let mut options = Options {
            background: false,
            unprotected: true,
            ..Options::default()
        };
        if let Some(time) = time {
            options.set_reproducible(time);
        }
        if !folds_only(&read_super(&**device)?) {
            let fs = Ext4::open(Arc::clone(device), options)?;
            fs.close()?;
            drop(fs);
        }
        let sb = read_super(&**device)?;
        if !sb.state().contains(SuperState::VALID) || sb.state().contains(SuperState::ERROR) {
            return Err(ResizeError::Unclean);
        }
        let features = sb.features();
        if features.has_compat(Compat::RESIZE_INODE) && features.has_incompat(Incompat::META_BG) {
            // The resize inode cannot name blocks of meta groups.
            return Err(ResizeError::Unclean);
        }
        let geometry = Geometry::new(&sb)?;
        geometry.check_device(device.size())?;
        let mut image = Self {
            device: Arc::clone(device),
            stored: sb.clone(),
            stored_blocks: geometry.blocks_count(),
            log: open_empty_log(device, &sb, &geometry, time)?,
            time,
            sb,
            geometry,
            descs: Vec::new(),
            removed: Vec::new(),
            bitmaps: BTreeMap::new(),
            dirty: BTreeSet::new(),
            changed: BTreeMap::new(),
            taken: RangeSet::new(),
            freed: Vec::new(),
            cursor: 0,
        };
        for group in 0..image.geometry.group_count() {
            let (block, offset) = image.geometry.descriptor_block(group)?;
            let bytes = image.block(block)?;
            let bytes = bytes.get(offset as usize..).unwrap_or_default();
            let desc = GroupDesc::read(bytes, &image.geometry)?;
            desc.verify_checksum(group, &image.geometry)?;
            image.descs.push(desc);
        }
        Ok(image)
    }

    /// Bytes of a block.
    pub(super) fn block_size(&self) -> u64 {
        u64::from(self.geometry.block_size())
    }

    /// A group's descriptor.
    ///
    /// # Errors
    /// There is no such group.
    pub(super) fn desc(&self, group: u32) -> Result<&GroupDesc> {
        let found = self.descs.get(group as usize);
        found.ok_or_else(|| self.no_group(group).into())
    }

    /// A group's descriptor, for a change.
    ///
    /// # Errors
    /// There is no such group.
    pub(super) fn desc_mut(&mut self, group: u32) -> Result<&mut GroupDesc> {
        self.dirty.insert(group);
        let error = self.no_group(group);
        let found = self.descs.get_mut(group as usize);
        found.ok_or_else(|| error.into())
    }

    fn no_group(&self, group: u32) -> sapwood_ext4_format::FormatError {
        sapwood_ext4_format::FormatError::NoGroup {
            group,
            count: self.geometry.group_count(),
        }
    }

    /// The content of a block as it is or will be.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn block(&self, block: u64) -> Result<Vec<u8>> {
        if let Some(bytes) = self.changed.get(&block) {
            return Ok(bytes.clone());
        }
        let mut bytes = vec![0; self.block_size() as usize];
        let at = block << self.geometry.block_bits();
        self.device.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Changes a block, unless it has that content.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn put(&mut self, block: u64, bytes: Vec<u8>) -> Result<()> {
        if self.changed.contains_key(&block) || self.block(block)? != bytes {
            self.changed.insert(block, bytes);
        }
        Ok(())
    }

    /// Copies blocks on the device, at once, to a place that is free there.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn copy(&self, from: u64, to: u64, count: u64) -> Result<()> {
        let bits = self.geometry.block_bits();
        let (from, to, len) = (from << bits, to << bits, count << bits);
        let mut buf = vec![0; COPY_STEP.min(len) as usize];
        let mut done = 0;
        while done < len {
            let part = COPY_STEP.min(len - done) as usize;
            let part = buf.get_mut(..part).unwrap_or_default();
            self.device.read_at(from + done, part)?;
            self.device.write_at(to + done, part)?;
            done += part.len() as u64;
        }
        Ok(())
    }

    /// The block bitmap of a group.
    ///
    /// # Errors
    /// Errors of the device; the bitmap is wrong.
    pub(super) fn bitmap(&mut self, group: u32) -> Result<&mut Vec<u8>> {
        if !self.bitmaps.contains_key(&group) {
            let desc = self.desc(group)?.clone();
            let bytes = if desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
                let flags = desc.flags() - GroupFlags::BLOCK_UNINIT;
                self.desc_mut(group)?.set_flags(flags);
                self.computed(group)?
            } else {
                let bytes = self.block(desc.block_bitmap())?;
                validate_block_bitmap(group, &bytes, &desc, &self.geometry)?;
                bytes
            };
            self.bitmaps.insert(group, bytes);
        }
        let error = self.no_group(group);
        let found = self.bitmaps.get_mut(&group);
        found.ok_or_else(|| error.into())
    }

    /// Gives a new group its block bitmap.
    pub(super) fn set_bitmap(&mut self, group: u32, bytes: Vec<u8>) {
        self.bitmaps.insert(group, bytes);
        self.dirty.insert(group);
    }

    /// The bitmap of a group in which only metadata of groups is in use.
    fn computed(&self, group: u32) -> Result<Vec<u8>> {
        let geometry = &self.geometry;
        let first = geometry.group_first_block(group)?;
        let end = first + u64::from(geometry.group_blocks(group));
        let mut bytes = vec![0; geometry.block_size() as usize];
        for (from, to) in self.system(self.geometry.group_count())?.within(first, end) {
            // Within a group, so both fit 32 bits.
            bitmap::set_range(&mut bytes, (from - first) as u32, (to - first) as u32);
        }
        let bits = geometry.block_size() * 8;
        bitmap::set_range(&mut bytes, geometry.group_blocks(group), bits);
        Ok(bytes)
    }

    /// Blocks of superblocks, descriptors, bitmaps and tables of the first groups.
    ///
    /// # Errors
    /// The file system has fewer groups.
    pub(super) fn system(&self, groups: u32) -> Result<RangeSet> {
        let table = u64::from(self.geometry.inode_table_blocks());
        let mut system = RangeSet::new();
        for group in 0..groups {
            let first = self.geometry.group_first_block(group)?;
            let fixed = u64::from(self.geometry.fixed_blocks(group));
            system.insert(first, first + fixed);
            for (start, len) in places(self.desc(group)?, table) {
                system.insert(start, start.saturating_add(len));
            }
        }
        Ok(system)
    }

    /// Takes up to `want` free blocks side by side below `limit`.
    ///
    /// # Errors
    /// [`ResizeError::NoRoom`]; wrong bitmaps.
    pub(super) fn take(&mut self, limit: u64, want: u64) -> Result<(u64, u64)> {
        for round in 0..2 {
            let mut group = self.cursor;
            while group < self.geometry.group_count() {
                let first = self.geometry.group_first_block(group)?;
                if first >= limit {
                    break;
                }
                if let Some(found) = self.take_in(group, first, limit, want)? {
                    self.cursor = group;
                    return Ok(found);
                }
                group += 1;
            }
            if round == 0 {
                self.cursor = 0;
            }
        }
        Err(ResizeError::NoRoom {
            wanted: limit << self.geometry.block_bits(),
        })
    }

    fn take_in(
        &mut self,
        group: u32,
        first: u64,
        limit: u64,
        want: u64,
    ) -> Result<Option<(u64, u64)>> {
        if self.desc(group)?.free_clusters() == 0 {
            return Ok(None);
        }
        let blocks = u64::from(self.geometry.group_blocks(group)).min(limit - first) as u32;
        let bytes = self.bitmap(group)?;
        let Some(start) = bitmap::find_next_zero(bytes, 0, blocks) else {
            return Ok(None);
        };
        let end = bitmap::find_next_set(bytes, start, blocks).unwrap_or(blocks);
        let len = want.min(u64::from(end - start)) as u32;
        self.mark_taken(group, first + u64::from(start), start..start + len)?;
        Ok(Some((first + u64::from(start), len.into())))
    }

    /// Takes this many free blocks side by side in one group, and returns the first. `None`: there
    /// are none.
    ///
    /// # Errors
    /// Wrong bitmaps.
    pub(super) fn take_run(&mut self, len: u32) -> Result<Option<u64>> {
        for group in 0..self.geometry.group_count() {
            if self.desc(group)?.free_clusters() < len {
                continue;
            }
            let blocks = self.geometry.group_blocks(group);
            let bytes = self.bitmap(group)?;
            let mut at = 0;
            while let Some(start) = bitmap::find_next_zero(bytes, at, blocks) {
                let end = bitmap::find_next_set(bytes, start, blocks).unwrap_or(blocks);
                if end - start >= len {
                    let first = self.geometry.group_first_block(group)? + u64::from(start);
                    self.mark_taken(group, first, start..start + len)?;
                    return Ok(Some(first));
                }
                at = end;
            }
        }
        Ok(None)
    }

    /// Marks free blocks of a group as used, by their bits; the first bit belongs to `first`.
    fn mark_taken(&mut self, group: u32, first: u64, bits: Range<u32>) -> Result<()> {
        bitmap::set_range(self.bitmap(group)?, bits.start, bits.end);
        let len = bits.end - bits.start;
        let desc = self.desc_mut(group)?;
        let free = desc.free_clusters().saturating_sub(len);
        desc.set_free_clusters(free)?;
        self.taken.insert(first, first + u64::from(len));
        Ok(())
    }

    /// Frees blocks with the next commit.
    pub(super) fn free(&mut self, start: u64, len: u64) {
        self.freed.push((start, len));
    }

    /// Whether transactions have a journal.
    pub(super) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Changed blocks with which a commit is due.
    pub(super) fn enough(&self) -> usize {
        let blocks = self.log.as_ref().map_or(1024, |log| log.size() / 4);
        usize::try_from(blocks).unwrap_or(usize::MAX)
    }

    /// Whether so much changed that a commit is due.
    pub(super) fn is_full(&self) -> bool {
        self.changed.len() + 2 * self.dirty.len() >= self.enough()
    }

    /// Most blocks that can change together with the blocks of a few groups. Without a journal
    /// there is no bound.
    pub(super) fn most_together(&self) -> usize {
        let Some(log) = &self.log else {
            return usize::MAX;
        };
        // A descriptor of the journal names at least 32 blocks.
        let blocks = log.size() - log.size() / 32;
        usize::try_from(blocks.saturating_sub(FEW_GROUPS)).unwrap_or(usize::MAX)
    }

    /// Drops the groups from `count` on. Their descriptors stay in the table as they are.
    pub(super) fn forget_groups(&mut self, count: u32) {
        self.removed = self.descs.split_off(count as usize);
        self.bitmaps.split_off(&count);
        self.dirty.split_off(&count);
    }

    /// A block of the descriptor table.
    pub(super) fn table_block(&self, index: u32) -> Result<Vec<u8>> {
        let size = usize::from(self.geometry.desc_size());
        let mut bytes = vec![0; self.block_size() as usize];
        let first = (index * self.geometry.descs_per_block()) as usize;
        let descs = self.descs.iter().chain(&self.removed).skip(first);
        for (desc, place) in descs.zip(bytes.chunks_exact_mut(size)) {
            desc.write(place)?;
        }
        Ok(bytes)
    }

    /// Opens the journal again, after it moved, was made or was removed.
    ///
    /// # Errors
    /// The journal is wrong.
    pub(super) fn reopen_log(&mut self) -> Result<()> {
        self.log = open_empty_log(&self.device, &self.sb, &self.geometry, self.time)?;
        Ok(())
    }
}

/// Bitmaps and inode table of a group: first block, and blocks.
pub(super) fn places(desc: &GroupDesc, table: u64) -> [(u64, u64); 3] {
    [
        (desc.block_bitmap(), 1),
        (desc.inode_bitmap(), 1),
        (desc.inode_table(), table),
    ]
}
