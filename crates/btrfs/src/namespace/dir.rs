//! Directories: lookup, listing, and the index items that are not in the tree yet.
//!
//! # How it works
//! Creating a name puts its `DIR_ITEM` into the tree at once, because lookups need it, but keeps
//! its `DIR_INDEX` in memory until the transaction commits or many have gathered: they are in order
//! and go into the tree as one batch. A name that is removed before that never reaches the tree
//! by index. Listing merges both sources by index; the memory side is read first, so that an
//! entry that moves to the tree meanwhile is seen at least once, and the merge drops the copy.
//!
//! A directory with pending entries is always queued in the running transaction, which holds it
//! in memory.
//!
//! A listing ends where the directory ended when the listing began: an entry that is renamed gets a
//! new, higher index, so a listing without a bound could follow its own renames for ever. The
//! kernel keeps the bound in the open directory. FUSE opens no directory here, so each position
//! carries the bound of its [`Listing`].
//!
//! A position has 63 bits: a width `w` in the top 6, an index in the low `w`, and the bound in the
//! 57 - `w` between, in units that are as small as fit. Up to `w` = 28 the unit is 1; above that
//! the bound is rounded up, and the listing may show some entries that are newer than it. Width 0
//! is a plain index; its listing begins with that position. So is a position in a directory with an
//! index that has no room, 2^56 or more, which no kernel reaches.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_btrfs_format::{DirItemRef, Key, dir_items, kind};
use sapwood_vfs::{self as vfs, DirEntry};

use super::names::{self, Target};
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

/// What [`next_index`] will return. The caller holds `dir`'s `io` lock.
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

/// The inode that `name` in `dir` was found to lead to; `None` if it does so no more. Hold no
/// `io` lock.
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
    // It may be made or removed just now, item by item; the thread that does so holds the lock.
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

/// Lists `dir` after the position `from`. See [`vfs::FileSystem::readdir`].
/// Expects the `io` lock.
pub(crate) fn readdir(
    files: &Arc<Files>,
    dir: &Arc<Inode>,
    from: u64,
    sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
) -> Result<()> {
    let (from, listing) = Listing::at(from);
    let listing = match listing {
        Some(listing) => listing,
        None => Listing::beginning(peek_index(files, dir)?),
    };
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
        let Some(kind) = names::kind_of(entry.kind) else {
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

/// The first index that a name can have; 0 and 1 stand for `.` and `..`.
pub(super) const FIRST_INDEX: u64 = 2;
/// Bits of the index and the bound together.
const PAYLOAD: u32 = 57;
/// Front ends add some positions of their own, for `.` and `..`, to those of a listing.
const MARGIN: u64 = 16;

/// A listing: the indexes that it shows are below `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listing {
    end: u64,
}

impl Listing {
    /// A listing that begins now. `next`: the index that the next new entry gets.
    pub(super) fn beginning(next: u64) -> Self {
        Self {
            end: next.max(FIRST_INDEX),
        }
    }

    /// The index of a position, and its listing if it is a position of one.
    pub(super) fn at(position: u64) -> (u64, Option<Self>) {
        let width = width_of(position);
        if width == 0 || width > PAYLOAD {
            return (position, None);
        }
        let payload = position & ((1 << PAYLOAD) - 1);
        let index = payload & ((1 << width) - 1);
        let listing = Self {
            end: (payload >> width) << unit_bits(width),
        };
        (index, Some(listing))
    }

    /// Whether the listing shows the entry at this index.
    pub(super) fn has(self, index: u64) -> bool {
        index < self.end || self.end == u64::MAX
    }

    /// The position of the entry at `index`, which the listing has.
    pub(super) fn position(self, index: u64) -> u64 {
        let least = u64::BITS - self.end.saturating_add(MARGIN).leading_zeros();
        let encoded = (least..=PAYLOAD).find_map(|width| {
            let units = self.end.div_ceil(1 << unit_bits(width));
            let fits = units >> (PAYLOAD - width) == 0;
            fits.then_some(u64::from(width) << PAYLOAD | units << width | index)
        });
        encoded.unwrap_or(index)
    }
}

fn width_of(position: u64) -> u32 {
    u32::try_from(position >> PAYLOAD).unwrap_or(u32::MAX)
}

/// Bits of the bound that have no room beside an index of this width.
fn unit_bits(width: u32) -> u32 {
    (2 * width).saturating_sub(PAYLOAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_carries_index_and_bound() {
        for end in [2, 3, 100, 1 << 20, (1 << 28) - 17] {
            let listing = Listing::beginning(end);
            for index in [0, 2, end / 2, end - 1] {
                let position = listing.position(index);
                assert!(i64::try_from(position + MARGIN).is_ok());
                assert_eq!(Listing::at(position), (index, Some(listing)));
            }
        }
    }

    #[test]
    fn a_rounded_bound_is_stable_and_not_below_the_end() {
        for end in [1 << 28, (1 << 30) + 1, (1 << 34) - 17, (1 << 34) + 12_345] {
            let first = Listing::beginning(end).position(end - 1);
            let (index, listing) = Listing::at(first);
            let listing = listing.unwrap();
            assert_eq!(index, end - 1);
            assert!(
                listing.end >= end && listing.end <= end + (end >> 10),
                "{end}"
            );
            assert_eq!(Listing::at(listing.position(2)), (2, Some(listing)));
        }
    }

    #[test]
    fn what_has_no_room_is_a_plain_index() {
        for index in [0, 1, 7, 1 << 56, u64::MAX] {
            assert_eq!(Listing::at(index), (index, None));
        }
        for end in [1 << 57, u64::MAX] {
            assert_eq!(Listing::beginning(end).position(end - 1), end - 1);
        }
    }
}
