//! Locations of groups, inodes, superblock copies and descriptors.
//!
//! Source: kernel documentation, `filesystems/ext4/blockgroup.rst` ("Meta Block Groups",
//! "sparse_super"). One special case: with blocks of 1 KiB and bigalloc the first data block is 0,
//! while the superblock is still at byte 1024. Group 0 then begins with the boot block.

use crate::{Compat, FormatError, Geometry, RoCompat};

impl Geometry {
    /// Whether the group holds a copy of the superblock (group 0: the superblock itself).
    pub fn has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.has_compat(Compat::SPARSE_SUPER2) {
            return self.backup_bgs.contains(&group);
        }
        if group == 1 || !self.features.has_ro_compat(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3u32, 5, 7].iter().any(|base| is_power_of(group, *base))
    }

    /// First block of the group.
    ///
    /// # Errors
    /// `NoGroup`.
    pub fn group_first_block(&self, group: u32) -> Result<u64, FormatError> {
        self.check_group(group)?;
        Ok(self.first_block(group))
    }

    /// Like [`Self::group_first_block`], for a valid group number; others saturate.
    fn first_block(&self, group: u32) -> u64 {
        let start = u64::from(group).saturating_mul(u64::from(self.blocks_per_group));
        start.saturating_add(u64::from(self.first_data_block))
    }

    /// Blocks of the group: the last one may be shorter. 0 for a group that is not there.
    pub fn group_blocks(&self, group: u32) -> u32 {
        if group >= self.group_count {
            return 0;
        }
        let left = self.blocks_count.saturating_sub(self.first_block(group));
        // At most blocks_per_group, so it fits.
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Clusters of the group: used bits of its block bitmap. 0 for a group that is not there.
    pub fn group_clusters(&self, group: u32) -> u32 {
        self.group_blocks(group)
            .div_ceil(1 << self.cluster_ratio_bits())
    }

    /// Error if there is no such group.
    pub(crate) const fn check_group(&self, group: u32) -> Result<(), FormatError> {
        if group < self.group_count {
            return Ok(());
        }
        Err(FormatError::NoGroup {
            group,
            count: self.group_count,
        })
    }

    /// Group of a block, and the block's number in it.
    ///
    /// # Errors
    /// `NoBlock`.
    pub fn group_of_block(&self, block: u64) -> Result<(u32, u32), FormatError> {
        self.check_blocks(block, 1)?;
        let offset = block - u64::from(self.first_data_block);
        let size = u64::from(self.blocks_per_group);
        // group_count fits u32 and covers every block below blocks_count.
        Ok(((offset / size) as u32, (offset % size) as u32))
    }

    /// Error unless all `count` blocks from `block` on lie in the groups. `count` 0 is one block.
    pub fn check_blocks(&self, block: u64, count: u64) -> Result<(), FormatError> {
        let end = block.saturating_add(count.max(1));
        if block < u64::from(self.first_data_block) || end > self.blocks_count {
            return Err(FormatError::NoBlock {
                block,
                count: self.blocks_count,
            });
        }
        Ok(())
    }

    /// Byte offset of a block on the device.
    ///
    /// # Errors
    /// `NoBlock`.
    pub fn block_offset(&self, block: u64) -> Result<u64, FormatError> {
        if block >= self.blocks_count {
            return Err(FormatError::NoBlock {
                block,
                count: self.blocks_count,
            });
        }
        Ok(block << self.block_bits)
    }

    /// Group of an inode, and its index in that group's table.
    ///
    /// # Errors
    /// `NoInode`.
    pub const fn inode_location(&self, ino: u32) -> Result<(u32, u32), FormatError> {
        if ino == 0 || ino > self.inodes_count {
            return Err(FormatError::NoInode {
                ino,
                count: self.inodes_count,
            });
        }
        let index = ino - 1;
        Ok((index / self.inodes_per_group, index % self.inodes_per_group))
    }

    /// Number of the inode with that index in the group's table; `None` if there is none.
    pub fn ino(&self, group: u32, index: u32) -> Option<u32> {
        if group >= self.group_count || index >= self.inodes_per_group {
            return None;
        }
        // group_count * inodes_per_group fits u32.
        Some(group * self.inodes_per_group + index + 1)
    }

    /// Block of the table that holds the inode with that index, and its byte offset in it.
    /// `table` is the table's first block.
    pub fn inode_in_table(&self, table: u64, index: u32) -> (u64, u32) {
        let per_block = self.inodes_per_block();
        (
            table.saturating_add(u64::from(index / per_block)),
            index % per_block * u32::from(self.inode_size),
        )
    }

    /// Block that holds the superblock.
    pub const fn super_block(&self) -> u64 {
        (self.block_bits == 10) as u64
    }

    /// Block of the superblock copy in a group that has one ([`Self::has_super`]); `None` if not.
    /// In all groups but 0 the copy is at the front of its block.
    pub fn backup_super_block(&self, group: u32) -> Option<u64> {
        if group >= self.group_count || !self.has_super(group) {
            return None;
        }
        Some(if group == 0 {
            self.super_block()
        } else {
            self.first_block(group)
        })
    }

    /// Whether that block of the descriptor table is in the meta group that it describes.
    fn in_meta_group(&self, index: u32) -> bool {
        self.meta_bg() && index >= self.first_meta_bg
    }

    /// Block, in `group`, of the descriptor block that describes this group's meta group.
    fn meta_desc_block(&self, group: u32) -> u64 {
        let first = if group == 0 {
            self.super_block()
        } else {
            self.first_block(group)
        };
        first.saturating_add(u64::from(self.has_super(group)))
    }

    /// Address of block `index` of the descriptor table: the copy that is read. `index` is below
    /// [`Self::desc_blocks`]; others give a block that may not exist.
    pub fn desc_table_block(&self, index: u32) -> u64 {
        if self.in_meta_group(index) {
            self.meta_desc_block(index.saturating_mul(self.descs_per_block()))
        } else {
            self.super_block() + 1 + u64::from(index)
        }
    }

    /// Block that holds the group's descriptor, and its byte offset in it.
    ///
    /// # Errors
    /// `NoGroup`.
    pub fn descriptor_block(&self, group: u32) -> Result<(u64, u32), FormatError> {
        self.check_group(group)?;
        let per_block = self.descs_per_block();
        let offset = group % per_block * u32::from(self.desc_size);
        Ok((self.desc_table_block(group / per_block), offset))
    }

    /// Whether a journal may have a copy of this block. A journal of a shrink has descriptors of
    /// meta groups past the new end.
    pub fn may_be_logged(&self, block: u64) -> bool {
        if block < self.blocks_count {
            return true;
        }
        let per_block = self.descs_per_block();
        let meta_group = u64::from(self.blocks_per_group) * u64::from(per_block);
        let index = block.saturating_sub(u64::from(self.first_data_block)) / meta_group;
        u32::try_from(index)
            .is_ok_and(|index| self.in_meta_group(index) && self.desc_table_block(index) == block)
    }

    /// Addresses of the other copies of block `index` of the descriptor table. A group whose own
    /// descriptor is in its meta group has no copy of the classic table.
    pub fn desc_table_backups(&self, index: u32) -> Vec<u64> {
        if self.in_meta_group(index) {
            let first = index.saturating_mul(self.descs_per_block());
            let last = first.saturating_add(self.descs_per_block() - 1);
            let mut groups = vec![first.saturating_add(1), last];
            groups.dedup();
            groups.retain(|group| *group != first && *group < self.group_count);
            return groups.iter().map(|g| self.meta_desc_block(*g)).collect();
        }
        (1..self.group_count)
            .take_while(|group| !self.in_meta_group(group / self.descs_per_block()))
            .filter(|group| self.has_super(*group))
            .map(|group| self.first_block(group) + 1 + u64::from(index))
            .collect()
    }

    /// Blocks at the front of the group that superblock, descriptors and blocks reserved for
    /// descriptors take; in group 0 of an image with 1 KiB blocks and bigalloc also the boot
    /// block.
    pub fn fixed_blocks(&self, group: u32) -> u32 {
        let mut blocks = u32::from(self.has_super(group));
        if self.in_meta_group(group / self.descs_per_block()) {
            let place = group % self.descs_per_block();
            blocks += u32::from(place < 2 || place == self.descs_per_block() - 1);
        } else if blocks > 0 {
            let table = if self.meta_bg() {
                self.first_meta_bg
            } else {
                self.desc_blocks()
            };
            blocks = blocks.saturating_add(table);
        }
        let boot_block = group == 0 && self.super_block() > u64::from(self.first_data_block);
        blocks
            .saturating_add(u32::from(boot_block))
            .saturating_add(self.reserved_blocks(group))
    }

    /// Blocks at the end of [`Self::fixed_blocks`] that are only reserved for descriptors.
    pub fn reserved_blocks(&self, group: u32) -> u32 {
        let classic = !self.in_meta_group(group / self.descs_per_block());
        if classic && self.has_super(group) {
            u32::from(self.reserved_gdt_blocks)
        } else {
            0
        }
    }
}

