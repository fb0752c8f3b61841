//! Snapshots.
//!
//! # How it works
//! To take a snapshot, a thread writes the source's data back, queues a [`Pending`] in the running
//! transaction and commits that. The commit, once no handle is open and all delayed changes are in
//! the trees, copies the top block of the source; from then on blocks of this transaction count as
//! shared in both trees (`last_snapshot`). So the snapshot contains the changes of all transactions
//! up to its own, and no later change. The thread holds the lock of the directory for the new name
//! until the commit is done.

use std::sync::Arc;

use sapwood_vfs as vfs;

use super::choose::next_id;
use super::create::{self, check_new_name};
use super::layer::Subvolumes;
use super::pending::Pending;
use crate::data::{self, Wait};
use crate::inode::Inode;
use crate::namespace::dir;
use crate::tree::Root;
use crate::{Error, Result};

/// Takes a snapshot of `source`, named `name` in `dir`; returns its top directory.
///
/// # Errors
/// `Invalid` or `NameTooLong` for the name, `NotDirectory`, `ReadOnly`, `NotFound` if `dir` or
/// `source` was deleted, `Exists`, `Overflow`; [`Error::NoSpace`](crate::Error::NoSpace).
pub(crate) fn snapshot(
    subvolumes: &Arc<Subvolumes>,
    source: &Arc<Root>,
    dir: &Arc<Inode>,
    name: &[u8],
    read_only: bool,
) -> Result<Arc<Inode>> {
    let _changes = subvolumes.changes.lock();
    let _io = dir.io.write();
    check_new_name(subvolumes, dir, name)?;
    if source.is_dead() {
        return Err(vfs::Error::NotFound.into());
    }
    // Once before overwrites are frozen, so that little data must go to new extents afterwards.
    data::flush_root(subvolumes, source.id(), Wait::Completion)?;
    let _frozen = subvolumes.overwrites.freeze(source.id());
    data::flush_root(subvolumes, source.id(), Wait::Completion)?;
    let id = next_id(subvolumes)?;
    let index = dir::next_index(subvolumes, dir)?;
    let h = subvolumes.start(create::ITEMS)?;
    h.mark_dirty();
    subvolumes.pending.add(Pending {
        source: source.clone(),
        id,
        dir: dir.clone(),
        name: name.to_vec(),
        index,
        read_only,
    });
    let transid = h.transid();
    h.end()?;
    subvolumes.commit(Some(transid))?;
    let root = subvolumes.roots.get(id)?;
    subvolumes.inodes.load(subvolumes, &root, root.top_dir())
}

/// The tree whose top directory `inode` is.
pub(crate) fn top_of(inode: &Inode) -> Result<Arc<Root>> {
    if inode.objectid == inode.root.top_dir() {
        return Ok(inode.root.clone());
    }
    Err(Error::Vfs(vfs::Error::Invalid))
}
