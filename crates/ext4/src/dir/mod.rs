//! Names in directories.

mod htree;
mod inline;
mod linear;
mod list;
mod once;
mod shape;

use std::ops::ControlFlow;

use sapwood_ext4_format::{Geometry, InodeFlags};
use sapwood_jbd2::Handle;
use sapwood_vfs::{DirEntry, FileKind};

use crate::commit_reason::Reason;
use crate::inode::Inode;
use crate::store::Store;
use crate::{Error, Result, block_alloc, map};
use inline::Inline;
use linear::{Gap, Place};
pub(crate) use once::{
    Absent, Present, absent, insert_absent, present, remove_present, room_absent,
};
use shape::{Dir, Form, Wanted, disk_kind, format_of, new_entry};

/// A name that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Inode that it leads to.
    pub(crate) ino: u32,
    /// Type that the entry says, if the image keeps it.
    pub(crate) kind: Option<FileKind>,
}

fn not_found() -> Error {
    Error::Vfs(sapwood_vfs::Error::NotFound)
}

/// Finds a name in the blocks of a directory, or else perhaps room for it.
fn search(dir: &Dir<'_>, name: &[u8], gap: Option<&mut Gap>) -> Result<Option<Place>> {
    match dir.form {
        _ if matches!(name, b"." | b"..") => Ok(None),
        Form::Indexed => htree::find(dir, name, gap),
        _ => linear::find(dir, &Wanted::new(dir, name), gap),
    }
}

/// Finds a name. The caller holds `io` of the directory, as for all functions here: shared to look,
/// exclusive to change.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn find(store: &Store, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
    let dir = Dir::open(store, dir)?;
    match dir.form {
        Form::Inline => Ok(Inline::read(&dir)?
            .find(&dir, name)?
            .map(|place| place.found)),
        _ => Ok(search(&dir, name, None)?.map(|place| place.found)),
    }
}

/// Blocks that one change of names may touch.
struct Growth {
    /// Blocks that are there.
    changed: u32,
    /// Blocks that are added.
    added: u32,
}

impl Growth {
    fn map_credits(&self, dir: &Dir<'_>) -> u32 {
        match self.added {
            0 => 0,
            added => map::append_credits(dir.store, dir.inode, added),
        }
    }

    fn credits(&self, dir: &Dir<'_>) -> u32 {
        let map = self.map_credits(dir);
        // Each new block may be in another group.
        self.changed + (1 + block_alloc::CREDITS) * self.added + map
    }
}

/// What one change of names may need at most, as the directory is now.
fn growth(dir: &Dir<'_>) -> Growth {
    let one = |changed, added| Growth { changed, added };
    let roomy = |logical: u32| {
        let leaf = dir.leaf(logical).ok();
        leaf.is_some_and(|leaf| {
            let longest = [b'x'; sapwood_ext4_format::NAME_MAX];
            dir.format.has_room(&leaf.read(), &longest).unwrap_or(false)
        })
    };
    match dir.form {
        // A block of its own, which the inode's names may almost fill.
        Form::Inline => one(0, 3),
        Form::Linear if dir.blocks == 1 && roomy(0) => one(1, 0),
        Form::Linear if dir.blocks == 1 && dir.may_index() => one(1, 2),
        Form::Linear => one(1, 1),
        Form::Indexed => match htree::shape(dir) {
            // The way to the leaf; a leaf, a node on each level, and a level.
            Ok((levels, full)) => one(levels + 2, 1 + levels + u32::from(full)),
            Err(_) => one(1, 0),
        },
    }
}

/// What adding one name takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Credits of [`insert`].
    pub(crate) credits: u32,
    /// New blocks, to be reserved.
    pub(crate) blocks: u64,
}

/// What adding this name will take, as long as the caller holds `io` exclusively. Called before a
/// handle is started: a directory that can never take the name because its index is as large as the
/// format allows refuses it here.
///
/// # Errors
/// `NoSpace`; the directory is damaged.
pub(crate) fn room(store: &Store, dir: &Inode, name: &[u8]) -> Result<Room> {
    let dir = Dir::open(store, dir)?;
    dir.check_readable()?;
    let grown = |changed, added| Growth { changed, added };
    let growth = match dir.form {
        Form::Inline if Inline::read(&dir)?.has_room(&dir, name)? => grown(0, 0),
        Form::Inline => growth(&dir),
        Form::Linear if linear::has_room(&dir, name)? => grown(1, 0),
        Form::Linear if dir.blocks == 1 && dir.may_index() => grown(1, 2),
        Form::Linear => grown(0, 1),
        Form::Indexed => htree::growth(&dir, name)?,
    };
    let map = growth.map_credits(&dir);
    Ok(Room {
        credits: growth.credits(&dir),
        blocks: u64::from(growth.added) + u64::from(map > 0),
    })
}

/// Credits that [`remove`], [`replace`] or [`set_parent`] needs.
pub(crate) const CHANGE_CREDITS: u32 = 1;

/// Credits that one change of names needs at most, whatever the name is.
pub(crate) fn credits(store: &Store, dir: &Inode) -> u32 {
    // A directory that is damaged here is found damaged again.
    Dir::open(store, dir).map_or(1, |dir| growth(&dir).credits(&dir))
}

/// Adds a name that is not there. Sets size and flags of the directory in memory; the caller sets
/// times and stores it.
///
/// # Errors
/// No space, the directory cannot grow further, it is damaged.
pub(crate) fn insert(
    store: &Store,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    ino: u32,
    kind: FileKind,
) -> Result<()> {
    store.fast_commits.named(h, dir.ino, name, ino);
    insert_entry(store, h, dir, name, ino, kind)
}

