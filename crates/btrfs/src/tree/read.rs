//! Descends a tree to read it.

use std::ops::Deref;
use std::ops::Range;

use sapwood_btrfs_format::{Block, DirItemRef, Header, Key, dir_items};

use super::block::{BlockBytes, ReadGuard};
use super::cache::{BlockCache, expect_child};
use super::root::NodeLock;
use super::{Root, TreeBlock, TreeRead};
use crate::error::bad_item;
use crate::lock::TreeClass;
use crate::{Error, Result};

/// Number of leaves that a walk reads ahead.
const AHEAD: usize = 32;

/// The bytes of one item, as of its lookup. Shares the leaf's bytes.
#[derive(Clone, Debug)]
pub(crate) struct ItemBuf {
    leaf: BlockBytes,
    range: Range<usize>,
}

impl ItemBuf {
    /// The data of a leaf's slot; `None` if there is no such slot.
    pub(super) fn of(leaf: &BlockBytes, slot: usize) -> Option<Self> {
        let block = Block::new(leaf).ok()?;
        let start = Header::SIZE + block.item_offset(slot).ok()?;
        let end = start + block.item_size(slot).ok()?;
        (end <= leaf.len()).then(|| Self {
            leaf: leaf.clone(),
            range: start..end,
        })
    }
}

impl Deref for ItemBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.leaf.get(self.range.clone()).unwrap_or_default()
    }
}

/// A leaf as of the lookup, and the end of its range.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) leaf: BlockBytes,
    /// Smallest key that is to the right of the leaf; `None` in the last one.
    pub(super) upper: Option<Key>,
}

/// The block under a node's slot, as the pointer describes it.
pub(super) fn child(
    blocks: &BlockCache,
    root_id: u64,
    node: &Block<'_>,
    slot: usize,
) -> Result<std::sync::Arc<TreeBlock>> {
    let bad = |source| Error::Block {
        root: root_id,
        source,
    };
    let ptr = node.child(slot).map_err(bad)?;
    let level = node.level().saturating_sub(1);
    let expect = expect_child(root_id, level, ptr.generation.get(), ptr.key.get());
    blocks.get(ptr.blockptr.get(), &expect)
}

/// Slot of the child that leads to `key`.
pub(super) fn child_slot(root_id: u64, node: &Block<'_>, key: &Key) -> Result<usize> {
    node.child_slot(key).ok_or_else(|| Error::StaleBlock {
        root: root_id,
        logical: node.bytenr(),
        reason: "node without pointers".to_owned(),
    })
}

/// Descends to the leaf that `key` is or would be in, with lock coupling.
pub(super) fn find_leaf(blocks: &BlockCache, lock: &NodeLock, key: &Key) -> Result<Found> {
    let node = lock.read();
    let guard = node.block().read(lock.class());
    drop(node);
    descend(blocks, lock.root_id(), lock.class(), guard, key)
}

/// Like [`find_leaf`], for a caller that comes from the previous leaf. Sometimes it reads ahead the
/// following leaves.
pub(super) fn find_next_leaf(blocks: &BlockCache, lock: &NodeLock, key: &Key) -> Result<Found> {
    let node = lock.read();
    let guard = node.block().read(lock.class());
    drop(node);
    let ahead = |node: &Block<'_>, slot: usize| read_ahead(blocks, node, slot);
    go_down(blocks, lock.root_id(), lock.class(), guard, key, &ahead)
}

fn read_ahead(blocks: &BlockCache, node: &Block<'_>, slot: usize) {
    if node.level() != 1 || !slot.is_multiple_of(AHEAD / 2) {
        return;
    }
    let behind = (slot + 1..=slot + AHEAD).map_while(|slot| node.child(slot).ok());
    blocks.will_read(behind.map(|ptr| ptr.blockptr.get()).collect());
}

/// Like [`find_leaf`], below a locked block.
pub(super) fn descend(
    blocks: &BlockCache,
    root_id: u64,
    class: TreeClass,
    guard: ReadGuard,
    key: &Key,
) -> Result<Found> {
    go_down(blocks, root_id, class, guard, key, &|_, _| {})
}

/// Descends. Calls `passing` for each node with the slot taken.
fn go_down(
    blocks: &BlockCache,
    root_id: u64,
    class: TreeClass,
    mut guard: ReadGuard,
    key: &Key,
    passing: &dyn Fn(&Block<'_>, usize),
) -> Result<Found> {
    let mut upper = None;
    loop {
        let view = guard.view()?;
        if view.is_leaf() {
            let leaf = guard.bytes();
            return Ok(Found { leaf, upper });
        }
        let slot = child_slot(root_id, &view, key)?;
        if let Ok(next) = view.key(slot + 1) {
            upper = Some(next);
        }
        passing(&view, slot);
        let next = child(blocks, root_id, &view, slot)?.read(class);
        // The parent is unlocked only now, so that the child cannot have been moved in between.
        guard = next;
    }
}

impl Root {
    /// Data of an item, `None` if there is none with that key.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn get(&self, env: &(impl TreeRead + ?Sized), key: &Key) -> Result<Option<ItemBuf>> {
        let found = find_leaf(env.blocks(), &self.node_lock(), key)?;
        let block = Block::new(&found.leaf).map_err(|e| self.block_error(e))?;
        Ok(match block.search(key) {
            Ok(slot) => ItemBuf::of(&found.leaf, slot),
            Err(_) => None,
        })
    }

    /// The entry of a name in the item at `key`, which packs directory entries or attributes whose
    /// names share a hash.
    ///
    /// # Errors
    /// [`Error::BadItem`].
    pub(crate) fn packed_entry<'i>(
        &self,
        key: Key,
        item: &'i [u8],
        name: &[u8],
    ) -> Result<Option<DirItemRef<'i>>> {
        for entry in dir_items(item) {
            let entry = entry.map_err(|source| bad_item(self.id(), key, source))?;
            if entry.name == name {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Calls `each` for every item from `key` on, in the tree as of the last commit, until it
    /// returns false. Takes no lock that a writer of this tree holds for long, so the caller may
    /// hold blocks of any tree.
    ///
    /// # Errors
    /// Unreadable blocks, and the errors of `each`.
    pub(crate) fn walk_committed(
        &self,
        env: &(impl TreeRead + ?Sized),
        key: &Key,
        each: &mut dyn FnMut(Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.with_commit_root(|top| {
            let mut from = *key;
            loop {
                let class = TreeClass::Committed;
                let guard = top.read(class);
                let found = descend(env.blocks(), self.id(), class, guard, &from)?;
                let block = Block::new(&found.leaf).map_err(|e| self.block_error(e))?;
                let first = block.search(&from).unwrap_or_else(|slot| slot);
                for slot in first..block.nritems() {
                    let (key, data) = block.entry(slot).map_err(|e| self.block_error(e))?;
                    if !each(key, data)? {
                        return Ok(());
                    }
                }
                match found.upper {
                    Some(upper) => from = upper,
                    None => return Ok(()),
                }
            }
        })
    }
}
