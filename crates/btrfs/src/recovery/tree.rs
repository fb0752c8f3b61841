//! A log tree, for reading.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, InodeRefRef, Key, extref_hash, inode_extrefs, inode_refs, kind};

use crate::tree::{BlockCache, Expect};
use crate::{Error, Result};

/// An item of a log, and its location.
#[derive(Debug)]
pub(super) struct LogItem {
    /// Subvolume of the log.
    pub(super) subvolume: u64,
    /// Logical address of its leaf.
    pub(super) block: u64,
    /// Key.
    pub(super) key: Key,
    /// Data.
    pub(super) data: Vec<u8>,
}

impl LogItem {
    /// The error for a defect of it.
    pub(super) fn bad(&self, reason: &'static str) -> Error {
        Error::LogItem {
            subvolume: self.subvolume,
            logical: self.block,
            key: self.key,
            reason: reason.to_owned(),
        }
    }

    /// The same for bytes that do not parse.
    pub(super) fn malformed(&self, source: sapwood_btrfs_format::ItemError) -> Error {
        Error::LogItem {
            subvolume: self.subvolume,
            logical: self.block,
            key: self.key,
            reason: source.to_string(),
        }
    }
}

/// A leaf of a log, as needed to read it again.
#[derive(Debug)]
pub(super) struct Leaf {
    /// First key of the block.
    pub(super) first: Key,
    /// Logical address.
    pub(super) bytenr: u64,
    /// The expectation of its parent.
    pub(super) expect: Expect,
}

/// The log of one subvolume. Its blocks were read and validated; they do not change.
#[derive(Debug)]
pub(super) struct LogTree {
    subvolume: u64,
    blocks: BlockCache,
    leaves: Vec<Leaf>,
}

impl LogTree {
    /// The log with these leaves, ascending.
    pub(super) fn new(subvolume: u64, blocks: &BlockCache, leaves: Vec<Leaf>) -> Self {
        Self {
            subvolume,
            blocks: blocks.clone(),
            leaves,
        }
    }

    /// Id of the subvolume.
    pub(super) fn subvolume(&self) -> u64 {
        self.subvolume
    }

    /// A walk that begins at the first item whose key is not smaller than `key`.
    pub(super) fn seek(&self, key: &Key) -> Items<'_> {
        let behind = self.leaves.partition_point(|leaf| leaf.first <= *key);
        Items {
            log: self,
            next_leaf: behind.saturating_sub(1),
            bytes: None,
            block: 0,
            slot: 0,
            from: *key,
        }
    }

    /// The item of a key.
    pub(super) fn get(&self, key: &Key) -> Result<Option<LogItem>> {
        let found = self.seek(key).next()?;
        Ok(found.filter(|item| item.key == *key))
    }

    /// Index of the name that an inode has in a directory, if the log has a ref of it.
    pub(super) fn find_ref(&self, inode: u64, parent: u64, name: &[u8]) -> Result<Option<u64>> {
        if let Some(item) = self.get(&Key::new(inode, kind::INODE_REF, parent))? {
            for entry in inode_refs(&item.data) {
                let InodeRefRef { index, name: found } = entry.map_err(|e| item.malformed(e))?;
                if found == name {
                    return Ok(Some(index));
                }
            }
        }
        let key = Key::new(inode, kind::INODE_EXTREF, extref_hash(parent, name));
        if let Some(item) = self.get(&key)? {
            for entry in inode_extrefs(&item.data) {
                let entry = entry.map_err(|e| item.malformed(e))?;
                if entry.parent == parent && entry.name == name {
                    return Ok(Some(entry.index));
                }
            }
        }
        Ok(None)
    }
}

/// A walk over the items of a log.
pub(super) struct Items<'a> {
    log: &'a LogTree,
    next_leaf: usize,
    bytes: Option<Arc<[u8]>>,
    block: u64,
    slot: usize,
    from: Key,
}

impl Items<'_> {
    /// The next item.
    ///
    /// # Errors
    /// A leaf that cannot be read again.
    pub(super) fn next(&mut self) -> Result<Option<LogItem>> {
        loop {
            if let Some(bytes) = &self.bytes {
                let block = Block::new(bytes).map_err(|source| Error::Block {
                    root: sapwood_btrfs_format::objectid::TREE_LOG,
                    source,
                })?;
                if let Ok((key, data)) = block.entry(self.slot) {
                    self.slot += 1;
                    return Ok(Some(LogItem {
                        subvolume: self.log.subvolume,
                        block: self.block,
                        key,
                        data: data.to_vec(),
                    }));
                }
            }
            let Some(leaf) = self.log.leaves.get(self.next_leaf) else {
                return Ok(None);
            };
            self.next_leaf += 1;
            let bytes = self.log.blocks.get(leaf.bytenr, &leaf.expect)?.snapshot();
            self.block = leaf.bytenr;
            self.slot = Block::new(&bytes).map_or(0, |block| {
                block.search(&self.from).unwrap_or_else(|slot| slot)
            });
            self.bytes = Some(bytes);
        }
    }

    /// The next item, if it is of this inode and kind.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(super) fn next_of(&mut self, inode: u64, kind: u8) -> Result<Option<LogItem>> {
        let next = self.next()?;
        Ok(next.filter(|item| item.key.objectid == inode && item.key.kind == kind))
    }
}
