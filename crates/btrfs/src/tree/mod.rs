//! Copy-on-write B-trees: block cache, search, cursors, and concurrent change.
//!
//! # How it works
//! A tree is a [`Root`]: a lock around the pointer to its top block. Every block in memory is a
//! [`TreeBlock`] with its own lock around shared bytes. A thread that descends holds a block until
//! it holds the child (lock coupling). A reader holds read locks; at the leaf it takes a reference
//! to the bytes and unlocks. So it sees a snapshot of that leaf, which a later writer copies before
//! changing it.
//!
//! Blocks on disk never change. A block is changed in place only if it was created in the running
//! transaction, was not written yet, and cannot be shared with a snapshot taken in this
//! transaction. Otherwise it is copied to a new address first (`cow`), and the parent's pointer is
//! updated.
//!
//! Writers descend like readers and lock only the leaf. If that is not enough (copy, split, merge,
//! or a change of the leaf's first key, which its parent repeats), they start again and lock from
//! the topmost level that must change (`path`). On this path each node is made *safe* before its
//! child is locked: it has room for more pointers, and at least two. So a change never climbs above
//! the blocks still held.
//!
//! Addresses of blocks that were never written are reused at once. Yet a pointer that a thread
//! follows is never stale:
//! - A thread frees a block only while it holds the parent exclusively, and after it has held the
//!   block itself exclusively (`cow` drains it). So a block that a thread holds is still in the
//!   tree, and so are its children.
//! - A block is removed from the cache before its address is freed, and a new block replaces the
//!   cache entry at its address.
//! - A walk of a commit root holds that root's commit lock. The commit exchanges the root before
//!   the addresses of the old tree become free.
//!
//! Threads cannot deadlock:
//! - Tree blocks are locked top down, and two blocks of one level only under their parent's write
//!   lock.
//! - An old block (one that must be copied) is write-locked while its refs are looked up and
//!   changed. Meanwhile the thread waits only for readers below it and for the extent tree.
//! - Across trees the order is that of [`TreeClass`]. Changing a tree allocates and frees blocks,
//!   which reads, but never changes, trees of higher classes (changes of the extent tree are
//!   delayed refs).
//!
//! A thread that changes the refs of a block that several trees may share (here, or when a
//! subvolume is dropped) holds the block's write lock from their lookup until they are changed.
//!
//! Trouble cases and their tests (`tests/`):
//! - threads that insert, change and delete in one tree, and threads that leave shared blocks at
//!   once (`concurrent`)
//! - random operations against a model (`model`)
//! - snapshots that share blocks, with every ref counted (`snapshots`)
//! - items that split a leaf in three, descending and ascending insertion, a tree emptied down to
//!   its root (`shapes`)

mod balance;
mod block;
mod cache;
mod copy;
mod cow;
mod cursor;
mod edit;
mod items;
mod open;
mod path;
mod read;
mod refs;
mod root;
mod roots;
mod split;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) mod verify;
mod write;

use std::sync::Arc;

use sapwood_btrfs_format::{Key, objectid};

use crate::Result;
use crate::lock::TreeClass;
pub(crate) use block::TreeBlock;
pub(crate) use cache::{BlockCache, Expect, expect_child};
pub(crate) use copy::{copy_root, create_root};
pub(crate) use cursor::Cursor;
pub(crate) use items::Change;
pub(crate) use open::{Opened, open};
pub(crate) use refs::change_children;
pub(crate) use root::Root;
pub(crate) use roots::Roots;
pub(crate) use write::{abandon, freeze, write_blocks};

/// What reading a tree needs: the engine, or only a cache while the engine is being created.
pub(crate) trait TreeRead {
    /// The block cache.
    fn blocks(&self) -> &BlockCache;
}

impl<T: TreeRead + ?Sized> TreeRead for Arc<T> {
    fn blocks(&self) -> &BlockCache {
        (**self).blocks()
    }
}

/// A change of refs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockRef {
    /// The first ref of a block that was just allocated.
    New,
    /// Adds one ref.
    Add,
    /// Drops one ref.
    Drop,
}

/// A ref of a data extent, as a file extent item implies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRef {
    /// Logical address of the extent.
    pub(crate) bytenr: u64,
    /// Bytes on disk.
    pub(crate) len: u64,
    /// Leaf that contains the item, if the ref is by parent.
    pub(crate) parent: Option<u64>,
    /// Tree that owns the item.
    pub(crate) root_id: u64,
    /// Inode.
    pub(crate) objectid: u64,
    /// File offset of the item minus its offset within the extent; wraps.
    pub(crate) offset: u64,
}

/// What changing a tree needs: a transaction handle, or a small stand-in in tests.
pub(crate) trait TreeWrite: TreeRead {
    /// Transid of the running transaction.
    fn transid(&self) -> u64;
    /// Records that a tree changes in this transaction.
    fn record_root(&mut self, root: &Arc<Root>) -> Result<()>;
    /// Allocates the address of a new block of tree `root_id`; adds no ref yet. `hint`: preferred
    /// neighbour.
    fn alloc_block(&mut self, root_id: u64, hint: u64) -> Result<u64>;
    /// Drops the ref of `root` on a block. `last`: it is the only one.
    fn free_block(&mut self, root: &Root, block: &TreeBlock, last: bool) -> Result<()>;
    /// Number of refs and extent flags of a block, including pending changes.
    fn extent_info(&mut self, bytenr: u64, level: u8) -> Result<(u64, u64)>;
    /// Sets the flag that all refs from a block are by parent.
    fn set_full_backref(&mut self, bytenr: u64, level: u8) -> Result<()>;
    /// Changes the refs of a block. `parent`: the block that points at it, if the ref is by parent.
    fn block_ref(
        &mut self,
        bytenr: u64,
        level: u8,
        root_id: u64,
        parent: Option<u64>,
        change: BlockRef,
    ) -> Result<()>;
    /// Adds (or drops) one ref of a data extent.
    fn data_ref(&mut self, data: &DataRef, add: bool) -> Result<()>;
    /// Adds a new block to the transaction's set of blocks to write.
    fn add_dirty(&mut self, block: &Arc<TreeBlock>);
    /// Removes a freed block from that set.
    fn remove_dirty(&mut self, block: &TreeBlock);
    /// Aborts the transaction, which failed half-way and must not be committed.
    fn abort(&self, err: &crate::Error);
}

/// Class of a tree in the lock order.
pub(crate) fn class_of(root_id: u64) -> TreeClass {
    match root_id {
        objectid::TREE_LOG => TreeClass::Log,
        objectid::ROOT_TREE => TreeClass::Root,
        objectid::CSUM_TREE => TreeClass::Csum,
        objectid::EXTENT_TREE => TreeClass::Extent,
        objectid::BLOCK_GROUP_TREE => TreeClass::BlockGroup,
        objectid::FREE_SPACE_TREE => TreeClass::FreeSpace,
        objectid::DEV_TREE => TreeClass::Device,
        objectid::CHUNK_TREE => TreeClass::Chunk,
        id if is_shareable(id) => TreeClass::Subvolume,
        _ => TreeClass::Other,
    }
}

/// Whether the blocks of a tree may be shared with snapshots, so that refs are counted per block.
pub(crate) fn is_shareable(root_id: u64) -> bool {
    objectid::is_fs_tree(root_id) || root_id == objectid::DATA_RELOC_TREE
}

/// First key of a block, or the smallest key if it is empty.
pub(crate) fn first_key(block: &sapwood_btrfs_format::Block<'_>) -> Key {
    block.first_key().unwrap_or(Key::MIN)
}
