//! The items that make a name: directory entries by hash and by index, and the refs that lead
//! back from the inode.
//!
//! # How it works
//! A name is stored in three places. `DIR_ITEM (directory, hash of the name)` is for lookups and
//! packs the entries whose names share a hash. `DIR_INDEX (directory, index)` is for listing; it is
//! delayed in memory (see [`dir`](super::dir)). `INODE_REF (inode, directory)` packs the names of
//! an inode in one directory with their indexes; names that do not fit there go to `INODE_EXTREF
//! (inode, hash of directory and name)`. The name of a subvolume has `ROOT_REF` and `ROOT_BACKREF`
//! in the root tree instead of an inode ref.
//!
//! Functions here take a handle and expect the `io` lock of the directory held exclusively.

use std::sync::Arc;

use sapwood_btrfs_format::{
    DirItemRef, Incompat, InodeExtrefRef, InodeRefRef, Key, RootRefRef, dir_items, extref_hash,
    file_type, inode_extrefs, inode_refs, kind, leaf_data_size, name_hash, root_ref,
};
use sapwood_vfs::{self as vfs, FileKind};

use crate::error::bad_item;
use crate::inode::{Inode, flush_if_many};
use crate::transaction::{Handle, Store};
use crate::tree::{Change, Root};
use crate::{Error, Result};

/// Bytes of the item header that every item of a leaf needs besides its data.
const ITEM_HEADER: usize = 25;

/// The target of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Key of an inode item or of a root item.
    pub(crate) location: Key,
    /// [`file_type`].
    pub(crate) file_type: u8,
}

impl Target {
    /// The target for an inode in the same tree.
    pub(crate) fn inode(objectid: u64, kind: FileKind) -> Self {
        Self {
            location: Key::new(objectid, kind::INODE_ITEM, 0),
            file_type: kind.entry_type(),
        }
    }

    /// The target for a subvolume.
    pub(crate) fn subvolume(tree: u64) -> Self {
        Self {
            location: Key::new(tree, kind::ROOT_ITEM, u64::MAX),
            file_type: file_type::DIR,
        }
    }

    /// Tree of the subvolume, if it is one.
    pub(crate) fn as_subvolume(&self) -> Option<u64> {
        (self.location.kind == kind::ROOT_ITEM).then_some(self.location.objectid)
    }
}

pub(super) fn dir_item_key(dir: &Inode, name: &[u8]) -> Key {
    Key::new(dir.objectid, kind::DIR_ITEM, name_hash(name).into())
}

/// The target of `name` in `dir`. Needs no lock.
pub(crate) fn find(store: &Store, dir: &Inode, name: &[u8]) -> Result<Option<Target>> {
    let key = dir_item_key(dir, name);
    let Some(item) = dir.root.get(store, &key)? else {
        return Ok(None);
    };
    let entry = dir.root.packed_entry(key, &item, name)?;
    Ok(entry.map(|entry| Target {
        location: entry.location,
        file_type: entry.kind,
    }))
}

/// Like [`find`], for callers without the directory's lock. While a rename replaces or exchanges a
/// name there is a moment without it, so a missing name is looked up again under the lock.
pub(crate) fn find_for_sure(store: &Store, dir: &Inode, name: &[u8]) -> Result<Option<Target>> {
    if let Some(target) = find(store, dir, name)? {
        return Ok(Some(target));
    }
    let _io = dir.io.read();
    find(store, dir, name)
}

/// Refuses a name that `dir` has, or for which there is no room. The answer holds until the
/// directory's lock is released.
///
/// # Errors
/// `Exists`; `Overflow`: too many names with its hash.
pub(crate) fn check_vacant(store: &Store, dir: &Inode, name: &[u8]) -> Result<()> {
    let old = dir.root.get(store, &dir_item_key(dir, name))?;
    let entry = DirItemRef {
        location: Key::MIN,
        transid: 0,
        kind: 0,
        name,
        data: &[],
    };
    packed_with(old.as_deref(), name, &entry, item_room(store))?;
    Ok(())
}

