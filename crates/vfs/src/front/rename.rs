//! Rename, with replacement and exchange.
//!
//! 1. Look up both names without locks.
//! 2. Lock the two directories and the one or two inodes, in the order of their keys.
//! 3. Look up the names again. If one leads elsewhere now, start over.
//!
//! Moving a directory to another one can create a cycle. So a rename between directories first
//! takes the topology lock, and under it walks up from the new place.

use std::collections::HashSet;
use std::sync::Arc;

use super::engine::{Engine, Found, Inode, NameInDir, lock_all};
use crate::rules::{self, RenameSide};
use crate::{Error, FileKind, RenameMode, Result};

fn lookup<'a, E: Engine>(
    engine: &E,
    place: NameInDir<'a, E::Inode>,
) -> Result<Option<Found<'a, E>>> {
    let found = engine.lookup(place.dir, place.name)?;
    Ok(found.map(|(target, inode)| Found {
        place,
        target,
        inode,
    }))
}

/// Renames. See [`FileSystem::rename`](crate::FileSystem::rename).
pub(super) fn rename<E: Engine>(
    engine: &E,
    from: NameInDir<'_, E::Inode>,
    to: NameInDir<'_, E::Inode>,
    mode: RenameMode,
) -> Result<()> {
    rules::check_name(from.name)?;
    rules::check_name(to.name)?;
    rules::check_directory(from.dir.kind())?;
    rules::check_directory(to.dir.kind())?;
    let same_dir = from.dir.lock_key() == to.dir.lock_key();
    loop {
        let topology = (!same_dir).then(|| engine.lock_topology());
        let source = lookup(engine, from)?.ok_or(Error::NotFound)?;
        let target = lookup(engine, to)?;
        from.dir.check_changeable()?;
        to.dir.check_changeable()?;
        let mut locked = vec![from.dir, to.dir, &source.inode];
        locked.extend(target.as_ref().map(|target| &target.inode));
        let guards = lock_all(&locked);
        if !engine.is_current(from, Some(&source))? || !engine.is_current(to, target.as_ref())? {
            continue;
        }
        if !to.dir.takes_names() {
            return Err(Error::NotFound);
        }
        if !permitted(engine, &source, target.as_ref(), to, mode)? {
            return Ok(());
        }
        engine.rename(&source, target.as_ref(), to, mode)?;
        drop(guards);
        drop(topology);
        return match target {
            Some(target) if mode != RenameMode::Exchange && !target.inode.is_linked() => {
                engine.reap(&target.inode)
            }
            _ => Ok(()),
        };
    }
}

/// Whether the rename changes something. Fails if it is not permitted. The caller holds all locks.
fn permitted<E: Engine>(
    engine: &E,
    source: &Found<'_, E>,
    target: Option<&Found<'_, E>>,
    to: NameInDir<'_, E::Inode>,
    mode: RenameMode,
) -> Result<bool> {
    // An inode in a directory cannot be above that directory.
    let same_dir = source.place.dir.lock_key() == to.dir.lock_key();
    let side = |found: &Found<'_, E>, other: &Arc<E::Inode>, crosses: bool| -> Result<RenameSide> {
        let kind = found.inode.kind();
        Ok(RenameSide {
            dir_flags: found.place.dir.flags(),
            flags: found.inode.flags(),
            kind,
            holds_other_dir: !same_dir && holds(engine, &found.inode, other)?,
            has_entries: kind == FileKind::Directory
                && !crosses
                && engine.has_entries(&found.inode)?,
        })
    };
    // The check for a crossing of subvolumes precedes the check for entries in the target.
    let crosses = engine.crosses_trees(source, target, to, mode);
    let source_side = side(source, to.dir, false)?;
    let target_side = target
        .map(|target| side(target, source.place.dir, crosses))
        .transpose()?;
    let same = target.is_some_and(|target| target.inode.lock_key() == source.inode.lock_key());
    rules::check_rename(
        &source_side,
        target_side.as_ref(),
        to.dir.flags(),
        mode,
        same,
    )
}

/// True if `inode` is the directory `below` or one above it. The caller holds the topology lock, so
/// that nothing moves meanwhile.
fn holds<E: Engine>(engine: &E, inode: &E::Inode, below: &Arc<E::Inode>) -> Result<bool> {
    if inode.kind() != FileKind::Directory {
        return Ok(false);
    }
    let mut at = Arc::clone(below);
    let mut seen = HashSet::new();
    // A damaged image may have a cycle of directories.
    while seen.insert(at.lock_key()) {
        if at.lock_key() == inode.lock_key() {
            return Ok(true);
        }
        let up = engine.parent(&at)?;
        if up.lock_key() == at.lock_key() {
            return Ok(false);
        }
        rules::check_directory(up.kind())?;
        at = up;
    }
    Err(engine.directory_ring(below))
}
