//! Removing names: unlink and rmdir.

use std::sync::Arc;

use sapwood_vfs::front::lock_all;
use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs, Timestamp};

use super::inode::Inode;
use super::names::{self, Target};
use super::{create, dir, orphan};
use crate::Result;
use crate::engine::Engine;
use crate::transaction::Handle;
use crate::tree_log;

/// Items that removing a name can touch.
const ITEMS: u64 = 6;

/// Finds what `name` leads to, and its inode. The caller holds no inode's lock.
pub(crate) fn find_both(
    engine: &Arc<Engine>,
    parent: &Arc<Inode>,
    name: &[u8],
) -> Result<Option<(Target, Arc<Inode>)>> {
    loop {
        let Some(target) = names::find_for_sure(engine, parent, name)? else {
            return Ok(None);
        };
        if let Some(inode) = dir::resolve(engine, parent, name, target)? {
            return Ok(Some((target, inode)));
        }
    }
}

/// Removes `name` of a directory, if `directory`, or of anything else; an empty subvolume is deleted.
/// The caller holds no inode's lock.
///
/// # Errors
/// See [`vfs::FileSystem::unlink`] and [`vfs::FileSystem::rmdir`].
pub(crate) fn remove(
    engine: &Arc<Engine>,
    dir: &Arc<Inode>,
    name: &[u8],
    directory: bool,
) -> Result<()> {
    loop {
        let (target, victim) = find_both(engine, dir, name)?.ok_or(vfs::Error::NotFound)?;
        dir.require_writable()?;
        let guards = lock_all(&[dir, &victim]);
        if names::find(engine, dir, name)? != Some(target) {
            continue;
        }
        rules::check_remove(
            dir.vfs_flags(),
            (victim.vfs_flags(), victim.kind),
            directory,
        )?;
        if directory && victim.state.lock().size > 0 {
            return Err(vfs::Error::NotEmpty.into());
        }
        if victim.is_stub() {
            let index = names::find_index(engine, dir, name)?;
            let mut h = engine.start_urgent(ITEMS)?;
            let removed = names::remove_entry(&mut h, dir, name, index);
            return create::finish(h, removed);
        }
        if target.as_subvolume().is_some() {
            drop(guards);
            return crate::subvolume::delete_empty(engine, dir, name);
        }
        let mut h = engine.start_urgent(ITEMS)?;
        let removed = remove_name(&mut h, dir, name, &victim);
        create::finish(h, removed)?;
        drop(guards);
        return reap_if_unused(engine, &victim);
    }
}

/// Deletes the inode if its last name went and no caller refers to it.
pub(super) fn reap_if_unused(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    if inode.is_linked() {
        Ok(())
    } else {
        orphan::reap(engine, inode)
    }
}

/// Takes the name of an inode of the same tree away; the last one makes it an orphan. Expects both
/// `io` locks.
pub(super) fn remove_name(
    h: &mut Handle,
    dir: &Arc<Inode>,
    name: &[u8],
    victim: &Arc<Inode>,
) -> Result<()> {
    let index = names::remove_ref(h, &dir.root, victim.objectid, dir.objectid, name)?;
    names::remove_entry(h, dir, name, index)?;
    let now = Timestamp::now();
    let mut last = false;
    let transid = h.transid();
    victim.change(h, |state| {
        state.names_changed(transid);
        state.nlink = state.nlink.saturating_sub(1);
        state.inode_changed(now);
        last = state.nlink == 0;
    });
    tree_log::name_removed(h, dir, victim);
    if last {
        orphan::add(h, &victim.root, victim.objectid)?;
    }
    Ok(())
}
