//! Names that inodes log.

use sapwood_btrfs_format::{Key, inode_extrefs, inode_refs};

use super::entries::is_dir;
use super::{LogItem, Replay};
use crate::Result;
use crate::namespace::names;

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

    /// Makes the names of an item what the log says: `old` is what the subvolume's has.
    fn names(&mut self, item: &LogItem, wanted: &[Name], old: &[Name]) -> Result<()> {
        let inode = item.key.objectid;
        for name in old {
            let kept = wanted
                .iter()
                .any(|w| w.parent == name.parent && w.name == name.name);
            if !kept && !sapwood_fault::planted(36) {
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
            // Not logged, so the directory was never synced, nor what was moved there.
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
