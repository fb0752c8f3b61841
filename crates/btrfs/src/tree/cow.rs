//! Copies a block before it changes, creates new blocks and trees, and frees old ones.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, BlockInit, BlockMut, RootItem, block::header_flag};

use super::block::{BlockBytes, WriteGuard};
use super::{BlockRef, Root, TreeBlock, TreeWrite, refs};
use crate::lock::TreeClass;
use crate::{Error, Result};

/// Flags of a block that is not on disk yet.
const NEW_FLAGS: u64 = header_flag::MIXED_BACKREF_REV << header_flag::BACKREF_REV_SHIFT;

/// Creates an empty block of a tree, dirty and cached, with its first ref.
///
/// # Errors
/// No space.
pub(super) fn new_block(
    h: &mut dyn TreeWrite,
    root: &Root,
    level: u8,
    hint: u64,
) -> Result<Arc<TreeBlock>> {
    new_block_of(h, root.id(), level, hint)
}

/// The same for a tree that is being created.
pub(super) fn new_block_of(
    h: &mut dyn TreeWrite,
    root_id: u64,
    level: u8,
    hint: u64,
) -> Result<Arc<TreeBlock>> {
    let bytenr = h.alloc_block(root_id, hint)?;
    let volume = h.blocks().volume();
    let init = BlockInit {
        bytenr,
        level,
        generation: h.transid(),
        owner: root_id,
        fsid: volume.geometry().fsid,
        chunk_tree_uuid: volume.chunk_tree_uuid(),
    };
    let nodesize = volume.geometry().nodesize as usize;
    let mut bytes: BlockBytes = std::iter::repeat_n(0, nodesize).collect();
    let bad = |source| Error::Block {
        root: root_id,
        source,
    };
    let mut edit = BlockMut::init(Arc::make_mut(&mut bytes), &init).map_err(bad)?;
    edit.header_mut().flags = NEW_FLAGS.into();
    adopt(h, bytes)
}

/// Adds the first ref of a new block, and inserts it into the cache and the dirty set.
fn adopt(h: &mut dyn TreeWrite, bytes: BlockBytes) -> Result<Arc<TreeBlock>> {
    let block = TreeBlock::new(bytes).map_err(|source| Error::Block { root: 0, source })?;
    let block = Arc::new(block);
    let (bytenr, level) = (block.bytenr(), block.level());
    h.block_ref(bytenr, level, block.owner(), None, BlockRef::New)?;
    h.blocks().insert_new(&block);
    h.add_dirty(&block);
    Ok(block)
}

/// Copies a block to a new address for tree `owner`. Changes no ref except the copy's.
pub(super) fn duplicate(
    h: &mut dyn TreeWrite,
    root: &Root,
    source: &BlockBytes,
    bytenr: u64,
    owner: u64,
) -> Result<Arc<TreeBlock>> {
    let mut bytes: BlockBytes = Arc::from(&source[..]);
    let data = Arc::make_mut(&mut bytes);
    let mut edit = BlockMut::new(data).map_err(|e| root.block_error(e))?;
    edit.set_bytenr(bytenr);
    edit.set_generation(h.transid());
    edit.set_owner(owner);
    edit.header_mut().flags = NEW_FLAGS.into();
    adopt(h, bytes)
}

/// Copies a block that must not change in place, and drops the tree's ref on the old one. The
/// caller holds the pointer to it (its parent, or the root pointer) exclusively, and then changes
/// the pointer to the copy.
///
/// # Errors
/// No space: nothing changed. Any other error aborts the transaction.
pub(super) fn cow(
    h: &mut dyn TreeWrite,
    root: &Root,
    old: &Arc<TreeBlock>,
) -> Result<Arc<TreeBlock>> {
    // Waits for threads that came through the parent earlier; no other thread can enter. The lock
    // is released, because the next steps may wait for readers of committed trees, which may need
    // this block.
    drop(old.write(root.class()));
    let bytenr = h.alloc_block(root.id(), old.bytenr())?;
    copy_to(h, root, old, bytenr).inspect_err(|err| h.abort(err))
}

