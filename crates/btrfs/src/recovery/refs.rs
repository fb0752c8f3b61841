//! Names that inodes log, and the number of names of all inodes that were touched.

use sapwood_btrfs_format::{Key, inode_extrefs, inode_refs, kind};

use super::entries::is_dir;
use super::{LogItem, Replay};
use crate::inode::orphan_item;
use crate::namespace::names;
use crate::{Error, Result};

/// A name as its inode's ref has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    parent: u64,
    index: u64,
    name: Vec<u8>,
}

fn from_ref(parent: u64, data: &[u8]) -> Result<Vec<Name>, sapwood_btrfs_format::ItemError> {
    let name = |entry: sapwood_btrfs_format::InodeRefRef<'_>| Name {
        parent,
        index: entry.index,
        name: entry.name.to_vec(),
    };
    inode_refs(data).map(|entry| entry.map(name)).collect()
}

fn from_extref(data: &[u8]) -> Result<Vec<Name>, sapwood_btrfs_format::ItemError> {
    let name = |entry: sapwood_btrfs_format::InodeExtrefRef<'_>| Name {
        parent: entry.parent,
        index: entry.index,
        name: entry.name.to_vec(),
    };
    inode_extrefs(data).map(|entry| entry.map(name)).collect()
}

impl Replay<'_> {
    /// Takes over the names of an inode in one directory.
    pub(super) fn inode_ref(&mut self, item: &LogItem) -> Result<()> {
        let parent = item.key.offset;
        let wanted = from_ref(parent, &item.data).map_err(|e| item.malformed(e))?;
        let old = self.stored(item.key, |data| from_ref(parent, data))?;
        self.names(item, &wanted, &old)
    }

    /// Takes over names of an inode that share a hash.
    pub(super) fn inode_extref(&mut self, item: &LogItem) -> Result<()> {
        let wanted = from_extref(&item.data).map_err(|e| item.malformed(e))?;
        let old = self.stored(item.key, from_extref)?;
        self.names(item, &wanted, &old)
    }

    fn stored(
        &self,
        key: Key,
        parse: impl FnOnce(&[u8]) -> Result<Vec<Name>, sapwood_btrfs_format::ItemError>,
    ) -> Result<Vec<Name>> {
        match self.root.get(&self.store, &key)? {
            Some(data) => parse(&data).map_err(|source| self.bad_item(key, source)),
            None => Ok(Vec::new()),
        }
    }

    /// Sets the names of an item to the logged ones. `old` are the subvolume's.
    fn names(&mut self, item: &LogItem, wanted: &[Name], old: &[Name]) -> Result<()> {
        let inode = item.key.objectid;
        for name in old {
            let kept = wanted
                .iter()
                .any(|w| w.parent == name.parent && w.name == name.name);
            if !kept {
                self.unlink(name.parent, &name.name, inode)?;
            }
        }
        for name in wanted {
            self.name(item, name)?;
        }
        Ok(())
    }

    fn name(&mut self, item: &LogItem, name: &Name) -> Result<()> {
        let (inode, dir) = (item.key.objectid, name.parent);
        match self.inode_item(dir)? {
            Some(found) if is_dir(&found) => {}
            Some(_) => return Err(item.bad("it names a parent that is not a directory")),
            // Not logged, so neither the directory nor the file that was moved there was ever
            // synced.
            None => return Ok(()),
        }
        let Some(target) = self.inode_item(inode)? else {
            return Err(item.bad("its inode does not exist"));
        };
        match names::find_ref(&self.store, self.root, inode, dir, &name.name)? {
            Some(index) if index == name.index => return Ok(()),
            Some(_) => self.unlink(dir, &name.name, inode)?,
            None => {}
        }
        if let Some(other) = self.entry_at(dir, name.index)? {
            self.displace(item, dir, &other)?;
        }
        if let Some(other) = self.entry_by_name(dir, &name.name)? {
            self.displace(item, dir, &other)?;
        }
        self.link((dir, name.index, &name.name), inode, &target)
    }
}

impl Replay<'_> {
    /// Corrects the link counts, and makes orphans of inodes without a name. Emptying a directory
    /// without a name adds its entries' inodes to the touched ones. The highest inode number comes
    /// first, so a tree of directories is emptied from its newest part.
    pub(super) fn count_links(&mut self) -> Result<()> {
        while let Some(inode) = self.touched.pop_last() {
            self.count(inode)?;
        }
        Ok(())
    }

    fn count(&mut self, inode: u64) -> Result<()> {
        let Some(item) = self.inode_item(inode)? else {
            return Ok(());
        };
        let mut names = self.names_of(inode)?;
        if is_dir(&item) && names.len() > 1 {
            names = self.keep_logged(inode, names)?;
        }
        let links = u32::try_from(names.len()).unwrap_or(u32::MAX);
        if links != item.nlink.get() {
            self.change_inode(inode, |item| item.nlink = links.into())?;
        }
        if links > 0 {
            return orphan_item::remove(self.h, self.root, inode);
        }
        if is_dir(&item) {
            self.empty(inode)?;
        }
        orphan_item::add(self.h, self.root, inode)
    }

    /// All names of an inode, as directory and name.
    pub(super) fn names_of(&self, inode: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut names = Vec::new();
        let mut cursor = self
            .root
            .seek(&self.store, &Key::new(inode, kind::INODE_REF, 0))?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != inode || key.kind > kind::INODE_EXTREF {
                break;
            }
            let bad = |source| self.bad_item(key, source);
            if key.kind == kind::INODE_REF {
                for entry in inode_refs(data) {
                    names.push((key.offset, entry.map_err(bad)?.name.to_vec()));
                }
            } else {
                for entry in inode_extrefs(data) {
                    let entry = entry.map_err(bad)?;
                    names.push((entry.parent, entry.name.to_vec()));
                }
            }
            cursor.next()?;
        }
        Ok(names)
    }

    /// A directory has one name. If it was moved, and the directory where it was is not in the
    /// log, the name in the log is the newer one.
    fn keep_logged(&mut self, dir: u64, names: Vec<(u64, Vec<u8>)>) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut kept = Vec::new();
        for (parent, name) in names {
            if self.log.find_ref(dir, parent, &name)?.is_some() {
                kept.push((parent, name));
            } else {
                self.unlink(parent, &name, dir)?;
            }
        }
        self.touched.remove(&dir);
        match kept.len() {
            1 => Ok(kept),
            _ => Err(Error::LogNames {
                subvolume: self.root.id(),
                directory: dir,
            }),
        }
    }

    /// Takes all entries out of a directory that has no name itself.
    fn empty(&mut self, dir: u64) -> Result<()> {
        for (_, entry) in self.entries(dir, 0, u64::MAX)? {
            let Some(inode) = entry.inode() else {
                return Err(Error::LogNames {
                    subvolume: self.root.id(),
                    directory: dir,
                });
            };
            self.unlink(dir, &entry.name, inode)?;
        }
        Ok(())
    }
}
