//! One tree block in memory, and its lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard};
use parking_lot::{RawRwLock, RwLock};
use sapwood_btrfs_format::{Block, BlockMut, Key};

use crate::lock::{Held, Rank, TreeClass};
use crate::{Error, Result};

/// Bytes of a block. Cloning is cheap; a writer copies them only if another thread has a clone.
pub(crate) type BlockBytes = Arc<[u8]>;

/// A tree block. Address, level, generation and owner never change. A lock guards the bytes (rank
/// [`Rank::TreeBlock`], key: class of the tree and depth).
pub(crate) struct TreeBlock {
    bytenr: u64,
    generation: u64,
    owner: u64,
    level: u8,
    /// Not on disk yet, so it must stay in memory.
    dirty: AtomicBool,
    /// Is on disk or in flight, so it must not change any more.
    written: AtomicBool,
    data: Arc<RwLock<BlockBytes>>,
}

impl TreeBlock {
    /// A valid block that was read from disk.
    ///
    /// # Errors
    /// The bytes are not a tree block.
    pub(crate) fn from_disk(data: BlockBytes) -> Result<Self, sapwood_btrfs_format::block::Error> {
        Self::make(data, false)
    }

    /// A block created in the running transaction.
    ///
    /// # Errors
    /// The bytes are not a tree block.
    pub(crate) fn new(data: BlockBytes) -> Result<Self, sapwood_btrfs_format::block::Error> {
        Self::make(data, true)
    }

    fn make(data: BlockBytes, new: bool) -> Result<Self, sapwood_btrfs_format::block::Error> {
        let block = Block::new(&data)?;
        Ok(Self {
            bytenr: block.bytenr(),
            generation: block.generation(),
            owner: block.owner(),
            level: block.level(),
            dirty: AtomicBool::new(new),
            written: AtomicBool::new(!new),
            data: Arc::new(RwLock::new(data)),
        })
    }

    /// Logical address.
    pub(crate) fn bytenr(&self) -> u64 {
        self.bytenr
    }

    /// Transid that created it.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Tree that it was created for.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// 0: leaf.
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Whether it must still be written.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Whether it is on disk or in flight, so that it must not change.
    pub(crate) fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire)
    }

    pub(super) fn set_written(&self) {
        self.written.store(true, Ordering::Release);
    }

    /// Marks it clean: it is on disk, or no longer needed.
    pub(super) fn set_clean(&self) {
        self.dirty.store(false, Ordering::Release);
    }

    fn rank_key(&self, class: TreeClass) -> (u64, u64) {
        (class as u64, 8 - u64::from(self.level.min(7)))
    }

    fn held(&self, class: TreeClass) -> Held {
        Held::new(Rank::TreeBlock, self.rank_key(class))
    }

    /// Locks for reading, as part of a tree of class `class`.
    pub(crate) fn read(&self, class: TreeClass) -> ReadGuard {
        let held = self.held(class);
        ReadGuard {
            data: RwLock::read_arc(&self.data),
            _held: held,
        }
    }

    /// Locks for writing, as part of a tree of class `class`.
    pub(crate) fn write(&self, class: TreeClass) -> WriteGuard {
        let held = self.held(class);
        WriteGuard {
            data: RwLock::write_arc(&self.data),
            _held: held,
        }
    }

    /// Like [`write`](Self::write), for a block that no other thread can reach yet. It cannot wait,
    /// so the order of locks does not matter.
    pub(super) fn write_new(&self, class: TreeClass) -> WriteGuard {
        let held = Held::tried(Rank::TreeBlock, self.rank_key(class));
        WriteGuard {
            data: RwLock::write_arc(&self.data),
            _held: held,
        }
    }

    /// The current bytes. For blocks that do not change, or for callers that accept any recent
    /// state. Takes the lock briefly, regardless of the locks that the thread holds.
    pub(crate) fn snapshot(&self) -> BlockBytes {
        self.data.read_recursive().clone()
    }
}

impl fmt::Debug for TreeBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeBlock")
            .field("bytenr", &self.bytenr)
            .field("owner", &self.owner)
            .field("generation", &self.generation)
            .field("level", &self.level)
            .field("dirty", &self.is_dirty())
            .field("written", &self.is_written())
            .finish()
    }
}

/// A block locked for reading.
pub(crate) struct ReadGuard {
    data: ArcRwLockReadGuard<RawRwLock, BlockBytes>,
    _held: Held,
}

impl ReadGuard {
    /// The block's content.
    ///
    /// # Errors
    /// None for blocks that were validated.
    pub(crate) fn view(&self) -> Result<Block<'_>> {
        view(&self.data)
    }

    /// A reference to the bytes as they are now.
    pub(crate) fn bytes(&self) -> BlockBytes {
        BlockBytes::clone(&self.data)
    }
}

/// A block locked for writing.
pub(crate) struct WriteGuard {
    data: ArcRwLockWriteGuard<RawRwLock, BlockBytes>,
    _held: Held,
}

impl WriteGuard {
    /// The block's content.
    ///
    /// # Errors
    /// None for blocks that were validated.
    pub(crate) fn view(&self) -> Result<Block<'_>> {
        view(&self.data)
    }

    /// The content, for change. Copies the bytes if a reader has a snapshot of them.
    ///
    /// # Errors
    /// None for blocks that were validated.
    pub(crate) fn edit(&mut self) -> Result<BlockMut<'_>> {
        BlockMut::new(Arc::make_mut(&mut self.data))
            .map_err(|source| Error::Block { root: 0, source })
    }

    /// The raw bytes, for change.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.data)
    }

    /// A reference to the bytes as they are now.
    pub(crate) fn bytes(&self) -> BlockBytes {
        BlockBytes::clone(&self.data)
    }
}

pub(crate) fn view(bytes: &[u8]) -> Result<Block<'_>> {
    Block::new(bytes).map_err(|source| {
        // The header is invalid, so the tree is unknown.
        Error::Block { root: 0, source }
    })
}

/// First key of a block, or the smallest key if it is empty.
pub(super) fn first_key(block: &Block<'_>) -> Key {
    block.first_key().unwrap_or(Key::MIN)
}
