//! Names of a subvolume during replay: the three items of each at once, written directly, so that
//! every later step finds them in the tree.

use sapwood_btrfs_format::{
    DirItemRef, InodeItem, Key, Timespec, dir_items, file_type, kind, name_hash,
};

use super::{LogItem, Replay};
use crate::namespace::names;
use crate::tree::Change;
use crate::{Error, Result};

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggedDirEntry {
    /// The target.
    pub(super) location: Key,
    /// Name.
    pub(super) name: Vec<u8>,
}

impl LoggedDirEntry {
    /// The inode of the same subvolume that it leads to.
    pub(super) fn inode(&self) -> Option<u64> {
        inode_of(&self.location)
    }
}

/// The inode that the location of an entry names, if it is not a subvolume.
pub(super) fn inode_of(location: &Key) -> Option<u64> {
    (location.kind == kind::INODE_ITEM).then_some(location.objectid)
}

/// Entry type of an inode.
fn type_of(item: &InodeItem) -> u8 {
    file_type::from_mode(item.mode.get())
}

/// Whether an inode is a directory.
pub(super) fn is_dir(item: &InodeItem) -> bool {
    type_of(item) == file_type::DIR
}

/// Whether an inode is a regular file.
pub(super) fn is_regular(item: &InodeItem) -> bool {
    type_of(item) == file_type::REG_FILE
}

/// Whether two inode items are of one type.
pub(super) fn same_type(one: &InodeItem, other: &InodeItem) -> bool {
    type_of(one) == type_of(other)
}

impl Replay<'_> {
    /// The entry of a name.
    pub(super) fn entry_by_name(&self, dir: u64, name: &[u8]) -> Result<Option<LoggedDirEntry>> {
        let key = Key::new(dir, kind::DIR_ITEM, name_hash(name).into());
        let Some(item) = self.root.get(&self.store, &key)? else {
            return Ok(None);
        };
        let entry = self.root.packed_entry(key, &item, name)?;
        Ok(entry.map(|entry| LoggedDirEntry {
            location: entry.location,
            name: name.to_vec(),
        }))
    }

    /// The entry at an index.
    pub(super) fn entry_at(&self, dir: u64, index: u64) -> Result<Option<LoggedDirEntry>> {
        let key = Key::new(dir, kind::DIR_INDEX, index);
        let Some(item) = self.root.get(&self.store, &key)? else {
            return Ok(None);
        };
        self.parse_index(key, &item).map(Some)
    }

    fn parse_index(&self, key: Key, data: &[u8]) -> Result<LoggedDirEntry> {
        let entry = dir_items(data).next();
        let entry = entry.unwrap_or(Err(sapwood_btrfs_format::ItemError::Size {
            what: "directory index",
            expected: 30,
            found: 0,
        }));
        let entry = entry.map_err(|source| self.bad_item(key, source))?;
        Ok(LoggedDirEntry {
            location: entry.location,
            name: entry.name.to_vec(),
        })
    }

    /// Entries with an index of `from..=to`.
    pub(super) fn entries(
        &self,
        dir: u64,
        from: u64,
        to: u64,
    ) -> Result<Vec<(u64, LoggedDirEntry)>> {
        let mut found = Vec::new();
        let first = Key::new(dir, kind::DIR_INDEX, from);
        let mut cursor = self.root.seek(&self.store, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != dir || key.kind != kind::DIR_INDEX || key.offset > to {
                break;
            }
            found.push((key.offset, self.parse_index(key, data)?));
            cursor.next()?;
        }
        Ok(found)
    }

    /// Gives an inode the name `name` at `index` of a directory, where neither is taken.
    pub(super) fn link(
        &mut self,
        (dir, index, name): (u64, u64, &[u8]),
        inode: u64,
        item: &InodeItem,
    ) -> Result<()> {
        let room = names::item_room(&self.store);
        let entry = DirItemRef {
            location: Key::new(inode, kind::INODE_ITEM, 0),
            transid: self.h.transid(),
            kind: type_of(item),
            name,
            data: &[],
        };
        let key = Key::new(dir, kind::DIR_ITEM, name_hash(name).into());
        self.root.modify(self.h, &key, |old| {
            Ok(Change::Put(names::packed_with(old, name, &entry, room)?))
        })?;
        let key = Key::new(dir, kind::DIR_INDEX, index);
        self.root.insert(self.h, &key, &entry.encode())?;
        names::add_ref(self.h, self.root, inode, dir, index, name)?;
        self.touched.insert(inode);
        if is_dir(item) {
            self.moved.insert(inode);
        }
        self.resize_dir(dir, name, true)
    }

    /// Takes the name `name` of a directory away from an inode.
    pub(super) fn unlink(&mut self, dir: u64, name: &[u8], inode: u64) -> Result<()> {
        let index = names::remove_ref(self.h, self.root, inode, dir, name)?;
        let key = Key::new(dir, kind::DIR_ITEM, name_hash(name).into());
        self.root.modify(self.h, &key, |old| {
            match old.and_then(|old| names::packed_without(old, name)) {
                Some(rest) if rest.is_empty() => Ok(Change::Delete),
                Some(rest) => Ok(Change::Put(rest)),
                None => Ok(Change::Keep),
            }
        })?;
        let key = Key::new(dir, kind::DIR_INDEX, index);
        if !self.root.delete(self.h, &key)? {
            let root = self.root.id();
            return Err(Error::ItemNotFound { root, key });
        }
        self.touched.insert(inode);
        self.renamed(inode)?;
        self.resize_dir(dir, name, false)
    }

    /// An inode lost a name. Sets its ctime, unless the log has the inode as a whole, with its
    /// ctime.
    fn renamed(&mut self, inode: u64) -> Result<()> {
        let key = Key::new(inode, kind::INODE_ITEM, 0);
        if let Some(item) = self.log.get(&key)? {
            let logged = InodeItem::read(&item.data).map_err(|source| item.malformed(source))?;
            if logged.generation.get() != 0 && logged.nlink.get() != 0 {
                return Ok(());
            }
        }
        if self.inode_item(inode)?.is_none() {
            return Ok(());
        }
        let now = self.store.now();
        self.change_inode(inode, |item| item.ctime = Timespec::new(now.sec, now.nsec))
    }

    /// Removes an entry that conflicts with `item` of the log.
    pub(super) fn displace(
        &mut self,
        item: &LogItem,
        dir: u64,
        entry: &LoggedDirEntry,
    ) -> Result<()> {
        let Some(inode) = entry.inode() else {
            return Err(item.bad("a subvolume has its name or index"));
        };
        self.unlink(dir, &entry.name, inode)
    }

    fn resize_dir(&mut self, dir: u64, name: &[u8], grow: bool) -> Result<()> {
        let bytes = 2 * name.len() as u64;
        self.change_inode(dir, |item| {
            let size = item.size.get();
            let size = if grow {
                size.saturating_add(bytes)
            } else {
                size.saturating_sub(bytes)
            };
            item.size = size.into();
        })
    }
}
