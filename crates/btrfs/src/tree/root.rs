//! A tree in memory: the pointer to its top block, and its root item.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard};
use parking_lot::{RawRwLock, RwLock};
use sapwood_btrfs_format::{Key, RootFlags, RootItem, kind, objectid};

use super::{TreeBlock, TreeRead};
use crate::lock::{Held, Rank, RankedMutex, RankedMutexGuard, RankedRwLock, TreeClass};
use crate::{Error, Result};

/// A tree in memory.
pub(crate) struct Root {
    id: u64,
    key_offset: u64,
    class: TreeClass,
    node: Arc<RwLock<Arc<TreeBlock>>>,
    /// The tree as of the last commit. Read-locked while a thread walks it.
    commit: RankedRwLock<Arc<TreeBlock>>,
    item: RankedMutex<RootItem>,
    last_snapshot: AtomicU64,
    last_trans: AtomicU64,
    dead: AtomicBool,
    highest_objectid: AtomicU64,
}

/// The pointer to the top block, locked for reading.
pub(super) struct NodeRead {
    node: ArcRwLockReadGuard<RawRwLock, Arc<TreeBlock>>,
    _held: Held,
}

/// The pointer to the top block, locked for writing.
pub(super) struct NodeWrite {
    node: ArcRwLockWriteGuard<RawRwLock, Arc<TreeBlock>>,
    _held: Held,
}

impl NodeRead {
    pub(super) fn block(&self) -> &Arc<TreeBlock> {
        &self.node
    }
}

impl NodeWrite {
    pub(super) fn block(&self) -> &Arc<TreeBlock> {
        &self.node
    }

    pub(super) fn set(&mut self, block: Arc<TreeBlock>) {
        *self.node = block;
    }
}

/// The lock around the pointer to a top block, which a cursor keeps.
#[derive(Clone)]
pub(super) struct NodeLock {
    node: Arc<RwLock<Arc<TreeBlock>>>,
    class: TreeClass,
    root_id: u64,
}

impl NodeLock {
    pub(super) fn read(&self) -> NodeRead {
        let held = Held::new(Rank::TreeBlock, (self.class as u64, 0));
        NodeRead {
            node: RwLock::read_arc(&self.node),
            _held: held,
        }
    }

    pub(super) fn class(&self) -> TreeClass {
        self.class
    }

    pub(super) fn root_id(&self) -> u64 {
        self.root_id
    }
}

impl Root {
    /// Inode of the top directory, of a tree of files.
    pub(crate) fn top_dir(&self) -> u64 {
        match self.item().root_dirid.get() {
            0 => objectid::FIRST_FREE,
            dir => dir,
        }
    }

    /// A tree with this top block. `key_offset`: that of its root item's key.
    pub(crate) fn new(id: u64, key_offset: u64, top: Arc<TreeBlock>, item: RootItem) -> Self {
        Self {
            id,
            key_offset,
            class: class_of(id),
            commit: RankedRwLock::with_key(
                Rank::TreeBlock,
                (TreeClass::Committed as u64, 0),
                top.clone(),
            ),
            node: Arc::new(RwLock::new(top)),
            last_snapshot: AtomicU64::new(item.last_snapshot.get()),
            last_trans: AtomicU64::new(0),
            dead: AtomicBool::new(id >= objectid::FIRST_FREE && item.refs.get() == 0),
            highest_objectid: AtomicU64::new(0),
            item: RankedMutex::new(Rank::RootState, item),
        }
    }

    /// Reads the top block of a root item.
    ///
    /// # Errors
    /// Those of [`BlockCache::get`](super::BlockCache::get).
    pub(crate) fn load(
        env: &(impl TreeRead + ?Sized),
        id: u64,
        key_offset: u64,
        item: RootItem,
    ) -> Result<Self> {
        let expect = super::cache::Expect {
            level: Some(item.level),
            generation: Some(item.generation.get()),
            owner: Some(id),
            first_key: None,
        };
        let top = env.blocks().get(item.bytenr.get(), &expect)?;
        Ok(Self::new(id, key_offset, top, item))
    }

    /// Tree id.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Key of its root item.
    pub(crate) fn item_key(&self) -> Key {
        Key::new(self.id, kind::ROOT_ITEM, self.key_offset)
    }

    /// Class in the lock order.
    pub(crate) fn class(&self) -> TreeClass {
        self.class
    }

    /// Whether its blocks may be shared with snapshots.
    pub(crate) fn is_shareable(&self) -> bool {
        is_shareable(self.id)
    }

