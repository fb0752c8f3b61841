//! Performs a change of items.
//!
//! # How it works
//! Each operation is a [`LeafOp`]. It sees the leaf of its key and decides on one [`Edit`]. If the
//! leaf may change in place, has the room, and keeps its first key and enough items, the edit
//! changes only the leaf. Otherwise the path to it is locked. The operation then decides again,
//! because the leaf was unlocked in between.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{Block, BlockMut, Item, Key, leaf_data_size};

use super::leaf::{self, Placed, is_underfull};
use super::path::{Locked, LockedLeaf, Path, lock_leaf, lock_path};
use super::{Root, TreeWrite};
use crate::{Error, Result};

/// One change of a leaf.
pub(super) enum Edit {
    Keep,
    /// Change the data of a slot.
    Update(usize),
    /// Insert the operation's key with this many bytes.
    Insert {
        slot: usize,
        size: usize,
    },
    /// Replace the data of a slot by this many bytes.
    Resize {
        slot: usize,
        size: usize,
    },
    Delete(Range<usize>),
}

/// An operation on the leaf of its key.
pub(super) trait LeafOp {
    fn key(&self) -> Key;
    /// Decides on an edit. May be called again; only the last result counts. `upper`: smallest key
    /// to the right of the leaf.
    fn decide(&mut self, leaf: &Block<'_>, upper: Option<&Key>) -> Result<Edit>;
    /// Writes the data of an updated, inserted or resized item. Called once.
    fn fill(&mut self, _data: &mut [u8]) {}
    /// After an insertion: inserts more items that fit into the leaf.
    fn more(&mut self, _leaf: &mut BlockMut<'_>, _upper: Option<&Key>) -> Result<()> {
        Ok(())
    }
}

impl Root {
    /// Performs an operation. Returns the smallest key to the right of its leaf.
    pub(super) fn run(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        op: &mut dyn LeafOp,
    ) -> Result<Option<Key>> {
        let key = op.key();
        let mut leaf = lock_leaf(h, self, &key)?;
        let edit = op.decide(&leaf.guard.view()?, leaf.upper.as_ref())?;
        if matches!(edit, Edit::Keep) {
            return Ok(leaf.upper);
        }
        let mut from = leaf.from;
        if self.in_place(&leaf.block, h.transid()) && fits(&leaf, &edit)? {
            self.edit_leaf(&mut leaf, edit, op)?;
            return Ok(leaf.upper);
        }
        drop(leaf);
        if self.last_trans() != h.transid() {
            h.record_root(self)?;
        }
        loop {
            match lock_path(h, self, &key, from)? {
                Locked::From(level) => from = level,
                Locked::Path(path) => return self.edit_path(h, path, op),
            }
        }
    }

    /// Changes only the leaf, after [`fits`] returned true.
    fn edit_leaf(&self, leaf: &mut LockedLeaf, edit: Edit, op: &mut dyn LeafOp) -> Result<()> {
        let bad = |e| self.block_error(e);
        let mut block = leaf.guard.edit()?;
        match edit {
            Edit::Keep => {}
            Edit::Update(slot) => op.fill(block.item_data_mut(slot).map_err(bad)?),
            Edit::Insert { slot, size } => {
                let key = op.key();
                op.fill(block.insert_item(slot, &key, size).map_err(bad)?);
                op.more(&mut block, leaf.upper.as_ref())?;
            }
            Edit::Resize { slot, size } => {
                block.resize_item(slot, size, false).map_err(bad)?;
                op.fill(block.item_data_mut(slot).map_err(bad)?);
            }
            Edit::Delete(slots) => {
                block.remove_items(slots.start, slots.len()).map_err(bad)?;
            }
        }
        Ok(())
    }

