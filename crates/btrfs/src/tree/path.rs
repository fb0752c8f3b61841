//! Descends a tree to change it.
//!
//! # How it works
//! [`lock_leaf`] descends like a reader and locks only the leaf. It also determines the level from
//! which a writer must lock if the leaf alone is not enough: one above the topmost block of the
//! path that must be copied, or else the leaf's parent.
//!
//! [`lock_path`] descends like a reader to that level and locks from there on. Every block that it
//! keeps may change in place.
//!
//! Before it steps from a node to its child, the node is *safe*: it has room for [`ROOM`] more
//! pointers, and at least two. The child is made safe by splitting it, or by merging or balancing
//! it with a sibling. Then the blocks above it are unlocked, unless the key is at or before the
//! child's first key: then the change may give the child a new first key, which the blocks above
//! repeat.
//!
//! The topmost locked block cannot be made safe, because its parent is not locked. If it is not
//! safe, the search starts again one level higher. Above the top block is the root pointer, from
//! which everything is possible: a new top block above a full one, or the only child in place of
//! its parent.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, Key, node_ptrs};

use super::block::{ReadGuard, WriteGuard, first_key};
use super::root::{NodeRead, NodeWrite};
use super::{Root, TreeBlock, TreeWrite, cow, read};
use crate::{Error, Result};

/// Number of pointers for which a node must have room before its child is locked. Splitting a leaf
/// in three takes two.
pub(super) const ROOM: usize = 3;

/// Locks everything, including the root pointer.
pub(super) const TOP: u8 = u8::MAX;

/// A locked block of the path, and the slot that the path takes below it.
pub(super) struct Step {
    pub(super) block: Arc<TreeBlock>,
    pub(super) guard: WriteGuard,
    pub(super) slot: usize,
}

/// The locked lower end of the path to a leaf.
pub(super) struct Path {
    /// Held while the top block may be replaced.
    pub(super) top: Option<NodeWrite>,
    /// Steps from the top down; the last is the leaf.
    pub(super) steps: Vec<Step>,
    /// Smallest key to the right of the leaf.
    pub(super) upper: Option<Key>,
}

/// A leaf locked alone.
pub(super) struct LockedLeaf {
    pub(super) block: Arc<TreeBlock>,
    pub(super) guard: WriteGuard,
    /// Smallest key to the right of the leaf.
    pub(super) upper: Option<Key>,
    /// It is the whole tree.
    pub(super) is_root: bool,
    /// Level to lock from if the leaf alone is not enough.
    pub(super) from: u8,
}

/// Descends like a reader and locks the leaf for writing.
pub(super) fn lock_leaf(h: &dyn TreeWrite, root: &Root, key: &Key) -> Result<LockedLeaf> {
    let (class, transid) = (root.class(), h.transid());
    let node = root.read_node();
    let top = node.block();
    let mut from = if root.in_place(top, transid) { 1 } else { TOP };
    if top.level() == 0 {
        return Ok(LockedLeaf {
            block: top.clone(),
            guard: top.write(class),
            upper: None,
            is_root: true,
            from: TOP,
        });
    }
    let mut guard = top.read(class);
    drop(node);
    let mut upper = None;
    loop {
        let view = guard.view()?;
        let (child, _) = next(h, root, &view, key, &mut upper)?;
        if from == 1 && !root.in_place(&child, transid) {
            from = child.level() + 1;
        }
        if child.level() == 0 {
            let leaf = child.write(class);
            return Ok(LockedLeaf {
                block: child,
                guard: leaf,
                upper,
                is_root: false,
                from,
            });
        }
        let lower = child.read(class);
        guard = lower;
    }
}

/// The child that leads to `key`, and its slot.
fn next(
    h: &dyn TreeWrite,
    root: &Root,
    node: &Block<'_>,
    key: &Key,
    upper: &mut Option<Key>,
) -> Result<(Arc<TreeBlock>, usize)> {
    let slot = read::child_slot(root.id(), node, key)?;
    if let Ok(right) = node.key(slot + 1) {
        *upper = Some(right);
    }
    Ok((read::child(h.blocks(), root.id(), node, slot)?, slot))
}

