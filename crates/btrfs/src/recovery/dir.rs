//! Directory items of the log: entries, and ranges in which every entry is logged. After replay
//! every directory must still lead to the top.

use std::collections::BTreeSet;

use sapwood_btrfs_format::{DirItemRef, DirLogItem, ItemError, Key, dir_items, kind};

use super::entries::{inode_of, is_dir};
use super::{LogItem, Replay};
use crate::namespace::names;
use crate::{Error, Result};

/// The entry of a directory index.
fn parse(item: &LogItem) -> Result<DirItemRef<'_>> {
    let mut entries = dir_items(&item.data);
    let none = Err(ItemError::Size {
        what: "directory index",
        expected: 30,
        found: 0,
    });
    let entry = entries.next().unwrap_or(none);
    entry.map_err(|source| item.malformed(source))
}

impl Replay<'_> {
    /// Removes the entries of a directory that are within its logged ranges and not in the log.
    pub(super) fn delete_unlogged(&mut self, dir: u64) -> Result<()> {
        let log = self.log;
        let mut ranges = log.seek(&Key::new(dir, kind::DIR_LOG_INDEX, 0));
        while let Some(range) = ranges.next_of(dir, kind::DIR_LOG_INDEX)? {
            let end = DirLogItem::read(&range.data).map_err(|e| range.malformed(e))?;
            for (index, entry) in self.entries(dir, range.key.offset, end.end.get())? {
                // Subvolumes are created and deleted by a commit: the log has no items for them.
                let Some(inode) = entry.inode() else {
                    continue;
                };
                if !self.is_logged(dir, index, &entry.name)? {
                    self.unlink(dir, &entry.name, inode)?;
                }
            }
        }
        Ok(())
    }

    fn is_logged(&self, dir: u64, index: u64, name: &[u8]) -> Result<bool> {
        let Some(item) = self.log.get(&Key::new(dir, kind::DIR_INDEX, index))? else {
            return Ok(false);
        };
        Ok(parse(&item)?.name == name)
    }

    /// Takes over an entry that a directory logged.
    pub(super) fn dir_entry(&mut self, item: &LogItem) -> Result<()> {
        let (dir, index) = (item.key.objectid, item.key.offset);
        let entry = parse(item)?;
        match self.inode_item(dir)? {
            Some(found) if is_dir(&found) => {}
            Some(_) => return Err(item.bad("its inode is not a directory")),
            None => return Err(item.bad("its directory does not exist")),
        }
        let Some(inode) = inode_of(&entry.location) else {
            return Ok(());
        };
        // The inode is not in the log: that file was never synced, and its entry is not added.
        let Some(target) = self.inode_item(inode)? else {
            return Ok(());
        };
        let by_name = self.entry_by_name(dir, entry.name)?;
        let by_index = self.entry_at(dir, index)?;
        let right = |found: &super::entries::LoggedDirEntry| {
            found.inode() == Some(inode) && found.name == entry.name
        };
        if by_name.as_ref().is_some_and(right) && by_index.as_ref().is_some_and(right) {
            return Ok(());
        }
        if let Some(other) = by_index.filter(|found| !right(found)) {
            self.displace(item, dir, &other)?;
        }
        if let Some(other) = by_name.filter(|found| found.inode() != Some(inode)) {
            self.displace(item, dir, &other)?;
        }
        // The ref in the log will make the name, with the right index.
        if self.log.find_ref(inode, dir, entry.name)?.is_some() {
            return Ok(());
        }
        if names::find_ref(&self.store, self.root, inode, dir, entry.name)?.is_some() {
            self.unlink(dir, entry.name, inode)?;
        }
        self.link((dir, index, entry.name), inode, &target)
    }
}

impl Replay<'_> {
    /// Follows every directory that replay gave a name up to the top of the subvolume. A crafted
    /// log can put a directory below itself. No path would lead to that ring, and a walk of it
    /// would not end. Every ring has a name that replay made.
    ///
    /// # Errors
    /// [`Error::LogRing`].
    pub(super) fn check_ancestors(&self) -> Result<()> {
        let mut followed = BTreeSet::from([self.top_dir()]);
        self.moved
            .iter()
            .try_for_each(|dir| self.follow(*dir, &mut followed))
    }

    fn follow(&self, dir: u64, followed: &mut BTreeSet<u64>) -> Result<()> {
        let (mut at, mut way) = (dir, BTreeSet::new());
        while followed.insert(at) {
            way.insert(at);
            // One without a name is an orphan, and empty.
            let Some((parent, _)) = self.names_of(at)?.into_iter().next() else {
                return Ok(());
            };
            at = parent;
        }
        if way.contains(&at) {
            Err(Error::LogRing {
                subvolume: self.root.id(),
                directory: at,
            })
        } else {
            Ok(())
        }
    }
}
