//! Removing names: unlink and rmdir.

use std::cmp::Ordering;
use std::sync::Arc;

use sapwood_jbd2::Handle;
use sapwood_vfs::front::lock_all;
use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs, FileKind, Timestamp};

use super::create::links_of_dir;
use super::reap::{self, reap_if_unused};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result};
use crate::{dir, orphan};

/// The target of `name`, loaded. The caller holds no inode's lock; the result may be out of date.
///
/// # Errors
/// [`Error::BadInode`] if the name leads to an inode that is free; other damage; errors of the
/// device.
pub(crate) fn lookup(
    engine: &Arc<Engine>,
    parent: &Arc<Inode>,
    name: &[u8],
) -> Result<Option<Arc<Inode>>> {
    // Held until the inode is there: while it has the name, its number cannot be another inode's.
    let _io = parent.io.read();
    let Some(found) = dir::find(engine, parent, name)? else {
        return Ok(None);
    };
    load(engine, parent, found).map(Some)
}

/// The inode that a name of `parent` leads to. Expects the directory's `io` lock.
fn load(engine: &Arc<Engine>, parent: &Inode, found: dir::Found) -> Result<Arc<Inode>> {
    match engine.inodes.named(engine, found.ino) {
        Err(Error::Vfs(vfs::Error::Stale)) => Err(Error::BadInode {
            ino: found.ino,
            reason: format!("free, but directory {} names it", parent.ino),
        }),
        other => other,
    }
}

/// Whether `name` still leads to an inode that was looked up. Expects the `io` locks of both. The
/// number alone is no proof: the inode may have been deleted meanwhile, and the name may lead to a
/// new one with its number.
///
/// # Errors
/// The image is damaged; errors of the device.
pub(crate) fn leads_to(engine: &Engine, dir: &Inode, name: &[u8], inode: &Inode) -> Result<bool> {
    let found = dir::find(engine, dir, name)?;
    let same = found.map(|found| found.ino) == Some(inode.ino);
    Ok(same && !inode.state.lock().dying)
}

/// Removes `name`, which must be a directory if `directory` is true, and must not be one otherwise.
/// The caller holds no inode's lock.
///
/// # Errors
/// `NotFound`, `NotPermitted`, `NotEmpty`; `IsDirectory` or `NotDirectory` for the wrong type; the
/// image is damaged; errors of the journal.
pub(crate) fn remove(
    engine: &Arc<Engine>,
    dir: &Arc<Inode>,
    name: &[u8],
    directory: bool,
) -> Result<()> {
    loop {
        let held = dir.io.write();
        let present = dir::present(engine, dir, name)?.ok_or(vfs::Error::NotFound)?;
        let victim = load(engine, dir, present.found)?;
        let own = match victim.ino.cmp(&dir.ino) {
            Ordering::Greater => Some(victim.io.write()),
            Ordering::Less => {
                let own = victim.io.try_write();
                if own.is_none() {
                    // Wait for both locks in the order of the numbers, then look again.
                    drop(held);
                    drop(lock_all(&[dir, &victim]));
                    continue;
                }
                own
            }
            // Damage: the name leads to its own directory.
            Ordering::Equal => None,
        };
        if victim.state.lock().dying {
            // The inode is being deleted, or stays in this state because its deletion failed.
            engine.health.check()?;
            continue;
        }
        check(engine, dir, &victim, directory)?;
        let gone = remove_last(engine, dir, name, &present, &victim)?;
        drop((own, held));
        return if gone {
            Ok(())
        } else {
            reap_if_unused(engine, &victim)
        };
    }
}

fn check(engine: &Arc<Engine>, dir: &Inode, victim: &Inode, directory: bool) -> Result<()> {
    rules::check_remove(
        dir.vfs_flags(),
        (victim.vfs_flags(), victim.kind),
        directory,
    )?;
    if directory && !dir::is_empty(engine, victim)? {
        return Err(vfs::Error::NotEmpty.into());
    }
    Ok(())
}

/// Removes the name in a handle. An inode that loses its last one, is empty and has no references
/// is deleted at once: true. Expects both `io` locks.
fn remove_last(
    engine: &Arc<Engine>,
    dir: &Arc<Inode>,
    name: &[u8],
    present: &dir::Present,
    victim: &Arc<Inode>,
) -> Result<bool> {
    let bare = reap::is_bare(engine, victim)?;
    let credits = if bare {
        CREDITS + reap::BARE_CREDITS
    } else {
        CREDITS
    };
    let h = match victim.kind {
        FileKind::Directory => engine.start(credits)?,
        _ => engine.start_tracked(credits)?,
    };
    engine.abort((|| {
        dir::remove_present(engine, &h, dir, name, present)?;
        let now = engine.now();
        dir.state.lock().content_changed(now);
        let gone = bare && reap::condemn(victim, now);
        if gone {
            reap::free(engine, &h, victim)?
        } else {
            lose_link(engine, &h, dir, victim, now)?
        }
        dir.store(engine, &h)?;
        Ok(gone)
    })())
}

/// Credits to remove a name with [`lose_link`], and to store the directory.
pub(crate) const CREDITS: u32 = dir::CHANGE_CREDITS + orphan::CREDITS + 2;

/// Counts one name less. Stores the inode that lost it, not its directory.
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(crate) fn lose_link(
    engine: &Arc<Engine>,
    h: &Handle,
    dir: &Inode,
    victim: &Arc<Inode>,
    now: Timestamp,
) -> Result<()> {
    let directory = victim.kind == FileKind::Directory;
    if directory {
        let links = links_of_dir(engine, dir, -1)?;
        dir.state.lock().raw.set_links(links);
    }
    let last = {
        let mut state = victim.state.lock();
        let links = if directory {
            0
        } else {
            state.raw.links().saturating_sub(1)
        };
        state.raw.set_links(links);
        state.changed(now);
        links == 0
    };
    if last {
        orphan::add(engine, h, victim)?;
    }
    victim.store(engine, h)
}
