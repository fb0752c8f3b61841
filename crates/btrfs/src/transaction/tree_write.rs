//! The interface of a tree change to its handle.

use std::sync::Arc;

use sapwood_btrfs_format::objectid;

use super::handle::Handle;
use crate::space::{Reservation, SpaceChanges, SpaceWrite};
use crate::tree::{BlockCache, BlockRef, DataRef, Root, TreeBlock, TreeRead, TreeWrite};
use crate::{Error, Result};

impl TreeRead for Handle {
    fn blocks(&self) -> &BlockCache {
        &self.store().blocks
    }
}

impl TreeWrite for Handle {
    fn transid(&self) -> u64 {
        Handle::transid(self)
    }

    fn record_root(&mut self, root: &Arc<Root>) -> Result<()> {
        Handle::record_root(self, root);
        Ok(())
    }

    fn alloc_block(&mut self, root_id: u64, hint: u64) -> Result<u64> {
        let store = self.store().clone();
        if root_id == objectid::TREE_LOG {
            let bytenr = store.space.alloc_tree_block(self, root_id, None, hint)?;
            self.trans().log_blocks.took(bytenr);
            return Ok(bytenr);
        }
        let root = store.roots.cached(root_id);
        store
            .space
            .alloc_tree_block(self, root_id, root.as_deref(), hint)
    }

    fn free_block(&mut self, root: &Root, block: &TreeBlock, last: bool) -> Result<()> {
        let store = self.store().clone();
        if root.id() == objectid::TREE_LOG {
            return self.trans().log_blocks.free(&store.space, block);
        }
        store.space.free_tree_block(self, root, block, last)
    }

    fn extent_info(&mut self, bytenr: u64, level: u8) -> Result<(u64, u64)> {
        let (store, trans) = (self.store(), self.trans());
        store.space.tree_block_info(&trans.space, bytenr, level)
    }

    fn set_full_backref(&mut self, bytenr: u64, level: u8) -> Result<()> {
        let store = self.store().clone();
        store.space.set_full_backref(self, bytenr, level)
    }

    fn block_ref(
        &mut self,
        bytenr: u64,
        level: u8,
        root_id: u64,
        parent: Option<u64>,
        change: BlockRef,
    ) -> Result<()> {
        let store = self.store().clone();
        let block = (bytenr, level);
        store
            .space
            .tree_block_ref(self, block, root_id, parent, change)
    }

    fn data_ref(&mut self, data: &DataRef, add: bool) -> Result<()> {
        let store = self.store().clone();
        if add {
            store.space.add_data_ref(self, data, 1)
        } else {
            store.space.drop_data_ref(self, data, 1)
        }
    }

    fn add_dirty(&mut self, block: &Arc<TreeBlock>) {
        if block.owner() == objectid::TREE_LOG {
            self.trans().log_blocks.dirty.insert(block);
            return;
        }
        let blocks = self.trans().dirty_blocks.insert(block);
        self.mark_dirty();
        // Dirty blocks cannot leave memory: commit early rather than outgrow the cache.
        let bytes = blocks * self.store().nodesize as usize;
        if bytes > self.store().options.cache_bytes / 2 {
            self.store().transactions.request_commit();
        }
    }

    fn remove_dirty(&mut self, block: &TreeBlock) {
        match block.owner() {
            objectid::TREE_LOG => self.trans().log_blocks.dirty.remove(block),
            _ => self.trans().dirty_blocks.remove(block),
        }
    }

    fn abort(&self, err: &Error) {
        Handle::abort(self, err);
    }
}

impl SpaceWrite for Handle {
    fn changes(&self) -> Arc<SpaceChanges> {
        self.trans().space.clone()
    }

    fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    fn delete_checksums(&mut self, bytenr: u64, len: u64) -> Result<()> {
        let store = self.store().clone();
        store.checksums.delete(self, bytenr, len)
    }
}
