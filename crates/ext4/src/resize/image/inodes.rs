//! Inodes of an image: their slots in the tables, and which are in use.

use std::ops::Range;

use sapwood_ext4_format::{BitmapKind, GroupFlags, Inode, bitmap, validate_inode_bitmap};

use super::Image;
use crate::resize::Result;

/// Slots of a piece of a table. A slot has 4 KiB at most.
const TABLE_PIECE: u32 = 512;

impl Image {
    /// An inode as it is or will be.
    ///
    /// # Errors
    /// Errors of the device; the inode is wrong.
    pub(in crate::resize) fn inode(&self, ino: u32) -> Result<Inode> {
        let (block, offset) = self.inode_place(ino)?;
        let bytes = self.block(block)?;
        let bytes = bytes.get(offset as usize..).unwrap_or_default();
        let bytes = bytes.get(..usize::from(self.geometry.inode_size()));
        let inode = Inode::read(bytes.unwrap_or_default(), &self.geometry)?;
        inode.verify_checksum(ino, &self.geometry)?;
        Ok(inode)
    }

    /// Changes an inode.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in crate::resize) fn put_inode(&mut self, ino: u32, mut inode: Inode) -> Result<()> {
        inode.set_checksum(ino, &self.geometry);
        let (block, offset) = self.inode_place(ino)?;
        let mut bytes = self.block(block)?;
        inode.write(bytes.get_mut(offset as usize..).unwrap_or_default())?;
        self.put(block, bytes)
    }

    /// Block of the table that holds an inode, and the offset in it.
    ///
    /// # Errors
    /// There is no such inode.
    pub(in crate::resize) fn inode_place(&self, ino: u32) -> Result<(u64, u32)> {
        let (group, index) = self.geometry.inode_location(ino)?;
        let table = self.desc(group)?.inode_table();
        Ok(self.geometry.inode_in_table(table, index))
    }

    /// The inodes in use of a group that are contiguous in its table, in pieces of at most
    /// [`TABLE_PIECE`] slots, one request each.
    ///
    /// # Errors
    /// Errors of the device; the bitmap is wrong.
    pub(in crate::resize) fn pieces(&self, group: u32) -> Result<Vec<Vec<u32>>> {
        let inodes = self.inodes(group..group + 1)?;
        let pieces =
            inodes.chunk_by(|one, next| (one - 1) / TABLE_PIECE == (next - 1) / TABLE_PIECE);
        Ok(pieces.map(<[u32]>::to_vec).collect())
    }

    /// The inodes of a [piece](Self::pieces), as they are or will be.
    ///
    /// # Errors
    /// Errors of the device; an inode is wrong.
    pub(in crate::resize) fn inodes_of(&self, piece: &[u32]) -> Result<Vec<(u32, Inode)>> {
        let (Some(first), Some(last)) = (piece.first(), piece.last()) else {
            return Ok(Vec::new());
        };
        let bits = self.geometry.block_bits();
        let ((first, _), (last, _)) = (self.inode_place(*first)?, self.inode_place(*last)?);
        let blocks = last.saturating_sub(first) + 1;
        let mut table = vec![0; (blocks << bits) as usize];
        self.device.read_at(first << bits, &mut table)?;
        for (block, changed) in self.changed.range(first..=last) {
            let at = ((block - first) << bits) as usize;
            if let Some(old) = table.get_mut(at..at + changed.len()) {
                old.copy_from_slice(changed);
            }
        }
        let size = usize::from(self.geometry.inode_size());
        let read = |ino: &u32| {
            let (block, offset) = self.inode_place(*ino)?;
            let at = (block.saturating_sub(first) << bits) as usize + offset as usize;
            let bytes = table.get(at..at + size).unwrap_or_default();
            let inode = Inode::read(bytes, &self.geometry)?;
            inode.verify_checksum(*ino, &self.geometry)?;
            Ok((*ino, inode))
        };
        piece.iter().map(read).collect()
    }

    /// The inodes in use of some groups.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in crate::resize) fn inodes(&self, groups: Range<u32>) -> Result<Vec<u32>> {
        let mut all = Vec::new();
        for group in groups {
            let bytes = self.inode_bitmap(group)?;
            let count = self.geometry.inodes_per_group();
            let mut at = 0;
            while let Some(index) = bitmap::find_next_set(&bytes, at, count) {
                all.extend(self.geometry.ino(group, index));
                at = index + 1;
            }
        }
        Ok(all)
    }

    /// Takes the first free inode of some groups. `None`: all are in use.
    ///
    /// # Errors
    /// Errors of the device; a bitmap is wrong.
    pub(in crate::resize) fn take_inode(
        &mut self,
        groups: Range<u32>,
        directory: bool,
    ) -> Result<Option<u32>> {
        let count = self.geometry.inodes_per_group();
        for group in groups {
            if self.desc(group)?.free_inodes() == 0 {
                continue;
            }
            let mut bytes = self.inode_bitmap(group)?;
            let Some(index) = bitmap::find_next_zero(&bytes, 0, count) else {
                continue;
            };
            bitmap::set_bit(&mut bytes, index);
            self.first_use(group, index)?;
            let desc = self.desc_mut(group)?;
            let (free, dirs) = (desc.free_inodes(), desc.used_dirs());
            desc.set_free_inodes(free.saturating_sub(1))?;
            desc.set_used_dirs(dirs + u32::from(directory))?;
            self.put_inode_bitmap(group, bytes)?;
            return Ok(self.geometry.ino(group, index));
        }
        Ok(None)
    }

    /// Counts an inode at the end of the used part. The old contents of its table block have no
    /// meaning.
    fn first_use(&mut self, group: u32, index: u32) -> Result<()> {
        if !self.geometry.features().group_csum() {
            return Ok(());
        }
        let count = self.geometry.inodes_per_group();
        let per_block = self.geometry.inodes_per_block().max(1);
        let desc = self.desc_mut(group)?;
        let uninit = desc.flags().contains(GroupFlags::INODE_UNINIT);
        let never_used = if uninit {
            0
        } else {
            count.saturating_sub(desc.itable_unused())
        };
        desc.set_flags(desc.flags() - GroupFlags::INODE_UNINIT);
        if index < never_used {
            return Ok(());
        }
        desc.set_itable_unused(count.saturating_sub(index + 1))?;
        let table = desc.inode_table();
        let (block, _) = self.geometry.inode_in_table(table, index);
        if index - index % per_block >= never_used {
            self.put(block, vec![0; self.block_size() as usize])?;
        }
        Ok(())
    }

    /// Frees an inode and clears its slot.
    ///
    /// # Errors
    /// Errors of the device; the bitmap is wrong.
    pub(in crate::resize) fn release_inode(&mut self, ino: u32, directory: bool) -> Result<()> {
        let (block, offset) = self.inode_place(ino)?;
        let mut table = self.block(block)?;
        let (from, size) = (offset as usize, usize::from(self.geometry.inode_size()));
        if let Some(slot) = table.get_mut(from..from + size) {
            slot.fill(0);
        }
        self.put(block, table)?;
        let (group, index) = self.geometry.inode_location(ino)?;
        let mut bytes = self.inode_bitmap(group)?;
        bitmap::clear_bit(&mut bytes, index);
        let desc = self.desc_mut(group)?;
        let (free, dirs) = (desc.free_inodes(), desc.used_dirs());
        desc.set_free_inodes(free + 1)?;
        desc.set_used_dirs(dirs.saturating_sub(directory.into()))?;
        self.put_inode_bitmap(group, bytes)
    }

    /// The inode bitmap of a group. One that was never written has no inode in use.
    fn inode_bitmap(&self, group: u32) -> Result<Vec<u8>> {
        let desc = self.desc(group)?;
        if !desc.flags().contains(GroupFlags::INODE_UNINIT) {
            let bytes = self.block(desc.inode_bitmap())?;
            validate_inode_bitmap(group, &bytes, desc, &self.geometry)?;
            return Ok(bytes);
        }
        let mut bytes = vec![0; self.block_size() as usize];
        let bits = self.geometry.block_size().saturating_mul(8);
        bitmap::set_range(&mut bytes, self.geometry.inodes_per_group(), bits);
        Ok(bytes)
    }

    fn put_inode_bitmap(&mut self, group: u32, bytes: Vec<u8>) -> Result<()> {
        let geometry = self.geometry.clone();
        let desc = self.desc_mut(group)?;
        bitmap::set_bitmap_checksum(BitmapKind::Inode, &bytes, desc, &geometry)?;
        let block = desc.inode_bitmap();
        self.put(block, bytes)
    }
}
