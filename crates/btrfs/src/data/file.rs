//! What operations ask of the file data path.

use std::sync::Arc;

use sapwood_vfs::{AllocMode, CopyMode, SeekFrom};

use crate::Result;
use crate::engine::Engine;
use crate::ops::{Inode, InodeState};

/// Dirty ranges, ordered extents and extent maps of one file.
pub(crate) struct FileData {}

impl FileData {
    /// For an inode that was just loaded or made.
    pub(crate) fn new(_root: u64, _objectid: u64, _state: &InodeState) -> Self {
        Self {}
    }

    /// Bytes that were written and have no extent yet; `stat` counts them as allocated.
    pub(crate) fn pending_bytes(&self) -> u64 {
        0
    }
}

/// Reads up to `buf.len()` bytes. Expects the `io` lock shared.
pub(crate) fn read(
    _engine: &Arc<Engine>,
    _inode: &Arc<Inode>,
    _offset: u64,
    _buf: &mut [u8],
) -> Result<usize> {
    todo!()
}

/// Writes all of `data`, extends the file if need be, and sets mtime, ctime and sequence in the
/// state; the completion queues the inode item. Expects the `io` lock exclusively.
pub(crate) fn write(
    _engine: &Arc<Engine>,
    _inode: &Arc<Inode>,
    _offset: u64,
    _data: &[u8],
) -> Result<()> {
    todo!()
}

/// Changes the length, in transactions of its own. Expects the `io` lock exclusively.
pub(crate) fn truncate(_engine: &Arc<Engine>, _inode: &Arc<Inode>, _size: u64) -> Result<()> {
    todo!()
}

/// Drops all extents and dirty ranges of a file that has no name any more, in steps. Expects
/// the `io` lock exclusively.
pub(crate) fn delete_content(_engine: &Arc<Engine>, _inode: &Arc<Inode>) -> Result<()> {
    todo!()
}

/// See [`sapwood_vfs::FileSystem::fallocate`]. Expects the `io` lock exclusively.
pub(crate) fn fallocate(
    _engine: &Arc<Engine>,
    _inode: &Arc<Inode>,
    _offset: u64,
    _len: u64,
    _mode: AllocMode,
) -> Result<()> {
    todo!()
}

/// See [`sapwood_vfs::FileSystem::seek`]. Expects the `io` lock shared.
pub(crate) fn seek(_engine: &Arc<Engine>, _inode: &Arc<Inode>, _from: SeekFrom) -> Result<u64> {
    todo!()
}

/// See [`sapwood_vfs::FileSystem::copy_range`]. Expects both `io` locks exclusively.
pub(crate) fn copy_range(
    _engine: &Arc<Engine>,
    _from: &Arc<Inode>,
    _from_offset: u64,
    _to: &Arc<Inode>,
    _to_offset: u64,
    _len: u64,
    _mode: CopyMode,
) -> Result<u64> {
    todo!()
}

/// Target of a symbolic link.
pub(crate) fn read_symlink(_engine: &Arc<Engine>, _inode: &Arc<Inode>) -> Result<Vec<u8>> {
    todo!()
}

/// Writes back all dirty data of the file and waits until its extents are in the tree, so that
/// a commit makes it durable. Takes the locks it needs.
pub(crate) fn flush_complete(_engine: &Arc<Engine>, _inode: &Arc<Inode>) -> Result<()> {
    todo!()
}

/// The same for every file.
pub(crate) fn flush_all(_engine: &Arc<Engine>) -> Result<()> {
    todo!()
}
