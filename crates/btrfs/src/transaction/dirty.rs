//! Changes of a transaction that its commit has to write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Result;
use crate::lock::{Rank, RankedMutex};
use crate::space::Space;
use crate::tree::{BlockCache, Root, TreeBlock, TreeWrite, abandon};

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
    /// Adds a new block. Returns the number of blocks.
    pub(crate) fn insert(&self, block: &Arc<TreeBlock>) -> usize {
        let mut blocks = self.blocks.lock();
        blocks.insert(block.bytenr(), block.clone());
        blocks.len()
    }

    /// Removes a block that was freed.
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

/// Delayed items of a transaction.
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
    /// Adds delayed items that are not queued yet. Returns the number of entries.
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
    /// Adds a tree.
    pub(crate) fn insert(&self, root: &Arc<Root>) {
        self.roots.lock().insert(root.id(), root.clone());
    }

    /// Removes a deleted tree.
    pub(crate) fn remove(&self, id: u64) {
        self.roots.lock().remove(&id);
    }

    /// All of them, by id.
    pub(crate) fn all(&self) -> Vec<Arc<Root>> {
        self.roots.lock().values().cloned().collect()
    }
}

/// Blocks of the log trees of one transaction: blocks to write, and blocks to release.
///
/// Log blocks are in no extent tree: their space is handed out in memory only. One that was never
/// written is released as soon as it is freed. One that was written may be part of the log that the
/// superblock names, so it is released when a later log is durable in which it is not. When the
/// transaction is durable, no log of it counts any more and all are released.
#[derive(Debug)]
pub(crate) struct LogBlocks {
    /// Blocks to write, of all its log trees.
    pub(crate) dirty: DirtyBlocks,
    space: RankedMutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Addresses that were allocated and not released.
    taken: BTreeSet<u64>,
    /// Blocks that the trees freed since the last log was collected.
    left: Vec<u64>,
}

impl Default for LogBlocks {
    fn default() -> Self {
        Self {
            dirty: DirtyBlocks::default(),
            space: RankedMutex::new(Rank::Leaf, Held::default()),
        }
    }
}

impl LogBlocks {
    /// Records an address that was allocated.
    pub(crate) fn took(&self, bytenr: u64) {
        self.space.lock().taken.insert(bytenr);
    }

    /// Number of addresses that were allocated and not released.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.space.lock().taken.len()
    }

    /// Records that a tree freed a block. Releases its space if the block was never written.
    ///
    /// # Errors
    /// [`Error::FreeSpace`](crate::Error::FreeSpace) if space is accounted wrongly.
    pub(crate) fn free(&self, space: &Space, block: &TreeBlock) -> Result<()> {
        if block.is_written() {
            self.space.lock().left.push(block.bytenr());
            return Ok(());
        }
        self.give_back(space, &[block.bytenr()])
    }

    /// Takes the blocks that the log being collected no longer contains.
    pub(crate) fn take_left(&self) -> Vec<u64> {
        std::mem::take(&mut self.space.lock().left)
    }

    /// Releases the space of blocks that neither a log on disk nor one being written contains.
    ///
    /// # Errors
    /// [`Error::FreeSpace`](crate::Error::FreeSpace) if space is accounted wrongly.
    pub(crate) fn give_back(&self, space: &Space, blocks: &[u64]) -> Result<()> {
        for bytenr in blocks {
            self.space.lock().taken.remove(bytenr);
            space.untake_tree_block(*bytenr)?;
        }
        Ok(())
    }

    /// Releases the space of all blocks. The transaction is durable.
    ///
    /// # Errors
    /// [`Error::FreeSpace`](crate::Error::FreeSpace) if space is accounted wrongly.
    pub(super) fn release_all(&self, cache: &BlockCache, space: &Space) -> Result<()> {
        abandon(cache, &self.dirty.take());
        let held = std::mem::take(&mut *self.space.lock());
        for bytenr in held.taken {
            // Some could not be written and would stay in memory as such.
            cache.forget(bytenr);
            space.untake_tree_block(bytenr)?;
        }
        Ok(())
    }
}