/// Result of [`lock_path`].
pub(super) enum Locked {
    /// The path to the leaf.
    Path(Path),
    /// The topmost block to lock is not safe: start again from this level.
    From(u8),
}

/// Locks the path to the leaf of `key` from level `from` down, at least the leaf and its parent.
///
/// # Errors
/// Unreadable blocks; no space.
pub(super) fn lock_path(h: &mut dyn TreeWrite, root: &Root, key: &Key, from: u8) -> Result<Locked> {
    let mut path = Path {
        top: None,
        steps: Vec::with_capacity(4),
        upper: None,
    };
    if from == TOP || !path.start(h, root, key, from)? {
        if from != TOP {
            let level = root.node().level();
            return Ok(Locked::From(if from >= level { TOP } else { from + 1 }));
        }
        path.start_at_top(h, root)?;
    }
    path.go_down(h, root, key)?;
    Ok(Locked::Path(path))
}

/// The reader's lock above the first block that is locked for writing. Only held, not used.
#[allow(dead_code, reason = "the guard only keeps the lock")]
enum Above {
    Pointer(NodeRead),
    Block(ReadGuard),
}

impl Path {
    /// Locks the block of level `from` on the path. Returns false if it is not safe.
    fn start(&mut self, h: &dyn TreeWrite, root: &Root, key: &Key, from: u8) -> Result<bool> {
        let class = root.class();
        let node = root.read_node();
        let mut block = node.block().clone();
        if block.level() < from {
            return Ok(false);
        }
        let mut above = Above::Pointer(node);
        while block.level() > from {
            let guard = block.read(class);
            let (child, _) = next(h, root, &guard.view()?, key, &mut self.upper)?;
            above = Above::Block(guard);
            block = child;
        }
        if !root.in_place(&block, h.transid()) {
            return Ok(false);
        }
        let guard = block.write(class);
        let view = guard.view()?;
        let is_root = matches!(above, Above::Pointer(_));
        let safe = is_safe(&view) && (is_root || view.first_key().is_some_and(|k| *key > k));
        drop(above);
        if safe {
            self.steps.push(Step {
                block,
                guard,
                slot: 0,
            });
        }
        Ok(safe)
    }

    /// Locks the root pointer and the top block, which is safe afterwards, or a leaf.
    fn start_at_top(&mut self, h: &mut dyn TreeWrite, root: &Root) -> Result<()> {
        let mut top = root.write_node();
        loop {
            if !root.in_place(top.block(), h.transid()) {
                let copy = cow::cow(h, root, top.block())?;
                top.set(copy);
            }
            let block = top.block().clone();
            let guard = block.write(root.class());
            let view = guard.view()?;
            if view.is_leaf() {
                self.push(block, guard);
                break;
            }
            if view.nritems() == 1 {
                let child = read::child(h.blocks(), root.id(), &view, 0)?;
                top.set(child);
                drop(guard);
                cow::let_go(h, root, &block, true).inspect_err(|err| h.abort(err))?;
                continue;
            }
            let full = !has_room(&view);
            self.push(block, guard);
            if full {
                self.top = Some(top);
                self.grow(h, root)?;
                split_node(h, root, self, None)?;
                self.top = None;
                return Ok(());
            }
            break;
        }
        if self.steps.first().is_some_and(|s| s.block.level() == 0) {
            // A leaf that becomes full needs a new top block above it.
            self.top = Some(top);
        }
        Ok(())
    }

    fn push(&mut self, block: Arc<TreeBlock>, guard: WriteGuard) {
        self.steps.push(Step {
            block,
            guard,
            slot: 0,
        });
    }

