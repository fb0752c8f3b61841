//! Blocks of the log trees of one transaction: which are to be written, and whose space is
//! given back when.
//!
//! Log blocks are in no extent tree: their space is handed out in memory only. One that was
//! never written goes back as soon as it is freed. One that was written may be part of the log
//! that the superblock names, so it goes back when a later log is durable in which it is not.
//! When the transaction is durable, no log of it counts any more and all goes back.

use std::collections::BTreeSet;

use super::dirty::DirtyBlocks;
use crate::Result;
use crate::lock::{Rank, RankedMutex};
use crate::space::Space;
use crate::tree::{BlockCache, TreeBlock, abandon};

/// Log blocks of a transaction.
#[derive(Debug)]
pub(crate) struct LogBlocks {
    /// Blocks to write, of all its log trees.
    pub(crate) dirty: DirtyBlocks,
    space: RankedMutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Addresses that were handed out and not given back.
    taken: BTreeSet<u64>,
    /// Of these, blocks that the trees left since the last log was collected.
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
    /// Notes an address that was handed out.
    pub(crate) fn took(&self, bytenr: u64) {
        self.space.lock().taken.insert(bytenr);
    }

    /// Number of addresses that were handed out and not given back.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.space.lock().taken.len()
    }

    /// A tree left a block.
    ///
    /// # Errors
    /// [`Error::FreeSpace`](crate::Error::FreeSpace) if space was lost count of.
    pub(crate) fn free(&self, space: &Space, block: &TreeBlock) -> Result<()> {
        if block.is_written() && !sapwood_fault::planted(3) {
            if !sapwood_fault::planted(27) {
                self.space.lock().left.push(block.bytenr());
            }
            return Ok(());
        }
        self.give_back(space, &[block.bytenr()])
    }

    /// Takes the blocks that the log collected now has no more.
    pub(crate) fn take_left(&self) -> Vec<u64> {
        std::mem::take(&mut self.space.lock().left)
    }

    /// Gives the space of blocks back that no log on disk, nor one being written, has.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub(crate) fn give_back(&self, space: &Space, blocks: &[u64]) -> Result<()> {
        for bytenr in blocks {
            self.space.lock().taken.remove(bytenr);
            space.untake_tree_block(*bytenr)?;
        }
        Ok(())
    }

    /// The transaction is durable: gives everything back.
    ///
    /// # Errors
    /// As [`free`](Self::free).
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
