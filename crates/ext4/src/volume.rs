//! The volume of a mount: the [`Store`] and the inodes in memory.

use std::collections::HashMap;
use std::ops::Deref;

use crate::inode::InodeTable;
use crate::lock::{Rank, RankedMutex};
use crate::store::Store;

/// The middle layer of a mount.
pub(crate) struct Volume {
    /// The layer below.
    pub(crate) store: Store,
    pub(crate) inodes: InodeTable,
    /// Blocks of attributes that inodes share.
    pub(crate) xattr_blocks: SharedBlocks,
}

impl Deref for Volume {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Blocks of attributes that were written lately.
pub(crate) struct SharedBlocks {
    /// Blocks by the hash of their entries. The lock is held while their reference counts change.
    pub(crate) known: RankedMutex<HashMap<u32, u64>>,
    /// Inodes of values that no inode refers to any more, to be deleted.
    pub(crate) unused_values: RankedMutex<Vec<u32>>,
}

impl SharedBlocks {
    /// No known block.
    pub(crate) fn new() -> Self {
        Self {
            known: RankedMutex::new(Rank::XattrBlocks, HashMap::new()),
            unused_values: RankedMutex::new(Rank::Leaf, Vec::new()),
        }
    }
}