/// Adds an entry to a packed directory item, and fails without a change if the name is there
/// or there is no room: names with equal hashes must fit in one leaf.
pub(crate) fn packed_with(
    old: Option<&[u8]>,
    name: &[u8],
    entry: &DirItemRef<'_>,
    room: usize,
) -> std::result::Result<Vec<u8>, vfs::Error> {
    let mut packed = old.unwrap_or_default().to_vec();
    if dir_items(&packed).flatten().any(|other| other.name == name) {
        return Err(vfs::Error::Exists);
    }
    packed.extend(entry.encode());
    if packed.len() > room {
        Err(vfs::Error::Overflow)
    } else {
        Ok(packed)
    }
}

/// A packed directory item without `name`, or `None` if it is not in it.
pub(crate) fn packed_without(old: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut entries = dir_items(old);
    let mut start = 0;
    while let Some(Ok(entry)) = entries.next() {
        let end = entries.offset();
        if entry.name == name {
            let (head, tail) = (old.get(..start)?, old.get(end..)?);
            return Some([head, tail].concat());
        }
        start = end;
    }
    None
}

pub(crate) fn item_room(store: &Store) -> usize {
    leaf_data_size(store.nodesize as usize).saturating_sub(ITEM_HEADER)
}

/// Adds the entry `name` with `index` to `dir`: its two items, and the directory's size. This
/// is the first change of an operation; if it fails, nothing was changed.
pub(crate) fn add_entry(
    h: &mut Handle,
    dir: &Arc<Inode>,
    name: &[u8],
    target: Target,
    index: u64,
) -> Result<()> {
    let room = item_room(h.store());
    let transid = h.transid();
    let entry = DirItemRef {
        location: target.location,
        transid,
        kind: target.file_type,
        name,
        data: &[],
    };
    dir.root.modify(h, &dir_item_key(dir, name), |old| {
        Ok(Change::Put(packed_with(old, name, &entry, room)?))
    })?;
    dir.dir.add(index, entry.encode(), transid);
    h.keep_item();
    resize_dir(h, dir, |size| size.saturating_add(2 * name.len() as u64))
}

/// Removes the entry `name` with `index` from `dir`.
pub(crate) fn remove_entry(
    h: &mut Handle,
    dir: &Arc<Inode>,
    name: &[u8],
    index: u64,
) -> Result<()> {
    dir.root.modify(h, &dir_item_key(dir, name), |old| {
        match old.and_then(|old| packed_without(old, name)) {
            Some(rest) if rest.is_empty() => Ok(Change::Delete),
            Some(rest) => Ok(Change::Put(rest)),
            None => Err(vfs::Error::NotFound.into()),
        }
    })?;
    dir.dir.remove(index, h.transid());
    h.keep_item();
    resize_dir(h, dir, |size| size.saturating_sub(2 * name.len() as u64))
}

fn resize_dir(h: &mut Handle, dir: &Arc<Inode>, resize: impl FnOnce(u64) -> u64) -> Result<()> {
    let now = h.store().now();
    dir.change(h, |state| {
        state.set_plain_size(resize(state.size));
        state.content_changed(now);
    });
    flush_if_many(h, dir)
}

/// Adds the ref of a new name of the inode `child`.
pub(crate) fn add_ref(
    h: &mut Handle,
    root: &Arc<Root>,
    child: u64,
    parent: u64,
    index: u64,
    name: &[u8],
) -> Result<()> {
    let room = item_room(h.store());
    let mut full = false;
    root.modify(h, &Key::new(child, kind::INODE_REF, parent), |old| {
        let mut packed = old.unwrap_or_default().to_vec();
        packed.extend(InodeRefRef { index, name }.encode());
        full = packed.len() > room;
        Ok(if full {
            Change::Keep
        } else {
            Change::Put(packed)
        })
    })?;
    if !full {
        return Ok(());
    }
    if !h.store().incompat.contains(Incompat::EXTENDED_IREF) {
        return Err(vfs::Error::TooManyLinks.into());
    }
    let key = Key::new(child, kind::INODE_EXTREF, extref_hash(parent, name));
    root.modify(h, &key, |old| {
        let mut packed = old.unwrap_or_default().to_vec();
        packed.extend(
            InodeExtrefRef {
                parent,
                index,
                name,
            }
            .encode(),
        );
        if packed.len() > room {
            Err(vfs::Error::TooManyLinks.into())
        } else {
            Ok(Change::Put(packed))
        }
    })
}

