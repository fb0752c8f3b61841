//! Lists the blocks of a tree, and copies single ones.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, Key};

use super::block::first_key;
use super::{BlockCache, Root, TreeBlock, TreeRead, TreeWrite, cow, read};
use crate::{Error, Result};

/// Levels of a tree.
const LEVELS: usize = sapwood_btrfs_format::block::MAX_LEVEL as usize + 1;

/// A block of a tree, as the pointer to it describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodePlace {
    /// 0: leaf.
    pub(crate) level: u8,
    /// First key.
    pub(crate) key: Key,
    /// Logical address.
    pub(crate) bytenr: u64,
}

/// Receives the blocks of a tree.
type Each<'e> = dyn FnMut(NodePlace) + 'e;

/// A walk of the pointers of a tree. No leaf is read.
struct Walk<'w, 'e> {
    blocks: &'w BlockCache,
    root_id: u64,
    newer_than: u64,
    /// The last block of each level. A damaged tree may reach a block twice; it is visited once.
    last: [Option<Key>; LEVELS],
    each: &'w mut Each<'e>,
}

impl Walk<'_, '_> {
    /// Passes a block on. Returns false if the walk has passed its position.
    fn found(&mut self, place: NodePlace) -> bool {
        let Some(last) = self.last.get_mut(usize::from(place.level)) else {
            return false;
        };
        if last.is_some_and(|last| place.key <= last) {
            return false;
        }
        *last = Some(place.key);
        (self.each)(place);
        true
    }

    fn below(&mut self, block: &TreeBlock) -> Result<()> {
        let Some(level) = block.level().checked_sub(1) else {
            return Ok(());
        };
        let bytes = block.snapshot();
        let bad = |source| Error::Block {
            root: self.root_id,
            source,
        };
        let view = Block::new(&bytes).map_err(bad)?;
        for (slot, ptr) in view.ptrs().iter().enumerate() {
            let place = NodePlace {
                level,
                key: ptr.key.get(),
                bytenr: ptr.blockptr.get(),
            };
            let newer = ptr.generation.get() > self.newer_than;
            if newer && self.found(place) && level > 0 {
                let child = read::child(self.blocks, self.root_id, &view, slot)?;
                self.below(&child)?;
            }
        }
        Ok(())
    }
}

impl Root {
    /// Calls `each` for the blocks of the last commit whose generation is above `newer_than`: a
    /// block, then the blocks below it, in the order of their keys.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn list_blocks(
        &self,
        env: &(impl TreeRead + ?Sized),
        newer_than: u64,
        each: &mut Each<'_>,
    ) -> Result<()> {
        self.with_commit_root(|top| {
            if top.generation() <= newer_than {
                return Ok(());
            }
            let bytes = top.snapshot();
            let view = Block::new(&bytes).map_err(|e| self.block_error(e))?;
            let mut walk = Walk {
                blocks: env.blocks(),
                root_id: self.id(),
                newer_than,
                last: [None; LEVELS],
                each,
            };
            walk.found(NodePlace {
                level: top.level(),
                key: first_key(&view),
                bytenr: top.bytenr(),
            });
            walk.below(top)
        })
    }

    /// Copies the blocks on the path to `key`, from the top down to `level`, except copies of this
    /// transaction.
    ///
    /// # Errors
    /// No space, unreadable blocks. The transaction must not be committed then.
    pub(crate) fn copy_path(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        level: u8,
    ) -> Result<()> {
        if self.last_trans() != h.transid() {
            h.record_root(self)?;
        }
        let mut top = self.write_node();
        if !self.in_place(top.block(), h.transid()) {
            let copy = cow::cow(h, self, top.block())?;
            top.set(copy);
        }
        let mut block = top.block().clone();
        let mut guard = block.write(self.class());
        drop(top);
        while block.level() > level {
            let view = guard.view()?;
            let slot = read::child_slot(self.id(), &view, key)?;
            let child = read::child(h.blocks(), self.id(), &view, slot)?;
            (block, guard) = cow::own_child(h, self, &mut guard, slot, child)?;
        }
        Ok(())
    }
}
