//! Names in directories.

use std::ops::ControlFlow;

use sapwood_ext4_format::Geometry;
use sapwood_jbd2::Handle;
use sapwood_vfs::{DirEntry, FileKind};

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result};

/// What a directory keeps in memory besides; empty for everything else.
#[derive(Debug, Default)]
pub(crate) struct DirState {}

/// A name that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Inode that it leads to.
    pub(crate) ino: u32,
    /// Type that the entry says, if the image keeps it.
    pub(crate) kind: Option<FileKind>,
}

fn none<T>() -> Result<T> {
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Finds a name. The caller holds `io` of the directory, as for all functions here: shared to look, exclusive to change.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn find(engine: &Engine, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
    let _ = (engine, dir, name);
    none()
}

/// Credits that one change of names needs at most.
pub(crate) fn credits(engine: &Engine, dir: &Inode) -> u32 {
    let _ = (engine, dir);
    0
}

/// Adds a name that is not there. Sets size and flags of the directory in memory; the caller sets times and stores it.
///
/// # Errors
/// No space, the directory cannot grow further, it is damaged.
pub(crate) fn insert(
    engine: &Engine,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    ino: u32,
    kind: FileKind,
) -> Result<()> {
    let _ = (engine, h, dir, name, ino, kind);
    none()
}

/// Removes a name.
///
/// # Errors
/// `NotFound`; the directory is damaged.
pub(crate) fn remove(engine: &Engine, h: &Handle, dir: &Inode, name: &[u8]) -> Result<()> {
    let _ = (engine, h, dir, name);
    none()
}

/// Makes an existing name lead to another inode.
///
/// # Errors
/// As [`remove`].
pub(crate) fn replace(
    engine: &Engine,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    ino: u32,
    kind: FileKind,
) -> Result<()> {
    let _ = (engine, h, dir, name, ino, kind);
    none()
}

/// Gives a new directory its first block, with `.` and `..`, and its size.
///
/// # Errors
/// No space.
pub(crate) fn init(engine: &Engine, h: &Handle, dir: &Inode, parent: u32) -> Result<()> {
    let _ = (engine, h, dir, parent);
    none()
}

/// Where `..` leads.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn parent(engine: &Engine, dir: &Inode) -> Result<u32> {
    let _ = (engine, dir);
    none()
}

/// Makes `..` lead elsewhere.
///
/// # Errors
/// As [`parent`].
pub(crate) fn set_parent(engine: &Engine, h: &Handle, dir: &Inode, parent: u32) -> Result<()> {
    let _ = (engine, h, dir, parent);
    none()
}

/// Whether it holds nothing but `.` and `..`.
///
/// # Errors
/// As [`parent`].
pub(crate) fn is_empty(engine: &Engine, dir: &Inode) -> Result<bool> {
    let _ = (engine, dir);
    none()
}

/// Lists from position `from` on; see [`readdir`](sapwood_vfs::FileSystem::readdir).
///
/// # Errors
/// As [`parent`].
pub(crate) fn list(
    engine: &Engine,
    dir: &Inode,
    from: u64,
    sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
) -> Result<()> {
    let _ = (engine, dir, from, sink);
    none()
}

/// Puts the checksum into a block of names.
pub(crate) fn seal_leaf(geometry: &Geometry, content: &mut [u8], seed: u32) -> Result<(), String> {
    let _ = (geometry, content, seed);
    Ok(())
}

/// Puts the checksum into a root or node of a hash tree.
pub(crate) fn seal_node(geometry: &Geometry, content: &mut [u8], seed: u32) -> Result<(), String> {
    let _ = (geometry, content, seed);
    Ok(())
}