    /// Adds a new top block above the first step, which is the current top block.
    pub(super) fn grow(&mut self, h: &mut dyn TreeWrite, root: &Root) -> Result<()> {
        let Some(step) = self.steps.first().filter(|_| self.top.is_some()) else {
            return Err(Error::StaleBlock {
                root: root.id(),
                logical: 0,
                reason: "the path to a leaf does not begin at the top".to_owned(),
            });
        };
        let level = step.block.level() + 1;
        if level > sapwood_btrfs_format::block::MAX_LEVEL {
            return Err(Error::TreeTooHigh { root: root.id() });
        }
        let first = first_key(&step.guard.view()?);
        let (child, generation) = (step.block.bytenr(), step.block.generation());
        let block = cow::new_block(h, root, level, child)?;
        let mut guard = block.write_new(root.class());
        let mut edit = guard.edit()?;
        edit.insert_ptr(0, &first, child, generation)
            .map_err(|e| root.block_error(e))?;
        if let Some(top) = &mut self.top {
            top.set(block.clone());
        }
        let slot = 0;
        self.steps.insert(0, Step { block, guard, slot });
        Ok(())
    }

    /// Continues from the last step down to the leaf.
    fn go_down(&mut self, h: &mut dyn TreeWrite, root: &Root, key: &Key) -> Result<()> {
        loop {
            let Some(node) = self.steps.last_mut() else {
                return Ok(());
            };
            if node.block.level() == 0 {
                return Ok(());
            }
            let (child, slot) = next(h, root, &node.guard.view()?, key, &mut self.upper)?;
            node.slot = slot;
            let (block, guard) = cow::own_child(h, root, &mut node.guard, slot, child)?;
            let view = guard.view()?;
            let (leaf, room, few) = (view.is_leaf(), has_room(&view), has_few(&view));
            self.push(block, guard);
            if leaf {
                return Ok(());
            }
            if !room {
                split_node(h, root, self, Some(key))?;
            } else if few {
                balance_node(h, root, self, key)?;
            }
            self.let_go_above(key)?;
        }
    }

    /// Unlocks the blocks above the last step, unless its first key may change.
    fn let_go_above(&mut self, key: &Key) -> Result<()> {
        let Some(last) = self.steps.last() else {
            return Ok(());
        };
        if last
            .guard
            .view()?
            .first_key()
            .is_some_and(|first| *key > first)
        {
            let above = self.steps.len() - 1;
            self.steps.drain(..above);
            self.top = None;
        }
        Ok(())
    }

    /// The leaf and, if it is not the whole tree, its parent.
    pub(super) fn leaf_and_parent(&mut self) -> Option<(&mut Step, Option<&mut Step>)> {
        let (leaf, above) = self.steps.split_last_mut()?;
        Some((leaf, above.last_mut()))
    }

