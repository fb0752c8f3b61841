//! Names in directories.

mod linear;
mod list;
mod shape;

use std::ops::ControlFlow;
use std::sync::atomic::AtomicU32;

use sapwood_ext4_format::{Geometry, InodeFlags};
use sapwood_jbd2::Handle;
use sapwood_vfs::{DirEntry, FileKind};

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result};
use linear::Place;
use shape::{Dir, Form, disk_kind, format_of, new_entry};

/// What a directory keeps in memory besides; empty for everything else.
#[derive(Debug, Default)]
pub(crate) struct DirState {
    /// No block before this one has room, as far as was seen. Only for directories without an index.
    room: AtomicU32,
}

/// A name that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Inode that it leads to.
    pub(crate) ino: u32,
    /// Type that the entry says, if the image keeps it.
    pub(crate) kind: Option<FileKind>,
}

fn not_supported<T>() -> Result<T> {
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

fn locate(dir: &Dir<'_>, name: &[u8]) -> Result<Option<Place>> {
    if matches!(name, b"." | b"..") {
        return Ok(None);
    }
    match dir.form {
        Form::Linear => linear::find(dir, name),
        _ => not_supported(),
    }
}

/// Finds a name. The caller holds `io` of the directory, as for all functions here: shared to look, exclusive to change.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn find(engine: &Engine, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
    Ok(locate(&Dir::open(engine, dir)?, name)?.map(|place| place.found))
}

/// Credits that one change of names needs at most.
pub(crate) fn credits(engine: &Engine, dir: &Inode) -> u32 {
    // The block; or a new one with its bitmap and place.
    2 + 1 + crate::map::insert_credits(engine, dir, 1)
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
    let mut dir = Dir::open(engine, dir)?;
    let entry = new_entry(name, ino, kind);
    match dir.form {
        Form::Linear => {
            if dir.flags.contains(InodeFlags::INDEX) {
                // The feature is off, so nobody keeps the index up to date.
                dir.set_flags(InodeFlags::empty(), InodeFlags::INDEX);
            }
            if linear::insert(&dir, h, &entry)? {
                return Ok(());
            }
            linear::grow(&mut dir, h, &entry)
        }
        _ => not_supported(),
    }
}

/// Removes a name.
///
/// # Errors
/// `NotFound`; the directory is damaged.
pub(crate) fn remove(engine: &Engine, h: &Handle, dir: &Inode, name: &[u8]) -> Result<()> {
    let dir = Dir::open(engine, dir)?;
    let place = locate(&dir, name)?.ok_or(sapwood_vfs::Error::NotFound)?;
    linear::remove(&dir, h, &place)
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
    let dir = Dir::open(engine, dir)?;
    let place = locate(&dir, name)?.ok_or(sapwood_vfs::Error::NotFound)?;
    dir.change(h, &place.buffer, |format, content| {
        format.set_inode(content, place.offset, ino, disk_kind(kind))
    })
}

/// Gives a new directory its first block, with `.` and `..`, and its size.
///
/// # Errors
/// No space.
pub(crate) fn init(engine: &Engine, h: &Handle, dir: &Inode, parent: u32) -> Result<()> {
    let mut dir = Dir::open(engine, dir)?;
    linear::init(&mut dir, h, parent)
}

/// Where `..` leads.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn parent(engine: &Engine, dir: &Inode) -> Result<u32> {
    let dir = Dir::open(engine, dir)?;
    match dir.form {
        Form::Linear => Ok(linear::dot_dot(&dir)?.2),
        _ => not_supported(),
    }
}

/// Makes `..` lead elsewhere.
///
/// # Errors
/// As [`parent`].
pub(crate) fn set_parent(engine: &Engine, h: &Handle, dir: &Inode, parent: u32) -> Result<()> {
    let dir = Dir::open(engine, dir)?;
    match dir.form {
        Form::Linear => linear::set_parent(&dir, h, parent),
        _ => not_supported(),
    }
}

/// Whether it holds nothing but `.` and `..`.
///
/// # Errors
/// As [`parent`].
pub(crate) fn is_empty(engine: &Engine, dir: &Inode) -> Result<bool> {
    let dir = Dir::open(engine, dir)?;
    match dir.form {
        Form::Linear => linear::is_empty(&dir),
        _ => not_supported(),
    }
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
    list::list(&Dir::open(engine, dir)?, from, sink)
}

/// Puts the checksum into a block of names.
pub(crate) fn seal_leaf(geometry: &Geometry, content: &mut [u8], seed: u32) -> Result<(), String> {
    format_of(geometry, InodeFlags::empty())
        .seal(content, seed)
        .map_err(|reason| reason.to_string())
}

/// Puts the checksum into a root or node of a hash tree.
pub(crate) fn seal_node(geometry: &Geometry, content: &mut [u8], seed: u32) -> Result<(), String> {
    format_of(geometry, InodeFlags::empty())
        .dx_seal(content, seed)
        .map_err(|reason| reason.to_string())
}
