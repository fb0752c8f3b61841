//! The interface of the trees to the world below them: nodes, changes of nodes, and allocation.
//!
//! The trees are written against these traits and not against the store, so that the same code
//! reads a journal's map before there is a cache, and so that the property tests run thousands of
//! changes without an image.

use std::ops::Deref;

use crate::{Error, Result};

/// Blocks that a file can have: the last block number is not used.
pub(crate) const BLOCKS_MAX: u64 = u32::MAX as u64;

/// A map cannot have a block there, or cannot count it.
pub(super) fn too_large() -> Error {
    Error::Vfs(sapwood_vfs::Error::FileTooLarge)
}

/// The kind of a map block; recorded at its buffer after validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// A node of an extent tree.
    Extent,
    /// A block of block pointers.
    Pointers,
}

/// The rules for an inode's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct World {
    /// Inode, for errors.
    pub(crate) ino: u32,
    /// Bytes of a block.
    pub(crate) block_size: u32,
    /// The superblock's first data block.
    pub(crate) first_block: u64,
    /// Blocks of the file system.
    pub(crate) blocks: u64,
    /// Seed of the inode's checksums, where the file system has them.
    pub(crate) seed: Option<u32>,
}

impl World {
    /// The error for an invalid block of the map.
    pub(crate) fn bad_block(&self, block: u64, reason: impl ToString) -> Error {
        Error::BadBlock {
            ino: self.ino,
            block,
            reason: reason.to_string(),
        }
    }

    /// The error for the inode's own part of the map, or for a request that does not fit it.
    pub(crate) fn bad_map(&self, reason: impl ToString) -> Error {
        Error::BadInode {
            ino: self.ino,
            reason: reason.to_string(),
        }
    }

    /// Whether all of these blocks may belong to a file.
    pub(crate) fn holds(&self, physical: u64, len: u64) -> bool {
        let end = physical.checked_add(len);
        physical > 0 && physical >= self.first_block && end.is_some_and(|end| end <= self.blocks)
    }
}

/// Reads nodes.
pub(crate) trait Blocks {
    /// A node in memory.
    type Node: Clone;

    /// The rules for the map.
    fn world(&self) -> &World;

    /// A block of the map, from the device if it is not in memory. `judge` is called unless the
    /// block was validated as this kind since it was loaded, and returns its defect.
    ///
    /// # Errors
    /// [`Error::BadBlock`] with the defect from `judge`; errors of the device.
    fn node(
        &self,
        block: u64,
        kind: NodeKind,
        judge: &dyn Fn(&[u8]) -> Result<(), String>,
    ) -> Result<Self::Node>;

    /// Whether one of these blocks belongs to a group: superblock, descriptors, bitmaps, inode
    /// tables. A map that names one is refused: otherwise a broken image could make the engine
    /// write content over it.
    fn is_system(&self, physical: u64, len: u64) -> bool;

    /// Place of the node.
    fn place(&self, node: &Self::Node) -> u64;

    /// Current content of the node.
    fn bytes(&self, node: &Self::Node) -> impl Deref<Target = [u8]>;
}

/// Changes nodes, in one handle.
pub(crate) trait Changes: Blocks {
    /// Changes a node in this transaction.
    ///
    /// # Errors
    /// The journal failed.
    fn change<R>(&self, node: &Self::Node, with: impl FnOnce(&mut [u8]) -> R) -> Result<R>;

    /// A new block for the map, zeroed, in this transaction and counted for the inode.
    ///
    /// # Errors
    /// No space.
    fn create(&self, kind: NodeKind, goal: u64) -> Result<Self::Node>;

    /// Frees a block of the map.
    ///
    /// # Errors
    /// The bitmap has it as free.
    fn discard(&self, node: &Self::Node) -> Result<()>;

    /// Frees blocks of content.
    ///
    /// # Errors
    /// The bitmap has them as free.
    fn free(&self, physical: u64, len: u64) -> Result<()>;

    /// Counts blocks of content that were added to the map or (negative) removed from it.
    fn charge(&self, blocks: i64);

    /// Credits that [`free`](Self::free) of these blocks needs at most.
    fn free_cost(&self, physical: u64, len: u64) -> u32;

    /// The number of these blocks, from the last one backwards, in one group; at least one.
    fn tail_in_group(&self, physical: u64, len: u64) -> u64;

    /// Whether the handle has credits for this many more blocks; it is extended if that helps.
    fn affords(&self, credits: u32) -> bool;
}
