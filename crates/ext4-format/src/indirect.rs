//! The block map of files without extents: 12 direct pointers in the inode, then one tree each of
//! one, two and three levels. Source: kernel documentation, `filesystems/ext4/ifork.rst`.

use thiserror::Error;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Direct pointers in the inode.
pub const INDIRECT_DIRECT: u32 = 12;
const POINTER_SIZE: u32 = 4;

/// A block pointer outside the file system. The caller reports inode and block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IndirectError {
    /// A pointer leads out of the device.
    #[error("block pointer {index} names block {block} outside of {first}..{limit}")]
    Pointer {
        /// Index of the pointer.
        index: usize,
        /// Block it names.
        block: u32,
        /// First block that may be named.
        first: u64,
        /// Blocks of the file system.
        limit: u64,
    },
    /// The length is not a multiple of a pointer's size.
    #[error("block of {found} bytes of block pointers")]
    Size {
        /// Length in bytes.
        found: usize,
    },
}

/// Path to a logical block: an index into the inode's pointers, then one into each block of
/// pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectPath {
    offsets: [u32; 4],
    levels: u8,
}

impl IndirectPath {
    /// Indexes from the inode down; 1 for a direct block, up to 4.
    pub fn offsets(&self) -> &[u32] {
        &self.offsets[..usize::from(self.levels)]
    }

    /// Blocks of pointers on the path: 0 to 3.
    pub fn depth(&self) -> u8 {
        self.levels.saturating_sub(1)
    }
}

/// Sizes of the block map for one block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectGeometry {
    per_block: u64,
}

impl IndirectGeometry {
    /// The geometry for blocks of `block_size` bytes.
    pub fn new(block_size: u32) -> Self {
        IndirectGeometry {
            per_block: u64::from((block_size / POINTER_SIZE).max(1)),
        }
    }

    /// Pointers in a block.
    pub fn per_block(&self) -> u32 {
        self.per_block as u32
    }

    /// Logical blocks below one pointer at `depth` blocks of pointers (0: one block).
    pub fn span(&self, depth: u8) -> u64 {
        (0..depth.min(3)).fold(1, |span: u64, _| span.saturating_mul(self.per_block))
    }

    /// Logical blocks that the map can name (block numbers have 32 bits, so never more than 2^32).
    pub fn max_blocks(&self) -> u64 {
        let all = (1..=3).fold(u64::from(INDIRECT_DIRECT), |sum, depth| {
            sum.saturating_add(self.span(depth))
        });
        all.min(1 << 32)
    }

    /// The path to a logical block; `None` if the map cannot address it.
    pub fn path(&self, logical: u32) -> Option<IndirectPath> {
        if logical < INDIRECT_DIRECT {
            return Some(IndirectPath {
                offsets: [logical, 0, 0, 0],
                levels: 1,
            });
        }
        let mut rest = u64::from(logical - INDIRECT_DIRECT);
        for depth in 1..=3_u8 {
            let span = self.span(depth);
            if rest >= span {
                rest -= span;
                continue;
            }
            let mut path = IndirectPath {
                offsets: [0; 4],
                levels: depth + 1,
            };
            path.offsets[0] = INDIRECT_DIRECT + u32::from(depth) - 1;
            for level in (0..depth).rev() {
                let below = self.span(level);
                path.offsets[usize::from(depth - level)] = (rest / below) as u32;
                rest %= below;
            }
            return Some(path);
        }
        None
    }
}

/// Pointers of a block (or of the inode's 60 bytes), not validated. 0 is a hole.
pub fn indirect_pointers(bytes: &[u8]) -> Result<&[U32], IndirectError> {
    <[U32]>::ref_from_bytes(bytes).map_err(|_| IndirectError::Size { found: bytes.len() })
}

/// Validated pointers of a block: each is 0, or a block from `first` (the superblock's first data
/// block) up to `limit` (blocks of the file system).
pub fn indirect_check(bytes: &[u8], first: u64, limit: u64) -> Result<&[U32], IndirectError> {
    let pointers = indirect_pointers(bytes)?;
    for (index, pointer) in pointers.iter().enumerate() {
        let block = pointer.get();
        if block != 0 && (u64::from(block) <= first || u64::from(block) >= limit) {
            return Err(IndirectError::Pointer {
                index,
                block,
                first,
                limit,
            });
        }
    }
    Ok(pointers)
}
