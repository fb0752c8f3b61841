//! Deletes subvolumes: removes the name and marks the tree as dead.

use std::sync::Arc;

use sapwood_btrfs_format::{DiskKey, Key, RootFlags, kind};
use sapwood_vfs::{self as vfs, rules};

use super::choose;
use super::layer::Subvolumes;
use super::uuid_tree::{self, Which};
use crate::Result;
use crate::data::Files;
use crate::inode::{Inode, orphan_item};
use crate::namespace::names;
use crate::namespace::remove::lookup;
use crate::transaction::Handle;
use crate::tree::Root;
use sapwood_vfs::front::lock_all;

/// Items that a deletion can touch: name (two), directory, root item, root refs (two), orphan
/// item, uuids (two).
const ITEMS: u64 = 9;

/// Deletes the subvolume `name` in `dir`. The cleaner drops its blocks later.
///
/// # Errors
/// `NotFound`; `Invalid` if it is not a subvolume; `NotEmpty` if it contains another one;
/// `NotPermitted` if it is the default one, or if flags forbid it; `Busy` if it is mounted;
/// `ReadOnly` if `dir` is in a read-only subvolume.
pub(crate) fn delete(subvolumes: &Arc<Subvolumes>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    delete_if(subvolumes, dir, name, |_| Ok(()))
}

/// Deletes the subvolume `name` in `dir` if nothing is in it.
///
/// # Errors
/// `NotEmpty` if it has entries; the errors of [`delete`].
pub(crate) fn delete_empty(
    subvolumes: &Arc<Subvolumes>,
    dir: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    delete_if(subvolumes, dir, name, |top| {
        if top.state.lock().size > 0 {
            Err(vfs::Error::NotEmpty.into())
        } else {
            Ok(())
        }
    })
}

/// Deletes a subvolume if `check` of its root directory, which is locked then, agrees.
fn delete_if(
    subvolumes: &Arc<Subvolumes>,
    dir: &Arc<Inode>,
    name: &[u8],
    check: impl Fn(&Inode) -> Result<()>,
) -> Result<()> {
    let _changes = subvolumes.changes.lock();
    rules::check_name(name)?;
    dir.require_dir()?;
    loop {
        let (target, top) = lookup(subvolumes, dir, name)?.ok_or(vfs::Error::NotFound)?;
        let id = target.as_subvolume().ok_or(vfs::Error::Invalid)?;
        if top.is_stub() {
            return Err(vfs::Error::Invalid.into());
        }
        let _guards = lock_all(&[dir, &top]);
        if names::find(subvolumes, dir, name)? != Some(target) {
            continue;
        }
        dir.require_writable()?;
        rules::check_remove_name(dir.vfs_flags(), top.vfs_flags())?;
        check(&top)?;
        let root = choose::by_id(&subvolumes.roots, id)?;
        check_unused(subvolumes, id)?;
        let mut h = subvolumes.start_urgent(ITEMS)?;
        let done = unlink(&mut h, dir, name, &root);
        h.finish(done)?;
        subvolumes.cleaner.add(root);
        return Ok(());
    }
}

/// Refuses to delete a subvolume that is mounted, is the default, or contains another one.
fn check_unused(files: &Files, id: u64) -> Result<()> {
    if files.inodes.numbers().mounted() == id {
        return Err(vfs::Error::Busy.into());
    }
    if choose::default_id(&files.blocks, &files.roots)? == Some(id) {
        return Err(vfs::Error::NotPermitted.into());
    }
    let first = Key::new(id, kind::ROOT_REF, 0);
    let child = files.roots.root_tree.seek(files, &first)?.key();
    if child.is_some_and(|key| key.objectid == id && key.kind == kind::ROOT_REF) {
        return Err(vfs::Error::NotEmpty.into());
    }
    Ok(())
}

fn unlink(h: &mut Handle, dir: &Arc<Inode>, name: &[u8], root: &Arc<Root>) -> Result<()> {
    let id = root.id();
    let index = names::remove_root_refs(h, dir, id)?;
    names::remove_entry(h, dir, name, index)?;
    let item = {
        let mut item = root.item();
        item.refs = 0.into();
        item.drop_progress = DiskKey::default();
        item.drop_level = 0;
        item.flags = (item.root_flags() | RootFlags::DEAD).bits().into();
        *item
    };
    root.set_dead();
    h.record_root(root);
    let root_tree = h.store().roots.root_tree.clone();
    orphan_item::add(h, &root_tree, id)?;
    uuid_tree::remove(h, Which::Own, &item.uuid, id)?;
    uuid_tree::remove(h, Which::Received, &item.received_uuid, id)
}
