//! Writes changes of block groups to their items and to the free-space tree.

use sapwood_btrfs_format::BlockGroupItem;

use super::chunk::{group_item, group_key};
use super::free_space_tree;
use super::group::BlockGroup;
use super::state::Space;
use super::store::TreeStore;
use super::write::SpaceWrite;
use crate::error::Result;

impl Space {
    /// Writes the changes of block groups since the last write: used bytes to their items, free
    /// ranges to the free-space tree. Returns whether anything changed. The commit repeats this and
    /// [`run_delayed_refs`](Self::run_delayed_refs) until nothing does. Skips groups without items,
    /// which [`finish_pending_chunks`](Self::finish_pending_chunks) handles.
    ///
    /// # Errors
    /// No space, unreadable blocks; the transaction is aborted then.
    pub(crate) fn write_dirty_block_groups(&self, h: &mut dyn SpaceWrite) -> Result<bool> {
        let mut any = false;
        for group in self.all_groups() {
            match self.write_group(h, &group) {
                Ok(changed) => any |= changed,
                Err(err) => {
                    h.abort(&err);
                    return Err(err);
                }
            }
        }
        Ok(any)
    }

    fn write_group(&self, h: &mut dyn SpaceWrite, group: &BlockGroup) -> Result<bool> {
        let state = group.lock();
        let (used, item_used, removing) = (state.used, state.item_used, state.removing);
        let clean = state.delta.is_empty() && !state.flushing;
        drop(state);
        if item_used.is_none() || removing || (clean && item_used == Some(used)) {
            return Ok(false);
        }
        let flushed = self.flush_free_space(h, group)?;
        if item_used == Some(used) {
            return Ok(flushed);
        }
        let item: BlockGroupItem = group_item(group, used);
        self.group_tree().update(h, &group_key(group), |bytes| {
            bytes
                .iter_mut()
                .zip(item.bytes())
                .for_each(|(to, from)| *to = *from);
        })?;
        group.lock().item_used = Some(used);
        Ok(true)
    }

    fn flush_free_space(&self, h: &mut dyn SpaceWrite, group: &BlockGroup) -> Result<bool> {
        let Some(delta) = group.start_flush() else {
            return Ok(false);
        };
        let result = match &self.trees.free_space {
            Some(tree) => {
                let mut store = TreeStore {
                    root: tree,
                    blocks: &self.blocks,
                    h,
                };
                free_space_tree::update(&mut store, &self.span(group), &delta)
            }
            None => Ok(()),
        };
        group.flush_done();
        result.map(|()| true)
    }
}
