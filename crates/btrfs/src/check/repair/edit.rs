//! Changes items in place, in all copies of their leaf.
//!
//! The first key of a leaf stays as it is, because several parents may name it. A leaf never
//! becomes empty. A change that needs more room than the leaf has is refused.

use std::collections::BTreeMap;

use sapwood_btrfs_format::{Block, BlockMut, Key, validate_block};

use super::super::error::CheckError;
use super::super::state::{Check, Pointer, children};

/// Finds and changes leaves.
pub(super) struct Editor<'c, 'd> {
    check: &'c Check<'d>,
    roots: BTreeMap<u64, Pointer>,
    /// Changes are tried, not written.
    trial: bool,
}

/// A leaf with its location.
struct Leaf {
    at: Pointer,
    bytes: Vec<u8>,
    is_root: bool,
}

impl<'c, 'd> Editor<'c, 'd> {
    /// Expects a check that has read the root tree.
    pub(super) fn new(check: &'c Check<'d>) -> Self {
        let mut roots = BTreeMap::new();
        for (tree, root, _) in check.all_roots() {
            roots.entry(tree).or_insert(root);
        }
        Self {
            check,
            roots,
            trial: false,
        }
    }

    /// The same, for changes that are tried only: nothing is written.
    pub(super) fn trial(check: &'c Check<'d>) -> Self {
        Self {
            trial: true,
            ..Self::new(check)
        }
    }

    /// The root of a tree.
    pub(super) fn root(&self, tree: u64) -> Option<Pointer> {
        self.roots.get(&tree).copied()
    }

    /// Calls `f` for the items `from..=to`.
    pub(super) fn range(
        &self,
        tree: u64,
        from: &Key,
        to: &Key,
        on_item: &mut dyn FnMut(Key, &[u8]),
    ) {
        if let Some(root) = self.root(tree) {
            self.check.range(tree, &root, from, to, on_item);
        }
    }

    /// The leaf that has or would have a key.
    fn leaf(&self, tree: u64, key: &Key) -> Option<Leaf> {
        let mut at = self.root(tree)?;
        let mut is_root = true;
        // Levels fall strictly, because each block is validated against its parent.
        loop {
            let bytes = self.check.quiet_block(tree, &at)?;
            let block = Block::new(&bytes).ok()?;
            if block.is_leaf() {
                return Some(Leaf { at, bytes, is_root });
            }
            at = *children(&block).get(block.child_slot(key)?)?;
            is_root = false;
        }
    }

    /// Changes the leaf that has or would have a key, at the slot where the key is (`Ok`) or would
    /// be (`Err`). Returns whether it was written: `change` may refuse.
    pub(super) fn change(
        &self,
        tree: u64,
        key: &Key,
        change: impl FnOnce(&mut BlockMut<'_>, Result<usize, usize>) -> Option<()>,
    ) -> Result<bool, CheckError> {
        let Some(mut leaf) = self.leaf(tree, key) else {
            return Ok(false);
        };
        let Ok(mut block) = BlockMut::new(&mut leaf.bytes) else {
            return Ok(false);
        };
        let slot = block.view().search(key);
        if change(&mut block, slot).is_none() {
            return Ok(false);
        }
        self.write(tree, leaf)
    }

    fn write(&self, tree: u64, mut leaf: Leaf) -> Result<bool, CheckError> {
        let Some(kind) = self.check.sb.checksum_kind() else {
            return Ok(false);
        };
        kind.seal_block(&mut leaf.bytes);
        // A root has no key in a parent.
        let expect = self.check.expect(tree, &leaf.at);
        let valid = validate_block(&leaf.bytes, &expect).is_ok();
        let filled = Block::new(&leaf.bytes).is_ok_and(|block| block.nritems() > 0);
        if !valid || !(filled || leaf.is_root) {
            return Ok(false);
        }
        if self.trial {
            return Ok(true);
        }
        Ok(self.check.write_block(leaf.at.logical, &leaf.bytes)?)
    }

    /// Changes the data of an item, whose length stays.
    pub(super) fn edit(
        &self,
        tree: u64,
        key: &Key,
        change: impl FnOnce(&mut [u8]) -> Option<()>,
    ) -> Result<bool, CheckError> {
        self.change(tree, key, |block, slot| {
            change(block.item_data_mut(slot.ok()?).ok()?)
        })
    }

    /// Inserts an item, or replaces its data.
    pub(super) fn put(&self, tree: u64, key: &Key, data: &[u8]) -> Result<bool, CheckError> {
        self.change(tree, key, |block, slot| {
            let slot = match slot {
                Ok(slot) => {
                    block.resize_item(slot, data.len(), false).ok()?;
                    block.item_data_mut(slot).ok()?.copy_from_slice(data);
                    return Some(());
                }
                Err(slot) => slot,
            };
            block.insert(slot, key, data).ok()
        })
    }

    /// Removes an item.
    pub(super) fn remove(&self, tree: u64, key: &Key) -> Result<bool, CheckError> {
        self.change(tree, key, |block, slot| {
            block.remove_items(slot.ok()?, 1).ok()
        })
    }
}
