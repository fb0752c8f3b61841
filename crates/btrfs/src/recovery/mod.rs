//! Replay of the log at mount.
//!
//! # How it works
//! The superblock names the log root tree; its root items, keyed (`TREE_LOG`, `ROOT_ITEM`,
//! subvolume), name one log tree for each subvolume with an fsync since the last commit. All blocks
//! of all logs carry the transid after the superblock's.
//!
//! 1. [`scan`] reads every block of the log and removes its space, and the space of data extents
//!    that only the log refers to, from free space: the extent tree knows neither.
//! 2. One transaction takes the logs over, subvolume by subvolume, in three rounds, because later
//!    ones need the results of earlier ones: inodes, with their removed attributes and names
//!    ([`inode`], [`dir`]); names that directories log ([`dir`]); then the names of inodes
//!    ([`refs`]), attributes and extents ([`extents`]).
//! 3. [`refs`] counts the names of every inode that was touched. One without a name becomes an
//!    orphan, a directory without one loses its entries.
//! 4. The commit clears the log in the superblock.
//!
//! Until that superblock is written, nothing changes on disk that the old superblock refers to. So
//! an error, damage found late, or a power cut during the commit leave the log as it was, and a
//! later mount replays it from the beginning.
//!
//! Replay runs on an engine of its own, and the mount opens anew afterwards. So the mount has no
//! stale state of the trees in memory.
//!
//! Meaning of the items:
//! - An inode item of generation 0 means only that the inode exists: an existing inode keeps its
//!   state except for a size that is not 0. One without links is left out with all its items. Its
//!   byte count has no meaning, and the size of a directory follows its names.
//! - The log has all attributes of a logged inode; a missing one was removed.
//! - An inode ref item of the log holds all names that the inode has in that directory.
//! - The log has all entries within a range item of a directory; a missing one was removed.
//! - The log has all changed extents of a logged file, including holes. After its size, the file
//!   has only the extents in the log.
//!
//! The facts come from the public descriptions of the format, and from images that the kernel
//! wrote. `tests/trials/log_replay.rs` compares with these images, and covers the trouble cases:
//! damage in every block of a log, power cuts at every write of a replay.

mod dir;
mod entries;
mod extents;
mod inode;
mod refs;
mod scan;
mod tree;

use std::collections::BTreeSet;
use std::sync::Arc;

use sapwood_btrfs_format::{InodeItem, Key, kind, objectid};

use crate::transaction::{Handle, Store};
use crate::tree::Root;
use crate::{Error, Result};
use scan::Extents;
use tree::{LogItem, LogTree};

/// Replays the log of an image in one transaction, whose commit clears it.
///
/// # Errors
/// The defect of the log, or another error. Nothing was changed then.
pub(crate) fn replay(store: &Arc<Store>) -> Result<()> {
    let scanned = scan::scan(store)?;
    log::info!("replaying the log of {} subvolumes", scanned.trees.len());
    store.drop_stale_caches()?;
    let mut extents = scanned.extents;
    let mut h = store.join()?;
    // The superblock's generation equals the root tree's top: even a log without changes has to
    // change that.
    let top = store.roots.get(objectid::FS_TREE)?;
    h.record_root(&top);
    for tree in &scanned.trees {
        let root = store.roots.get(tree.subvolume())?;
        let result = Replay::new(&mut h, &root, tree, &mut extents).run();
        if let Err(err) = result {
            h.abort(&err);
            return Err(err);
        }
    }
    h.end()?;
    store.commit(None)
}

/// The replay of one subvolume's log.
struct Replay<'a> {
    h: &'a mut Handle,
    store: Arc<Store>,
    root: &'a Arc<Root>,
    log: &'a LogTree,
    extents: &'a mut Extents,
    /// Inodes of the log that are left out.
    ignored: BTreeSet<u64>,
    /// Inodes whose names must be counted.
    touched: BTreeSet<u64>,
    /// Directories that got a name.
    moved: BTreeSet<u64>,
}

impl<'a> Replay<'a> {
    fn new(
        h: &'a mut Handle,
        root: &'a Arc<Root>,
        log: &'a LogTree,
        extents: &'a mut Extents,
    ) -> Self {
        Self {
            store: Arc::clone(h.store()),
            h,
            root,
            log,
            extents,
            ignored: BTreeSet::new(),
            touched: BTreeSet::new(),
            moved: BTreeSet::new(),
        }
    }

    fn run(&mut self) -> Result<()> {
        self.each(|this, item| match item.key.kind {
            kind::INODE_ITEM => this.inode(item),
            _ => Ok(()),
        })?;
        self.each(|this, item| match item.key.kind {
            kind::DIR_INDEX => this.dir_entry(item),
            _ => Ok(()),
        })?;
        self.each(|this, item| match item.key.kind {
            kind::INODE_REF => this.inode_ref(item),
            kind::INODE_EXTREF => this.inode_extref(item),
            kind::XATTR_ITEM => this.xattr(item),
            kind::EXTENT_DATA => this.extent(item),
            _ => Ok(()),
        })?;
        self.count_links()?;
        self.check_ancestors()
    }

    /// Runs `work` on every item of the log that is not of an ignored inode.
    fn each(&mut self, mut work: impl FnMut(&mut Self, &LogItem) -> Result<()>) -> Result<()> {
        let log = self.log;
        let mut items = log.seek(&Key::MIN);
        while let Some(item) = items.next()? {
            if !self.ignored.contains(&item.key.objectid) {
                work(self, &item)?;
            }
        }
        Ok(())
    }

    /// The item of an inode of the subvolume.
    fn inode_item(&self, inode: u64) -> Result<Option<InodeItem>> {
        let key = Key::new(inode, kind::INODE_ITEM, 0);
        let Some(bytes) = self.root.get(&self.store, &key)? else {
            return Ok(None);
        };
        let item = InodeItem::read(&bytes);
        item.map(Some).map_err(|source| self.bad_item(key, source))
    }

    fn put_inode_item(&mut self, inode: u64, item: &InodeItem) -> Result<()> {
        let key = Key::new(inode, kind::INODE_ITEM, 0);
        self.root.put(self.h, &key, item.bytes())
    }

    /// Changes the item of an inode that is there.
    fn change_inode(&mut self, inode: u64, change: impl FnOnce(&mut InodeItem)) -> Result<()> {
        let key = Key::new(inode, kind::INODE_ITEM, 0);
        let Some(mut item) = self.inode_item(inode)? else {
            let root = self.root.id();
            return Err(Error::ItemNotFound { root, key });
        };
        change(&mut item);
        self.put_inode_item(inode, &item)
    }

    fn top_dir(&self) -> u64 {
        self.root.top_dir()
    }

    fn bad_item(&self, key: Key, source: sapwood_btrfs_format::ItemError) -> Error {
        Error::BadItem {
            root: self.root.id(),
            key,
            source,
        }
    }
}
