//! The files of a mount, and the work that writeback does for them.
//!
//! # How it works
//! [`Files`] is the store with the inodes and their [writeback](sapwood_base::writeback). The order
//! of writeback's steps is in the [module](super). [`Work`] is a step as a queue holds it;
//! [`Dispatch`] decides whether the thread of a flush does the steps itself.
//!
//! A snapshot must not see data that is overwritten in place later. So a thread that takes one
//! first [freezes](Overwrites::freeze) the tree: it waits for the overwrites that are in flight.
//! Until the snapshot exists, a write of the tree goes to a new extent; from then on the generation
//! of the extents prevents overwrites.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Condvar;
use sapwood_base::writeback::Writeback;

use super::compress::CompressionChoice;
use crate::file_data::{InFlightId, OrderedExtent, Slice};
use crate::inode::{Inode, InodeTable};
use crate::lock::{Rank, RankedMutex};
use crate::transaction::Store;
use crate::tree::{BlockCache, TreeRead};

/// Expanded extents that are kept for the next read.
const RECENT: usize = 16;

/// Files, on top of a store: inodes and their data; always in an `Arc`.
pub(crate) struct Files {
    pub(super) store: Arc<Store>,
    pub(crate) inodes: InodeTable,
    pub(crate) writeback: Writeback<Self>,
    pub(crate) overwrites: Overwrites,
    pub(super) expanded: ExpandedExtents,
}

impl Files {
    /// The store below.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }
}

impl Deref for Files {
    type Target = Arc<Store>;

    fn deref(&self) -> &Arc<Store> {
        &self.store
    }
}

impl TreeRead for Files {
    fn blocks(&self) -> &BlockCache {
        &self.store.blocks
    }
}

/// Work for a thread of writeback.
pub(crate) enum Work {
    /// Decide the place of taken runs, and write the short ones.
    Decide(Vec<(Arc<Inode>, InFlightId)>),
    /// Compress a piece of a run as it was decided, and allocate for it.
    Compress(Arc<Inode>, InFlightId, CompressionChoice),
    /// Write bytes of an ordered extent.
    Write(DataWrite),
    /// Put ordered extents into the tree.
    Complete(Vec<(Arc<Inode>, Arc<OrderedExtent>)>),
}

/// Bytes of an ordered extent that one request can write. An inline extent has none.
pub(crate) struct DataWrite {
    pub(super) inode: Arc<Inode>,
    pub(super) ordered: Arc<OrderedExtent>,
    /// Start of the bytes in the ordered extent.
    pub(super) at: u64,
    pub(super) slices: Vec<Slice>,
}

/// The decisions for ranges of one or more inodes.
#[derive(Default)]
pub(super) struct Batch {
    /// Writes that are collected.
    pub(super) writes: RefCell<Vec<DataWrite>>,
    /// Short ranges that go to disk as they are, to one stretch if there is one.
    pub(super) plain: RefCell<Vec<(Arc<Inode>, InFlightId)>>,
}

/// The threads that do the work of a flush.
#[derive(Clone, Copy)]
pub(super) enum Dispatch<'a> {
    /// In this thread; writes are collected.
    Here(&'a Batch),
    /// By the threads of writeback, including this one; short writes are collected.
    Queue(&'a Batch),
}

impl<'a> Dispatch<'a> {
    /// The collected writes.
    pub(super) fn batch(self) -> &'a Batch {
        match self {
            Self::Here(batch) | Self::Queue(batch) => batch,
        }
    }
}

/// Overwrites in place, by tree.
pub(crate) struct Overwrites {
    trees: RankedMutex<HashMap<u64, OverwritesOfTree>>,
    done: Condvar,
}

#[derive(Default)]
struct OverwritesOfTree {
    in_flight: u64,
    frozen: u64,
}

impl Overwrites {
    /// No overwrite in flight, no frozen tree.
    pub(super) fn new() -> Self {
        Self {
            trees: RankedMutex::new(Rank::Leaf, HashMap::new()),
            done: Condvar::new(),
        }
    }

    /// True if a file of this tree may be overwritten in place now. If so, call [`end`](Self::end)
    /// after it.
    pub(super) fn begin(&self, root: u64) -> bool {
        let mut trees = self.trees.lock();
        let overwrites = trees.entry(root).or_default();
        if overwrites.frozen > 0 {
            return false;
        }
        overwrites.in_flight += 1;
        true
    }

    /// The I/O of an overwrite is done, or will not be.
    pub(super) fn end(&self, root: u64) {
        self.change(root, |overwrites| overwrites.in_flight -= 1);
        self.done.notify_all();
    }

    /// Waits for the overwrites in place that are in flight in a tree, and allows no new ones until
    /// the guard is dropped. Hold it from before a snapshot is requested until it exists.
    pub(crate) fn freeze(&self, root: u64) -> FrozenOverwrites<'_> {
        let mut trees = self.trees.lock();
        trees.entry(root).or_default().frozen += 1;
        while trees
            .get(&root)
            .is_some_and(|overwrites| overwrites.in_flight > 0)
        {
            trees.wait(&self.done);
        }
        FrozenOverwrites {
            overwrites: self,
            root,
        }
    }

    /// Changes the entry of a tree, and removes it once nothing is left.
    fn change(&self, root: u64, change: impl FnOnce(&mut OverwritesOfTree)) {
        let mut trees = self.trees.lock();
        if let Some(overwrites) = trees.get_mut(&root) {
            change(overwrites);
            if overwrites.in_flight == 0 && overwrites.frozen == 0 {
                trees.remove(&root);
            }
        }
    }
}

/// Keeps files of a tree from being overwritten in place.
pub(crate) struct FrozenOverwrites<'a> {
    overwrites: &'a Overwrites,
    root: u64,
}

impl Drop for FrozenOverwrites<'_> {
    fn drop(&mut self) {
        let thaw = |overwrites: &mut OverwritesOfTree| overwrites.frozen -= 1;
        self.overwrites.change(self.root, thaw);
    }
}

/// Compressed extents that were expanded last.
pub(super) struct ExpandedExtents(RankedMutex<VecDeque<Expanded>>);

/// An expanded extent: address and generation name it.
struct Expanded {
    bytenr: u64,
    generation: u64,
    bytes: Arc<Vec<u8>>,
}

impl ExpandedExtents {
    pub(super) fn new() -> Self {
        Self(RankedMutex::new(Rank::Leaf, VecDeque::new()))
    }

    /// The bytes of an extent, if it is among them.
    pub(super) fn get(&self, bytenr: u64, generation: u64) -> Option<Arc<Vec<u8>>> {
        let recent = self.0.lock();
        let found = recent
            .iter()
            .find(|kept| kept.bytenr == bytenr && kept.generation == generation);
        found.map(|kept| Arc::clone(&kept.bytes))
    }

    /// Keeps the bytes of an extent for the next read.
    pub(super) fn keep(&self, bytenr: u64, generation: u64, bytes: &Arc<Vec<u8>>) {
        let mut recent = self.0.lock();
        recent.push_front(Expanded {
            bytenr,
            generation,
            bytes: Arc::clone(bytes),
        });
        recent.truncate(RECENT);
    }
}
