//! The subvolume of a mount, and ids of subvolumes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{Key, kind, name_hash, objectid};
use sapwood_vfs as vfs;

use crate::transaction::Store;
use crate::tree::{BlockCache, Root, Roots};
use crate::{Error, Result, SubvolumeChoice};

/// Name of the entry in the root tree's directory that leads to the default subvolume.
pub(super) const DEFAULT: &[u8] = b"default";

/// The tree to mount.
///
/// # Errors
/// [`Error::NoSuchSubvolume`]; unreadable blocks or items.
pub(crate) fn choose(
    blocks: &BlockCache,
    roots: &Roots,
    choice: &SubvolumeChoice,
) -> Result<Arc<Root>> {
    match choice {
        SubvolumeChoice::Default => match default_id(blocks, roots)? {
            Some(id) => by_id(roots, id),
            None => by_id(roots, objectid::FS_TREE),
        },
        SubvolumeChoice::Id(0) => by_id(roots, objectid::FS_TREE),
        SubvolumeChoice::Id(id) => by_id(roots, *id),
        SubvolumeChoice::Path(path) => by_path(blocks, roots, path),
    }
}

/// The tree of a subvolume that was not deleted.
pub(crate) fn by_id(roots: &Roots, id: u64) -> Result<Arc<Root>> {
    let missing = || Error::NoSuchSubvolume(id.to_string());
    if !objectid::is_fs_tree(id) {
        return Err(missing());
    }
    match roots.get(id) {
        Ok(root) if root.is_dead() => Err(missing()),
        Err(Error::NoSuchRoot(_)) => Err(missing()),
        other => other,
    }
}

/// Id of the default subvolume, if the file system names one.
///
/// # Errors
/// Unreadable blocks or items.
pub(crate) fn default_id(blocks: &BlockCache, roots: &Roots) -> Result<Option<u64>> {
    let dir = objectid::ROOT_TREE_DIR;
    Ok(find(blocks, &roots.root_tree, dir, DEFAULT)?.map(|location| location.objectid))
}

/// The target of a name in a directory.
fn find(blocks: &BlockCache, root: &Root, dir: u64, name: &[u8]) -> Result<Option<Key>> {
    let key = Key::new(dir, kind::DIR_ITEM, name_hash(name).into());
    let Some(item) = root.get(blocks, &key)? else {
        return Ok(None);
    };
    let entry = root.packed_entry(key, &item, name)?;
    Ok(entry.map(|entry| entry.location))
}

/// Walks from the top level; the end must be the root of a subvolume.
fn by_path(blocks: &BlockCache, roots: &Roots, path: &[u8]) -> Result<Arc<Root>> {
    let missing = || Error::NoSuchSubvolume(String::from_utf8_lossy(path).into_owned());
    let mut root = by_id(roots, objectid::FS_TREE)?;
    let mut dir = root.top_dir();
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
    {
        let location = find(blocks, &root, dir, name)?.ok_or_else(missing)?;
        if location.kind == kind::ROOT_ITEM {
            root = by_id(roots, location.objectid)?;
            dir = root.top_dir();
        } else {
            dir = location.objectid;
        }
    }
    if dir == root.top_dir() {
        return Ok(root);
    }
    Err(Error::Vfs(vfs::Error::Invalid))
}

/// Id for a new subvolume.
///
/// # Errors
/// [`Error::InodesExhausted`]; an unreadable root tree.
pub(super) fn next_id(store: &Store) -> Result<u64> {
    let root_tree = &store.roots.root_tree;
    let highest = root_tree.highest_objectid();
    if highest.load(Ordering::Acquire) == 0 {
        let last = Key::new(objectid::LAST_FREE, u8::MAX, u64::MAX);
        let found = root_tree.seek_back(store, &last)?.key();
        let found = found.map_or(0, |key| key.objectid);
        highest.fetch_max(found.max(objectid::FIRST_FREE - 1), Ordering::AcqRel);
    }
    match highest.fetch_add(1, Ordering::AcqRel) {
        last if last < objectid::LAST_FREE - 1 => Ok(last + 1),
        _ => Err(Error::InodesExhausted(root_tree.id())),
    }
}
