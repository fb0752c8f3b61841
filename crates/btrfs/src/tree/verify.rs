//! Verifies a whole tree.

use sapwood_btrfs_format::Key;

use super::read::child;
use super::{Root, TreeBlock, TreeRead};
use crate::lock::TreeClass;
use crate::{Error, Result};

/// Counts of [`verify_tree`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeStats {
    /// Nodes and leaves.
    pub(crate) blocks: u64,
    /// Leaves.
    pub(crate) leaves: u64,
    /// Items.
    pub(crate) items: u64,
    /// Bytes of items and their headers.
    pub(crate) used: u64,
}

/// Walks a tree that does not change, and checks the relations between its blocks: levels,
/// generations, that each block begins with the key in its parent and ends before the next one,
/// that keys ascend. Each block by itself was validated when it was read.
///
/// # Errors
/// [`Error::StaleBlock`] with the defect; unreadable blocks.
pub(crate) fn verify_tree(env: &(impl TreeRead + ?Sized), root: &Root) -> Result<TreeStats> {
    let mut stats = TreeStats::default();
    let top = root.node();
    walk(env, root, &top, None, None, &mut stats)?;
    Ok(stats)
}

fn walk(
    env: &(impl TreeRead + ?Sized),
    root: &Root,
    block: &TreeBlock,
    first: Option<Key>,
    end: Option<Key>,
    stats: &mut TreeStats,
) -> Result<()> {
    let guard = block.read(TreeClass::Committed);
    let bytes = guard.bytes();
    drop(guard);
    let view = sapwood_btrfs_format::Block::new(&bytes).map_err(|e| root.block_error(e))?;
    let bad = |reason: String| {
        Err(Error::StaleBlock {
            root: root.id(),
            logical: block.bytenr(),
            reason,
        })
    };
    if view.bytenr() != block.bytenr() || view.level() != block.level() {
        return bad(format!(
            "header of block {} level {}",
            view.bytenr(),
            view.level()
        ));
    }
    if first.is_some() && view.first_key() != first {
        return bad(format!(
            "first key {:?}, parent has {first:?}",
            view.first_key()
        ));
    }
    let mut last: Option<Key> = None;
    for slot in 0..view.nritems() {
        let key = view.key(slot).map_err(|e| root.block_error(e))?;
        if last.is_some_and(|last| last >= key) || end.is_some_and(|end| key >= end) {
            return bad(format!("slot {slot} key {key} after {last:?}, end {end:?}"));
        }
        last = Some(key);
    }
    stats.blocks += 1;
    if view.is_leaf() {
        stats.leaves += 1;
        stats.items += view.nritems() as u64;
        stats.used += view.used_space() as u64;
        return Ok(());
    }
    if view.nritems() == 0 {
        return bad("empty node".to_owned());
    }
    for slot in 0..view.nritems() {
        let next = child(env.blocks(), root.id(), &view, slot)?;
        let upper = view.key(slot + 1).ok().or(end);
        let key = view.key(slot).map_err(|e| root.block_error(e))?;
        walk(env, root, &next, Some(key), upper, stats)?;
    }
    Ok(())
}