fn insert_entry(
    store: &Store,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    ino: u32,
    kind: FileKind,
) -> Result<()> {
    let mut dir = Dir::open(store, dir)?;
    let entry = new_entry(name, ino, kind);
    if dir.form == Form::Inline {
        if Inline::read(&dir)?.insert(&dir, &entry)? {
            return Ok(());
        }
        // Read again: looking for room may have made the second region larger in the copy.
        dir = Inline::read(&dir)?.convert(dir, h)?;
    }
    if dir.form == Form::Indexed {
        return htree::insert(&mut dir, h, &entry);
    }
    if dir.flags.contains(InodeFlags::INDEX) {
        // The feature is off, so the index is not kept up to date.
        dir.set_flags(InodeFlags::empty(), InodeFlags::INDEX);
    }
    if linear::insert(&dir, h, &entry)? {
        return Ok(());
    }
    let hasher = match dir.blocks {
        1 if dir.may_index() => htree::default_hasher(&dir),
        _ => None,
    };
    match hasher {
        Some(hasher) => htree::make_indexed(&mut dir, h, &hasher, &entry),
        None => linear::grow(&mut dir, h, &entry),
    }
}

/// Removes a name.
///
/// # Errors
/// `NotFound`; the directory is damaged.
pub(crate) fn remove(store: &Store, h: &Handle, dir: &Inode, name: &[u8]) -> Result<()> {
    let dir = Dir::open(store, dir)?;
    if dir.form == Form::Inline {
        let mut inline = Inline::read(&dir)?;
        let place = inline.find(&dir, name)?.ok_or_else(not_found)?;
        return inline.remove(&dir, place);
    }
    let place = search(&dir, name, None)?.ok_or_else(not_found)?;
    store
        .fast_commits
        .unnamed(h, dir.inode.ino, name, place.found.ino);
    linear::remove(&dir, h, &place)
}

/// Makes an existing name lead to another inode.
///
/// # Errors
/// As [`remove`].
pub(crate) fn replace(
    store: &Store,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    ino: u32,
    kind: FileKind,
) -> Result<()> {
    let dir = Dir::open(store, dir)?;
    if dir.form == Form::Inline {
        let mut inline = Inline::read(&dir)?;
        let place = inline.find(&dir, name)?.ok_or_else(not_found)?;
        return inline.replace(&dir, place, ino, disk_kind(kind));
    }
    let place = search(&dir, name, None)?.ok_or_else(not_found)?;
    store
        .fast_commits
        .unnamed(h, dir.inode.ino, name, place.found.ino);
    store.fast_commits.named(h, dir.inode.ino, name, ino);
    dir.change(h, &place.buffer, |format, content| {
        format.set_inode(content, place.offset, ino, disk_kind(kind))
    })
}

/// Gives a new directory its first block, with `.` and `..`, and its size.
///
/// # Errors
/// No space.
pub(crate) fn init(store: &Store, h: &Handle, dir: &Inode, parent: u32) -> Result<()> {
    store.fast_commits.whole(h, Reason::Directory);
    if inline::init(store, dir, parent)? {
        return Ok(());
    }
    linear::init(&mut Dir::open(store, dir)?, h, parent)
}

/// Where `..` leads.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn parent(store: &Store, dir: &Inode) -> Result<u32> {
    let dir = Dir::open(store, dir)?;
    match dir.form {
        Form::Inline => Inline::read(&dir)?.parent(&dir),
        Form::Linear => Ok(linear::dot_dot(&dir)?.2),
        Form::Indexed => htree::parent(&dir),
    }
}

/// Makes `..` lead elsewhere.
///
/// # Errors
/// As [`parent`].
pub(crate) fn set_parent(store: &Store, h: &Handle, dir: &Inode, parent: u32) -> Result<()> {
    store.fast_commits.whole(h, Reason::Directory);
    let dir = Dir::open(store, dir)?;
    match dir.form {
        Form::Inline => Inline::read(&dir)?.set_parent(&dir, parent),
        Form::Linear => linear::set_parent(&dir, h, parent),
        Form::Indexed => htree::set_parent(&dir, h, parent),
    }
}

/// Whether it holds nothing but `.` and `..`.
///
/// # Errors
/// As [`parent`].
pub(crate) fn is_empty(store: &Store, dir: &Inode) -> Result<bool> {
    let dir = Dir::open(store, dir)?;
    match dir.form {
        Form::Inline => Ok(Inline::read(&dir)?.names(&dir).next().is_none()),
        Form::Linear => linear::is_empty(&dir),
        Form::Indexed => htree::is_empty(&dir),
    }
}

/// Lists from position `from` on; see [`readdir`](sapwood_vfs::FileSystem::readdir).
///
/// # Errors
/// As [`parent`].
pub(crate) fn list(
    store: &Store,
    dir: &Inode,
    from: u64,
    sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
) -> Result<()> {
    let dir = Dir::open(store, dir)?;
    dir.check_readable()?;
    list::list(&dir, from, sink)
}

/// Puts the checksum into a block of names.
pub(crate) fn seal_leaf(geometry: &Geometry, content: &mut [u8], seed: u32) -> Result<(), String> {
    let seed = if sapwood_fault::planted(119) {
        !seed
    } else {
        seed
    };
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

#[cfg(test)]
mod tests;
