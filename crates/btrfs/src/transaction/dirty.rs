//! What a transaction changed and its commit has to write.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Result;
use crate::lock::{Rank, RankedMutex};
use crate::tree::{Root, TreeBlock, TreeWrite};

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

/// Something whose items reach the tree when the transaction is committed: an inode.
pub(crate) trait Delayed: std::fmt::Debug + Send + Sync {
    /// Writes them. Called by the commit while no other handle of the transaction is open.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    fn write(&self, h: &mut dyn TreeWrite) -> Result<()>;
}

/// What was delayed in a transaction.
#[derive(Debug)]
pub(crate) struct DelayedItems {
    queue: RankedMutex<Vec<Arc<dyn Delayed>>>,
}

impl Default for DelayedItems {
    fn default() -> Self {
        Self {
            queue: RankedMutex::new(Rank::DirtyRoots, Vec::new()),
        }
    }
}

impl DelayedItems {
    /// Takes in something that is not there yet. Returns how many there are now.
    pub(super) fn insert(&self, delayed: Arc<dyn Delayed>) -> usize {
        let mut queue = self.queue.lock();
        queue.push(delayed);
        queue.len()
    }

    /// Takes all.
    pub(super) fn take(&self) -> Vec<Arc<dyn Delayed>> {
        std::mem::take(&mut *self.queue.lock())
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
