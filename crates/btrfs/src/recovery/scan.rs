//! Reading the whole log before anything is allocated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sapwood_btrfs_format::{
    Block, BlockGroupFlags, ExtentFlags, ExtentItemRef, FileExtent, InodeItem, Key, RootItem, kind,
    objectid,
};

use super::tree::{Leaf, LogItem, LogTree};
use crate::transaction::Store;
use crate::tree::{Expect, expect_child};
use crate::{Error, Result};

/// The data extents that the log refers to.
#[derive(Debug, Default)]
pub(super) struct Extents {
    /// Length, and whether it is to get its extent item, by logical address.
    known: BTreeMap<u64, (u64, bool)>,
}

impl Extents {
    /// Adds one. `new`: the extent tree does not have it.
    fn add(&mut self, bytenr: u64, len: u64, new: bool) {
        self.known.insert(bytenr, (len, new));
    }

    /// Length of one that was added.
    fn len_of(&self, bytenr: u64) -> Option<u64> {
        self.known.get(&bytenr).map(|(len, _)| *len)
    }

    /// Whether this is the first ref of an extent that is not in the extent tree.
    pub(super) fn take_new(&mut self, bytenr: u64) -> bool {
        let known = self.known.get_mut(&bytenr);
        known.is_some_and(|(_, new)| std::mem::take(new))
    }
}

/// What the log has.
pub(super) struct Scanned {
    /// Logs of subvolumes that exist.
    pub(super) trees: Vec<LogTree>,
    /// Data extents that they refer to.
    pub(super) extents: Extents,
}

/// Reads and judges all blocks of the log, and takes what the extent tree does not know of out of
/// the free space: the blocks, and data extents that are new.
///
/// # Errors
/// Unreadable blocks; [`Error::LogBlock`], [`Error::LogItem`].
pub(super) fn scan(store: &Arc<Store>) -> Result<Scanned> {
    let super_block = **store.super_block.lock();
    let transid = super_block.generation.get().saturating_add(1);
    let mut scan = Scan {
        store,
        transid,
        seen: BTreeSet::new(),
    };
    let expect = Expect {
        level: Some(super_block.log_root_level),
        generation: Some(transid),
        owner: Some(objectid::TREE_LOG),
        first_key: None,
    };
    let top = scan.tree(objectid::ROOT_TREE, super_block.log_root.get(), expect)?;
    let mut trees = Vec::new();
    let mut roots = top.seek(&Key::MIN);
    while let Some(item) = roots.next()? {
        let tree = scan.log_of(&item)?;
        if has_subvolume(store, tree.subvolume())? {
            trees.push(tree);
        }
    }
    let mut extents = Extents::default();
    for tree in &trees {
        scan.data_extents(tree, &mut extents)?;
    }
    Ok(Scanned { trees, extents })
}

/// Whether a subvolume exists: one that was deleted afterwards may have left a log.
fn has_subvolume(store: &Store, id: u64) -> Result<bool> {
    match store.roots.get(id) {
        Ok(root) => Ok(!root.is_dead()),
        Err(Error::NoSuchRoot(_)) => Ok(false),
        Err(err) => Err(err),
    }
}

struct Scan<'a> {
    store: &'a Arc<Store>,
    transid: u64,
    seen: BTreeSet<u64>,
}

