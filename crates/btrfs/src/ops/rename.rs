//! Rename, with replacement and exchange.
//!
//! # How it works
//! Names are looked up without locks; then the two directories and the one or two inodes are
//! locked in their one order, and the names looked up again: if one leads elsewhere now, all
//! starts over. Moving a directory to another one can make a loop, so whoever moves one holds
//! the mount's topology lock first, and under it walks up from the new place.
//!
//! A subvolume moves like a directory, but what leads back from it are root refs, and only it
//! may cross from one subvolume to another.

use std::collections::HashSet;
use std::sync::Arc;

use sapwood_vfs::rules::{self, RenameSide};
use sapwood_vfs::{self as vfs, FileKind, RenameMode, Timestamp};

use super::inode::Inode;
use super::locks::lock_all;
use super::names::{self, Target};
use super::remove::{find_both, reap_if_unused, remove_name};
use super::{create, dir};
use crate::Result;
use crate::engine::Engine;
use crate::fsync::log;
use crate::transaction::Handle;

/// Items that a rename can touch: two names, two directories, two inodes, an orphan.
const ITEMS: u64 = 14;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) dir: &'a Arc<Inode>,
    pub(crate) name: &'a [u8],
}

/// A name together with what it led to when it was looked up.
struct Found<'a> {
    place: Place<'a>,
    target: Target,
    inode: Arc<Inode>,
}

impl<'a> Found<'a> {
    fn look_up(engine: &Arc<Engine>, place: Place<'a>) -> Result<Option<Self>> {
        let found = find_both(engine, place.dir, place.name)?;
        Ok(found.map(|(target, inode)| Self {
            place,
            target,
            inode,
        }))
    }

    fn side(&self, holds_other_dir: bool) -> RenameSide {
        let state = self.inode.state.lock();
        RenameSide {
            flags: state.vfs_flags(),
            kind: self.inode.kind,
            holds_other_dir,
            has_entries: self.inode.kind == FileKind::Directory && state.size > 0,
            dir_flags: vfs::InodeFlags::empty(),
        }
    }
}

/// Renames. See [`vfs::FileSystem::rename`].
pub(crate) fn rename(
    engine: &Arc<Engine>,
    from: Place<'_>,
    to: Place<'_>,
    mode: RenameMode,
) -> Result<()> {
    rules::check_name(from.name)?;
    rules::check_name(to.name)?;
    from.dir.require_dir()?;
    to.dir.require_dir()?;
    let same_dir = from.dir.lock_key() == to.dir.lock_key();
    loop {
        let topology = (!same_dir).then(|| engine.topology.lock());
        let source = Found::look_up(engine, from)?.ok_or(vfs::Error::NotFound)?;
        let target = Found::look_up(engine, to)?;
        from.dir.require_writable()?;
        to.dir.require_writable()?;
        let mut locked = vec![from.dir, to.dir, &source.inode];
        locked.extend(target.as_ref().map(|target| &target.inode));
        let guards = lock_all(&locked);
        let unchanged = names::find(engine, from.dir, from.name)? == Some(source.target)
            && names::find(engine, to.dir, to.name)? == target.as_ref().map(|target| target.target);
        if !unchanged {
            continue;
        }
        let doomed = locked_rename(engine, &source, target.as_ref(), to, mode)?;
        drop(guards);
        drop(topology);
        return match doomed {
            Some(inode) => reap_if_unused(engine, &inode),
            None => Ok(()),
        };
    }
}

/// The part of a rename that runs with all locks held. Returns an inode that may have lost its last name.
fn locked_rename(
    engine: &Arc<Engine>,
    source: &Found<'_>,
    target: Option<&Found<'_>>,
    to: Place<'_>,
    mode: RenameMode,
) -> Result<Option<Arc<Inode>>> {
    if !to.dir.takes_names() {
        return Err(vfs::Error::NotFound.into());
    }
    if !permitted(engine, source, target, to, mode)? {
        return Ok(None);
    }
    if source.inode.is_stub() || target.is_some_and(|target| target.inode.is_stub()) {
        return Err(vfs::Error::NotPermitted.into());
    }
    if crosses_subvolumes(source, target, to, mode) {
        return Err(vfs::Error::CrossDevice.into());
    }
    if let (Some(target), false) = (target, mode == RenameMode::Exchange)
        && target.target.as_subvolume().is_some()
    {
        return Err(vfs::Error::NotEmpty.into());
    }
    require_room(engine, source, to)?;
    if target.is_none() {
        names::check_vacant(engine, to.dir, to.name)?;
    }
    let to_index = dir::next_index(engine, to.dir)?;
    if mode == RenameMode::Exchange
        && let Some(target) = target
    {
        require_room(engine, target, source.place)?;
        let from_index = dir::next_index(engine, source.place.dir)?;
        let mut h = engine.start(2 * ITEMS)?;
        let done = exchange(&mut h, source, target, from_index, to_index);
        create::finish(h, done)?;
        return Ok(None);
    }
    let mut h = engine.start(ITEMS)?;
    let done = (|| {
        if let Some(target) = target {
            remove_name(&mut h, to.dir, to.name, &target.inode)?;
        }
        take(&mut h, source)?;
        put(&mut h, source, to, to_index)
    })();
    create::finish(h, done)?;
    Ok(target.map(|target| Arc::clone(&target.inode)))
}

