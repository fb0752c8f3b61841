//! Moving names: the changes of a rename, after the front locked and checked everything.

use std::sync::Arc;

use sapwood_jbd2::Handle;
use sapwood_vfs::{FileKind, RenameMode, Timestamp};

use super::create::{NameInDir, Whiteout, links_of_dir};
use super::remove::{self, lose_link};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Result, dir, inode_alloc, orphan};

/// A name with its target at the lookup.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    /// The name.
    pub(crate) place: NameInDir<'a>,
    /// The inode.
    pub(crate) inode: &'a Arc<Inode>,
}

/// Moves a name, replacing `target` if there is one, or exchanges the two. A whiteout takes the old
/// name in the same handle. Expects all `io` locks.
///
/// # Errors
/// `NoSpace`, `TooManyLinks`; the directory cannot take the name; the image is damaged.
pub(crate) fn rename(
    engine: &Arc<Engine>,
    source: Found<'_>,
    target: Option<Found<'_>>,
    to: NameInDir<'_>,
    mode: RenameMode,
) -> Result<()> {
    let from = source.place;
    let moves_dir = source.inode.kind == FileKind::Directory && from.dir.ino != to.dir.ino;
    let replaces_dir = target.is_some_and(|target| target.inode.kind == FileKind::Directory);
    if moves_dir && !replaces_dir {
        links_of_dir(engine, to.dir, 1)?;
    }
    let room = match target {
        None => dir::room(engine, to.dir, to.name)?,
        Some(_) => dir::NameCost {
            credits: dir::CHANGE_CREDITS,
            blocks: 0,
        },
    };
    let whiteout = mode.whiteout();
    let whiteout = whiteout
        .map(|who| Whiteout::plan(engine, &who, from.dir))
        .transpose()?;
    let of_whiteout = whiteout.as_ref().map_or(0, |one| one.blocks(engine));
    let _blocks = engine.space.reserve(room.blocks + of_whiteout, true)?;
    // Up to two directories get another parent; the inodes of both names and of both directories
    // change.
    let others = 2 * dir::CHANGE_CREDITS + 4;
    let of_whiteout = whiteout.as_ref().map_or(0, |one| one.credits(engine));
    let credits = remove::CREDITS + orphan::CREDITS + room.credits + others + of_whiteout;
    let directory = |one: Found<'_>| one.inode.kind == FileKind::Directory;
    let replaces_name = mode == RenameMode::Exchange || whiteout.is_some();
    let h = if replaces_name || directory(source) || target.is_some_and(directory) {
        engine.start(credits)?
    } else {
        engine.start_tracked(credits)?
    };
    let (Some(target), RenameMode::Exchange) = (target, mode) else {
        // A full file system is found here, before anything else changes.
        let whiteout = match whiteout {
            Some(plan) => {
                let ino = inode_alloc::allocate(engine, &h, from.dir, FileKind::CharDevice)?;
                Some((plan, ino))
            }
            None => None,
        };
        return engine.abort(replace(engine, &h, source, target, to, whiteout));
    };
    engine.abort(exchange(engine, &h, source, target))
}

/// Moves the name, in place of the target of `to`. `whiteout` gets the old name, and this number.
fn replace(
    engine: &Arc<Engine>,
    h: &Handle,
    source: Found<'_>,
    target: Option<Found<'_>>,
    to: NameInDir<'_>,
    whiteout: Option<(Whiteout, u32)>,
) -> Result<()> {
    let now = engine.now();
    let NameInDir {
        dir: from_dir,
        name,
    } = source.place;
    let (ino, kind) = (source.inode.ino, source.inode.kind);
    match target {
        Some(target) => {
            dir::replace(engine, h, to.dir, to.name, ino, kind)?;
            lose_link(engine, h, to.dir, target.inode, now)?;
        }
        None => dir::insert(engine, h, to.dir, to.name, ino, kind)?,
    }
    match whiteout {
        Some((plan, ino)) => {
            let made = plan.make(engine, h, from_dir, ino)?;
            dir::replace(engine, h, from_dir, name, ino, made.kind)?;
        }
        None => dir::remove(engine, h, from_dir, name)?,
    }
    if kind == FileKind::Directory && from_dir.ino != to.dir.ino {
        let links = links_of_dir(engine, from_dir, -1)?;
        from_dir.state.lock().raw.set_links(links);
        let links = links_of_dir(engine, to.dir, 1)?;
        to.dir.state.lock().raw.set_links(links);
        dir::set_parent(engine, h, source.inode, to.dir.ino)?;
    }
    source.inode.state.lock().changed(now);
    source.inode.store(engine, h)?;
    store_dirs(engine, h, from_dir, to.dir, now)
}

/// Swaps two names.
fn exchange(engine: &Arc<Engine>, h: &Handle, source: Found<'_>, target: Found<'_>) -> Result<()> {
    let now = engine.now();
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
        let is_dir = |found: Found<'_>| found.inode.kind == FileKind::Directory;
        if is_dir(source) {
            dir::set_parent(engine, h, source.inode, to.dir.ino)?;
        }
        if is_dir(target) {
            dir::set_parent(engine, h, target.inode, from.dir.ino)?;
        }
        let change = i32::from(is_dir(source)) - i32::from(is_dir(target));
        if change != 0 {
            let links = links_of_dir(engine, to.dir, change)?;
            to.dir.state.lock().raw.set_links(links);
            let links = links_of_dir(engine, from.dir, -change)?;
            from.dir.state.lock().raw.set_links(links);
        }
    }
    for inode in [source.inode, target.inode] {
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
