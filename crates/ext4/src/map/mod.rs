//! Where the blocks of an inode are: extent trees and the older block maps behind one face.

pub(crate) mod standalone;

use std::ops::Range;
use std::sync::Arc;

use sapwood_jbd2::{Buffer, Handle};

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result};

/// What stands at a place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// No block.
    Hole,
    /// Blocks with content, from this one on.
    Written(u64),
    /// Blocks that read as zeros, from this one on.
    Unwritten(u64),
}

/// A run of blocks of a file that are all of one kind and side by side on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block of the run in the file; not before what was asked for.
    pub(crate) logical: u64,
    /// Blocks.
    pub(crate) len: u64,
    /// What stands there.
    pub(crate) what: Mapped,
}

/// The longest run that begins at block `logical` of the file, of at most `max` blocks. Takes the map lock
/// shared.
///
/// # Errors
/// The tree is damaged, the device.
pub(crate) fn lookup(engine: &Engine, inode: &Inode, logical: u64, max: u64) -> Result<Run> {
    let _ = (engine, inode, logical, max);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Credits that one [`insert`], [`convert`] or [`append_block`] needs at most, but for the bitmaps of the
/// data.
pub(crate) fn insert_credits(engine: &Engine, inode: &Inode) -> u32 {
    let _ = (engine, inode);
    0
}

/// Puts `len` blocks from `physical` on at `logical`, where a hole must be. Takes the map lock exclusively;
/// tree blocks are allocated as needed; block counts (`i_blocks`) of data and tree blocks are added to the inode. The
/// caller claims the data blocks and stores the inode.
///
/// # Errors
/// The tree is damaged, no space for a tree block.
pub(crate) fn insert(
    engine: &Engine,
    h: &Handle,
    inode: &Inode,
    logical: u64,
    physical: u64,
    len: u64,
    written: bool,
) -> Result<()> {
    let _ = (engine, h, inode, logical, physical, len, written);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Makes unwritten blocks in `range` written.
///
/// # Errors
/// As [`insert`].
pub(crate) fn convert(engine: &Engine, h: &Handle, inode: &Inode, range: Range<u64>) -> Result<()> {
    let _ = (engine, h, inode, range);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Takes blocks out of the map and frees them, from the end of `range` backwards, as far as the handle's
/// credits allow. Returns the part that is still to be removed (empty: done): the caller stores the inode, restarts
/// the handle and goes on.
///
/// # Errors
/// The tree is damaged.
pub(crate) fn remove(
    engine: &Engine,
    h: &Handle,
    inode: &Inode,
    range: Range<u64>,
) -> Result<Range<u64>> {
    let _ = (engine, h, inode, range);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Where a new block at `logical` had best be: behind the block before it, else in the inode's group.
///
/// # Errors
/// As [`lookup`].
pub(crate) fn goal(engine: &Engine, inode: &Inode, logical: u64) -> Result<u64> {
    let _ = (engine, inode, logical);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// A metadata block of the inode itself (directory, quota, orphan file), by its place in the file.
///
/// # Errors
/// As [`lookup`]; a hole.
pub(crate) fn block_of(engine: &Engine, inode: &Inode, logical: u64) -> Result<Arc<Buffer>> {
    let _ = (engine, inode, logical);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Allocates a zeroed metadata block at `logical` (directories grow by it); joined to the handle. The caller sets the
/// size and stores the inode.
///
/// # Errors
/// As [`insert`].
pub(crate) fn append_block(
    engine: &Engine,
    h: &Handle,
    inode: &Inode,
    logical: u64,
) -> Result<Arc<Buffer>> {
    let _ = (engine, h, inode, logical);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}
