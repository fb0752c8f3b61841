//! [`Buffer`]: one metadata block in memory.
//!
//! # How it works
//! The content is an `Arc`.
//!
//! - A reader clones it and holds no lock afterwards. The cloned content never changes.
//! - A commit clones it while no handle is open: this is its snapshot.
//! - A writer changes the content in place if there is no other clone, and otherwise replaces it by
//!   a changed copy (`Arc::make_mut`).
//!
//! So no thread waits for a block that is being written to the log, and the log never contains a
//! change of the next transaction (`next_transaction_changes_a_block_that_is_being_committed`).

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::Tid;
use crate::rank::{Mutex, Rank, RwLock, WriteGuard};

/// Content of a block.
pub(crate) type Content = Arc<Vec<u8>>;

/// The engine's data for the checksum of a block at commit. The journal only stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    /// Kind of block, as the engine numbers them.
    pub kind: u8,
    /// Owner of the block, for example an inode number.
    pub owner: u64,
    /// One more number of the engine, for example the inode's generation.
    pub extra: u32,
}

/// One metadata block in memory. Lives in a [`Cache`](crate::Cache).
#[derive(Debug)]
pub struct Buffer {
    block: u64,
    /// Empty until the block is loaded. Checking this needs no lock.
    content: OnceLock<RwLock<Content>>,
    /// Held by the thread that reads the block from the device.
    pub(crate) loading: Mutex<()>,
    kind: AtomicU8,
    seal: Mutex<Option<Seal>>,
    /// The transaction that it joined last; 0 for none. The buffer is a member of a transaction if
    /// this is that transaction's id.
    joined: AtomicU64,
    undo: Mutex<Option<Content>>,
}

impl Buffer {
    /// A buffer for `block`, not loaded yet.
    pub(crate) fn empty(block: u64) -> Self {
        Self {
            block,
            content: OnceLock::new(),
            loading: Mutex::new(Rank::Loading, ()),
            kind: AtomicU8::new(0),
            seal: Mutex::new(Rank::Leaf, None),
            joined: AtomicU64::new(0),
            undo: Mutex::new(Rank::Leaf, None),
        }
    }

    /// A buffer of zeros for `block`.
    pub(crate) fn zeroed(block: u64, block_size: usize) -> Self {
        let buffer = Self::empty(block);
        buffer.fill(vec![0; block_size]);
        buffer
    }

    /// Sets the content that was read from the device. Called once.
    pub(crate) fn fill(&self, bytes: Vec<u8>) {
        let content = RwLock::new(Rank::Content, Arc::new(bytes));
        let filled = self.content.set(content);
        debug_assert!(filled.is_ok(), "block {} loaded twice", self.block);
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.content.get().is_some()
    }

    /// The lock of the content. The cache returns no buffer that is not loaded.
    fn content(&self) -> &RwLock<Content> {
        let empty = || RwLock::new(Rank::Content, Arc::default());
        self.content.get_or_init(empty)
    }

    /// Block number on the file system's device.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.block
    }

    /// The current content. Holds no lock; later changes do not show.
    #[must_use]
    pub fn read(&self) -> BufferRead {
        BufferRead(self.content().read().clone())
    }

    /// The kind that the block was validated as, in the engine's numbers; 0 if it was not validated
    /// since it was loaded.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.kind.load(Ordering::Acquire)
    }

    /// Records the kind that the block was validated as.
    pub fn set_kind(&self, kind: u8) {
        self.kind.store(kind, Ordering::Release);
    }

    /// The data for [`Host::seal`](crate::Host::seal) to compute the block's checksum.
    #[must_use]
    pub fn seal(&self) -> Option<Seal> {
        *self.seal.lock()
    }

    /// Sets the data with which every commit calls [`Host::seal`](crate::Host::seal) for the block;
    /// `None`: no call.
    pub fn set_seal(&self, seal: Option<Seal>) {
        *self.seal.lock() = seal;
    }

    /// The content as of the last commit, for a buffer whose every change goes through
    /// [`Handle::undo_access`](crate::Handle::undo_access); `None` before the first.
    #[must_use]
    pub fn committed(&self) -> Option<BufferRead> {
        self.undo.lock().clone().map(BufferRead)
    }

    /// Keeps the content for [`committed`](Self::committed), unless one is kept already.
    pub(crate) fn keep_undo(&self) {
        let now = self.read().0;
        self.undo.lock().get_or_insert(now);
    }

    /// Records `content`, which a commit made durable, for [`committed`](Self::committed).
    pub(crate) fn advance_undo(&self, content: &Content) {
        if let Some(kept) = self.undo.lock().as_mut() {
            *kept = content.clone();
        }
    }

    /// The last transaction that changed it since it was read; 0 for none.
    pub fn joined(&self) -> Tid {
        self.joined.load(Ordering::Acquire)
    }

    pub(crate) fn set_joined(&self, tid: Tid) {
        self.joined.store(tid, Ordering::Release);
    }

    /// Locks the content for a change. The caller holds a handle of the transaction that the
    /// buffer joined.
    pub(crate) fn write(&self) -> BufferWrite<'_> {
        BufferWrite(self.content().write())
    }
}

/// The content of a [`Buffer`] at one moment. Cheap to clone; holds no lock.
#[derive(Debug, Clone)]
pub struct BufferRead(pub(crate) Content);

impl Deref for BufferRead {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A [`Buffer`] that is locked for a change within a transaction.
///
/// Hold it only during the change, and lock no other buffer meanwhile but a child of this one.
#[derive(Debug)]
pub struct BufferWrite<'a>(WriteGuard<'a, Content>);

impl Deref for BufferWrite<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for BufferWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut *self.0).as_mut_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_the_content_that_it_read() {
        let buffer = Buffer::zeroed(7, 16);
        let before = buffer.read();
        buffer.write()[3] = 9;
        assert_eq!(before[3], 0);
        assert_eq!(buffer.read()[3], 9);
    }

    #[test]
    fn a_change_copies_only_what_is_shared() {
        let buffer = Buffer::zeroed(7, 16);
        let at = |b: &Buffer| b.read().as_ptr();
        let first = at(&buffer);
        buffer.write()[0] = 1;
        assert_eq!(at(&buffer), first);
        let shared = buffer.read();
        buffer.write()[0] = 2;
        assert_ne!(at(&buffer), first);
        assert_eq!(shared[0], 1);
    }
}
