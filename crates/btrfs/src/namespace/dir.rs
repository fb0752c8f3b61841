//! Directories: lookup, listing, and the index items that are not in the tree yet.
//!
//! # How it works
//! Creating a name puts its `DIR_ITEM` into the tree at once, because lookups need it, but keeps
//! its `DIR_INDEX` in memory until the transaction commits or the directory has many. They are in
//! order and go into the tree as one batch. A name that is removed before that never reaches the
//! tree by index. Listing merges both sources by index. It reads the memory side first, so that an
//! entry that moves to the tree meanwhile is seen at least once; the merge drops the copy.
//!
//! A directory with pending entries is always queued in the running transaction, which holds it
//! in memory.
//!
//! See [`super::position`] for the meaning of a position.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_btrfs_format::{DirItemRef, Key, dir_items, kind};
use sapwood_vfs::{self as vfs, DirEntry, FileKind};

use super::names::{self, Target};
use super::position::{FIRST_INDEX, Listing};
use crate::data::Files;
use crate::error::bad_item;
use crate::inode::Inode;
use crate::transaction::Store;
use crate::{Error, Result};

/// The largest index whose successor is one too.
const LAST_INDEX: u64 = u64::MAX - 1;

/// Index for the next name in `dir`, whose `io` lock the caller holds exclusively.
pub(crate) fn next_index(store: &Store, dir: &Inode) -> Result<u64> {
    let index = peek_index(store, dir)?;
    dir.dir.lock().next_index = Some(following(dir, index)?);
    Ok(index)
}

/// The next result of [`next_index`]. The caller holds `dir`'s `io` lock.
fn peek_index(store: &Store, dir: &Inode) -> Result<u64> {
    if let Some(index) = dir.dir.lock().next_index {
        return Ok(index);
    }
    let last = Key::new(dir.objectid, kind::DIR_INDEX, u64::MAX);
    let index = match dir.root.seek_back(store, &last)?.item() {
        Some((key, _)) if key.objectid == dir.objectid && key.kind == kind::DIR_INDEX => {
            key.offset.saturating_add(1).max(FIRST_INDEX)
        }
        _ => FIRST_INDEX,
    };
    dir.dir.lock().next_index = Some(index);
    Ok(index)
}

fn following(dir: &Inode, index: u64) -> Result<u64> {
    if index >= LAST_INDEX {
        return Err(Error::DirIndexExhausted {
            tree: dir.root.id(),
            objectid: dir.objectid,
        });
    }
    Ok(index + 1)
}

/// The entry at an index of `dir`, from memory or the tree.
pub(crate) fn entry_at(store: &Store, dir: &Inode, index: u64) -> Result<Option<Vec<u8>>> {
    {
        let names = dir.dir.lock();
        if let Some(entry) = names.added.get(&index) {
            return Ok(Some(entry.clone()));
        }
        if names.removed.contains(&index) {
            return Ok(None);
        }
    }
    let key = Key::new(dir.objectid, kind::DIR_INDEX, index);
    let found = dir.root.get(store, &key)?;
    Ok(found.map(|item| item.to_vec()))
}

/// The inode that `name` in `dir` leads to, as an earlier lookup found; `None` if that changed
/// since. Hold no `io` lock.
///
/// # Errors
/// `NotFound` in a deleted subvolume; [`Error::DanglingName`].
pub(super) fn resolve(
    files: &Arc<Files>,
    dir: &Arc<Inode>,
    name: &[u8],
    target: Target,
) -> Result<Option<Arc<Inode>>> {
    match inode_of(files, dir, name, target) {
        Ok(inode) if !inode.is_stub() => return Ok(Some(inode)),
        Ok(_) | Err(Error::Vfs(vfs::Error::Stale)) => {}
        Err(err) => return Err(err),
    }
    if dir.root.is_dead() {
        return Err(vfs::Error::NotFound.into());
    }
    // Another thread may be creating or removing the inode, item by item. It holds this lock.
    let _io = dir.io.read();
    if names::find(files, dir, name)? != Some(target) {
        return Ok(None);
    }
    let found = match target.as_subvolume() {
        None => {
            let objectid = target.location.objectid;
            files.inodes.load(files, &dir.root, objectid)
        }
        Some(tree) if !names::holds_subvolume(files, dir, name, tree)? => {
            Ok(files.inodes.stub(&dir.root, dir.objectid, tree))
        }
        Some(tree) => match files.roots.get(tree) {
            Ok(root) if !root.is_dead() => files.inodes.load(files, &root, root.top_dir()),
            Ok(_) | Err(Error::NoSuchRoot(_)) => Err(vfs::Error::Stale.into()),
            Err(err) => Err(err),
        },
    };
    match found {
        Err(Error::Vfs(vfs::Error::Stale)) if dir.root.is_dead() => {
            Err(vfs::Error::NotFound.into())
        }
        Err(Error::Vfs(vfs::Error::Stale)) => Err(Error::DanglingName {
            tree: dir.root.id(),
            dir: dir.objectid,
            location: target.location,
        }),
        other => other.map(Some),
    }
}

/// The inode that entry `name` of `dir` leads to. `Stale` if there is none.
fn inode_of(files: &Arc<Files>, dir: &Inode, name: &[u8], target: Target) -> Result<Arc<Inode>> {
    match target.as_subvolume() {
        None => files
            .inodes
            .load(files, &dir.root, target.location.objectid),
        Some(tree) if !names::holds_subvolume(files, dir, name, tree)? => {
            Ok(files.inodes.stub(&dir.root, dir.objectid, tree))
        }
        Some(tree) => {
            let root = match files.roots.get(tree) {
                Err(Error::NoSuchRoot(_)) => return Err(vfs::Error::Stale.into()),
                other => other?,
            };
            super::orphan::clean_once(files, &root)?;
            files.inodes.load(files, &root, root.top_dir())
        }
    }
}