/// True if one more ref of these names fits without a fall-back that can fail.
pub(crate) fn ref_fits(
    store: &Store,
    root: &Root,
    child: u64,
    parent: u64,
    name: &[u8],
) -> Result<bool> {
    if store.incompat.contains(Incompat::EXTENDED_IREF) {
        return Ok(true);
    }
    let old = root.get(store, &Key::new(child, kind::INODE_REF, parent))?;
    let used = old.map_or(0, |item| item.len());
    Ok(used + InodeRefRef { index: 0, name }.encode().len() <= item_room(store))
}

/// Index of the name of `child` in `parent`.
pub(crate) fn find_ref(
    store: &Store,
    root: &Root,
    child: u64,
    parent: u64,
    name: &[u8],
) -> Result<Option<u64>> {
    let key = Key::new(child, kind::INODE_REF, parent);
    if let Some(item) = root.get(store, &key)? {
        for entry in inode_refs(&item) {
            let entry = entry.map_err(|reason| bad_item(root.id(), key, reason))?;
            if entry.name == name {
                return Ok(Some(entry.index));
            }
        }
    }
    let key = Key::new(child, kind::INODE_EXTREF, extref_hash(parent, name));
    if let Some(item) = root.get(store, &key)? {
        for entry in inode_extrefs(&item) {
            let entry = entry.map_err(|reason| bad_item(root.id(), key, reason))?;
            if entry.parent == parent && entry.name == name {
                return Ok(Some(entry.index));
            }
        }
    }
    Ok(None)
}

/// Removes the ref of a name of `child` and returns its index.
pub(crate) fn remove_ref(
    h: &mut Handle,
    root: &Arc<Root>,
    child: u64,
    parent: u64,
    name: &[u8],
) -> Result<u64> {
    let mut index = None;
    root.modify(h, &Key::new(child, kind::INODE_REF, parent), |old| {
        let old = old.unwrap_or_default();
        index = None;
        let mut rest = Vec::with_capacity(old.len());
        for entry in inode_refs(old).flatten() {
            if entry.name == name && index.is_none() {
                index = Some(entry.index)
            } else {
                rest.extend(entry.encode())
            }
        }
        Ok(shrunk(index.is_some(), rest))
    })?;
    if let Some(index) = index {
        return Ok(index);
    }
    root.modify(
        h,
        &Key::new(child, kind::INODE_EXTREF, extref_hash(parent, name)),
        |old| {
            let old = old.unwrap_or_default();
            index = None;
            let mut rest = Vec::with_capacity(old.len());
            for entry in inode_extrefs(old).flatten() {
                if entry.parent == parent && entry.name == name && index.is_none() {
                    index = Some(entry.index)
                } else {
                    rest.extend(entry.encode())
                }
            }
            Ok(shrunk(index.is_some(), rest))
        },
    )?;
    index.ok_or(Error::MissingRef {
        tree: root.id(),
        objectid: child,
        parent,
    })
}

fn shrunk(found: bool, rest: Vec<u8>) -> Change {
    match (found, rest.is_empty()) {
        (false, _) => Change::Keep,
        (true, true) => Change::Delete,
        (true, false) => Change::Put(rest),
    }
}

/// Adds the refs between a subvolume and the directory that holds its name.
pub(crate) fn add_root_refs(
    h: &mut Handle,
    dir: &Inode,
    subvolume: u64,
    index: u64,
    name: &[u8],
) -> Result<()> {
    let bytes = RootRefRef {
        dirid: dir.objectid,
        sequence: index,
        name,
    }
    .encode();
    let root_tree = Arc::clone(&h.store().roots.root_tree);
    let parent = dir.root.id();
    root_tree.insert(h, &Key::new(subvolume, kind::ROOT_BACKREF, parent), &bytes)?;
    root_tree.insert(h, &Key::new(parent, kind::ROOT_REF, subvolume), &bytes)
}

