//! Ranges of a file in bytes and in blocks, and what keeps one from being changed.

use std::ops::Range;

use sapwood_ext4_format::InodeFlags;
use sapwood_vfs as vfs;

use crate::inode::Inode;
use crate::store::Store;
use crate::{Result, map};

/// Behind the last block that any map can have.
pub(super) const END: u64 = map::BLOCKS_MAX;

/// Longest that a file may become, in bytes.
pub(super) fn max_size(store: &Store, inode: &Inode) -> u64 {
    if inode.flags().contains(InodeFlags::EXTENTS) {
        store.geometry.max_extent_file_size()
    } else {
        store.geometry.max_indirect_file_size()
    }
}

/// Where new blocks at `block` of the file had best be, if that is known without looking.
pub(super) fn hint(inode: &Inode, block: u64) -> Option<u64> {
    let hint = inode.data.state.lock().hint;
    hint.filter(|(logical, _)| *logical == block)
        .map(|(_, physical)| physical)
}

/// Start of the block that `offset` lies in.
pub(super) fn block_floor(store: &Store, offset: u64) -> u64 {
    offset - offset % store.block_size()
}

/// End of the blocks that `end` bytes take.
pub(super) fn block_ceil(store: &Store, end: u64) -> u64 {
    end.checked_next_multiple_of(store.block_size())
        .unwrap_or_else(|| block_floor(store, u64::MAX))
}

/// The blocks of a range of bytes that begins and ends with whole ones; the end may be
/// [`u64::MAX`].
pub(super) fn blocks_of(store: &Store, range: &Range<u64>) -> Range<u64> {
    let block_size = store.block_size();
    range.start / block_size..range.end.div_ceil(block_size)
}

/// Refuses changes if the mount takes none.
pub(super) fn check(store: &Store) -> Result<()> {
    Ok(store.health.check()?)
}

/// Refuses to change content whose keys or whose hashes are not kept here.
pub(super) fn check_changeable(inode: &Inode) -> Result<()> {
    let flags = inode.flags();
    if flags.contains(InodeFlags::ENCRYPT) {
        return Err(vfs::Error::NotSupported.into());
    }
    if flags.contains(InodeFlags::VERITY) {
        return Err(vfs::Error::NotPermitted.into());
    }
    Ok(())
}
