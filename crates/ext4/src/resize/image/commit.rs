//! Writes everything that changed in an image as one transaction.
//!
//! With a journal, [`Image::commit`] makes all of it one transaction of the journal, and then
//! writes the blocks to their home locations. A power cut leaves all of it or nothing. Without a
//! journal, blocks are first marked as used, then new blocks are written, then the inodes change,
//! then blocks become free, and the superblock is last; in between the file system is marked
//! unclean. A power cut then leaves unused blocks that are marked as used, which `e2fsck` corrects.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_base::RangeSet;
use sapwood_ext4_format::{
    BitmapKind, GroupDesc, Incompat, SUPER_OFFSET, SUPER_SIZE, SuperBlock, SuperState, bitmap,
};

use super::Image;
use crate::resize::{ResizeError, Result};

impl Image {
    /// Writes all changes in the order of the module. `last`: a block that is written back after
    /// all others, and whose new content makes another journal count.
    ///
    /// # Errors
    /// Errors of the device; [`ResizeError::Journal`] if the journal is too small.
    pub(in crate::resize) fn commit(&mut self, last: Option<u64>) -> Result<()> {
        let freed = self.apply_freed()?;
        let taken = std::mem::take(&mut self.taken);
        self.finish_groups()?;
        let sum = |of: fn(&GroupDesc) -> u32| self.descs.iter().map(|d| u64::from(of(d))).sum();
        let (blocks, inodes): (u64, u64) =
            (sum(GroupDesc::free_clusters), sum(GroupDesc::free_inodes));
        self.sb.set_free_blocks_count(blocks)?;
        self.sb.free_inodes_count = u32::try_from(inodes).unwrap_or(u32::MAX).into();
        self.sb.set_checksum();
        let mut changed = std::mem::take(&mut self.changed);
        // Blocks past the end of the file system on the device are no part of it yet.
        for (block, bytes) in changed.split_off(&self.stored_blocks) {
            self.device
                .write_at(block << self.geometry.block_bits(), &bytes)?;
        }
        if self.geometry.blocks_count() > self.stored_blocks {
            self.write_backups(self.stored_blocks)?;
        }
        self.device.flush()?;
        if self.log.is_some() {
            self.commit_logged(changed, last)?
        } else {
            self.commit_in_place(changed, &freed, &taken)?
        }
        self.stored = self.sb.clone();
        self.stored_blocks = self.geometry.blocks_count();
        Ok(())
    }

    /// Writes the superblock to its place, durably.
    fn write_super(&self, sb: &SuperBlock) -> Result<()> {
        let mut sb = sb.clone();
        sb.set_checksum();
        Ok(self.device.write_fua(SUPER_OFFSET, sb.bytes())?)
    }

