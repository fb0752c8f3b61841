//! Makes room in a leaf for an item, by splitting it, and merges leaves that have few bytes in use.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, Item, Key, leaf_data_size};

use super::block::{WriteGuard, first_key};
use super::path::{Path, Step, broken};
use super::{Root, TreeBlock, TreeWrite, cow, read};
use crate::{Error, Result};

/// Result of an insertion.
pub(super) struct Placed {
    pub(super) guard: WriteGuard,
    pub(super) slot: usize,
    /// Smallest key to the right of the leaf it is in.
    pub(super) upper: Option<Key>,
}

/// Inserts an item of `size` bytes at `slot` of the path's leaf, splitting it if it has no room.
/// Consumes the path's locks except that of the leaf with the item.
///
/// # Errors
/// No space: nothing changed. Any other error aborts the transaction.
pub(super) fn insert(
    h: &mut dyn TreeWrite,
    root: &Root,
    mut path: Path,
    slot: usize,
    key: &Key,
    size: usize,
) -> Result<Placed> {
    let need = size + Item::SIZE;
    let leaf = path.steps.last().ok_or_else(|| broken(root))?;
    let view = leaf.guard.view()?;
    if view.free_space() >= need {
        return insert_here(root, path, slot, key, size);
    }
    let at_end = slot == view.nritems();
    if path.steps.len() == 1 {
        path.grow(h, root)?;
    }
    if at_end && let Some(right) = roomy_right(h, root, &mut path, need)? {
        return insert_right(root, path, right, key, size).inspect_err(|err| h.abort(err));
    }
    let new = NewItem { slot, key, size };
    let split = match shared_right(h, root, &mut path, slot, need)? {
        Some(split) => split,
        None => new_right(h, root, &mut path, slot, need)?,
    };
    split.run(root, path, &new).inspect_err(|err| h.abort(err))
}

/// A split of the path's leaf with one or two new leaves to the right.
fn new_right(
    h: &mut dyn TreeWrite,
    root: &Root,
    path: &mut Path,
    slot: usize,
    need: usize,
) -> Result<Split> {
    let leaf = path.steps.last().ok_or_else(|| broken(root))?;
    let hint = leaf.block.bytenr();
    let cut = best_cut(&leaf.guard.view()?, slot, need, 0);
    let right = cow::new_block(h, root, 0, hint)?;
    let middle = match cut {
        Some(_) => None,
        None => Some(cow::new_block(h, root, 0, hint)?),
    };
    let guard = right.write(root.class());
    Ok(Split {
        leaf: path.steps.pop().ok_or_else(|| broken(root))?,
        right,
        guard,
        is_new: true,
        middle,
        cut,
    })
}

/// A split of the path's leaf that moves items to the leaf to the right, if both together,
/// including the new item, would not soon be full again.
fn shared_right(
    h: &mut dyn TreeWrite,
    root: &Root,
    path: &mut Path,
    slot: usize,
    need: usize,
) -> Result<Option<Split>> {
    let leaf = path.steps.last().ok_or_else(|| broken(root))?;
    let view = leaf.guard.view()?;
    let capacity = leaf_data_size(view.nodesize());
    let most = (2 * capacity * 3 / 4).saturating_sub(view.used_space());
    let free = (capacity + need).saturating_sub(most);
    let Some((right, guard, _)) = roomy_right(h, root, path, free)? else {
        return Ok(None);
    };
    let taken = guard.view()?.used_space();
    let leaf = path.steps.last().ok_or_else(|| broken(root))?;
    let Some(cut) = best_cut(&leaf.guard.view()?, slot, need, taken) else {
        return Ok(None);
    };
    Ok(Some(Split {
        leaf: path.steps.pop().ok_or_else(|| broken(root))?,
        right,
        guard,
        is_new: false,
        middle: None,
        cut: Some(cut),
    }))
}

fn insert_here(root: &Root, mut path: Path, slot: usize, key: &Key, size: usize) -> Result<Placed> {
    let last = path.steps.len().saturating_sub(1);
    if let Some(leaf) = path.steps.last_mut() {
        let mut edit = leaf.guard.edit()?;
        edit.insert_item(slot, key, size)
            .map_err(|e| root.block_error(e))?;
    }
    if slot == 0 {
        path.first_key_changed(root, last, key)?;
    }
    let leaf = path.steps.pop().ok_or_else(|| broken(root))?;
    Ok(Placed {
        guard: leaf.guard,
        slot,
        upper: path.upper,
    })
}

/// The leaf to the right under the same parent, locked, if it has room for `need` bytes.
fn roomy_right(
    h: &mut dyn TreeWrite,
    root: &Root,
    path: &mut Path,
    need: usize,
) -> Result<Option<(Arc<TreeBlock>, WriteGuard, usize)>> {
    let Some((_, Some(parent))) = path.leaf_and_parent() else {
        return Ok(None);
    };
    let slot = parent.slot + 1;
    let view = parent.guard.view()?;
    if slot >= view.nritems() {
        return Ok(None);
    }
    let Ok(right) = read::child(h.blocks(), root.id(), &view, slot) else {
        // Unreadable, but not needed: the leaf can be split.
        return Ok(None);
    };
    let bytes = right.read(root.class()).bytes();
    let free = Block::new(&bytes).map_or(0, |b| b.free_space());
    if free < need {
        return Ok(None);
    }
    let (block, guard) = cow::own_child(h, root, &mut parent.guard, slot, right)?;
    let room = guard.view()?.free_space() >= need;
    Ok(room.then_some((block, guard, slot)))
}