    /// Updates the ancestors of the step at `nth`, which has a new first key.
    pub(super) fn first_key_changed(&mut self, root: &Root, nth: usize, key: &Key) -> Result<()> {
        for step in self.steps.iter_mut().take(nth).rev() {
            let slot = step.slot;
            let mut edit = step.guard.edit()?;
            edit.set_key(slot, key).map_err(|e| root.block_error(e))?;
            if slot > 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Whether a node has room for the pointers that a change below it may add.
pub(super) fn has_room(node: &Block<'_>) -> bool {
    node.nritems() + ROOM <= node_ptrs(node.nodesize())
}

/// Whether a node should be merged or balanced with a sibling.
pub(super) fn has_few(node: &Block<'_>) -> bool {
    node.nritems() < node_ptrs(node.nodesize()) / 4
}

/// Whether a change below a node can neither fill it nor leave it empty.
fn is_safe(node: &Block<'_>) -> bool {
    has_room(node) && node.nritems() >= 2
}

/// The error for a path that ends too early.
pub(super) fn broken(root: &Root) -> Error {
    Error::StaleBlock {
        root: root.id(),
        logical: 0,
        reason: "the path to a block has no parent for it".to_owned(),
    }
}

/// Splits the last step, a full node; its parent has room. The path continues in the half that
/// leads to `key`, or ends at the parent if there is no key.
fn split_node(
    h: &mut dyn TreeWrite,
    root: &Root,
    path: &mut Path,
    key: Option<&Key>,
) -> Result<()> {
    let mut node = path.steps.pop().ok_or_else(|| broken(root))?;
    let parent = path.steps.last_mut().ok_or_else(|| broken(root))?;
    let right = cow::new_block(h, root, node.block.level(), node.block.bytenr())?;
    let mut right_guard = right.write(root.class());
    let view = node.guard.view()?;
    let count = view.nritems();
    // Ascending insertion leaves full nodes behind, but the new node must not have few pointers.
    let at_end = key.is_some_and(|key| view.child_slot(key) == Some(count - 1));
    let cut = if at_end { count * 5 / 8 } else { count / 2 };
    let bad = |e| root.block_error(e);
    let result = node.guard.edit().and_then(|mut left| {
        let mut edit = right_guard.edit()?;
        left.split_at(cut, &mut edit).map_err(bad)?;
        let middle = first_key(&edit.view());
        let (bytenr, generation) = (right.bytenr(), right.generation());
        let mut above = parent.guard.edit()?;
        above
            .insert_ptr(parent.slot + 1, &middle, bytenr, generation)
            .map_err(bad)?;
        Ok(middle)
    });
    let middle = result.inspect_err(|err| h.abort(err))?;
    match key {
        None => {}
        Some(key) if *key >= middle => {
            parent.slot += 1;
            path.steps.push(Step {
                block: right,
                guard: right_guard,
                slot: 0,
            });
        }
        Some(_) => {
            path.steps.push(node);
            // The other half is now to the right of the path, instead of the parent's old
            // neighbour.
            path.upper = Some(middle);
        }
    }
    Ok(())
}

/// Merges the last step, a node with few pointers, with a sibling, or balances the two. The parent
/// is safe, so there is a sibling. The path continues in the block that leads to `key`.
fn balance_node(h: &mut dyn TreeWrite, root: &Root, path: &mut Path, key: &Key) -> Result<()> {
    let Some(node) = path.steps.pop() else {
        return Ok(());
    };
    let Some(parent) = path.steps.last_mut() else {
        path.steps.push(node);
        return Ok(());
    };
    let view = parent.guard.view()?;
    if view.nritems() < 2 {
        path.steps.push(node);
        return Ok(());
    }
    let to_left = parent.slot > 0;
    let other_slot = if to_left {
        parent.slot - 1
    } else {
        parent.slot + 1
    };
    let other = read::child(h.blocks(), root.id(), &view, other_slot)?;
    let (block, guard) = cow::own_child(h, root, &mut parent.guard, other_slot, other)?;
    let other = Step {
        block,
        guard,
        slot: 0,
    };
    let left_slot = parent.slot.min(other_slot);
    let (left, right) = if to_left {
        (other, node)
    } else {
        (node, other)
    };
    let step =
        even_out(h, root, parent, left_slot, left, right, key).inspect_err(|err| h.abort(err))?;
    path.steps.push(step);
    Ok(())
}

/// Merges `right` into `left` if that leaves room; otherwise moves pointers until both have equally
/// many.
fn even_out(
    h: &mut dyn TreeWrite,
    root: &Root,
    parent: &mut Step,
    left_slot: usize,
    mut left: Step,
    mut right: Step,
    key: &Key,
) -> Result<Step> {
    let bad = |e| root.block_error(e);
    let (l, r) = (left.guard.view()?.nritems(), right.guard.view()?.nritems());
    let capacity = node_ptrs(left.guard.view()?.nodesize());
    let mut above = parent.guard.edit()?;
    if l + r <= capacity * 3 / 4 {
        let mut edit = left.guard.edit()?;
        right.guard.edit()?.push_left(&mut edit, r).map_err(bad)?;
        above.remove_ptr(left_slot + 1).map_err(bad)?;
        parent.slot = left_slot;
        let gone: Arc<TreeBlock> = right.block.clone();
        drop(right);
        cow::let_go(h, root, &gone, true)?;
        return Ok(left);
    }
    let mut right_edit = right.guard.edit()?;
    let mut left_edit = left.guard.edit()?;
    if l > r {
        left_edit
            .push_right(&mut right_edit, (l - r) / 2)
            .map_err(bad)?;
    } else {
        right_edit
            .push_left(&mut left_edit, (r - l) / 2)
            .map_err(bad)?;
    }
    let middle = first_key(&right_edit.view());
    above.set_key(left_slot + 1, &middle).map_err(bad)?;
    if *key >= middle {
        parent.slot = left_slot + 1;
        Ok(right)
    } else {
        parent.slot = left_slot;
        Ok(left)
    }
}