/// Removes the refs of a subvolume's name, and returns the index of the name.
pub(crate) fn remove_root_refs(h: &mut Handle, dir: &Inode, subvolume: u64) -> Result<u64> {
    let (index, _) = find_root_ref(h.store(), dir, subvolume)?;
    let root_tree = Arc::clone(&h.store().roots.root_tree);
    let parent = dir.root.id();
    root_tree.delete(h, &Key::new(subvolume, kind::ROOT_BACKREF, parent))?;
    root_tree.delete(h, &Key::new(parent, kind::ROOT_REF, subvolume))?;
    Ok(index)
}

/// Index and bytes of the name of a subvolume in `dir`.
fn find_root_ref(store: &Store, dir: &Inode, subvolume: u64) -> Result<(u64, Vec<u8>)> {
    let key = Key::new(dir.root.id(), kind::ROOT_REF, subvolume);
    let missing = Error::MissingRef {
        tree: dir.root.id(),
        objectid: subvolume,
        parent: dir.objectid,
    };
    let Some(item) = store.roots.root_tree.get(store, &key)? else {
        return Err(missing);
    };
    let found =
        root_ref(&item).map_err(|reason| bad_item(store.roots.root_tree.id(), key, reason))?;
    if found.dirid == dir.objectid {
        Ok((found.sequence, found.name.to_vec()))
    } else {
        Err(missing)
    }
}

/// Whether entry `name` of `dir` is the subvolume's own name. An entry that a snapshot copied is
/// not. Without the directory's lock, the answer may come from the middle of a change.
pub(crate) fn holds_subvolume(
    store: &Store,
    dir: &Inode,
    name: &[u8],
    subvolume: u64,
) -> Result<bool> {
    match find_root_ref(store, dir, subvolume) {
        Ok((_, known)) => Ok(known == name),
        Err(Error::MissingRef { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Index of a name without a ref in its inode. Looks through the whole directory.
pub(crate) fn find_index(store: &Store, dir: &Inode, name: &[u8]) -> Result<u64> {
    let mut cursor = dir
        .root
        .seek(store, &Key::new(dir.objectid, kind::DIR_INDEX, 0))?;
    while let Some((key, item)) = cursor.item() {
        if key.objectid != dir.objectid || key.kind != kind::DIR_INDEX {
            break;
        }
        if dir_items(item).flatten().any(|entry| entry.name == name) {
            return Ok(key.offset);
        }
        cursor.next()?;
    }
    Err(vfs::Error::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8]) -> DirItemRef<'_> {
        DirItemRef {
            location: Key::new(300, kind::INODE_ITEM, 0),
            transid: 1,
            kind: 1,
            name,
            data: &[],
        }
    }

    #[test]
    fn packing_finds_room_and_twins() {
        let one = packed_with(None, b"a", &entry(b"a"), 100).unwrap();
        assert_eq!(
            packed_with(Some(&one), b"a", &entry(b"a"), 100),
            Err(vfs::Error::Exists)
        );
        assert_eq!(
            packed_with(Some(&one), b"b", &entry(b"b"), 40),
            Err(vfs::Error::Overflow)
        );
        let two = packed_with(Some(&one), b"b", &entry(b"b"), 100).unwrap();
        assert_eq!(packed_without(&two, b"b"), Some(one.clone()));
        assert_eq!(packed_without(&two, b"c"), None);
        assert_eq!(packed_without(&one, b"a"), Some(Vec::new()));
    }

    #[test]
    fn entries_have_the_types_of_the_format() {
        for mode in (0..=0o17).map(|bits| bits << 12) {
            let expected = FileKind::from_mode(mode);
            assert_eq!(
                FileKind::from_entry_type(file_type::from_mode(mode)),
                expected
            );
            let number = expected.map_or(file_type::UNKNOWN, FileKind::entry_type);
            assert_eq!(number, file_type::from_mode(mode), "{mode:o}");
        }
        assert_eq!(FileKind::from_entry_type(file_type::XATTR), None);
    }
}