    /// The current top block.
    pub(crate) fn node(&self) -> Arc<TreeBlock> {
        // No rank: it is held only to copy a pointer, and taken with any other lock held.
        self.node.read_recursive().clone()
    }

    pub(super) fn node_lock(&self) -> NodeLock {
        NodeLock {
            node: self.node.clone(),
            class: self.class,
            root_id: self.id,
        }
    }

    pub(super) fn read_node(&self) -> NodeRead {
        let held = Held::new(Rank::TreeBlock, (self.class as u64, 0));
        NodeRead {
            node: RwLock::read_arc(&self.node),
            _held: held,
        }
    }

    /// Keeps the tree unchanged while the result lives. It can be read.
    #[cfg(test)]
    pub(crate) fn hold_node(&self) -> impl Drop + use<> {
        RwLock::read_arc(&self.node)
    }

    pub(super) fn write_node(&self) -> NodeWrite {
        let held = Held::new(Rank::TreeBlock, (self.class as u64, 0));
        NodeWrite {
            node: RwLock::write_arc(&self.node),
            _held: held,
        }
    }

    /// Calls `walk` with the top block of the last commit. The blocks below it stay in place
    /// meanwhile. `walk` must neither change the tree nor wait for a commit.
    ///
    /// # Errors
    /// Those of `walk`.
    pub(crate) fn with_commit_root<T>(
        &self,
        walk: impl FnOnce(&Arc<TreeBlock>) -> Result<T>,
    ) -> Result<T> {
        let commit = self.commit.read();
        walk(&commit)
    }

    /// Makes the current tree the one of the last commit. Waits for walks of the old one. Call it
    /// before freed blocks of the old one are released.
    pub(crate) fn switch_commit_root(&self) {
        let node = self.node();
        *self.commit.write() = node;
    }

    /// The root item, to read and change fields. Its address, level and generation are those of the
    /// last [`update_item`](Self::update_item).
    pub(crate) fn item(&self) -> RankedMutexGuard<'_, RootItem> {
        self.item.lock()
    }

    /// Stores address, level and generation of the top block in the root item, and returns it.
    pub(crate) fn update_item(&self, transid: u64) -> RootItem {
        let node = self.node();
        let mut item = self.item.lock();
        item.bytenr = node.bytenr().into();
        item.level = node.level();
        item.generation = transid.into();
        item.generation_v2 = transid.into();
        *item
    }

    /// Whether it is a read-only subvolume.
    pub(crate) fn is_read_only(&self) -> bool {
        self.item.lock().root_flags().contains(RootFlags::RDONLY)
    }

    /// Transid of its last snapshot. Blocks that are not newer may be shared.
    pub(crate) fn last_snapshot(&self) -> u64 {
        self.last_snapshot.load(Ordering::Acquire)
    }

    /// Records that a snapshot was taken. From now on blocks of this transaction are copied again.
    pub(crate) fn set_last_snapshot(&self, transid: u64) {
        self.item.lock().last_snapshot = transid.into();
        self.last_snapshot.store(transid, Ordering::Release);
    }

    /// Transid of the last transaction that changed it, as recorded by a handle.
    pub(crate) fn last_trans(&self) -> u64 {
        self.last_trans.load(Ordering::Acquire)
    }

    /// Records that it changes in a transaction. Returns the previous one.
    pub(crate) fn set_last_trans(&self, transid: u64) -> u64 {
        self.last_trans.swap(transid, Ordering::AcqRel)
    }

    /// Whether it is being deleted.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Records that it is being deleted.
    pub(crate) fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Highest inode number in use; 0 until it is looked up.
    pub(crate) fn highest_objectid(&self) -> &AtomicU64 {
        &self.highest_objectid
    }

    /// Adds the tree to an error of a block.
    pub(super) fn block_error(&self, source: sapwood_btrfs_format::block::Error) -> Error {
        Error::Block {
            root: self.id,
            source,
        }
    }

    /// Whether a block of this tree may be changed in place in transaction `transid`.
    pub(super) fn in_place(&self, block: &TreeBlock, transid: u64) -> bool {
        block.generation() == transid
            && !block.is_written()
            && !(self.is_shareable() && block.generation() <= self.last_snapshot())
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.node();
        f.debug_struct("Root")
            .field("id", &self.id)
            .field("node", &node)
            .field("last_snapshot", &self.last_snapshot())
            .finish()
    }
}

/// Class of a tree in the lock order.
fn class_of(root_id: u64) -> TreeClass {
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
pub(super) fn is_shareable(root_id: u64) -> bool {
    objectid::is_fs_tree(root_id) || root_id == objectid::DATA_RELOC_TREE
}