impl Scan<'_> {
    fn tree(&mut self, subvolume: u64, bytenr: u64, expect: Expect) -> Result<LogTree> {
        let mut leaves = Vec::new();
        self.walk(bytenr, expect, &mut leaves)?;
        Ok(LogTree::new(subvolume, &self.store.blocks, leaves))
    }

    /// Collects the leaves at and below a block. Levels fall, so this ends.
    fn walk(&mut self, bytenr: u64, expect: Expect, leaves: &mut Vec<Leaf>) -> Result<()> {
        let bad = |reason| Error::LogBlock {
            logical: bytenr,
            reason,
        };
        let block = self.store.blocks.get(bytenr, &expect)?;
        if block.generation() != self.transid || block.owner() != objectid::TREE_LOG {
            return Err(bad("it is not of this log"));
        }
        if !self.seen.insert(bytenr) {
            return Err(bad("it is referred to twice"));
        }
        let len = self.store.nodesize.into();
        let space = &self.store.space;
        space
            .take_exactly(bytenr, len, BlockGroupFlags::METADATA)
            .map_err(|_| bad("it does not stand in free space for metadata"))?;
        let bytes = block.snapshot();
        let root = objectid::TREE_LOG;
        let view = Block::new(&bytes).map_err(|source| Error::Block { root, source })?;
        if view.is_leaf() {
            if let Some(first) = view.first_key() {
                leaves.push(Leaf {
                    first,
                    bytenr,
                    expect,
                });
            }
            return Ok(());
        }
        for child in view.ptrs() {
            let level = view.level() - 1;
            let expect = expect_child(root, level, child.generation.get(), child.key.get());
            self.walk(child.blockptr.get(), expect, leaves)?;
        }
        Ok(())
    }

    /// The log that an item of the log root tree names.
    fn log_of(&mut self, item: &LogItem) -> Result<LogTree> {
        let key = item.key;
        if (key.objectid, key.kind) != (objectid::TREE_LOG, kind::ROOT_ITEM)
            || !objectid::is_fs_tree(key.offset)
        {
            return Err(item.bad("it names no log of a subvolume"));
        }
        let root = RootItem::parse(&item.data).map_err(|source| item.malformed(source))?;
        if root.generation.get() != self.transid {
            return Err(item.bad("it is of another transaction"));
        }
        let expect = Expect {
            level: Some(root.level),
            generation: Some(self.transid),
            owner: Some(objectid::TREE_LOG),
            first_key: None,
        };
        self.tree(key.offset, root.bytenr.get(), expect)
    }

    fn data_extents(&self, tree: &LogTree, extents: &mut Extents) -> Result<()> {
        let mut ignored = None;
        let mut items = tree.seek(&Key::MIN);
        while let Some(item) = items.next()? {
            if item.key.kind == kind::INODE_ITEM {
                let inode = InodeItem::read(&item.data).map_err(|e| item.malformed(e))?;
                ignored = (inode.nlink.get() == 0).then_some(item.key.objectid);
            }
            if item.key.kind != kind::EXTENT_DATA || ignored == Some(item.key.objectid) {
                continue;
            }
            let extent = FileExtent::parse(&item.data).map_err(|e| item.malformed(e))?;
            if let FileExtent::Regular(extent) | FileExtent::Prealloc(extent) = extent
                && extent.disk_bytenr != 0
            {
                self.data_extent(&item, extent.disk_bytenr, extent.disk_num_bytes, extents)?;
            }
        }
        Ok(())
    }

    fn data_extent(
        &self,
        item: &LogItem,
        bytenr: u64,
        len: u64,
        extents: &mut Extents,
    ) -> Result<()> {
        match extents.len_of(bytenr) {
            Some(known) if known == len => return Ok(()),
            Some(_) => return Err(item.bad("another item gives its extent another length")),
            None => {}
        }
        let key = Key::new(bytenr, kind::EXTENT_ITEM, len);
        let stored = self
            .store
            .roots
            .extent_tree
            .get(self.store, &key)?
            .map(|bytes| ExtentItemRef::parse(key.kind, &bytes).map(|found| found.flags))
            .transpose()
            .map_err(|source| Error::ExtentItem { bytenr, source })?;
        match stored {
            Some(flags) if flags.contains(ExtentFlags::DATA) => extents.add(bytenr, len, false),
            Some(_) => return Err(item.bad("its extent is a tree block")),
            None => {
                let space = &self.store.space;
                space
                    .take_exactly(bytenr, len, BlockGroupFlags::DATA)
                    .map_err(|_| item.bad("its extent overlaps others or no data can be there"))?;
                extents.add(bytenr, len, true);
            }
        }
        Ok(())
    }
}
