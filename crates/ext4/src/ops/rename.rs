//! Rename, with replacement and exchange.
//!
//! # How it works
//! Names are looked up without locks held over the look-up; then the two directories and the one or two
//! inodes are locked in their one order, and the names looked up again: if one leads elsewhere now, all
//! starts over. Moving a directory to another one can make a loop, so whoever renames between directories holds
//! the mount's topology lock first, and under it walks up from the new place.

use std::collections::HashSet;
use std::sync::Arc;

use sapwood_jbd2::Handle;
use sapwood_vfs::rules::{self, RenameSide};
use sapwood_vfs::{self as vfs, FileKind, RenameMode, Timestamp};

use super::link::links_of_dir;
use super::locks::lock_all;
use super::reap::reap_if_unused;
use super::remove::{self, leads_to, look_up, lose_link};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result, dir, orphan};

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) dir: &'a Arc<Inode>,
    pub(super) name: &'a [u8],
}

/// A name together with what it led to when it was looked up.
struct Found<'a> {
    place: Place<'a>,
    inode: Arc<Inode>,
}

impl<'a> Found<'a> {
    fn look_up(engine: &Arc<Engine>, place: Place<'a>) -> Result<Option<Self>> {
        let found = look_up(engine, place.dir, place.name)?;
        Ok(found.map(|inode| Self { place, inode }))
    }

    fn side(&self, engine: &Engine, holds_other_dir: bool) -> Result<RenameSide> {
        let directory = self.inode.kind == FileKind::Directory;
        Ok(RenameSide {
            flags: self.inode.vfs_flags(),
            kind: self.inode.kind,
            holds_other_dir,
            has_entries: directory && !dir::is_empty(engine, &self.inode)?,
            dir_flags: self.place.dir.vfs_flags(),
        })
    }

    fn is_current(&self, engine: &Engine) -> Result<bool> {
        leads_to(engine, self.place.dir, self.place.name, &self.inode)
    }
}