fn insert_right(
    root: &Root,
    mut path: Path,
    (_, mut guard, slot): (Arc<TreeBlock>, WriteGuard, usize),
    key: &Key,
    size: usize,
) -> Result<Placed> {
    let bad = |e| root.block_error(e);
    guard.edit()?.insert_item(0, key, size).map_err(bad)?;
    let (_, parent) = path.leaf_and_parent().ok_or_else(|| broken(root))?;
    let parent = parent.ok_or_else(|| broken(root))?;
    parent.guard.edit()?.set_key(slot, key).map_err(bad)?;
    // The end of the right leaf is known if its parent has another one after it.
    let upper = parent.guard.view()?.key(slot + 1).ok();
    let upper = upper.or(guard.view()?.last_key());
    Ok(Placed {
        guard,
        slot: 0,
        upper,
    })
}

/// Where to cut the sequence of a leaf's items, with a new one at `slot`. Both parts must fit, the
/// right one in addition to `taken` bytes, and be as equal as possible. At the end of a leaf the
/// cut is before the new item if the right leaf is new, because more items will follow. `None` if
/// there is no such cut: the new item then needs its own leaf between the parts.
fn best_cut(leaf: &Block<'_>, slot: usize, need: usize, taken: usize) -> Option<usize> {
    let count = leaf.nritems();
    let capacity = leaf_data_size(leaf.nodesize());
    if slot == count && taken == 0 {
        return Some(count);
    }
    let total = leaf.used_space() + need;
    let (mut left, mut best) = (0, None);
    for cut in 1..=count {
        left += match (cut - 1).cmp(&slot) {
            std::cmp::Ordering::Less => Item::SIZE + leaf.item_size(cut - 1).unwrap_or(0),
            std::cmp::Ordering::Equal => need,
            std::cmp::Ordering::Greater => Item::SIZE + leaf.item_size(cut - 2).unwrap_or(0),
        };
        let right = total - left + taken;
        if left <= capacity && right <= capacity {
            let uneven = left.abs_diff(right);
            if best.is_none_or(|(_, least)| uneven < least) {
                best = Some((cut, uneven));
            }
        }
    }
    best.map(|(cut, _)| cut)
}

struct NewItem<'a> {
    slot: usize,
    key: &'a Key,
    size: usize,
}

/// A leaf about to be split in two or three.
struct Split {
    leaf: Step,
    right: Arc<TreeBlock>,
    guard: WriteGuard,
    /// No pointer to the right leaf exists yet.
    is_new: bool,
    middle: Option<Arc<TreeBlock>>,
    cut: Option<usize>,
}

impl Split {
    /// `path` ends at the leaf's parent.
    fn run(mut self, root: &Root, mut path: Path, new: &NewItem<'_>) -> Result<Placed> {
        let bad = |e| root.block_error(e);
        let class = root.class();
        let (slot, size) = (new.slot, new.size);
        // The item is in the left part unless a cut decides otherwise.
        let in_left = self.cut.is_some_and(|cut| slot < cut);
        let at = match self.cut {
            Some(cut) if in_left => cut - 1,
            Some(cut) => cut,
            None => slot,
        };
        let mut edit = self.guard.edit()?;
        self.leaf
            .guard
            .edit()?
            .split_at(at, &mut edit)
            .map_err(bad)?;
        let mut place = None;
        if in_left {
            let mut left = self.leaf.guard.edit()?;
            left.insert_item(slot, new.key, size).map_err(bad)?;
        } else if self.cut.is_some() {
            edit.insert_item(slot - at, new.key, size).map_err(bad)?;
            place = Some(slot - at);
        }
        let right_key = first_key(&self.guard.view()?);
        let parents = path.steps.len();
        let parent = path.steps.last_mut().ok_or_else(|| broken(root))?;
        let at = parent.slot + 1;
        let generation = self.right.generation();
        let mut above = parent.guard.edit()?;
        if self.is_new {
            let bytenr = self.right.bytenr();
            above
                .insert_ptr(at, &right_key, bytenr, generation)
                .map_err(bad)?;
        } else {
            above.set_key(at, &right_key).map_err(bad)?;
        }
        if let Some(middle) = self.middle {
            let mut guard = middle.write(class);
            guard.edit()?.insert_item(0, new.key, size).map_err(bad)?;
            let mut above = parent.guard.edit()?;
            above
                .insert_ptr(at, new.key, middle.bytenr(), generation)
                .map_err(bad)?;
            return Ok(Placed {
                guard,
                slot: 0,
                upper: Some(right_key),
            });
        }
        if slot == 0 {
            path.first_key_changed(root, parents, new.key)?;
        }
        Ok(match place {
            Some(slot) => Placed {
                guard: self.guard,
                slot,
                upper: path.upper,
            },
            None => Placed {
                guard: self.leaf.guard,
                slot,
                upper: Some(right_key),
            },
        })
    }
}

/// Whether a leaf has so few bytes in use that it should be merged.
pub(super) fn is_underfull(used: usize, nodesize: usize) -> bool {
    used < leaf_data_size(nodesize) / 4
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
