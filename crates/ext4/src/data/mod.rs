//! File data: from the bytes of a write to blocks on the device, and back.

use std::sync::Arc;

use sapwood_vfs::{AllocMode, CopyMode, SeekFrom};

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Options, Result};

/// Data of one file in memory.
#[derive(Debug)]
pub(crate) struct FileData {}

impl FileData {
    /// Nothing in memory.
    pub(crate) fn new(_ino: u32) -> Self {
        Self {}
    }

    /// Bytes in memory that are not on disk yet, dirty or in flight.
    pub(crate) fn pending_bytes(&self) -> u64 {
        0
    }

    /// Whether data was written to blocks that the file had since the last call: a flush of the device
    /// makes it durable.
    pub(crate) fn take_unflushed(&self) -> bool {
        false
    }
}

/// Writeback of all files: threads, the bound on dirty bytes, which files have any.
pub(crate) struct Writeback {}

impl Writeback {
    /// No file has data in memory.
    pub(crate) fn new(_options: &Options) -> Self {
        Self {}
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {}
}

fn none<T>() -> Result<T> {
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Reads; the caller holds `io` shared.
///
/// # Errors
/// The device, damage.
pub(crate) fn read(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize> {
    let _ = (engine, inode, offset, buf);
    none()
}

/// Reserves, copies into memory, extends the size in memory; the caller holds `io` exclusively.
///
/// # Errors
/// `NoSpace`, `FileTooLarge`.
pub(crate) fn write(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    bytes: &[u8],
    privileged: bool,
) -> Result<()> {
    let _ = (engine, inode, offset, bytes, privileged);
    none()
}

/// Writes back all of a file and waits until the map has it (in a transaction that need not be durable).
///
/// # Errors
/// A write failed, now or since the last call.
pub(crate) fn flush(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let _ = (engine, inode);
    none()
}

/// The same for all files.
///
/// # Errors
/// As [`flush`], of one of them.
pub(crate) fn flush_all(engine: &Arc<Engine>) -> Result<()> {
    let _ = engine;
    none()
}

/// Changes the length; the caller holds `io` exclusively.
///
/// # Errors
/// `FileTooLarge`.
pub(crate) fn truncate(engine: &Arc<Engine>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    let _ = (engine, inode, size);
    none()
}

/// Frees all content of an inode that has no name, in handles of its own; it is an orphan, so a power cut loses nothing.
/// For files, directories and symbolic links. The caller holds `io` exclusively.
///
/// # Errors
/// The device, damage.
pub(crate) fn delete_content(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let _ = (engine, inode);
    none()
}

/// `fallocate`; the caller holds `io` exclusively.
///
/// # Errors
/// See [`fallocate`](sapwood_vfs::FileSystem::fallocate).
pub(crate) fn fallocate(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    len: u64,
    mode: AllocMode,
) -> Result<()> {
    let _ = (engine, inode, offset, len, mode);
    none()
}

/// `SEEK_DATA`, `SEEK_HOLE`; the caller holds `io` shared.
///
/// # Errors
/// `NoSuchOffset`.
pub(crate) fn seek(engine: &Arc<Engine>, inode: &Arc<Inode>, from: SeekFrom) -> Result<u64> {
    let _ = (engine, inode, from);
    none()
}

/// Copies a range between files or within one; the caller holds `io` of both exclusively.
///
/// # Errors
/// `NotSupported` for `ShareOnly`: the format has no shared extents.
pub(crate) fn copy_range(
    engine: &Arc<Engine>,
    source: (&Arc<Inode>, u64),
    target: (&Arc<Inode>, u64),
    len: u64,
    mode: CopyMode,
) -> Result<u64> {
    let _ = (engine, source, target, len, mode);
    none()
}

/// Target of a symbolic link.
///
/// # Errors
/// Damage.
pub(crate) fn read_symlink(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<Vec<u8>> {
    let _ = (engine, inode);
    none()
}

/// Gives a new symbolic link its target, within a handle; the caller stores the inode.
///
/// # Errors
/// No space.
pub(crate) fn write_symlink(
    engine: &Arc<Engine>,
    h: &sapwood_jbd2::Handle,
    inode: &Arc<Inode>,
    target: &[u8],
) -> Result<()> {
    let _ = (engine, h, inode, target);
    none()
}

/// Flags that a new inode of this kind gets for its content: a tree of extents, inline data.
pub(crate) fn new_flags(
    engine: &Engine,
    kind: sapwood_vfs::FileKind,
) -> sapwood_ext4_format::InodeFlags {
    let _ = (engine, kind);
    sapwood_ext4_format::InodeFlags::empty()
}

/// Sets up the map of a new inode whose flags are set: an empty tree of extents, or nothing.
pub(crate) fn init_map(
    engine: &Engine,
    raw: &mut sapwood_ext4_format::Inode,
    kind: sapwood_vfs::FileKind,
) {
    let _ = (engine, raw, kind);
}