    fn write_home<'b>(
        &self,
        blocks: impl IntoIterator<Item = (&'b u64, &'b Vec<u8>)>,
    ) -> Result<()> {
        for (block, bytes) in blocks {
            self.device
                .write_at(block << self.geometry.block_bits(), bytes)?;
        }
        Ok(self.device.flush()?)
    }

    fn commit_logged(&self, mut changed: BTreeMap<u64, Vec<u8>>, last: Option<u64>) -> Result<()> {
        let Some(log) = &self.log else {
            return Ok(());
        };
        let recovering = |sb: &SuperBlock| {
            let mut sb = sb.clone();
            let mut features = sb.features();
            features.incompat |= Incompat::RECOVER;
            sb.set_features(features);
            sb.set_checksum();
            sb
        };
        self.write_super(&recovering(&self.stored))?;
        let place = self.geometry.super_block();
        let mut content = self.block(place)?;
        let at = (SUPER_OFFSET % self.block_size()) as usize;
        if let Some(bytes) = content.get_mut(at..at + SUPER_SIZE) {
            bytes.copy_from_slice(recovering(&self.sb).bytes());
        }
        changed.insert(place, content);
        let count = changed.len() as u64;
        let blocks: Vec<(u64, Vec<u8>)> = changed.into_iter().collect();
        if !log.commit_alone(&blocks).map_err(crate::Error::from)? {
            self.write_super(&self.stored)?;
            return Err(ResizeError::Journal { blocks: count });
        }
        // A kernel reads the descriptors of all groups that the superblock counts before it
        // recovers the journal. Blocks of descriptors that are no longer needed get another
        // content.
        if self.geometry.blocks_count() < self.stored_blocks {
            let super_block = blocks.iter().filter(|(block, _)| *block == place);
            self.write_home(super_block.map(|(block, bytes)| (block, bytes)))?;
        }
        let (late, early): (Vec<_>, Vec<_>) = blocks
            .into_iter()
            .partition(|(block, _)| *block == last.unwrap_or(place));
        self.write_home(early.iter().map(|(block, bytes)| (block, bytes)))?;
        // A journal that moved may have kept its first block. The superblock of a file system that
        // grew counts groups whose descriptors must be there.
        self.write_home(late.iter().map(|(block, bytes)| (block, bytes)))?;
        log.finish_alone().map_err(crate::Error::from)?;
        self.write_super(&self.sb)
    }

    fn commit_in_place(
        &self,
        changed: BTreeMap<u64, Vec<u8>>,
        freed: &[(u64, u64)],
        taken: &RangeSet,
    ) -> Result<()> {
        let mut unclean = self.stored.clone();
        unclean.set_state(unclean.state() - SuperState::VALID);
        self.write_super(&unclean)?;
        self.device.flush()?;
        let bitmaps: BTreeMap<u64, u32> = (0..)
            .zip(&self.descs)
            .map(|(group, desc)| (desc.block_bitmap(), group))
            .collect();
        let (maps, others): (BTreeMap<_, _>, BTreeMap<_, _>) = changed
            .into_iter()
            .partition(|(block, _)| bitmaps.contains_key(block));
        let mut marked = maps.clone();
        for (start, len) in freed {
            for block in *start..start + len {
                let (group, bit) = self.geometry.group_of_block(block)?;
                let place = self.desc(group)?.block_bitmap();
                if let Some(bytes) = marked.get_mut(&place) {
                    bitmap::set_bit(bytes, bit);
                }
            }
        }
        self.write_home(&marked)?;
        let (fresh, others): (BTreeMap<_, _>, BTreeMap<_, _>) = others
            .into_iter()
            .partition(|(block, _)| !taken.within(*block, block + 1).is_empty());
        self.write_home(&fresh)?;
        self.write_home(&others)?;
        self.write_home(&maps)?;
        self.write_super(&self.sb)
    }

    /// Clears the bits of blocks that become free.
    fn apply_freed(&mut self) -> Result<Vec<(u64, u64)>> {
        let freed = std::mem::take(&mut self.freed);
        for (start, len) in &freed {
            let mut at = *start;
            while at < start + len {
                let (group, bit) = self.geometry.group_of_block(at)?;
                let left = u64::from(self.geometry.group_blocks(group) - bit);
                let count = left.min(start + len - at).max(1) as u32;
                let bytes = self.bitmap(group)?;
                let cleared = bitmap::count_set(bytes, bit, bit + count);
                bitmap::clear_range(bytes, bit, bit + count);
                let desc = self.desc_mut(group)?;
                let free = desc.free_clusters().saturating_add(cleared);
                desc.set_free_clusters(free)?;
                at += u64::from(count);
            }
        }
        Ok(freed)
    }

    /// Renews checksums, bitmaps and the descriptor table.
    fn finish_groups(&mut self) -> Result<()> {
        let dirty = std::mem::take(&mut self.dirty);
        let geometry = self.geometry.clone();
        let mut tables = BTreeSet::new();
        for group in dirty {
            let Some(desc) = self.descs.get_mut(group as usize) else {
                continue;
            };
            if let Some(bytes) = self.bitmaps.get(&group) {
                bitmap::set_bitmap_checksum(BitmapKind::Block, bytes, desc, &geometry)?;
                let (block, bytes) = (desc.block_bitmap(), bytes.clone());
                desc.set_checksum(group, &geometry);
                self.put(block, bytes)?;
            } else {
                desc.set_checksum(group, &geometry);
            }
            tables.insert(group / geometry.descs_per_block());
        }
        for index in tables {
            let bytes = self.table_block(index)?;
            self.put(geometry.desc_table_block(index), bytes)?;
        }
        Ok(())
    }

    /// Writes the copies of the superblock and of the descriptor table from a block on.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in crate::resize) fn write_backups(&self, from: u64) -> Result<()> {
        let bits = self.geometry.block_bits();
        for index in 0..self.geometry.desc_blocks() {
            let bytes = self.table_block(index)?;
            let copies = self.geometry.desc_table_backups(index).into_iter();
            for block in copies.filter(|block| *block >= from) {
                self.device.write_at(block << bits, &bytes)?;
            }
        }
        for group in 1..self.geometry.group_count() {
            let block = self.geometry.backup_super_block(group);
            let Some(block) = block.filter(|block| *block >= from) else {
                continue;
            };
            let mut copy = self.sb.clone();
            // Numbers beyond 16 bits do not fit; nothing uses them.
            copy.block_group_nr = (group as u16).into();
            copy.set_state(copy.state() - SuperState::VALID);
            copy.set_checksum();
            self.device.write_at(block << bits, copy.bytes())?;
        }
        Ok(self.device.flush()?)
    }
}
