//! Writing a plan into the log: inode items, names and attributes.
//!
//! Replay reads a log as a whole, so the order of the items does not matter. Logged items of an
//! inode are replaced, never added to, where two versions would contradict each other: names,
//! attributes, extents.
//!
//! A new entry of a directory is its index item. A removed entry is an index within a range item:
//! replay deletes every entry of a logged range that is not in the log. A range covers only removed
//! entries, so no other entry of the directory has to be logged for it.

use std::sync::Arc;

use sapwood_btrfs_format::{DirLogItem, InodeItem, Key, kind};
use sapwood_vfs::FileKind;

use super::extents;
use super::names;
use super::plan::{LogPlan, Step};
use super::state::Logged;
use super::state::Writer;
use crate::counters::Counters;
use crate::inode::Inode;
use crate::namespace::dir;
use crate::{Error, Result};

impl Writer<'_> {
    /// Writes all of a plan.
    pub(super) fn write(&mut self, plan: &LogPlan) -> Result<()> {
        for step in plan.steps.values() {
            self.step(step)?;
        }
        for child in plan.children.values() {
            let state = self.log.inode(child.objectid);
            let mut logged = state.logged.lock();
            match child.kind {
                FileKind::Symlink => self.full(child, &mut logged)?,
                _ => self.exists(child, &mut logged)?,
            }
        }
        for objectid in &plan.pending {
            self.log.pending().done(*objectid);
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let state = self.log.inode(step.inode.objectid);
        let mut logged = state.logged.lock();
        if step.inode.is_linked() {
            if step.full {
                self.full(&step.inode, &mut logged)?;
            } else {
                self.exists(&step.inode, &mut logged)?;
                self.changed_xattrs(&step.inode, &mut logged)?;
            }
            logged.removed = false;
        } else {
            if logged.exists {
                // No name may lead to it any more; other logged items of it do no harm.
                self.names(&step.inode, &mut logged)?;
            }
            logged.names = step.inode.state.lock().names_version;
            logged.removed = true;
        }
        write_entries(self, step)?;
        logged.number = self.number;
        Ok(())
    }

    /// Logs that an inode exists, and its names.
    fn exists(&mut self, inode: &Arc<Inode>, logged: &mut Logged) -> Result<()> {
        if !logged.exists {
            let item = self.exists_item(inode)?;
            self.put(&item_key(inode), item.bytes())?;
            self.xattrs(inode, logged)?;
        }
        self.names(inode, logged)?;
        logged.exists = true;
        logged.number = self.number;
        Ok(())
    }

    /// Replaces the attributes in the log with the inode's, if they changed. An ACL and the mode
    /// change together, so the item follows.
    fn changed_xattrs(&mut self, inode: &Arc<Inode>, logged: &mut Logged) -> Result<()> {
        if logged.xattrs == inode.state.lock().xattrs_version {
            return Ok(());
        }
        let item = if logged.full {
            let mut item = inode.state.lock().to_item();
            item.size = logged.size.into();
            item.transid = self.h.transid().into();
            item
        } else {
            self.exists_item(inode)?
        };
        self.put(&item_key(inode), item.bytes())?;
        self.xattrs(inode, logged)
    }

    /// The item that only states that an inode exists.
    fn exists_item(&self, inode: &Inode) -> Result<InodeItem> {
        let key = item_key(inode);
        let before = names::committed_item(&self.store, &inode.root, &key)?;
        let mut item = inode.state.lock().to_item();
        item.generation = 0.into();
        item.transid = self.h.transid().into();
        // Replay sets this length, so it must be the length at the last commit.
        item.size = match before {
            Some(bytes) => {
                let before = InodeItem::read(&bytes).map_err(|source| Error::BadItem {
                    root: inode.root.id(),
                    key,
                    source,
                })?;
                before.size
            }
            None => 0.into(),
        };
        Ok(item)
    }

    /// Logs all of an inode except the entries of a directory.
    fn full(&mut self, inode: &Arc<Inode>, logged: &mut Logged) -> Result<()> {
        let (mut item, sequence, size) = {
            let mut state = inode.state.lock();
            let mut item = state.to_item();
            item.size = state.size.into();
            // A commit replaces this log, and must not show less: all data is on disk, and data
            // that the tree lacks is pinned to the same transaction.
            state.disk_size = state.disk_size.max(state.size);
            (item, state.sequence, state.size)
        };
        item.transid = self.h.transid().into();
        self.put(&item_key(inode), item.bytes())?;
        self.xattrs(inode, logged)?;
        self.names(inode, logged)?;
        match inode.kind {
            FileKind::Regular => extents::write(self, inode, size, logged)?,
            FileKind::Symlink if !logged.full => extents::copy_inline(self, inode)?,
            _ => {}
        }
        *logged = Logged {
            exists: true,
            full: true,
            sequence,
            size,
            number: self.number,
            ..*logged
        };
        Ok(())
    }

    /// Replaces the names in the log with the inode's, if they changed.
    fn names(&mut self, inode: &Inode, logged: &mut Logged) -> Result<()> {
        let version = inode.state.lock().names_version;
        if logged.exists && logged.names == version {
            return Ok(());
        }
        if logged.exists {
            self.delete(inode, kind::INODE_REF, kind::INODE_EXTREF)?;
        }
        for (key, data) in names::ref_items(&self.store, &inode.root, inode.objectid)? {
            self.put(&key, &data)?;
        }
        logged.names = version;
        Ok(())
    }

    /// Replaces the attributes in the log with the inode's, if they changed.
    fn xattrs(&mut self, inode: &Inode, logged: &mut Logged) -> Result<()> {
        let version = inode.state.lock().xattrs_version;
        if logged.exists && logged.xattrs == version {
            return Ok(());
        }
        if logged.exists {
            self.delete(inode, kind::XATTR_ITEM, kind::XATTR_ITEM)?;
        }
        let first = Key::new(inode.objectid, kind::XATTR_ITEM, 0);
        let mut cursor = inode.root.seek(&self.store, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != inode.objectid || key.kind != kind::XATTR_ITEM {
                break;
            }
            self.tree().put(self.h, &key, data)?;
            Counters::count(&self.store.counters.log.xattrs);
            cursor.next()?;
        }
        logged.xattrs = version;
        Ok(())
    }

    /// Deletes an inode's items of these kinds from the log.
    fn delete(&mut self, inode: &Inode, from: u8, to: u8) -> Result<()> {
        let first = Key::new(inode.objectid, from, 0);
        let last = Key::new(inode.objectid, to, u64::MAX);
        self.tree().delete_range(self.h, &first, &last).map(|_| ())
    }
}

