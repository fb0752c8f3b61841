//! Largest file sizes.

use crate::{Geometry, RoCompat};

impl Geometry {
    /// Largest size of a file with extents, in bytes: logical blocks are below 2^32 - 1; without
    /// huge_file the inode counts 32 bits of sectors.
    pub fn max_extent_file_size(&self) -> u64 {
        let logical = u64::from(u32::MAX) << self.block_bits;
        let counted = if self.features.has_ro_compat(RoCompat::HUGE_FILE) {
            u64::MAX
        } else {
            u64::from(u32::MAX) >> (self.block_bits - 9) << self.block_bits
        };
        logical.min(counted).min(i64::MAX as u64)
    }

    /// Largest size of a file with indirect blocks, in bytes: limited by three levels, and by the
    /// blocks (including the indirect ones) that the inode can count.
    pub fn max_indirect_file_size(&self) -> u64 {
        let sector_bits = self.block_bits - 9;
        let counted = if self.features.has_ro_compat(RoCompat::HUGE_FILE) {
            (1u64 << 48) - 1
        } else {
            u64::from(u32::MAX) >> sector_bits
        };
        let pointers = u64::from(self.block_size() / 4);
        let reach = 12 + pointers + pointers.pow(2) + pointers.pow(3);
        let (mut low, mut high) = (12, reach.min(u64::from(u32::MAX)));
        // Largest number of data blocks that, with its maps, can be counted.
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if middle + indirect_blocks(middle, pointers) <= counted {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low << self.block_bits
    }
}

/// Indirect blocks that a file of `blocks` blocks without holes has.
fn indirect_blocks(blocks: u64, pointers: u64) -> u64 {
    let mut left = blocks.saturating_sub(12);
    let mut maps = u64::from(left > 0);
    left = left.saturating_sub(pointers);
    let double = left.min(pointers.pow(2));
    maps += u64::from(double > 0) + double.div_ceil(pointers);
    left -= double;
    maps + u64::from(left > 0) + left.div_ceil(pointers.pow(2)) + left.div_ceil(pointers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Features, Incompat, SUPER_MAGIC, SuperBlock};

    fn geometry(block_bits: u32, ro_compat: RoCompat) -> Geometry {
        let log = block_bits - 10;
        let mut sb = SuperBlock {
            magic: SUPER_MAGIC.into(),
            log_block_size: log.into(),
            log_cluster_size: log.into(),
            blocks_per_group: 8192.into(),
            inodes_per_group: 512.into(),
            inodes_count: 512.into(),
            blocks_count_lo: 8000.into(),
            first_data_block: u32::from(block_bits == 10).into(),
            ..SuperBlock::default()
        };
        sb.set_features(Features {
            incompat: Incompat::EXTENTS,
            ro_compat,
            ..Features::default()
        });
        Geometry::new(&sb).unwrap()
    }

    #[test]
    fn extents_reach_what_the_kernel_documents() {
        // 16 TiB with 4 KiB blocks, 2 TiB if sectors are counted in 32 bits.
        let huge = RoCompat::HUGE_FILE;
        assert_eq!(geometry(12, huge).max_extent_file_size(), (16 << 40) - 4096);
        assert_eq!(geometry(10, huge).max_extent_file_size(), (4 << 40) - 1024);
        let small = geometry(12, RoCompat::empty());
        assert_eq!(small.max_extent_file_size(), (2 << 40) - 4096);
    }

    #[test]
    fn indirect_blocks_reach_what_three_levels_hold_or_the_inode_counts() {
        // 1 KiB blocks: 12 + 256 + 256² + 256³ blocks, a little over 16 GiB.
        let huge = RoCompat::HUGE_FILE;
        let reach = 12 + 256 + (1 << 16) + (1 << 24);
        assert_eq!(geometry(10, huge).max_indirect_file_size(), reach << 10);
        let four = 12 + 1024 + (1 << 20) + (1u64 << 30);
        assert_eq!(geometry(12, huge).max_indirect_file_size(), four << 12);
        // Without huge_file data and maps together have at most 2^32 - 1 sectors.
        let geometry = geometry(12, RoCompat::empty());
        let blocks = geometry.max_indirect_file_size() >> 12;
        let counted = |blocks| (blocks + indirect_blocks(blocks, 1024)) * 8;
        assert!(counted(blocks) <= u64::from(u32::MAX));
        assert!(counted(blocks + 1) > u64::from(u32::MAX));
    }

    #[test]
    fn indirect_blocks_of_small_trees() {
        let pointers = 4;
        for (blocks, maps) in [
            (12, 0),
            (13, 1),
            (16, 1),
            (17, 3),
            (20, 3),
            (21, 4),
            (32, 6),
            (33, 9),
            (48, 12),
            (49, 14),
        ] {
            assert_eq!(indirect_blocks(blocks, pointers), maps, "{blocks} blocks");
        }
    }
}
