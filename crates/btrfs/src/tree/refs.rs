//! Refs between blocks when a block is copied.
//!
//! Facts (btrfs documentation, "Tree block and extent sharing"): the refs of a block to its
//! children (or of a leaf to data extents) are counted for the tree that owns the block, or, once
//! the owner has left a shared block, for the block itself (flag FULL_BACKREF). So when the owner
//! leaves a block, the copy keeps the refs for the tree and the old block gets refs of its own.
//! When another tree leaves it, the copy gets new refs.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, ExtentFlags, FileExtent, Key, block::header_flag, kind};

use super::{BlockRef, DataRef, Root, TreeBlock, TreeWrite};
use crate::{Error, Result};

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
