//! Removing names: unlink and rmdir.

use std::sync::Arc;

use sapwood_vfs::front::lock_all;
use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs};

use super::layer::Namespace;
use super::names::{self, Target};
use super::{dir, orphan};
use crate::Result;
use crate::data::Files;
use crate::inode::{Inode, orphan_item};
use crate::transaction::Handle;

/// Items that removing a name can touch.
const ITEMS: u64 = 6;

/// Finds the target of `name`, and its inode. The caller holds no inode's lock.
pub(crate) fn lookup(
    files: &Arc<Files>,
    parent: &Arc<Inode>,
    name: &[u8],
) -> Result<Option<(Target, Arc<Inode>)>> {
    loop {
        let Some(target) = names::find_for_sure(files, parent, name)? else {
            return Ok(None);
        };
        if let Some(inode) = dir::resolve(files, parent, name, target)? {
            return Ok(Some((target, inode)));
        }
    }
}

/// Result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The name was removed.
    Done,
    /// The name of an empty subvolume, which must be deleted.
    Subvolume,
}

/// Removes `name`, which must be a directory if `directory` is true, and must not be one otherwise.
/// The caller holds no inode's lock.
///
/// # Errors
/// `NotFound`; `ReadOnly` in a read-only subvolume; `NotPermitted`, `NotEmpty`; `IsDirectory` or
/// `NotDirectory` for the wrong type.
pub(crate) fn remove(
    namespace: &Arc<Namespace>,
    dir: &Arc<Inode>,
    name: &[u8],
    directory: bool,
) -> Result<Removal> {
    loop {
        let (target, victim) = lookup(namespace, dir, name)?.ok_or(vfs::Error::NotFound)?;
        dir.require_writable()?;
        let guards = lock_all(&[dir, &victim]);
        if names::find(namespace, dir, name)? != Some(target) {
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
            let index = names::find_index(namespace, dir, name)?;
            let mut h = namespace.start_urgent(ITEMS)?;
            let removed = names::remove_entry(&mut h, dir, name, index);
            return h.finish(removed).map(|()| Removal::Done);
        }
        if target.as_subvolume().is_some() {
            return Ok(Removal::Subvolume);
        }
        let mut h = namespace.start_urgent(ITEMS)?;
        let removed = remove_name(namespace, &mut h, dir, name, &victim);
        h.finish(removed)?;
        drop(guards);
        return reap_if_unused(namespace, &victim).map(|()| Removal::Done);
    }
}

/// Deletes the inode if it has no name left and no caller refers to it.
pub(super) fn reap_if_unused(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    if inode.is_linked() {
        Ok(())
    } else {
        orphan::reap(files, inode)
    }
}

/// Removes a name of an inode of the same tree. An inode without names becomes an orphan. Expects
/// both `io` locks.
pub(super) fn remove_name(
    namespace: &Namespace,
    h: &mut Handle,
    dir: &Arc<Inode>,
    name: &[u8],
    victim: &Arc<Inode>,
) -> Result<()> {
    let index = names::remove_ref(h, &dir.root, victim.objectid, dir.objectid, name)?;
    names::remove_entry(h, dir, name, index)?;
    let now = h.store().now();
    let transid = h.transid();
    victim.change(h, |state| {
        state.names_changed(transid);
        state.nlink = state.nlink.saturating_sub(1);
        state.inode_changed(now);
        if state.nlink == 0 {
            orphan_item::delay(h, state);
        }
    });
    namespace.name_removed(h, dir, victim);
    Ok(())
}