/// The directory that holds `dir`.
pub(crate) fn parent(files: &Arc<Files>, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
    dir.require_dir()?;
    if let Some(stub) = dir.stub() {
        return files.inodes.load(files, &dir.root, stub.dir);
    }
    if dir.objectid == dir.root.top_dir() {
        if dir.root.id() == files.inodes.numbers().mounted() {
            return Ok(Arc::clone(dir));
        }
        return parent_of_subvolume(files, dir);
    }
    let first = Key::new(dir.objectid, kind::INODE_REF, 0);
    match dir.root.seek(files, &first)?.item() {
        Some((key, _)) if key.objectid == dir.objectid && key.kind == kind::INODE_REF => {
            files.inodes.load(files, &dir.root, key.offset)
        }
        _ => Err(vfs::Error::NotFound.into()),
    }
}

fn parent_of_subvolume(files: &Arc<Files>, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
    let tree = dir.root.id();
    let root_tree = &files.roots.root_tree;
    let first = Key::new(tree, kind::ROOT_BACKREF, 0);
    let cursor = root_tree.seek(files, &first)?;
    let Some((key, item)) = cursor.item() else {
        return Ok(Arc::clone(dir));
    };
    if key.objectid != tree || key.kind != kind::ROOT_BACKREF {
        return Ok(Arc::clone(dir));
    }
    let backref = sapwood_btrfs_format::root_ref(item)
        .map_err(|reason| bad_item(root_tree.id(), key, reason))?;
    let root = files.roots.get(key.offset)?;
    files.inodes.load(files, &root, backref.dirid)
}

/// The index after which a listing continues at `position`, and that listing.
/// Expects the `io` lock.
fn at(store: &Store, dir: &Inode, position: u64) -> Result<(u64, Listing)> {
    let next = peek_index(store, dir)?;
    if Listing::carries_bound(next) {
        return Ok(Listing::at(position, next));
    }
    let mut names = dir.dir.lock();
    if position == 0 {
        names.listing_end = None;
    }
    let end = *names.listing_end.get_or_insert(next);
    Ok((position, Listing::without_bound(end)))
}

/// Lists `dir` after the position `from`. See [`vfs::FileSystem::readdir`].
/// Expects the `io` lock.
pub(crate) fn readdir(
    files: &Arc<Files>,
    dir: &Arc<Inode>,
    from: u64,
    sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
) -> Result<()> {
    let (from, listing) = at(files, dir, from)?;
    let sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()> = &mut |mut entry: DirEntry| {
        let index = entry.next;
        if !listing.has(index) {
            return ControlFlow::Break(());
        }
        entry.next = listing.position(index);
        sink(entry)
    };
    let (pending, removed) = {
        let names = dir.dir.lock();
        let added: Vec<(u64, Vec<u8>)> = names
            .added
            .range(from.saturating_add(1)..)
            .map(|(index, entry)| (*index, entry.clone()))
            .collect();
        (added, names.removed.clone())
    };
    let mut pending = pending.into_iter().peekable();
    let Some(start) = from.checked_add(1) else {
        return Ok(());
    };
    let mut cursor = dir
        .root
        .seek(files, &Key::new(dir.objectid, kind::DIR_INDEX, start))?;
    loop {
        let stored = match cursor.item() {
            Some((key, _)) if key.objectid == dir.objectid && key.kind == kind::DIR_INDEX => {
                Some(key.offset)
            }
            _ => None,
        };
        let waiting = pending.peek().map(|(index, _)| *index);
        let flow = match (stored, waiting) {
            (None, None) => return Ok(()),
            (Some(index), other) if other.is_none_or(|other| index <= other) => {
                if other == Some(index) {
                    pending.next();
                }
                let item = cursor.item().map(|(_, item)| item).unwrap_or_default();
                let flow = if removed.contains(&index) {
                    ControlFlow::Continue(())
                } else {
                    emit(files, dir, index, item, sink)?
                };
                cursor.next()?;
                flow
            }
            _ => match pending.next() {
                Some((index, entry)) => emit(files, dir, index, &entry, sink)?,
                None => return Ok(()),
            },
        };
        if flow.is_break() {
            return Ok(());
        }
    }
}

/// Hands the entries of an item to the sink, with the index as their position.
fn emit(
    files: &Arc<Files>,
    dir: &Inode,
    index: u64,
    item: &[u8],
    sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    for entry in dir_items(item) {
        let entry: DirItemRef<'_> = entry.map_err(|reason| {
            bad_item(
                dir.root.id(),
                Key::new(dir.objectid, kind::DIR_INDEX, index),
                reason,
            )
        })?;
        let Some(kind) = FileKind::from_entry_type(entry.kind) else {
            continue;
        };
        let target = Target {
            location: entry.location,
            file_type: entry.kind,
        };
        let ino = match target.as_subvolume() {
            Some(tree) if !names::holds_subvolume(files, dir, entry.name, tree)? => files
                .inodes
                .numbers()
                .stub_ino(dir.root.id(), dir.objectid, tree),
            Some(tree) => files
                .inodes
                .numbers()
                .ino(tree, sapwood_btrfs_format::objectid::FIRST_FREE),
            None => files
                .inodes
                .numbers()
                .ino(dir.root.id(), entry.location.objectid),
        };
        if sink(DirEntry {
            ino,
            next: index,
            kind,
            name: entry.name.to_vec(),
        })
        .is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
