//! Directories without an index: blocks of names, one after another.
//!
//! A new name goes into the first block with room. The first blocks that had no room for a name are
//! not searched again until a name is removed in one of them. This holds for shorter names too,
//! although they might fit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_ext4_format::NewEntry;
use sapwood_jbd2::{Buffer, Handle};

use super::shape::{Dir, Form, Wanted};
use crate::seal::SealKind;
use crate::{Error, Result};

/// The place of a name in a block.
pub(super) struct DirEntryPlace {
    pub(super) buffer: Arc<Buffer>,
    pub(super) logical: u32,
    /// Byte of the block.
    pub(super) offset: usize,
    /// Byte of the entry before it in the block.
    before: Option<usize>,
    pub(super) found: super::Found,
}

/// Room for a name, found while it is searched for: the first that the search passes.
pub(super) struct Gap {
    /// Bytes of its entry.
    need: usize,
    /// Blocks before this one are not considered.
    from: u32,
    place: Option<(Arc<Buffer>, u32, usize)>,
}

impl Gap {
    /// No room was found yet.
    pub(super) fn new(dir: &Dir<'_>, name: &[u8]) -> Self {
        let from = match dir.form {
            Form::Linear => dir.inode.dir.room.load(Ordering::Relaxed),
            _ => 0,
        };
        Self {
            need: dir.format.entry_size(name),
            from,
            place: None,
        }
    }

    /// Whether room was found.
    pub(super) fn is_found(&self) -> bool {
        self.place.is_some()
    }

    /// Whether room in this block is of interest: only the first block with room counts.
    fn wants(&self, logical: u32) -> bool {
        self.place.is_none() && logical >= self.from
    }

    /// Puts the name into the room that was found; false if there is none. The directory has not
    /// changed since the search.
    ///
    /// # Errors
    /// The block is damaged; errors of the journal.
    pub(super) fn fill(&self, dir: &Dir<'_>, h: &Handle, entry: &NewEntry<'_>) -> Result<bool> {
        let Some((buffer, logical, offset)) = &self.place else {
            return Ok(false);
        };
        let put = dir.change(h, buffer, |format, content| {
            format.insert_at(content, *offset, entry)
        })?;
        if put && dir.form == Form::Linear {
            dir.inode.dir.room.store(*logical, Ordering::Relaxed);
        }
        Ok(put)
    }
}

/// Finds a name in one block. Records the first room that it passes in `gap`, if that has none and
/// the name is not there.
///
/// # Errors
/// The block is damaged; errors of the device.
pub(super) fn find_in(
    dir: &Dir<'_>,
    logical: u32,
    name: &Wanted<'_>,
    gap: Option<&mut Gap>,
) -> Result<Option<DirEntryPlace>> {
    let buffer = dir.leaf(logical)?;
    let gap = gap.filter(|gap| gap.wants(logical));
    let need = gap.as_ref().map_or(usize::MAX, |gap| gap.need);
    let (hit, before, room) = {
        let content = buffer.read();
        let scan = name.scan(&dir.format, &content, need);
        let scan = scan.map_err(|reason| dir.bad_block(buffer.block(), reason))?;
        let hit = scan.hit.map(|entry| (entry.offset, dir.found(&entry)));
        (hit, scan.before, scan.room)
    };
    if let (None, Some(gap), Some(offset)) = (hit, gap, room) {
        gap.place = Some((Arc::clone(&buffer), logical, offset));
    }
    Ok(hit.map(|(offset, found)| DirEntryPlace {
        buffer,
        logical,
        offset,
        before,
        found,
    }))
}

