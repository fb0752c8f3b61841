//! Places of the levels of a tree on the hash device.
//!
//! Level 0 has the digests of the data blocks, level `n + 1` the digests of the blocks of level `n`.
//! The highest level has one block; its digest is the root hash. It comes first on the device, after
//! the block of the superblock; level 0 comes last. The tree of a single data block has no level.

use crate::header::{HEADER_SIZE, Header};
use crate::{Error, Result};

/// A level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level {
    /// First block on the hash device.
    pub(crate) start: u64,
    /// Blocks.
    pub(crate) blocks: u64,
}

/// The levels of a tree; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// From level 0 on.
    pub(crate) levels: Vec<Level>,
    /// Digests in a block.
    pub(crate) per_block: u64,
    /// Blocks of the hash device, with the superblock.
    pub(crate) blocks: u64,
}

impl Layout {
    pub(crate) fn new(header: &Header) -> Result<Self> {
        let params = &header.params;
        params.check()?;
        let per_block = u64::from(params.hash_block) / params.algorithm.size() as u64;
        let mut counts = Vec::new();
        let mut count = header.data_blocks;
        while count > 1 {
            count = count.div_ceil(per_block);
            counts.push(count);
        }
        let mut next = (HEADER_SIZE as u64).div_ceil(params.hash_block.into());
        let mut levels = Vec::new();
        for blocks in counts.into_iter().rev() {
            levels.push(Level {
                start: next,
                blocks,
            });
            next = next.saturating_add(blocks);
        }
        levels.reverse();
        let bytes = next.checked_mul(params.hash_block.into());
        bytes.ok_or(Error::Field {
            field: "the number of data blocks",
            value: header.data_blocks,
        })?;
        Ok(Self {
            levels,
            per_block,
            blocks: next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Params;

    fn layout(data_blocks: u64) -> Layout {
        let header = Header {
            params: Params::default(),
            data_blocks,
            uuid: [0; 16],
        };
        Layout::new(&header).unwrap()
    }

    #[test]
    fn the_highest_level_comes_first() {
        assert!(layout(1).levels.is_empty());
        let level = |start, blocks| Level { start, blocks };
        assert_eq!(layout(2).levels, [level(1, 1)]);
        assert_eq!(layout(128).levels, [level(1, 1)]);
        assert_eq!(layout(129).levels, [level(2, 2), level(1, 1)]);
        assert_eq!(
            layout(128 * 128 + 1).levels,
            [level(4, 129), level(2, 2), level(1, 1)]
        );
        assert_eq!(layout(129).blocks, 4);
    }
}
