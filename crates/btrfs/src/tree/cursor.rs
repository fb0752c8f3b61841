//! Cursors: iterate over a tree's items in order, without holding locks.

use sapwood_btrfs_format::{Block, Key};

use super::block::BlockBytes;
use super::cache::{BlockCache, TreeRead};
use super::read::{Found, find_leaf, find_next_leaf};
use super::root::{NodeLock, Root};
use crate::{Error, Result};

/// A position in a tree. Holds a snapshot of one leaf and no lock. It does not show later changes
/// of that leaf, but changes of later leaves. To move to another leaf it searches by key again, so
/// it may return items inserted meanwhile, and never returns an item twice.
pub(crate) struct Cursor {
    blocks: BlockCache,
    tree: NodeLock,
    leaf: BlockBytes,
    slot: usize,
    nritems: usize,
    upper: Option<Key>,
    /// It is before the first item, and stays there.
    in_front: bool,
}

impl Cursor {
    fn open(blocks: &BlockCache, tree: NodeLock, found: Found) -> Result<Self> {
        let nritems = count(&found.leaf, tree.root_id())?;
        Ok(Self {
            blocks: blocks.clone(),
            tree,
            leaf: found.leaf,
            slot: 0,
            nritems,
            upper: found.upper,
            in_front: false,
        })
    }

    pub(super) fn seek(blocks: &BlockCache, tree: NodeLock, key: &Key) -> Result<Self> {
        let found = find_leaf(blocks, &tree, key)?;
        let mut cursor = Self::open(blocks, tree, found)?;
        cursor.slot = cursor.position(key)?.unwrap_or_else(|slot| slot);
        cursor.skip_to_item()?;
        Ok(cursor)
    }

    pub(super) fn seek_back(blocks: &BlockCache, tree: NodeLock, key: &Key) -> Result<Self> {
        let found = find_leaf(blocks, &tree, key)?;
        let mut cursor = Self::open(blocks, tree, found)?;
        match cursor.position(key)? {
            Ok(slot) => cursor.slot = slot,
            Err(0) => cursor.go_to_front(),
            Err(slot) => cursor.slot = slot - 1,
        }
        Ok(cursor)
    }

    fn position(&self, key: &Key) -> Result<Result<usize, usize>> {
        Ok(self.view()?.search(key))
    }

    fn view(&self) -> Result<Block<'_>> {
        let root = self.tree.root_id();
        Block::new(&self.leaf).map_err(|source| Error::Block { root, source })
    }

    fn load(&mut self, found: Found) -> Result<()> {
        self.nritems = count(&found.leaf, self.tree.root_id())?;
        self.leaf = found.leaf;
        self.upper = found.upper;
        Ok(())
    }

    /// Past the leaf's end: moves to the next leaf that has an item.
    fn skip_to_item(&mut self) -> Result<()> {
        while self.slot >= self.nritems {
            let Some(upper) = self.upper else {
                return Ok(());
            };
            self.load(find_next_leaf(&self.blocks, &self.tree, &upper)?)?;
            self.slot = self.position(&upper)?.unwrap_or_else(|slot| slot);
        }
        Ok(())
    }

    /// Moves to the last item before `key`, which is the first of this leaf or precedes it.
    fn before_leaf(&mut self, key: &Key) -> Result<()> {
        let Some(before) = key.predecessor() else {
            self.go_to_front();
            return Ok(());
        };
        self.load(find_leaf(&self.blocks, &self.tree, &before)?)?;
        match self.position(&before)? {
            Ok(slot) => self.slot = slot,
            // A leaf begins with the key that its parent has for it, so this is the first leaf.
            Err(0) => self.go_to_front(),
            Err(slot) => self.slot = slot - 1,
        }
        Ok(())
    }

    fn go_to_front(&mut self) {
        self.slot = self.nritems;
        self.upper = None;
        self.in_front = true;
    }

    /// Key and data at the cursor; `None` before the first or after the last item.
    pub(crate) fn item(&self) -> Option<(Key, &[u8])> {
        Block::new(&self.leaf).ok()?.entry(self.slot).ok()
    }

    /// Key at the cursor.
    pub(crate) fn key(&self) -> Option<Key> {
        Block::new(&self.leaf).ok()?.item_key(self.slot).ok()
    }

    /// Moves to the next item. After the last it stays there.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn next(&mut self) -> Result<()> {
        if self.slot < self.nritems {
            self.slot += 1;
        }
        self.skip_to_item()
    }

    /// Moves to the previous item. Before the first, [`item`](Self::item) is `None`.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn prev(&mut self) -> Result<()> {
        if self.in_front {
            return Ok(());
        }
        if self.slot > 0 && self.slot <= self.nritems {
            self.slot -= 1;
            return Ok(());
        }
        match self.view()?.first_key() {
            Some(first) => self.before_leaf(&first),
            None => {
                self.go_to_front();
                Ok(())
            }
        }
    }
}

fn count(leaf: &BlockBytes, root: u64) -> Result<usize> {
    let block = Block::new(leaf).map_err(|source| Error::Block { root, source })?;
    Ok(block.nritems())
}

impl Root {
    /// A cursor at the first item whose key is not smaller than `key`.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn seek(&self, env: &(impl TreeRead + ?Sized), key: &Key) -> Result<Cursor> {
        Cursor::seek(env.blocks(), self.node_lock(), key)
    }

    /// A cursor at the last item whose key is not larger than `key`.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn seek_back(&self, env: &(impl TreeRead + ?Sized), key: &Key) -> Result<Cursor> {
        Cursor::seek_back(env.blocks(), self.node_lock(), key)
    }
}
