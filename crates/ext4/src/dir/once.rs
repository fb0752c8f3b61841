//! One search for a name that is then added or removed, under one lock of the directory.
//!
//! The search knows where the name stands, or in which entry's slack it would go; the change goes
//! there at once. Names in the inode itself are searched again: there are few.

use sapwood_ext4_format::InodeFlags;
use sapwood_jbd2::Handle;
use sapwood_vfs::FileKind;

use super::inline::Inline;
use super::linear::{self, Gap, Place};
use super::shape::{Dir, Form, new_entry};
use super::{Found, Room, find, insert, remove, room, search};
use crate::Result;
use crate::inode::Inode;
use crate::store::Store;

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

/// Where a name stands, if it is there. The caller holds `io` of the directory exclusively until it
/// is done with the answer.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn present(store: &Store, dir: &Inode, name: &[u8]) -> Result<Option<Present>> {
    let dir = Dir::open(store, dir)?;
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
    store: &Store,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    present: &Present,
) -> Result<()> {
    match &present.place {
        Some(place) => {
            store
                .fast_commits
                .unnamed(h, dir.ino, name, present.found.ino);
            linear::remove(&Dir::open(store, dir)?, h, place)
        }
        None => remove(store, h, dir, name),
    }
}

/// Looks for a name, and for where it would go; `None` if it is there. The caller holds `io` of the
/// directory exclusively until it is done with the answer.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn absent(store: &Store, dir: &Inode, name: &[u8]) -> Result<Option<Absent>> {
    let open = Dir::open(store, dir)?;
    if open.form == Form::Inline {
        let found = find(store, dir, name)?.is_some();
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
    store: &Store,
    dir: &Inode,
    name: &[u8],
    absent: &Absent,
) -> Result<Room> {
    if absent.gap.is_none() {
        return room(store, dir, name);
    }
    Dir::open(store, dir)?.check_readable()?;
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
    store: &Store,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    absent: &Absent,
    (ino, kind): (u32, FileKind),
) -> Result<()> {
    if let Some(gap) = &absent.gap
        && gap.fill(&Dir::open(store, dir)?, h, &new_entry(name, ino, kind))?
    {
        store.fast_commits.named(h, dir.ino, name, ino);
        return Ok(());
    }
    insert(store, h, dir, name, ino, kind)
}
