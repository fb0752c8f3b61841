//! Creates trees: empty ones, and copies of another tree's top block.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, RootItem};

use super::{Root, TreeBlock, TreeWrite, cow, refs};
use crate::Result;

/// Creates a tree with one empty leaf. Its root item has only address, level, generation and one
/// ref; the caller completes it and inserts it into the root tree.
///
/// # Errors
/// No space.
pub(crate) fn create_root(h: &mut dyn TreeWrite, id: u64) -> Result<Arc<Root>> {
    let leaf = cow::new_block_of(h, id, 0, 0)?;
    let item = RootItem {
        generation: h.transid().into(),
        generation_v2: h.transid().into(),
        bytenr: leaf.bytenr().into(),
        refs: 1.into(),
        ..RootItem::default()
    };
    let root = Arc::new(Root::new(id, 0, leaf, item));
    h.record_root(&root)?;
    Ok(root)
}

/// Copies a tree's top block for tree `new_id`, and adds a ref to each child (or, for a leaf, to
/// each data extent). The caller then sets `last_snapshot` of both trees before anything else
/// changes in them. No other thread may change the tree meanwhile: only the commit calls this.
///
/// # Errors
/// No space: nothing changed. Any other error aborts the transaction.
pub(crate) fn copy_root(
    h: &mut dyn TreeWrite,
    root: &Arc<Root>,
    new_id: u64,
) -> Result<Arc<TreeBlock>> {
    if root.last_trans() != h.transid() {
        h.record_root(root)?;
    }
    let mut top = root.write_node();
    // The top block itself is never shared, so one of this transaction may stay, whatever snapshots
    // were taken of the blocks below it.
    let fresh = top.block().generation() == h.transid() && !top.block().is_written();
    if !fresh {
        let copy = cow::cow(h, root, top.block())?;
        top.set(copy);
    }
    let source = top.block().snapshot();
    let bytenr = h.alloc_block(new_id, top.block().bytenr())?;
    duplicate(h, root, &source, bytenr, new_id).inspect_err(|err| h.abort(err))
}

fn duplicate(
    h: &mut dyn TreeWrite,
    root: &Root,
    source: &Arc<[u8]>,
    bytenr: u64,
    new_id: u64,
) -> Result<Arc<TreeBlock>> {
    let new = cow::duplicate(h, root, source, bytenr, new_id)?;
    let bytes = new.snapshot();
    let block = Block::new(&bytes).map_err(|e| root.block_error(e))?;
    refs::change_children(h, root, &block, None, true)?;
    Ok(new)
}