fn is_power_of(mut number: u32, base: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Features, Incompat, SUPER_MAGIC, SuperBlock};

    /// 1 KiB blocks, 100 groups of 256 blocks, 32 descriptors to a block; grown from 32 groups
    /// by meta groups.
    fn grown() -> Geometry {
        let mut sb = SuperBlock {
            magic: SUPER_MAGIC.into(),
            blocks_per_group: 256.into(),
            inodes_per_group: 16.into(),
            inodes_count: 1600.into(),
            first_data_block: 1.into(),
            blocks_count_lo: 25_601.into(),
            first_meta_bg: 1.into(),
            ..SuperBlock::default()
        };
        sb.set_features(Features {
            incompat: Incompat::META_BG,
            ro_compat: RoCompat::SPARSE_SUPER,
            ..Features::default()
        });
        Geometry::new(&sb).unwrap()
    }

    #[test]
    fn the_first_meta_groups_keep_the_classic_table() {
        let geometry = grown();
        assert_eq!(geometry.desc_blocks(), 4);
        let first = |group: u64| 1 + group * 256;
        // Block 0 of the table: after the superblock and its copies.
        assert_eq!(geometry.descriptor_block(31), Ok((2, 31 * 32)));
        // Groups 49 and 81 have a superblock copy and no table: they are past the first meta group.
        let copies: Vec<_> = [1, 3, 5, 7, 9, 25, 27].map(|g| first(g) + 1).into();
        assert_eq!(geometry.desc_table_backups(0), copies);
        // Block 1: in groups 32, 33 and 63, which have no superblock copy.
        assert_eq!(geometry.descriptor_block(33), Ok((first(32), 32)));
        assert_eq!(geometry.desc_table_backups(1), [first(33), first(63)]);
        // Block 3 describes groups 96 to 99: there is no last group of a full meta group.
        assert_eq!(geometry.descriptor_block(99), Ok((first(96), 3 * 32)));
        assert_eq!(geometry.desc_table_backups(3), [first(97)]);
        for (group, blocks) in [
            (0, 2),
            (1, 2),
            (2, 0),
            (31, 0),
            (32, 1),
            (33, 1),
            (34, 0),
            (49, 1),
            (63, 1),
            (64, 1),
            (81, 1),
            (95, 1),
            (99, 0),
        ] {
            assert_eq!(geometry.fixed_blocks(group), blocks, "group {group}");
        }
    }

    #[test]
    fn a_journal_may_have_descriptors_of_removed_meta_groups() {
        let geometry = grown();
        let first = |group: u64| 1 + group * 256;
        // Group 128 begins a meta group, 160 another one.
        for (block, allowed) in [
            (25_600, true),
            (25_601, false),
            (first(128), true),
            (first(128) + 1, false),
            (first(129), false),
            (first(160), true),
            (u64::MAX, false),
        ] {
            assert_eq!(geometry.may_be_logged(block), allowed, "block {block}");
        }
    }

    /// Copies of descriptors lie in blocks that [`Geometry::fixed_blocks`] reserves.
    #[test]
    fn copies_of_descriptors_are_fixed_blocks() {
        let geometry = grown();
        for index in 0..geometry.desc_blocks() {
            for block in geometry.desc_table_backups(index) {
                let (group, offset) = geometry.group_of_block(block).unwrap();
                let fixed = geometry.fixed_blocks(group);
                assert!(
                    offset < fixed,
                    "block {block} of index {index} in group {group}"
                );
            }
        }
    }
}
