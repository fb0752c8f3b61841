//! Writes changes in memory to the trees about space: runs delayed refs, and updates the items of
//! block groups and the free-space tree.
//!
//! Every handle may run delayed refs; the commit runs all. Changing the extent tree copies blocks
//! of it, which adds new delayed refs. This ends, because a block is copied at most once in a
//! transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{Block, BlockGroupItem, Key};

use super::chunk::{group_item, group_key};
use super::delayed::{Head, RefKey};
use super::extent_refs::{Applied, ItemRules, apply};
use super::free_space_tree;
use super::group::BlockGroup;
use super::state::Space;
use super::store::TreeStore;
use super::write::{SpaceChanges, SpaceWrite};
use crate::error::Result;
use crate::tree::{BlockCache, Expect};

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
            self.run_taken(h, &changes, &head)?;
        }
        Ok(())
    }

    /// Runs the delayed refs of each of `extents` that may have lost its last ref, so that its
    /// space counts as free before the commit. The caller holds no tree block.
    ///
    /// # Errors
    /// A change that the extent tree does not allow; the transaction is aborted then.
    pub(crate) fn run_frees(&self, h: &mut dyn SpaceWrite, extents: &[u64]) -> Result<()> {
        let changes = h.changes();
        for bytenr in extents {
            if let Some(head) = changes.delayed.take_freed(*bytenr) {
                self.run_taken(h, &changes, &head)?;
            }
        }
        Ok(())
    }

    /// Runs a head that was taken.
    fn run_taken(
        &self,
        h: &mut dyn SpaceWrite,
        changes: &Arc<SpaceChanges>,
        head: &Head,
    ) -> Result<()> {
        let result = self.run_head(h, changes, head);
        changes.delayed.done(head.extent.bytenr);
        self.delayed.give_back(self.head_cost());
        if let Err(err) = &result {
            h.abort(err);
        }
        result
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
        let since = self.owned_since.load(Ordering::Acquire);
        let rules = ItemRules {
            owners: since != u64::MAX,
            ..self.rules
        };
        match apply(&mut store, &rules, head, transid, first_key)? {
            Applied::Inserted => {
                if since <= transid {
                    changes.owned.add(owner_of_new(head), len, true);
                }
                group.inserted(bytenr, len)?;
            }
            Applied::Changed => {}
            Applied::Removed { generation, owner } => {
                if since <= generation {
                    let owned = &changes.owned;
                    match self.owner_of_old(head, owner, generation == transid) {
                        Ok(owner) => owned.add(owner, len, false),
                        Err(error) => {
                            log::warn!("owner of tree block {bytenr}: {error}");
                            owned.add_unknown();
                        }
                    }
                }
                if head.extent.level.is_none() {
                    h.delete_checksums(bytenr, len)?;
                }
                group.removed(bytenr, len)?;
                // An extent that is not reused stays pinned until the mount ends.
                if !self.keeps(generation) {
                    changes.pinned.add(bytenr, len);
                }
            }
        }
        Ok(())
    }
}

/// The tree that an extent of this transaction was allocated for.
fn owner_of_new(head: &Head) -> Option<u64> {
    if head.extent.level.is_none() {
        return head.owner;
    }
    head.refs.keys().find_map(|key| match key {
        RefKey::Tree { root } => Some(*root),
        _ => None,
    })
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

impl Space {
    /// The tree that an extent was allocated for, which has lost its last ref. `recorded`: the owner
    /// in its item. `fresh`: it is of this transaction. A block of this transaction may never have
    /// reached the disk, and no other tree than its owner's has had it.
    fn owner_of_old(&self, head: &Head, recorded: Option<u64>, fresh: bool) -> Result<Option<u64>> {
        let Some(level) = head.extent.level else {
            return Ok(recorded);
        };
        if fresh {
            return Ok(owner_of_new(head));
        }
        let expect = Expect {
            level: Some(level),
            ..Expect::default()
        };
        Ok(Some(self.blocks.get(head.extent.bytenr, &expect)?.owner()))
    }

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