/// Whether a rename would move anything but a subvolume from one subvolume to another.
fn crosses_subvolumes(
    source: &Found<'_>,
    target: Option<&Found<'_>>,
    to: Place<'_>,
    mode: RenameMode,
) -> bool {
    let stays = |found: &Found<'_>| found.target.as_subvolume().is_none();
    source.place.dir.root.id() != to.dir.root.id()
        && (stays(source) || (mode == RenameMode::Exchange && target.is_some_and(stays)))
}

fn permitted(
    engine: &Arc<Engine>,
    source: &Found<'_>,
    target: Option<&Found<'_>>,
    to: Place<'_>,
    mode: RenameMode,
) -> Result<bool> {
    // What is in a directory cannot be above it.
    let same_dir = source.place.dir.lock_key() == to.dir.lock_key();
    let (from_flags, to_flags) = (source.place.dir.vfs_flags(), to.dir.vfs_flags());
    let source_side = RenameSide {
        dir_flags: from_flags,
        ..source.side(!same_dir && holds(engine, &source.inode, to.dir)?)
    };
    let target_side = match target {
        None => None,
        Some(target) => {
            let holds = !same_dir && holds(engine, &target.inode, source.place.dir)?;
            let side = target.side(holds);
            Some(RenameSide {
                dir_flags: to_flags,
                // That the rename crosses subvolumes is found before that the target has entries.
                has_entries: side.has_entries
                    && !crosses_subvolumes(source, Some(target), to, mode),
                ..side
            })
        }
    };
    let same = target.is_some_and(|target| target.inode.lock_key() == source.inode.lock_key());
    Ok(rules::check_rename(
        &source_side,
        target_side.as_ref(),
        to_flags,
        mode,
        same,
    )?)
}

/// True if `inode` is a directory that `below` is, or is below.
fn holds(engine: &Arc<Engine>, inode: &Inode, below: &Arc<Inode>) -> Result<bool> {
    if inode.kind != FileKind::Directory {
        return Ok(false);
    }
    let mut at = Arc::clone(below);
    let mut seen = HashSet::new();
    // A damaged image may have a ring of directories.
    while seen.insert(at.lock_key()) {
        if at.lock_key() == inode.lock_key() {
            return Ok(true);
        }
        let up = dir::parent(engine, &at)?;
        if up.lock_key() == at.lock_key() {
            return Ok(false);
        }
        at = up;
    }
    Err(crate::Error::DirectoryRing {
        subvolume: below.root.id(),
        directory: below.objectid,
    })
}

fn require_room(engine: &Arc<Engine>, found: &Found<'_>, to: Place<'_>) -> Result<()> {
    if found.target.as_subvolume().is_some() {
        return Ok(());
    }
    match names::ref_fits(
        engine,
        &to.dir.root,
        found.inode.objectid,
        to.dir.objectid,
        to.name,
    )? {
        true => Ok(()),
        false => Err(vfs::Error::TooManyLinks.into()),
    }
}

/// Takes a name away from an inode that will get another one.
fn take(h: &mut Handle, found: &Found<'_>) -> Result<()> {
    let Place { dir, name } = found.place;
    let index = match found.target.as_subvolume() {
        Some(tree) => names::remove_root_refs(h, dir, tree)?,
        None => names::remove_ref(h, &dir.root, found.inode.objectid, dir.objectid, name)?,
    };
    names::remove_entry(h, dir, name, index)?;
    if !sapwood_fault::planted(89) {
        log::name_removed(h, dir, &found.inode);
    }
    Ok(())
}

/// Gives it the other one.
fn put(h: &mut Handle, found: &Found<'_>, to: Place<'_>, index: u64) -> Result<()> {
    names::add_entry(h, to.dir, to.name, found.target, index)?;
    match found.target.as_subvolume() {
        Some(tree) => names::add_root_refs(h, to.dir, tree, index, to.name)?,
        None => names::add_ref(
            h,
            &to.dir.root,
            found.inode.objectid,
            to.dir.objectid,
            index,
            to.name,
        )?,
    }
    let now = Timestamp::now();
    let transid = h.transid();
    found.inode.change(h, |state| {
        state.names_changed(transid);
        state.inode_changed(now);
    });
    Ok(())
}

fn exchange(
    h: &mut Handle,
    source: &Found<'_>,
    target: &Found<'_>,
    from_index: u64,
    to_index: u64,
) -> Result<()> {
    take(h, source)?;
    take(h, target)?;
    // Within one directory both indexes were drawn from the same counter, one after the other.
    put(h, source, target.place, to_index)?;
    put(h, target, source.place, from_index)
}