/// Finds a name.
///
/// # Errors
/// A block is damaged; errors of the device.
pub(super) fn find(
    dir: &Dir<'_>,
    name: &Wanted<'_>,
    mut gap: Option<&mut Gap>,
) -> Result<Option<DirEntryPlace>> {
    for logical in 0..dir.blocks {
        if let Some(place) = find_in(dir, logical, name, gap.as_deref_mut())? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// Puts a name into a block; false if it has no room.
///
/// # Errors
/// The block is damaged; errors of the journal.
pub(super) fn insert_in(
    dir: &Dir<'_>,
    h: &Handle,
    buffer: &Arc<Buffer>,
    entry: &NewEntry<'_>,
) -> Result<bool> {
    // Looked at first: a block without room must not join the transaction.
    let room = dir
        .format
        .has_room(&buffer.read(), entry.name)
        .map_err(|reason| dir.bad_block(buffer.block(), reason))?;
    if !room {
        return Ok(false);
    }
    let put = dir.change(h, buffer, |format, content| format.insert(content, entry))?;
    Ok(put.is_some())
}

/// Puts a name where there is room; false if there is none, and nothing was changed.
///
/// # Errors
/// A block is damaged; errors of the journal.
pub(super) fn insert(dir: &Dir<'_>, h: &Handle, entry: &NewEntry<'_>) -> Result<bool> {
    let hint = &dir.inode.dir.room;
    for logical in hint.load(Ordering::Relaxed)..dir.blocks {
        let buffer = dir.leaf(logical)?;
        if insert_in(dir, h, &buffer, entry)? {
            hint.store(logical, Ordering::Relaxed);
            return Ok(true);
        }
    }
    hint.store(dir.blocks, Ordering::Relaxed);
    Ok(false)
}

/// Whether [`insert`] would find room. Like it, this advances the mark from which blocks are
/// searched.
///
/// # Errors
/// A block is damaged; errors of the device.
pub(super) fn has_room(dir: &Dir<'_>, name: &[u8]) -> Result<bool> {
    let hint = &dir.inode.dir.room;
    for logical in hint.load(Ordering::Relaxed)..dir.blocks {
        let buffer = dir.leaf(logical)?;
        let room = dir.format.has_room(&buffer.read(), name);
        if room.map_err(|reason| dir.bad_block(buffer.block(), reason))? {
            hint.store(logical, Ordering::Relaxed);
            return Ok(true);
        }
    }
    hint.store(dir.blocks, Ordering::Relaxed);
    Ok(false)
}

/// Adds a block with a name at the end.
///
/// # Errors
/// No space; errors of the journal.
pub(super) fn grow(dir: &mut Dir<'_>, h: &Handle, entry: &NewEntry<'_>) -> Result<()> {
    let (logical, buffer) = dir.append(h, SealKind::DirLeaf)?;
    let put = dir.change(h, &buffer, |format, content| {
        format.init_block(content)?;
        format.insert(content, entry)
    })?;
    dir.inode.dir.room.store(logical, Ordering::Relaxed);
    match put {
        Some(_) => Ok(()),
        None => Err(dir.bad_block(buffer.block(), "no room in an empty block")),
    }
}

/// Removes the name at a place.
///
/// # Errors
/// The block is damaged; errors of the journal.
pub(super) fn remove(dir: &Dir<'_>, h: &Handle, place: &DirEntryPlace) -> Result<()> {
    dir.change(h, &place.buffer, |format, content| {
        format.remove_behind(content, place.before, place.offset)
    })?;
    dir.inode
        .dir
        .room
        .fetch_min(place.logical, Ordering::Relaxed);
    Ok(())
}

/// Makes the first block, with `.` and `..`.
///
/// # Errors
/// No space; errors of the journal.
pub(super) fn init(dir: &mut Dir<'_>, h: &Handle, parent: u32) -> Result<()> {
    if dir.blocks != 0 {
        return Err(dir.bad("it has blocks already"));
    }
    let ino = dir.inode.ino;
    let (_, buffer) = dir.append(h, SealKind::DirLeaf)?;
    dir.change(h, &buffer, |format, content| {
        format.init_dots(content, ino, parent)
    })
}

/// The first block, the place of `..` in it, and its inode.
///
/// # Errors
/// It is not a valid first block; errors of the device.
pub(super) fn dot_dot(dir: &Dir<'_>) -> Result<(Arc<Buffer>, usize, u32)> {
    let buffer = dir.leaf(0)?;
    let hit = {
        let content = buffer.read();
        let damaged = |reason| dir.bad_block(buffer.block(), reason);
        let mut entries = dir.format.entries(&content);
        let mut next = || entries.next().transpose().map_err(damaged);
        match (next()?, next()?) {
            (Some(dot), Some(up)) if dot.name == b"." && up.name == b".." && up.inode != 0 => {
                Some((up.offset, up.inode))
            }
            _ => None,
        }
    };
    let (offset, parent) =
        hit.ok_or_else(|| dir.bad_block(buffer.block(), "does not begin with . and .."))?;
    Ok((buffer, offset, parent))
}

/// Sets the target of `..`.
///
/// # Errors
/// The first block is invalid; errors of the device and of the journal.
pub(super) fn set_parent(dir: &Dir<'_>, h: &Handle, parent: u32) -> Result<()> {
    let (buffer, offset, _) = dot_dot(dir)?;
    dir.change(h, &buffer, |format, content| {
        format.set_inode(
            content,
            offset,
            parent,
            sapwood_ext4_format::dir_type::DIRECTORY,
        )
    })
}

/// Whether a block has no names but `.` and `..`.
///
/// # Errors
/// It is damaged; errors of the device.
pub(super) fn is_empty_leaf(dir: &Dir<'_>, logical: u32) -> Result<bool> {
    let buffer = dir.leaf(logical)?;
    let empty = dir.format.is_empty(&buffer.read());
    empty.map_err(|reason| dir.bad_block(buffer.block(), reason))
}

/// Whether a directory without an index has only `.` and `..`.
///
/// # Errors
/// The first block is invalid; errors of the device.
pub(super) fn is_empty(dir: &Dir<'_>) -> Result<bool> {
    if dir.blocks == 0 {
        return Err(Error::BadInode {
            ino: dir.inode.ino,
            reason: "a directory without a block".into(),
        });
    }
    dot_dot(dir)?;
    for logical in 0..dir.blocks {
        if !is_empty_leaf(dir, logical)? {
            return Ok(false);
        }
    }
    Ok(true)
}