/// Renames. See [`vfs::FileSystem::rename`].
///
/// # Errors
/// See there.
pub(super) fn rename(
    engine: &Arc<Engine>,
    from: Place<'_>,
    to: Place<'_>,
    mode: RenameMode,
) -> Result<()> {
    rules::check_name(from.name)?;
    rules::check_name(to.name)?;
    from.dir.require_dir()?;
    to.dir.require_dir()?;
    let same_dir = from.dir.ino == to.dir.ino;
    loop {
        let topology = (!same_dir).then(|| engine.topology.lock());
        let source = Found::look_up(engine, from)?;
        let target = Found::look_up(engine, to)?;
        let source = source.ok_or(vfs::Error::NotFound)?;
        let mut locked = vec![from.dir, to.dir, &source.inode];
        locked.extend(target.as_ref().map(|target| &target.inode));
        let guards = lock_all(&locked);
        let target_stands = match &target {
            Some(target) => target.is_current(engine)?,
            None => dir::find(engine, to.dir, to.name)?.is_none(),
        };
        if !target_stands || !source.is_current(engine)? {
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
    if !to.dir.is_linked() {
        return Err(vfs::Error::NotFound.into());
    }
    if !permitted(engine, source, target, to, mode)? {
        return Ok(None);
    }
    let from = source.place;
    let moves_dir = source.inode.kind == FileKind::Directory && from.dir.ino != to.dir.ino;
    let replaces_dir = target.is_some_and(|target| target.inode.kind == FileKind::Directory);
    if moves_dir && !replaces_dir {
        links_of_dir(engine, to.dir, 1)?;
    }
    let room = match target {
        None => dir::room(engine, to.dir, to.name)?,
        Some(_) => dir::Room {
            credits: dir::CHANGE_CREDITS,
            blocks: 0,
        },
    };
    let _blocks = engine.space.reserve(room.blocks, true)?;
    // Up to two directories learn of another parent; the inodes of both names and of both directories.
    let others = 2 * dir::CHANGE_CREDITS + 4;
    let credits = remove::CREDITS + orphan::CREDITS + room.credits + others;
    let directory = |one: &Found<'_>| one.inode.kind == FileKind::Directory;
    let h = match mode == RenameMode::Exchange || directory(source) || target.is_some_and(directory)
    {
        true => engine.start(credits)?,
        false => engine.start_noted(credits)?,
    };
    let (Some(target), RenameMode::Exchange) = (target, mode) else {
        engine.abort(replace(engine, &h, source, target, to))?;
        return Ok(target.map(|target| Arc::clone(&target.inode)));
    };
    engine.abort(exchange(engine, &h, source, target))?;
    Ok(None)
}

fn permitted(
    engine: &Arc<Engine>,
    source: &Found<'_>,
    target: Option<&Found<'_>>,
    to: Place<'_>,
    mode: RenameMode,
) -> Result<bool> {
    // What is in a directory cannot be above it.
    let same_dir = source.place.dir.ino == to.dir.ino;
    let holds_target = !same_dir && holds(engine, &source.inode, to.dir)?;
    let source_side = source.side(engine, holds_target)?;
    let target_side = match target {
        None => None,
        Some(target) => {
            let holds = !same_dir && holds(engine, &target.inode, source.place.dir)?;
            Some(target.side(engine, holds)?)
        }
    };
    let same = target.is_some_and(|target| target.inode.ino == source.inode.ino);
    Ok(rules::check_rename(
        &source_side,
        target_side.as_ref(),
        to.dir.vfs_flags(),
        mode,
        same,
    )?)
}

/// True if `inode` is a directory that `below` is, or is below. Expects the topology lock, so that nothing moves
/// meanwhile.
fn holds(engine: &Arc<Engine>, inode: &Inode, below: &Arc<Inode>) -> Result<bool> {
    if inode.kind != FileKind::Directory {
        return Ok(false);
    }
    let mut at = Arc::clone(below);
    let mut seen = HashSet::new();
    // A damaged image may have a ring of directories.
    while seen.insert(at.ino) {
        if at.ino == inode.ino {
            return Ok(true);
        }
        let up = dir::parent(engine, &at)?;
        if up == at.ino {
            return Ok(false);
        }
        at = engine.inodes.named(engine, up)?;
        at.require_dir()?;
    }
    Err(Error::BadInode {
        ino: below.ino,
        reason: "the directories above it form a ring".into(),
    })
}

/// Moves the name, in place of what `to` led to.
fn replace(
    engine: &Arc<Engine>,
    h: &Handle,
    source: &Found<'_>,
    target: Option<&Found<'_>>,
    to: Place<'_>,
) -> Result<()> {
    let now = Timestamp::now();
    let Place {
        dir: from_dir,
        name,
    } = source.place;
    let (ino, kind) = (source.inode.ino, source.inode.kind);
    match target {
        Some(target) => {
            dir::replace(engine, h, to.dir, to.name, ino, kind)?;
            lose_link(engine, h, to.dir, &target.inode, now)?;
        }
        None => dir::insert(engine, h, to.dir, to.name, ino, kind)?,
    }
    dir::remove(engine, h, from_dir, name)?;
    if kind == FileKind::Directory && from_dir.ino != to.dir.ino {
        let links = links_of_dir(engine, from_dir, -1)?;
        from_dir.state.lock().raw.set_links(links);
        let links = links_of_dir(engine, to.dir, 1)?;
        to.dir.state.lock().raw.set_links(links);
        dir::set_parent(engine, h, &source.inode, to.dir.ino)?;
    }
    source.inode.state.lock().changed(now);
    source.inode.store(engine, h)?;
    store_dirs(engine, h, from_dir, to.dir, now)
}

/// Swaps two names.
fn exchange(
    engine: &Arc<Engine>,
    h: &Handle,
    source: &Found<'_>,
    target: &Found<'_>,
) -> Result<()> {
    let now = Timestamp::now();
    let (from, to) = (source.place, target.place);
    dir::replace(
        engine,
        h,
        to.dir,
        to.name,
        source.inode.ino,
        source.inode.kind,
    )?;
    dir::replace(
        engine,
        h,
        from.dir,
        from.name,
        target.inode.ino,
        target.inode.kind,
    )?;
    if from.dir.ino != to.dir.ino {
        let is_dir = |found: &Found<'_>| found.inode.kind == FileKind::Directory;
        if is_dir(source) {
            dir::set_parent(engine, h, &source.inode, to.dir.ino)?;
        }
        if is_dir(target) {
            dir::set_parent(engine, h, &target.inode, from.dir.ino)?;
        }
        let change = i32::from(is_dir(source)) - i32::from(is_dir(target));
        if change != 0 {
            let links = links_of_dir(engine, to.dir, change)?;
            to.dir.state.lock().raw.set_links(links);
            let links = links_of_dir(engine, from.dir, -change)?;
            from.dir.state.lock().raw.set_links(links);
        }
    }
    for inode in [&source.inode, &target.inode] {
        inode.state.lock().changed(now);
        inode.store(engine, h)?;
    }
    store_dirs(engine, h, from.dir, to.dir, now)
}

fn store_dirs(engine: &Engine, h: &Handle, from: &Inode, to: &Inode, now: Timestamp) -> Result<()> {
    from.state.lock().content_changed(now);
    from.store(engine, h)?;
    if from.ino == to.ino {
        return Ok(());
    }
    to.state.lock().content_changed(now);
    to.store(engine, h)
}
