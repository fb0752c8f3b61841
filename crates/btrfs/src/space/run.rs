//! Runs delayed refs: writes them to the extent tree.
//!
//! Every handle may run some; the commit runs all. Changing the extent tree copies blocks of it,
//! which adds new delayed refs. This ends, because a block is copied at most once in a transaction.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, Key};

use super::delayed::Head;
use super::extent_refs::{Applied, apply};
use super::state::Space;
use super::store::TreeStore;
use super::write::{SpaceChanges, SpaceWrite};
use crate::error::Result;
use crate::tree::BlockCache;

impl Space {
    /// Runs delayed refs: at most `limit` heads, or all, including those that other threads are
    /// running and those that this adds. The caller holds no tree block.
    ///
    /// # Errors
    /// A change that the extent tree does not allow; the transaction is aborted then.
    pub(crate) fn run_delayed_refs(
        &self,
        h: &mut dyn SpaceWrite,
        limit: Option<usize>,
    ) -> Result<()> {
        let changes = h.changes();
        let (mut shard, mut done) = (0, 0);
        while limit.is_none_or(|limit| done < limit) {
            let Some((at, head)) = changes.delayed.take(shard) else {
                if limit.is_some() || changes.delayed.pending() == 0 {
                    break;
                }
                changes.delayed.wait_for_busy();
                continue;
            };
            shard = at;
            done += 1;
            let result = self.run_head(h, &changes, &head);
            changes.delayed.done(head.extent.bytenr);
            self.delayed.give_back(self.head_cost());
            if let Err(err) = result {
                h.abort(&err);
                return Err(err);
            }
        }
        Ok(())
    }

    fn run_head(
        &self,
        h: &mut dyn SpaceWrite,
        changes: &Arc<SpaceChanges>,
        head: &Head,
    ) -> Result<()> {
        let (bytenr, len) = (head.extent.bytenr, head.extent.len);
        let group = self.group_at(bytenr)?;
        self.ensure_loaded(&group)?;
        if head.never_existed() {
            // It may be on disk, and a log may refer to it.
            self.pin_unused(h, bytenr, len)?;
            return h.delete_checksums(bytenr, len);
        }
        let first_key = first_key(&self.blocks, head);
        let transid = h.transid();
        let mut store = TreeStore {
            root: &self.trees.extent,
            blocks: &self.blocks,
            h,
        };
        match apply(&mut store, &self.rules, head, transid, first_key)? {
            Applied::Inserted => group.inserted(bytenr, len)?,
            Applied::Changed => {}
            Applied::Removed => {
                if head.extent.level.is_none() {
                    h.delete_checksums(bytenr, len)?;
                }
                group.removed(bytenr, len)?;
                if sapwood_fault::planted(42) {
                    group.unpin(bytenr, len)?;
                } else {
                    changes.pinned.add(bytenr, len);
                }
            }
        }
        Ok(())
    }
}

/// Finds the first key of a new tree block for an old-style item. The block is in memory, as it was
/// just created.
fn first_key<'a>(blocks: &'a BlockCache, head: &'a Head) -> impl FnOnce() -> Key + 'a {
    move || {
        let found = blocks.get(head.extent.bytenr, &Default::default());
        let bytes = found.ok().map(|block| block.snapshot());
        let block = bytes.as_ref().and_then(|bytes| Block::new(bytes).ok());
        block.and_then(|b| b.first_key()).unwrap_or(Key::MIN)
    }
}
