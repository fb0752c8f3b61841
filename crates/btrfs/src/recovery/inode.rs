//! Inode items of the log, and attributes.

use sapwood_btrfs_format::{InodeItem, Key, kind};

use super::entries::{is_dir, is_regular, same_type};
use super::{LogItem, Replay};
use crate::Result;

impl Replay<'_> {
    /// Sets an inode to its logged state.
    pub(super) fn inode(&mut self, item: &LogItem) -> Result<()> {
        let inode = item.key.objectid;
        let logged = InodeItem::read(&item.data).map_err(|source| item.malformed(source))?;
        if logged.nlink.get() == 0 {
            // No name would lead to it after a power cut: it would be deleted at once.
            self.ignored.insert(inode);
            return Ok(());
        }
        let stored = self.inode_item(inode)?;
        if stored.is_some_and(|stored| !same_type(&stored, &logged)) {
            return Err(item.bad("the inode has another type in its subvolume"));
        }
        if stored.is_some() {
            self.delete_attributes(inode)?;
            if is_dir(&logged) {
                self.delete_unlogged(inode)?;
            }
        }
        // Read again: the directory's size has followed its names.
        let new = match self.inode_item(inode)? {
            Some(stored) => merged(&stored, &logged),
            None => fresh(&logged, self.h.transid()),
        };
        self.put_inode_item(inode, &new)?;
        if is_regular(&new) && stored.is_some() {
            self.cut_extents(inode, new.size.get())?;
        }
        self.touched.insert(inode);
        Ok(())
    }

    /// Removes the attributes that are not in the log.
    fn delete_attributes(&mut self, inode: u64) -> Result<()> {
        let mut gone = Vec::new();
        let first = Key::new(inode, kind::XATTR_ITEM, 0);
        let mut cursor = self.root.seek(&self.store, &first)?;
        while let Some(key) = cursor.key() {
            if key.objectid != inode || key.kind != kind::XATTR_ITEM {
                break;
            }
            if self.log.get(&key)?.is_none() {
                gone.push(key);
            }
            cursor.next()?;
        }
        for key in gone {
            self.root.delete(self.h, &key)?;
        }
        Ok(())
    }

    /// Takes over all attributes of one hash.
    pub(super) fn xattr(&mut self, item: &LogItem) -> Result<()> {
        if self.inode_item(item.key.objectid)?.is_none() {
            return Err(item.bad("its inode does not exist"));
        }
        self.root.put(self.h, &item.key, &item.data)
    }
}

/// The item of an inode that only the log has. Its bytes and names are counted as replay adds them.
fn fresh(logged: &InodeItem, transid: u64) -> InodeItem {
    let mut item = *logged;
    if item.generation.get() == 0 {
        item.generation = transid.into();
    }
    if is_dir(&item) {
        item.size = 0.into();
    }
    item.nbytes = 0.into();
    item.block_group = 0.into();
    item
}

/// The new item of an existing inode.
fn merged(stored: &InodeItem, logged: &InodeItem) -> InodeItem {
    if logged.generation.get() == 0 {
        let mut item = *stored;
        if is_regular(&item) && logged.size.get() != 0 {
            item.size = logged.size;
        }
        return item;
    }
    let mut item = *logged;
    item.nbytes = stored.nbytes;
    item.nlink = stored.nlink;
    item.block_group = stored.block_group;
    if is_dir(&item) {
        item.size = stored.size;
    }
    item
}
