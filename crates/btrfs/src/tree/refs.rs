//! The interface of a tree change to its transaction, and the refs that copying a block changes.
//!
//! Facts (btrfs documentation, "Tree block and extent sharing"): the refs of a block to its
//! children (or of a leaf to data extents) are counted for the tree that owns the block, or, once
//! the owner has left a shared block, for the block itself (flag FULL_BACKREF). So when the owner
//! leaves a block, the copy keeps the refs for the tree and the old block gets refs of its own.
//! When another tree leaves it, the copy gets new refs.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, ExtentFlags, FileExtent, Key, block::header_flag, kind};

use super::{Root, TreeBlock, TreeRead};
use crate::{Error, Result};

/// A change of refs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockRef {
    /// The first ref of a block that was just allocated.
    New,
    /// Adds one ref.
    Add,
    /// Drops one ref.
    Drop,
}

/// A ref of a data extent, as a file extent item implies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRef {
    /// Logical address of the extent.
    pub(crate) bytenr: u64,
    /// Bytes on disk.
    pub(crate) len: u64,
    /// Leaf that contains the item, if the ref is by parent.
    pub(crate) parent: Option<u64>,
    /// Tree that owns the item.
    pub(crate) root_id: u64,
    /// Inode.
    pub(crate) objectid: u64,
    /// File offset of the item minus its offset within the extent; wraps.
    pub(crate) offset: u64,
}

/// The context for changing a tree: a transaction handle, or a small stand-in in tests.
pub(crate) trait TreeWrite: TreeRead {
    /// Transid of the running transaction.
    fn transid(&self) -> u64;
    /// Records that a tree changes in this transaction.
    fn record_root(&mut self, root: &Arc<Root>) -> Result<()>;
    /// Allocates the address of a new block of tree `root_id`; adds no ref yet. `hint`: preferred
    /// neighbour.
    fn alloc_block(&mut self, root_id: u64, hint: u64) -> Result<u64>;
    /// Drops the ref of `root` on a block. `last`: it is the only one.
    fn free_block(&mut self, root: &Root, block: &TreeBlock, last: bool) -> Result<()>;
    /// Number of refs and extent flags of a block, including pending changes.
    fn extent_info(&mut self, bytenr: u64, level: u8) -> Result<(u64, u64)>;
    /// Sets the flag that all refs from a block are by parent.
    fn set_full_backref(&mut self, bytenr: u64, level: u8) -> Result<()>;
    /// Changes the refs of a block. `parent`: the block that points at it, if the ref is by parent.
    fn block_ref(
        &mut self,
        bytenr: u64,
        level: u8,
        root_id: u64,
        parent: Option<u64>,
        change: BlockRef,
    ) -> Result<()>;
    /// Adds (or drops) one ref of a data extent.
    fn data_ref(&mut self, data: &DataRef, add: bool) -> Result<()>;
    /// Adds a new block to the transaction's set of blocks to write.
    fn add_dirty(&mut self, block: &Arc<TreeBlock>);
    /// Removes a freed block from that set.
    fn remove_dirty(&mut self, block: &TreeBlock);
    /// Aborts the transaction, which failed half-way and must not be committed.
    fn abort(&self, err: &Error);
}

/// Adjusts refs when `root` replaces `old` by its copy `new`. Returns whether `root` had the only
/// ref on `old`.
///
/// # Errors
/// An unreadable extent tree, file extent items that do not parse.
pub(super) fn leave_shared(
    h: &mut dyn TreeWrite,
    root: &Root,
    old: &TreeBlock,
    source: &[u8],
    new: &Arc<TreeBlock>,
) -> Result<bool> {
    let source = Block::new(source).map_err(|e| root.block_error(e))?;
    let moved = source.header().flags.get() & header_flag::RELOC != 0;
    if !root.is_shareable() || (old.generation() > root.last_snapshot() && !moved) {
        return Ok(true);
    }
    let (refs, flags) = h.extent_info(old.bytenr(), old.level())?;
    let full = flags & ExtentFlags::FULL_BACKREF.bits() != 0;
    let copy = new.snapshot();
    let copy = Block::new(&copy).map_err(|e| root.block_error(e))?;
    if refs > 1 {
        if old.owner() == root.id() && !full {
            change_children(h, root, &source, Some(old.bytenr()), true)?;
            h.set_full_backref(old.bytenr(), old.level())?;
        } else {
            change_children(h, root, &copy, None, true)?;
        }
        return Ok(false);
    }
    if full {
        change_children(h, root, &copy, None, true)?;
        change_children(h, root, &source, Some(old.bytenr()), false)?;
    }
    Ok(true)
}

/// Adds or drops one ref for each child of a node, or each data extent of a leaf: by `parent`, or
/// by the tree in the block's header if there is none.
///
/// # Errors
/// File extent items that do not parse.
pub(crate) fn change_children(
    h: &mut dyn TreeWrite,
    root: &Root,
    block: &Block<'_>,
    parent: Option<u64>,
    add: bool,
) -> Result<()> {
    let owner = block.owner();
    let change = if add { BlockRef::Add } else { BlockRef::Drop };
    for ptr in block.ptrs() {
        let (bytenr, level) = (ptr.blockptr.get(), block.level().saturating_sub(1));
        h.block_ref(bytenr, level, owner, parent, change)?;
    }
    for slot in 0..block.items().len() {
        let (key, data) = block.entry(slot).map_err(|e| root.block_error(e))?;
        if key.kind != kind::EXTENT_DATA {
            continue;
        }
        if let Some(data) = data_ref(root, &key, data, parent, owner)? {
            h.data_ref(&data, add)?;
        }
    }
    Ok(())
}

/// The ref that a file extent item implies; `None` for inline extents and holes.
fn data_ref(
    root: &Root,
    key: &Key,
    data: &[u8],
    parent: Option<u64>,
    root_id: u64,
) -> Result<Option<DataRef>> {
    let extent = FileExtent::parse(data).map_err(|source| Error::BadItem {
        root: root.id(),
        key: *key,
        source,
    })?;
    let (FileExtent::Regular(extent) | FileExtent::Prealloc(extent)) = extent else {
        return Ok(None);
    };
    Ok((!extent.is_hole()).then(|| DataRef {
        bytenr: extent.disk_bytenr,
        len: extent.disk_num_bytes,
        parent,
        root_id,
        objectid: key.objectid,
        offset: key.offset.wrapping_sub(extent.offset),
    }))
}
