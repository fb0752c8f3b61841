//! Items of a tree, read from its leaves.

use std::ops::ControlFlow;

use sapwood_btrfs_format::{Block, Key};

use super::leaves::Leaves;
use super::nodes::Nodes;

/// Calls `each` for the items from `from` to `to`, both included, in order, until it breaks.
/// Returns false if the bytes of a leaf could not be read again.
pub(super) fn items(
    nodes: &Nodes,
    leaves: &Leaves,
    from: Key,
    to: Key,
    each: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
) -> bool {
    let mut complete = true;
    for leaf in leaves.leaves.get(leaves.from(&from)..).unwrap_or_default() {
        if leaf.span.start > to {
            break;
        }
        let Some(bytes) = nodes.bytes(leaf.logical, leaf.generation) else {
            complete = false;
            continue;
        };
        let Ok(block) = Block::new(&bytes) else {
            complete = false;
            continue;
        };
        let first = from.max(leaf.span.start);
        let slot = block.search(&first).unwrap_or_else(|slot| slot);
        for slot in slot..block.nritems() {
            let Ok((key, data)) = block.entry(slot) else {
                complete = false;
                continue;
            };
            if key > to || leaf.span.end.is_some_and(|end| key >= end) {
                break;
            }
            if each(key, data).is_break() {
                return complete;
            }
        }
    }
    complete
}

/// The item with this key.
pub(super) fn item(nodes: &Nodes, leaves: &Leaves, key: Key) -> Option<Vec<u8>> {
    let mut found = None;
    items(nodes, leaves, key, key, &mut |_, data| {
        found = Some(data.to_vec());
        ControlFlow::Break(())
    });
    found
}

/// The last item from `least` to `key`, both included.
pub(super) fn floor(
    nodes: &Nodes,
    leaves: &Leaves,
    key: Key,
    least: Key,
) -> Option<(Key, Vec<u8>)> {
    let mut at = leaves.from(&key).min(leaves.leaves.len().checked_sub(1)?);
    loop {
        let leaf = leaves.leaves.get(at)?;
        if leaf.span.end.is_some_and(|end| end <= least) {
            return None;
        }
        if let Some(found) = last_in(nodes, leaf, key, least) {
            return Some(found);
        }
        at = at.checked_sub(1)?;
    }
}

/// The last item of a leaf from `least` to `key`.
fn last_in(
    nodes: &Nodes,
    leaf: &super::leaves::Leaf,
    key: Key,
    least: Key,
) -> Option<(Key, Vec<u8>)> {
    let bytes = nodes.bytes(leaf.logical, leaf.generation)?;
    let block = Block::new(&bytes).ok()?;
    let key = match leaf.span.end {
        Some(end) if end <= key => end.predecessor()?,
        _ => key,
    };
    let slot = match block.search(&key) {
        Ok(slot) => slot,
        Err(slot) => slot.checked_sub(1)?,
    };
    let (found, data) = block.entry(slot).ok()?;
    let fits = found >= least && found >= leaf.span.start && found <= key;
    fits.then(|| (found, data.to_vec()))
}
