//! What a transaction changed and its commit has to write.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lock::{Rank, RankedMutex};
use crate::ops::Inode;
use crate::tree::{Root, TreeBlock};

/// Blocks made in a transaction that are not on disk yet, by logical address.
#[derive(Debug)]
pub(crate) struct DirtyBlocks {
    blocks: RankedMutex<BTreeMap<u64, Arc<TreeBlock>>>,
}

impl Default for DirtyBlocks {
    fn default() -> Self {
        Self {
            blocks: RankedMutex::new(Rank::DirtyBlocks, BTreeMap::new()),
        }
    }
}

impl DirtyBlocks {
    /// Takes in a new block. Returns how many there are now.
    pub(crate) fn insert(&self, block: &Arc<TreeBlock>) -> usize {
        let mut blocks = self.blocks.lock();
        blocks.insert(block.bytenr(), block.clone());
        blocks.len()
    }

    /// Takes out a block that was freed.
    pub(crate) fn remove(&self, block: &TreeBlock) {
        let mut blocks = self.blocks.lock();
        // Another block may have taken the address since.
        if blocks
            .get(&block.bytenr())
            .is_some_and(|found| std::ptr::eq(&**found, block))
        {
            blocks.remove(&block.bytenr());
        }
    }

    /// Takes all, in the order of their addresses.
    pub(crate) fn take(&self) -> Vec<Arc<TreeBlock>> {
        let blocks = std::mem::take(&mut *self.blocks.lock());
        blocks.into_values().collect()
    }
}

/// Inodes whose items, or whose directories' indexes, the commit has to write.
#[derive(Debug)]
pub(crate) struct DirtyInodes {
    inodes: RankedMutex<Vec<Arc<Inode>>>,
}

impl Default for DirtyInodes {
    fn default() -> Self {
        Self {
            inodes: RankedMutex::new(Rank::DirtyRoots, Vec::new()),
        }
    }
}

impl DirtyInodes {
    /// Takes in an inode; a thread that queues it sees to it that it is not there yet. Returns how
    /// many there are now.
    pub(crate) fn insert(&self, inode: &Arc<Inode>) -> usize {
        let mut inodes = self.inodes.lock();
        inodes.push(inode.clone());
        inodes.len()
    }

    /// Takes all.
    pub(crate) fn take(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut *self.inodes.lock())
    }
}

/// Trees that changed in a transaction, by id.
#[derive(Debug)]
pub(crate) struct DirtyRoots {
    roots: RankedMutex<BTreeMap<u64, Arc<Root>>>,
}

impl Default for DirtyRoots {
    fn default() -> Self {
        Self {
            roots: RankedMutex::new(Rank::DirtyRoots, BTreeMap::new()),
        }
    }
}

impl DirtyRoots {
    /// Takes in a tree.
    pub(crate) fn insert(&self, root: &Arc<Root>) {
        self.roots.lock().insert(root.id(), root.clone());
    }

    /// Takes out a tree that is no more.
    pub(crate) fn remove(&self, id: u64) {
        self.roots.lock().remove(&id);
    }

    /// All of them, by id.
    pub(crate) fn all(&self) -> Vec<Arc<Root>> {
        self.roots.lock().values().cloned().collect()
    }
}
