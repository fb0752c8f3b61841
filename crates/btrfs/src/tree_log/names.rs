//! Names of inodes: as they are, and as the last commit has them.

use sapwood_btrfs_format::{Key, dir_items, inode_extrefs, inode_refs, kind, name_hash};

use crate::transaction::Store;
use crate::tree::Root;
use crate::{Error, Result};

/// A name of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameRef {
    /// Directory.
    pub(super) parent: u64,
    /// Index in the directory.
    pub(super) index: u64,
    /// Name.
    pub(super) name: Vec<u8>,
    /// It is in an extended ref.
    pub(super) extended: bool,
}

/// An item with names of an inode: its key and bytes.
pub(super) type RefItem = (Key, Vec<u8>);

fn is_ref(key: &Key, objectid: u64) -> bool {
    key.objectid == objectid && (key.kind == kind::INODE_REF || key.kind == kind::INODE_EXTREF)
}

fn parse(root: &Root, key: Key, data: &[u8], names: &mut Vec<NameRef>) -> Result<()> {
    let bad = |source| Error::BadItem {
        root: root.id(),
        key,
        source,
    };
    if key.kind == kind::INODE_REF {
        for entry in inode_refs(data) {
            let entry = entry.map_err(bad)?;
            names.push(NameRef {
                parent: key.offset,
                index: entry.index,
                name: entry.name.to_vec(),
                extended: false,
            });
        }
    } else {
        for entry in inode_extrefs(data) {
            let entry = entry.map_err(bad)?;
            names.push(NameRef {
                parent: entry.parent,
                index: entry.index,
                name: entry.name.to_vec(),
                extended: true,
            });
        }
    }
    Ok(())
}

/// The items with the names of an inode as they are now.
pub(super) fn ref_items(store: &Store, root: &Root, objectid: u64) -> Result<Vec<RefItem>> {
    let mut items = Vec::new();
    let mut cursor = root.seek(store, &Key::new(objectid, kind::INODE_REF, 0))?;
    while let Some((key, data)) = cursor.item() {
        if !is_ref(&key, objectid) {
            break;
        }
        items.push((key, data.to_vec()));
        cursor.next()?;
    }
    Ok(items)
}

/// The names of an inode as they are now.
pub(super) fn current(store: &Store, root: &Root, objectid: u64) -> Result<Vec<NameRef>> {
    let mut names = Vec::new();
    for (key, data) in ref_items(store, root, objectid)? {
        parse(root, key, &data, &mut names)?;
    }
    Ok(names)
}

/// The names of an inode as of the last commit.
pub(super) fn committed(store: &Store, root: &Root, objectid: u64) -> Result<Vec<NameRef>> {
    let mut names = Vec::new();
    let first = Key::new(objectid, kind::INODE_REF, 0);
    root.walk_committed(store, &first, &mut |key, data| {
        if !is_ref(&key, objectid) {
            return Ok(false);
        }
        parse(root, key, data, &mut names)?;
        Ok(true)
    })?;
    Ok(names)
}

/// An item of the tree as of the last commit.
pub(super) fn committed_item(store: &Store, root: &Root, key: &Key) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    root.walk_committed(store, key, &mut |at, data| {
        if at == *key {
            found = Some(data.to_vec());
        }
        Ok(false)
    })?;
    Ok(found)
}

/// The target of an entry at the last commit.
pub(super) fn committed_by_name(
    store: &Store,
    root: &Root,
    dir: u64,
    name: &[u8],
) -> Result<Option<Key>> {
    let key = Key::new(dir, kind::DIR_ITEM, name_hash(name).into());
    match committed_item(store, root, &key)? {
        Some(item) => location_of(root, key, &item, name),
        None => Ok(None),
    }
}

/// The current target of an entry.
pub(super) fn current_by_name(
    store: &Store,
    root: &Root,
    dir: u64,
    name: &[u8],
) -> Result<Option<Key>> {
    let key = Key::new(dir, kind::DIR_ITEM, name_hash(name).into());
    match root.get(store, &key)? {
        Some(item) => location_of(root, key, &item, name),
        None => Ok(None),
    }
}

fn location_of(root: &Root, key: Key, item: &[u8], name: &[u8]) -> Result<Option<Key>> {
    let entry = root.packed_entry(key, item, name)?;
    Ok(entry.map(|entry| entry.location))
}

/// The target of the entry at an index at the last commit.
pub(super) fn committed_at(
    store: &Store,
    root: &Root,
    dir: u64,
    index: u64,
) -> Result<Option<Key>> {
    let entry = committed_entry(store, root, dir, index)?;
    Ok(entry.map(|(location, _)| location))
}

/// Like [`committed_at`], with the name.
pub(super) fn committed_entry(
    store: &Store,
    root: &Root,
    dir: u64,
    index: u64,
) -> Result<Option<(Key, Vec<u8>)>> {
    let key = Key::new(dir, kind::DIR_INDEX, index);
    match committed_item(store, root, &key)? {
        Some(item) => entry_of(root, key, &item),
        None => Ok(None),
    }
}

/// The entry that a log has at an index: its target and its name.
pub(super) fn logged_entry(
    store: &Store,
    log: &Root,
    dir: u64,
    index: u64,
) -> Result<Option<(Key, Vec<u8>)>> {
    let key = Key::new(dir, kind::DIR_INDEX, index);
    match log.get(store, &key)? {
        Some(item) => entry_of(log, key, &item),
        None => Ok(None),
    }
}

fn entry_of(root: &Root, key: Key, item: &[u8]) -> Result<Option<(Key, Vec<u8>)>> {
    let entry = dir_items(item).next().transpose();
    let entry = entry.map_err(|source| Error::BadItem {
        root: root.id(),
        key,
        source,
    })?;
    Ok(entry.map(|entry| (entry.location, entry.name.to_vec())))
}

/// Whether a directory had entries at the last commit.
pub(super) fn had_entries(store: &Store, root: &Root, dir: u64) -> Result<bool> {
    let mut found = false;
    let first = Key::new(dir, kind::DIR_INDEX, 0);
    root.walk_committed(store, &first, &mut |key, _| {
        found = key.objectid == dir && key.kind == kind::DIR_INDEX;
        Ok(false)
    })?;
    Ok(found)
}
