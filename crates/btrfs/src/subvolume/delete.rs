//! Taking a subvolume's name away and marking its tree as dead.

use std::sync::Arc;

use sapwood_btrfs_format::{DiskKey, Key, RootFlags, kind};
use sapwood_vfs::{self as vfs, rules};

use super::uuid_tree::{self, Which};
use super::{choose, live_root};
use crate::Result;
use crate::engine::Engine;
use crate::ops::create::finish;
use crate::ops::remove::find_both;
use crate::ops::{Inode, names, orphan};
use crate::transaction::Handle;
use crate::tree::Root;
use sapwood_vfs::front::lock_all;

/// Items that a deletion can touch: name (two), directory, root item, root refs (two), orphan
/// item, uuids (two).
const ITEMS: u64 = 9;

/// Deletes the subvolume `name` in `dir`. Its blocks go over time.
///
/// # Errors
/// As [`sapwood_vfs::Subvolumes::delete_subvolume`].
pub(crate) fn delete(engine: &Arc<Engine>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    delete_if(engine, dir, name, |_| Ok(()))
}

/// Deletes the subvolume `name` in `dir` if nothing is in it.
///
/// # Errors
/// As [`sapwood_vfs::FileSystem::rmdir`].
pub(crate) fn delete_empty(engine: &Arc<Engine>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    delete_if(engine, dir, name, |top| match top.state.lock().size > 0 {
        true => Err(vfs::Error::NotEmpty.into()),
        false => Ok(()),
    })
}

/// Deletes a subvolume if `check` of its root directory, which is locked then, agrees.
fn delete_if(
    engine: &Arc<Engine>,
    dir: &Arc<Inode>,
    name: &[u8],
    check: impl Fn(&Inode) -> Result<()>,
) -> Result<()> {
    let _subvolumes = engine.subvolumes.lock();
    rules::check_name(name)?;
    dir.require_dir()?;
    loop {
        let (target, top) = find_both(engine, dir, name)?.ok_or(vfs::Error::NotFound)?;
        let id = target.as_subvolume().ok_or(vfs::Error::Invalid)?;
        if top.is_stub() {
            return Err(vfs::Error::Invalid.into());
        }
        let _guards = lock_all(&[dir, &top]);
        if names::find(engine, dir, name)? != Some(target) {
            continue;
        }
        dir.require_writable()?;
        rules::check_remove_name(dir.vfs_flags(), top.vfs_flags())?;
        check(&top)?;
        let root = live_root(engine, id)?;
        check_unused(engine, id)?;
        let mut h = engine.start_urgent(ITEMS)?;
        let done = unlink(&mut h, dir, name, &root);
        finish(h, done)?;
        engine.cleaner.add(root);
        return Ok(());
    }
}

/// Refuses to delete the mounted one, the default one, and one that holds another.
fn check_unused(engine: &Engine, id: u64) -> Result<()> {
    if engine.inodes.numbers().mounted() == id {
        return Err(vfs::Error::Busy.into());
    }
    if choose::default_id(&engine.blocks, &engine.roots)? == Some(id) {
        return Err(vfs::Error::NotPermitted.into());
    }
    let first = Key::new(id, kind::ROOT_REF, 0);
    let child = engine.roots.root_tree.seek(engine, &first)?.key();
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
    let root_tree = h.engine().roots.root_tree.clone();
    orphan::add(h, &root_tree, id)?;
    uuid_tree::remove(h, Which::Own, &item.uuid, id)?;
    uuid_tree::remove(h, Which::Received, &item.received_uuid, id)
}