fn copy_to(
    h: &mut dyn TreeWrite,
    root: &Root,
    old: &Arc<TreeBlock>,
    bytenr: u64,
) -> Result<Arc<TreeBlock>> {
    let source = old.snapshot();
    let new = duplicate(h, root, &source, bytenr, root.id())?;
    let blocks = h.blocks().clone();
    let _leaving = root.is_shareable().then(|| blocks.leave_lock(old.bytenr()));
    let last = refs::leave_shared(h, root, old, &source, &new)?;
    let_go(h, root, old, last)?;
    Ok(new)
}

/// Drops a tree's ref on a block. `last`: no other ref exists.
pub(super) fn let_go(
    h: &mut dyn TreeWrite,
    root: &Root,
    block: &TreeBlock,
    last: bool,
) -> Result<()> {
    if last && block.generation() == h.transid() {
        if !block.is_written() {
            // The address may be reused as soon as it is freed, so the block is removed first.
            block.set_clean();
            h.remove_dirty(block);
            h.blocks().forget(block.bytenr());
        } else if root.class() == TreeClass::Log {
            // A log block is not read again after it was left, and each fsync leaves a few.
            h.blocks().forget(block.bytenr());
        }
    }
    h.free_block(root, block, last)
}

/// Frees the only block of an empty tree. The caller removes the tree's root item.
///
/// # Errors
/// Errors of the extent tree.
pub(crate) fn drop_root(h: &mut dyn TreeWrite, root: &Root) -> Result<()> {
    let top = root.write_node();
    let_go(h, root, top.block(), true)
}

/// Locks a child for change, after copying it if it must not change in place.
///
/// # Errors
/// Unreadable blocks; no space.
pub(super) fn own_child(
    h: &mut dyn TreeWrite,
    root: &Root,
    parent: &mut WriteGuard,
    slot: usize,
    child: Arc<TreeBlock>,
) -> Result<(Arc<TreeBlock>, WriteGuard)> {
    if root.in_place(&child, h.transid()) {
        let guard = child.write(root.class());
        return Ok((child, guard));
    }
    let new = cow(h, root, &child)?;
    let (bytenr, generation) = (new.bytenr(), new.generation());
    let mut edit = parent.edit()?;
    edit.set_child(slot, bytenr, generation)
        .map_err(|e| root.block_error(e))
        .inspect_err(|err| h.abort(err))?;
    let guard = new.write(root.class());
    Ok((new, guard))
}

/// Creates a tree with one empty leaf. Its root item has only address, level, generation and one
/// ref; the caller completes it and inserts it into the root tree.
///
/// # Errors
/// No space.
pub(crate) fn create_root(h: &mut dyn TreeWrite, id: u64) -> Result<Arc<Root>> {
    let leaf = new_block_of(h, id, 0, 0)?;
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
    // The top block itself is never shared, so one of this transaction may stay, even if snapshots
    // share the blocks below it.
    let fresh = top.block().generation() == h.transid() && !top.block().is_written();
    if !fresh {
        let copy = cow(h, root, top.block())?;
        top.set(copy);
    }
    let source = top.block().snapshot();
    let bytenr = h.alloc_block(new_id, top.block().bytenr())?;
    copy_top(h, root, &source, bytenr, new_id).inspect_err(|err| h.abort(err))
}

fn copy_top(
    h: &mut dyn TreeWrite,
    root: &Root,
    source: &Arc<[u8]>,
    bytenr: u64,
    new_id: u64,
) -> Result<Arc<TreeBlock>> {
    let new = duplicate(h, root, source, bytenr, new_id)?;
    let bytes = new.snapshot();
    let block = Block::new(&bytes).map_err(|e| root.block_error(e))?;
    refs::change_children(h, root, &block, None, true)?;
    Ok(new)
}