    /// Changes the leaf with the path to it locked.
    fn edit_path(
        &self,
        h: &mut dyn TreeWrite,
        mut path: Path,
        op: &mut dyn LeafOp,
    ) -> Result<Option<Key>> {
        let bad = |e| self.block_error(e);
        let (upper, nth) = (path.upper, path.steps.len().saturating_sub(1));
        let Some(leaf) = path.steps.last_mut() else {
            return Ok(None);
        };
        match op.decide(&leaf.guard.view()?, upper.as_ref())? {
            Edit::Keep => {}
            Edit::Update(slot) => {
                op.fill(leaf.guard.edit()?.item_data_mut(slot).map_err(bad)?);
            }
            Edit::Insert { slot, size } => self.place(h, path, slot, size, op)?,
            Edit::Resize { slot, size } => {
                let view = leaf.guard.view()?;
                let old = view.item_size(slot).map_err(bad)?;
                let fits = size <= old + view.free_space();
                let mut block = leaf.guard.edit()?;
                if fits {
                    block.resize_item(slot, size, false).map_err(bad)?;
                    op.fill(block.item_data_mut(slot).map_err(bad)?);
                    return Ok(upper);
                }
                block.remove_items(slot, 1).map_err(bad)?;
                // The item is missing until it is inserted again.
                let placed = self.place(h, path, slot, size, op);
                placed.inspect_err(|err| h.abort(err))?;
            }
            Edit::Delete(slots) => {
                let at_front = slots.start == 0;
                let mut block = leaf.guard.edit()?;
                block.remove_items(slots.start, slots.len()).map_err(bad)?;
                if at_front && let Some(first) = block.view().first_key() {
                    path.first_key_changed(self, nth, &first)?;
                }
                let shrunk = leaf::shrink_leaf(h, self, &mut path);
                shrunk.inspect_err(|err| h.abort(err))?;
            }
        }
        Ok(upper)
    }

    fn place(
        &self,
        h: &mut dyn TreeWrite,
        path: Path,
        slot: usize,
        size: usize,
        op: &mut dyn LeafOp,
    ) -> Result<()> {
        let Placed {
            mut guard,
            slot,
            upper,
        } = leaf::insert(h, self, path, slot, &op.key(), size)?;
        let mut block = guard.edit()?;
        op.fill(block.item_data_mut(slot).map_err(|e| self.block_error(e))?);
        op.more(&mut block, upper.as_ref())
    }

    pub(super) fn check_size(&self, h: &dyn TreeWrite, key: &Key, size: usize) -> Result<()> {
        let nodesize = h.blocks().volume().geometry().nodesize as usize;
        if size + Item::SIZE <= leaf_data_size(nodesize) {
            return Ok(());
        }
        Err(Error::ItemTooLarge {
            root: self.id(),
            key: *key,
            size,
        })
    }
}

/// Whether an edit needs only a leaf that may change in place, not its ancestors.
fn fits(leaf: &LockedLeaf, edit: &Edit) -> Result<bool> {
    let view = leaf.guard.view()?;
    let free = view.free_space();
    let inner = |slot: usize| leaf.is_root || slot > 0;
    Ok(match edit {
        Edit::Keep | Edit::Update(_) => true,
        Edit::Insert { slot, size } => size + Item::SIZE <= free && inner(*slot),
        Edit::Resize { slot, size } => *size <= view.item_size(*slot).unwrap_or(0) + free,
        Edit::Delete(slots) if leaf.is_root => slots.end <= view.nritems(),
        Edit::Delete(slots) => {
            let gone: usize = slots
                .clone()
                .map(|s| Item::SIZE + view.item_size(s).unwrap_or(0))
                .sum();
            let (before, after) = (view.used_space(), view.used_space().saturating_sub(gone));
            let count = view.nritems();
            let few = |used| is_underfull(used, view.nodesize());
            // A leaf that cannot be merged is tried again only now and then.
            let merge = few(after) && (!few(before) || count.is_multiple_of(8));
            slots.start > 0 && !merge && slots.len() < count
        }
    })
}
