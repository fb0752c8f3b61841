//! One search for a name that is then added or removed, under one lock of the directory.
//!
//! The search knows where the name stands, or in which entry's slack it would go; the change goes there at once. Names
//! in the inode itself are searched again: there are few.

use sapwood_ext4_format::InodeFlags;
use sapwood_jbd2::Handle;
use sapwood_vfs::FileKind;

use super::inline::Inline;
use super::linear::{self, Gap, Place};
use super::shape::{Dir, Form, new_entry};
use super::{Found, Room, find, insert, remove, room, search};
use crate::Result;
use crate::engine::Engine;
use crate::fast_commit::note;
use crate::inode::Inode;

/// A name that is there. Good until a name of the directory changes.
pub(crate) struct Present {
    /// What it leads to.
    pub(crate) found: Found,
    place: Option<Place>,
}

/// A name that is not there. Good until a name of the directory changes.
pub struct Absent {
    gap: Option<Gap>,
}

/// Where a name stands, if it is there. The caller holds `io` of the directory exclusively until it is done with the
/// answer.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn present(engine: &Engine, dir: &Inode, name: &[u8]) -> Result<Option<Present>> {
    let dir = Dir::open(engine, dir)?;
    if dir.form == Form::Inline {
        let place = Inline::read(&dir)?.find(&dir, name)?;
        return Ok(place.map(|place| Present {
            found: place.found,
            place: None,
        }));
    }
    let place = search(&dir, name, None)?;
    Ok(place.map(|place| Present {
        found: place.found,
        place: Some(place),
    }))
}

/// As [`remove`](super::remove), of a name that was found.
///
/// # Errors
/// See there.
pub(crate) fn remove_present(
    engine: &Engine,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    present: &Present,
) -> Result<()> {
    match &present.place {
        Some(place) => {
            note::unnamed(engine, h, dir, name, present.found.ino);
            linear::remove(&Dir::open(engine, dir)?, h, place)
        }
        None => remove(engine, h, dir, name),
    }
}

/// Looks for a name, and for where it would go; `None` if it is there. The caller holds `io` of the directory exclusively
/// until it is done with the answer.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn absent(engine: &Engine, dir: &Inode, name: &[u8]) -> Result<Option<Absent>> {
    let open = Dir::open(engine, dir)?;
    if open.form == Form::Inline {
        let found = find(engine, dir, name)?.is_some();
        return Ok((!found).then_some(Absent { gap: None }));
    }
    let mut gap = Gap::new(&open, name);
    let found = search(&open, name, Some(&mut gap))?.is_some();
    // An index that is not kept up to date is removed first.
    let stale = open.form == Form::Linear && open.flags.contains(InodeFlags::INDEX);
    let gap = Some(gap).filter(|gap| gap.is_found() && !stale);
    Ok((!found).then_some(Absent { gap }))
}

/// As [`room`](super::room), for a name that was not found.
///
/// # Errors
/// See there.
pub(crate) fn room_absent(
    engine: &Engine,
    dir: &Inode,
    name: &[u8],
    absent: &Absent,
) -> Result<Room> {
    if absent.gap.is_none() {
        return room(engine, dir, name);
    }
    Dir::open(engine, dir)?.check_readable()?;
    Ok(Room {
        credits: 1,
        blocks: 0,
    })
}

/// As [`insert`](super::insert), of a name that was not found.
///
/// # Errors
/// See there.
pub(crate) fn insert_absent(
    engine: &Engine,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    absent: &Absent,
    (ino, kind): (u32, FileKind),
) -> Result<()> {
    if let Some(gap) = &absent.gap
        && gap.fill(&Dir::open(engine, dir)?, h, &new_entry(name, ino, kind))?
    {
        note::named(engine, h, dir, name, ino);
        return Ok(());
    }
    insert(engine, h, dir, name, ino, kind)
}