fn item_key(inode: &Inode) -> Key {
    Key::new(inode.objectid, kind::INODE_ITEM, 0)
}

/// Writes the entries of a step.
fn write_entries(w: &mut Writer<'_>, step: &Step) -> Result<()> {
    let inode = &step.inode;
    for (index, committed) in &step.removed {
        let key = Key::new(inode.objectid, kind::DIR_INDEX, *index);
        w.tree().delete(w.h, &key)?;
        if *committed {
            range(w, inode.objectid, *index)?;
        }
        Counters::count(&w.store.counters.log.dir_items);
    }
    for index in &step.entries {
        let Some(entry) = dir::entry_at(&w.store, inode, *index)? else {
            continue;
        };
        let key = Key::new(inode.objectid, kind::DIR_INDEX, *index);
        w.put(&key, &entry)?;
        Counters::count(&w.store.counters.log.dir_items);
    }
    inode.dir.logged(
        w.h.transid(),
        step.entries.iter().copied(),
        step.removed.keys().copied(),
    );
    Ok(())
}

/// Logs that there is no entry at an index: makes the range before it longer if it ends there.
fn range(w: &mut Writer<'_>, dir: u64, index: u64) -> Result<()> {
    let key = Key::new(dir, kind::DIR_LOG_INDEX, index);
    let before = {
        let cursor = w.tree().seek_back(w.h, &key)?;
        let found = cursor
            .item()
            .filter(|(found, _)| found.objectid == dir && found.kind == kind::DIR_LOG_INDEX);
        found.and_then(|(found, data)| Some((found, DirLogItem::read(data).ok()?.end.get())))
    };
    let end = |end: u64| DirLogItem { end: end.into() };
    match before {
        Some((_, last)) if last >= index => Ok(()),
        Some((found, last)) if last.checked_add(1) == Some(index) => {
            w.put(&found, end(index).bytes())
        }
        _ => w.put(&key, end(index).bytes()),
    }
}
