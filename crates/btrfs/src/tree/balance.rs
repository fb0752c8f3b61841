//! Keeps blocks reasonably full: merges and balances siblings.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, Key, leaf_data_size, node_ptrs};

use super::block::WriteGuard;
use super::path::{Path, Step};
use super::{Root, TreeBlock, TreeWrite, cow, first_key, read};
use crate::{Error, Result};

/// Whether a leaf has so few bytes in use that it should be merged.
pub(super) fn is_underfull(used: usize, nodesize: usize) -> bool {
    used < leaf_data_size(nodesize) / 4
}

/// Merges the last step, a node with few pointers, with a sibling, or balances the two. The parent
/// is safe, so there is a sibling. The path continues in the block that leads to `key`.
pub(super) fn balance_node(
    h: &mut dyn TreeWrite,
    root: &Root,
    path: &mut Path,
    key: &Key,
) -> Result<()> {
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

/// After a deletion: removes the path's leaf from the tree if it is empty, or merges it with a
/// sibling if the result has room left. The ancestors must have the leaf's correct first key.
///
/// # Errors
/// Any error aborts the transaction. An unreadable sibling is not an error: nothing is merged then.
pub(super) fn shrink_leaf(h: &mut dyn TreeWrite, root: &Root, path: &mut Path) -> Result<()> {
    let parents = path.steps.len().saturating_sub(1);
    let Some((leaf, Some(parent))) = path.leaf_and_parent() else {
        return Ok(());
    };
    let view = leaf.guard.view()?;
    let (count, used, nodesize) = (view.nritems(), view.used_space(), view.nodesize());
    if count == 0 {
        let slot = parent.slot;
        let gone = leaf.block.clone();
        let mut above = parent.guard.edit()?;
        if above.view().nritems() < 2 {
            return Err(Error::StaleBlock {
                root: root.id(),
                logical: gone.bytenr(),
                reason: "its parent has no other child".to_owned(),
            });
        }
        above.remove_ptr(slot).map_err(|e| root.block_error(e))?;
        let first = first_key(&above.view());
        path.steps.pop();
        if slot == 0 {
            path.first_key_changed(root, parents - 1, &first)?;
        }
        return cow::let_go(h, root, &gone, true);
    }
    if !is_underfull(used, nodesize) || parent.guard.view()?.nritems() < 2 {
        return Ok(());
    }
    let slot = parent.slot;
    if slot > 0
        && let Some((_, mut left)) = roomy_sibling(h, root, parent, slot - 1, used)?
    {
        let mut into = left.edit()?;
        let mut edit = leaf.guard.edit()?;
        edit.push_left(&mut into, count)
            .map_err(|e| root.block_error(e))?;
        return drop_leaf(h, root, parent, slot, &leaf.block);
    }
    if let Some((right, mut guard)) = roomy_sibling(h, root, parent, slot + 1, used)? {
        let count = guard.view()?.nritems();
        let mut into = leaf.guard.edit()?;
        guard
            .edit()?
            .push_left(&mut into, count)
            .map_err(|e| root.block_error(e))?;
        drop(guard);
        return drop_leaf(h, root, parent, slot + 1, &right);
    }
    Ok(())
}

fn drop_leaf(
    h: &mut dyn TreeWrite,
    root: &Root,
    parent: &mut Step,
    slot: usize,
    leaf: &TreeBlock,
) -> Result<()> {
    let mut above = parent.guard.edit()?;
    above.remove_ptr(slot).map_err(|e| root.block_error(e))?;
    cow::let_go(h, root, leaf, true)
}

/// The leaf in another slot of the parent, locked for change, if a quarter would stay free after
/// adding `used` bytes.
fn roomy_sibling(
    h: &mut dyn TreeWrite,
    root: &Root,
    parent: &mut Step,
    slot: usize,
    used: usize,
) -> Result<Option<(Arc<TreeBlock>, WriteGuard)>> {
    let view = parent.guard.view()?;
    if slot >= view.nritems() {
        return Ok(None);
    }
    let Ok(sibling) = read::child(h.blocks(), root.id(), &view, slot) else {
        return Ok(None);
    };
    let fits = |block: &Block<'_>| {
        let limit = leaf_data_size(block.nodesize()) * 3 / 4;
        block.used_space() + used <= limit
    };
    let bytes = sibling.read(root.class()).bytes();
    if !Block::new(&bytes).is_ok_and(|b| fits(&b)) {
        return Ok(None);
    }
    drop(bytes);
    let (block, guard) = cow::own_child(h, root, &mut parent.guard, slot, sibling)?;
    // A thread that entered the leaf earlier may have filled it.
    let still = fits(&guard.view()?);
    Ok(still.then_some((block, guard)))
}
