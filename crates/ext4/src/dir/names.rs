//! Operations on the names of a directory, in any of its forms.
//!
//! A caller that adds or removes a name searches for it once ([`present`], [`absent`]): the search
//! returns where the name is, or in which entry's slack it would go, and the change goes there.
//! Names in the inode itself are searched again: there are few. The caller holds the lock of the
//! directory meanwhile.

use sapwood_ext4_format::{InodeFlags, XattrSet};
use sapwood_jbd2::Handle;
use sapwood_vfs::FileKind;

use super::htree;
use super::inline::{self, Inline};
use super::linear::{self, DirEntryPlace, Gap};
use super::shape::{Dir, Form, Found, Growth, Wanted, new_entry};
use crate::commit_reason::CommitReason;
use crate::inode::Inode;
use crate::store::Store;
use crate::{Error, Result};

fn not_found() -> Error {
    Error::Vfs(sapwood_vfs::Error::NotFound)
}

/// Finds a name in the blocks of a directory. If it is not there, `gap` may have room for it.
fn search(dir: &Dir<'_>, name: &[u8], gap: Option<&mut Gap>) -> Result<Option<DirEntryPlace>> {
    match dir.form {
        _ if matches!(name, b"." | b"..") => Ok(None),
        Form::Indexed => htree::find(dir, name, gap),
        _ => linear::find(dir, &Wanted::new(dir, name), gap),
    }
}

/// Finds a name. As for all functions here, the caller holds `io` of the directory: shared to look,
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

/// Most credits and blocks that one change of names may need in the directory's current state.
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
            // The path to the leaf changes. A leaf, a node on each level, and a level are added.
            Ok((levels, full)) => one(levels + 2, 1 + levels + u32::from(full)),
            Err(_) => one(1, 0),
        },
    }
}

/// The credits and blocks that adding one name needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameCost {
    /// Credits of [`insert`].
    pub(crate) credits: u32,
    /// New blocks, to be reserved.
    pub(crate) blocks: u64,
}

/// The cost of adding this name, valid as long as the caller holds `io` exclusively. Called before
/// a handle is started: a directory whose index has reached the limit of the format refuses the
/// name here.
///
/// # Errors
/// `NoSpace`; the directory is damaged.
pub(crate) fn room(store: &Store, dir: &Inode, name: &[u8]) -> Result<NameCost> {
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
    Ok(NameCost {
        credits: growth.credits(&dir),
        blocks: u64::from(growth.added) + u64::from(map > 0),
    })
}

/// Credits that [`remove`], [`replace`] or [`set_parent`] needs.
pub(crate) const CHANGE_CREDITS: u32 = 1;

/// Credits that one change of names needs at most, for any name.
pub(crate) fn credits(store: &Store, dir: &Inode) -> u32 {
    // A directory that is damaged here is found damaged again.
    Dir::open(store, dir).map_or(1, |dir| growth(&dir).credits(&dir))
}

/// Adds a name that is not there. Sets size and flags of the directory in memory; the caller sets
/// times and stores it.
///
/// # Errors
/// `NoSpace`, also if the directory cannot grow further; the directory is damaged.
pub(crate) fn insert(
    store: &Store,
    h: &Handle,
    dir: &Inode,
    name: &[u8],
    ino: u32,
    kind: FileKind,
) -> Result<()> {
    store.fast_commits.named(h, dir.ino, name, ino);
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

/// Sets the target of an existing name.
///
/// # Errors
/// `NotFound`; the directory is damaged.
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
        return inline.replace(&dir, place, ino, kind.entry_type());
    }
    let place = search(&dir, name, None)?.ok_or_else(not_found)?;
    store
        .fast_commits
        .unnamed(h, dir.inode.ino, name, place.found.ino);
    store.fast_commits.named(h, dir.inode.ino, name, ino);
    dir.change(h, &place.buffer, |format, content| {
        format.set_inode(content, place.offset, ino, kind.entry_type())
    })
}

/// Attributes that [`init`] gives a new inode of this kind: a directory has one if it begins
/// inline.
pub(crate) fn first_attributes(store: &Store, kind: FileKind) -> XattrSet {
    let inline = (kind == FileKind::Directory).then(|| inline::first_attributes(store));
    inline.flatten().unwrap_or_default()
}

/// Gives a new directory its first block, with `.` and `..`, and its size.
///
/// # Errors
/// No space.
pub(crate) fn init(store: &Store, h: &Handle, dir: &Inode, parent: u32) -> Result<()> {
    store.fast_commits.whole(h, CommitReason::Directory);
    if inline::init(store, dir, parent)? {
        return Ok(());
    }
    linear::init(&mut Dir::open(store, dir)?, h, parent)
}

/// Target of `..`.
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

/// Sets the target of `..`.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn set_parent(store: &Store, h: &Handle, dir: &Inode, parent: u32) -> Result<()> {
    store.fast_commits.whole(h, CommitReason::Directory);
    let dir = Dir::open(store, dir)?;
    match dir.form {
        Form::Inline => Inline::read(&dir)?.set_parent(&dir, parent),
        Form::Linear => linear::set_parent(&dir, h, parent),
        Form::Indexed => htree::set_parent(&dir, h, parent),
    }
}

/// Whether it has only `.` and `..`.
///
/// # Errors
/// The directory is damaged.
pub(crate) fn is_empty(store: &Store, dir: &Inode) -> Result<bool> {
    let dir = Dir::open(store, dir)?;
    match dir.form {
        Form::Inline => Ok(Inline::read(&dir)?.names(&dir).next().is_none()),
        Form::Linear => linear::is_empty(&dir),
        Form::Indexed => htree::is_empty(&dir),
    }
}

/// A name that is there. Good until a name of the directory changes.
pub(crate) struct Present {
    /// Its target.
    pub(crate) found: Found,
    place: Option<DirEntryPlace>,
}

/// A name that is not there. Good until a name of the directory changes.
pub struct Absent {
    gap: Option<Gap>,
}

/// Place of a name, if it is there. The caller holds `io` of the directory exclusively until it
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

/// Like [`remove`](super::remove), of a name that was found.
///
/// # Errors
/// `NotFound`; the directory is damaged.
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

/// Like [`room`](super::room), for a name that was not found.
///
/// # Errors
/// `NoSpace`; the directory is damaged.
pub(crate) fn room_absent(
    store: &Store,
    dir: &Inode,
    name: &[u8],
    absent: &Absent,
) -> Result<NameCost> {
    if absent.gap.is_none() {
        return room(store, dir, name);
    }
    Dir::open(store, dir)?.check_readable()?;
    Ok(NameCost {
        credits: 1,
        blocks: 0,
    })
}

/// Like [`insert`](super::insert), of a name that was not found.
///
/// # Errors
/// `NoSpace`, also if the directory cannot grow further; the directory is damaged.
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
