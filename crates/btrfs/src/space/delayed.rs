//! Delayed refs: changes of extent refs that a transaction collects in memory, merges, and writes
//! to the extent tree later.
//!
//! # How it works
//! One [`Head`] per extent has the net change of each of its backrefs. Adding and dropping the same
//! backref cancel out. Heads are distributed over shards by address, so threads that work on
//! different block groups do not contend.
//!
//! A thread *takes* a head to run it: the head is removed from its shard, and its address becomes
//! *busy*. New changes of the same extent collect in a new head, which no thread may take before
//! the busy one is done. So the changes of one extent reach the tree in order. A thread that reads
//! the state of an extent (tree plus pending changes) also makes it busy, and thereby waits for a
//! thread that runs its head.
//!
//! Trouble cases:
//! - A tree block that is created and dropped before its head ran leaves the tree unchanged
//!   ([`Outcome::NeverExisted`]; test `a_block_created_and_dropped_never_reaches_the_tree`).
//! - A busy address is skipped, not waited for, while there is other work (test
//!   `busy_heads_are_skipped`).

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Condvar;
use sapwood_btrfs_format::{ExtentFlags, InlineRef};

use crate::lock::{Rank, RankedMutex};

/// Number of shards; a power of two.
const SHARDS: usize = 16;
/// Addresses that differ only below this bit share a shard, so that heads run in the order of
/// addresses.
const SHARD_SHIFT: u32 = 26;

/// Identity of one backref of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RefKey {
    /// Tree block used by a tree.
    Tree {
        /// Tree id.
        root: u64,
    },
    /// Tree block used by a parent block.
    SharedTree {
        /// Logical address of the parent.
        parent: u64,
    },
    /// Data used by a file.
    Data {
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
        /// File offset of the extent's begin (wraps below zero).
        offset: u64,
    },
    /// Data used by a leaf.
    SharedData {
        /// Logical address of the leaf.
        parent: u64,
    },
}

impl RefKey {
    /// The backref with a count, in its form on disk.
    pub(crate) fn with_count(self, count: u32) -> InlineRef {
        match self {
            Self::Tree { root } => InlineRef::TreeBlock { root },
            Self::SharedTree { parent } => InlineRef::SharedBlock { parent },
            Self::Data {
                root,
                objectid,
                offset,
            } => InlineRef::ExtentData {
                root,
                objectid,
                offset,
                count,
            },
            Self::SharedData { parent } => InlineRef::SharedData { parent, count },
        }
    }

    /// The identity of a backref; `None` for an owner ref, which counts nothing.
    pub(crate) fn of(found: &InlineRef) -> Option<Self> {
        Some(match *found {
            InlineRef::TreeBlock { root } => Self::Tree { root },
            InlineRef::SharedBlock { parent } => Self::SharedTree { parent },
            InlineRef::ExtentData {
                root,
                objectid,
                offset,
                ..
            } => Self::Data {
                root,
                objectid,
                offset,
            },
            InlineRef::SharedData { parent, .. } => Self::SharedData { parent },
            InlineRef::Owner { .. } => return None,
        })
    }
}

/// The extent that a change applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Logical address.
    pub(crate) bytenr: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Level, if it is a tree block.
    pub(crate) level: Option<u8>,
}

/// Pending change of one extent.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The extent.
    pub(crate) extent: Extent,
    /// The extent is new and has no extent item yet.
    pub(crate) insert: bool,
    /// Net change of each backref, never 0.
    pub(crate) refs: BTreeMap<RefKey, i64>,
    /// Flags to set in the extent item.
    pub(crate) set_flags: ExtentFlags,
    /// Tree that a new data extent was allocated for.
    pub(crate) owner: Option<u64>,
}

impl Head {
    fn new(extent: Extent) -> Self {
        Self {
            extent,
            insert: false,
            refs: BTreeMap::new(),
            set_flags: ExtentFlags::empty(),
            owner: None,
        }
    }

    /// Net change of the sum of refs.
    pub(crate) fn total(&self) -> i64 {
        self.refs.values().sum()
    }

    /// Adds to one backref, and removes it if the sum is 0.
    fn change(&mut self, key: RefKey, count: i64) {
        let now = self.refs.entry(key).or_insert(0);
        *now += count;
        if *now == 0 {
            self.refs.remove(&key);
        }
    }

    /// Whether it is a data extent that was allocated and freed before it reached the tree.
    pub(crate) fn never_existed(&self) -> bool {
        self.insert && self.refs.is_empty()
    }

    /// Whether there is nothing to write.
    fn is_void(&self) -> bool {
        !self.insert && self.refs.is_empty() && self.set_flags.is_empty()
    }
}

/// Result of adding a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was merged into an existing head.
    Merged,
    /// It is in a new head.
    NewHead,
    /// It cancelled everything in its head, which was removed.
    Cancelled,
    /// It dropped the last ref of a tree block that never reached the extent tree. The head was
    /// removed, and the caller frees the space. (The head of a data extent stays: its checksums
    /// must be deleted, and the same operation may add a ref again.)
    NeverExisted,
}

#[derive(Debug, Default)]
struct Shard {
    heads: BTreeMap<u64, Head>,
    busy: HashSet<u64>,
}

/// The delayed refs of one transaction.
#[derive(Debug)]
pub(crate) struct DelayedRefs {
    shards: Vec<(RankedMutex<Shard>, Condvar)>,
    /// Heads that wait or are being run.
    pending: AtomicUsize,
}

impl Default for DelayedRefs {
    fn default() -> Self {
        let shard = |at| {
            let key = (at as u64, 0);
            (
                RankedMutex::with_key(Rank::DelayedRefs, key, Shard::default()),
                Condvar::new(),
            )
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            pending: AtomicUsize::new(0),
        }
    }
}

impl DelayedRefs {
    fn shard(&self, bytenr: u64) -> &(RankedMutex<Shard>, Condvar) {
        &self.shards[(bytenr >> SHARD_SHIFT) as usize % SHARDS]
    }

    /// Number of heads that wait or are being run.
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    /// Records a new extent with its first refs.
    pub(crate) fn insert(
        &self,
        extent: Extent,
        key: RefKey,
        count: i64,
        flags: ExtentFlags,
    ) -> Outcome {
        self.edit(extent, |head| {
            head.insert = true;
            head.extent = extent;
            head.set_flags |= flags;
            if let RefKey::Data { root, .. } = key {
                head.owner = Some(root);
            }
            head.change(key, count);
        })
    }

    /// Records that a backref's count changes by `count`.
    pub(crate) fn change(&self, extent: Extent, key: RefKey, count: i64) -> Outcome {
        self.edit(extent, |head| head.change(key, count))
    }

    /// Records flags to set.
    pub(crate) fn set_flags(&self, extent: Extent, flags: ExtentFlags) -> Outcome {
        self.edit(extent, |head| head.set_flags |= flags)
    }

    fn edit(&self, extent: Extent, edit: impl FnOnce(&mut Head)) -> Outcome {
        let (shard, _) = self.shard(extent.bytenr);
        let mut shard = shard.lock();
        let mut outcome = Outcome::Merged;
        let head = shard.heads.entry(extent.bytenr).or_insert_with(|| {
            self.pending.fetch_add(1, Ordering::AcqRel);
            outcome = Outcome::NewHead;
            Head::new(extent)
        });
        edit(head);
        if head.insert && head.refs.is_empty() && head.extent.level.is_some() {
            outcome = Outcome::NeverExisted;
        } else if head.is_void() {
            outcome = Outcome::Cancelled;
        } else {
            return outcome;
        }
        shard.heads.remove(&extent.bytenr);
        self.pending.fetch_sub(1, Ordering::AcqRel);
        outcome
    }

    /// Takes a head that is not busy, searching from shard `from` on. The caller must call
    /// [`done`](Self::done). `None` if no head is left, or all are busy.
    pub(crate) fn take(&self, from: usize) -> Option<(usize, Head)> {
        for step in 0..SHARDS {
            let at = (from + step) % SHARDS;
            let mut shard = self.shards[at].0.lock();
            let free = shard
                .heads
                .keys()
                .find(|bytenr| !shard.busy.contains(bytenr));
            let Some(bytenr) = free.copied() else {
                continue;
            };
            shard.busy.insert(bytenr);
            return shard.heads.remove(&bytenr).map(|head| (at, head));
        }
        None
    }

    /// Takes the head of an extent that may lose its last ref, unless the extent is busy. The
    /// caller must call [`done`](Self::done).
    pub(crate) fn take_freed(&self, bytenr: u64) -> Option<Head> {
        let mut shard = self.shard(bytenr).0.lock();
        let head = shard.heads.get(&bytenr)?;
        if head.insert || head.total() >= 0 || !shard.busy.insert(bytenr) {
            return None;
        }
        shard.heads.remove(&bytenr)
    }

    /// Records that the head that was taken is in the tree.
    pub(crate) fn done(&self, bytenr: u64) {
        self.pending.fetch_sub(1, Ordering::AcqRel);
        self.release(bytenr);
    }

    fn release(&self, bytenr: u64) {
        let (shard, freed) = self.shard(bytenr);
        shard.lock().busy.remove(&bytenr);
        freed.notify_all();
    }

    /// Waits until a thread finishes a head of any shard. Returns at once if none is busy.
    pub(crate) fn wait_for_busy(&self) {
        for (shard, freed) in &self.shards {
            let mut shard = shard.lock();
            if !shard.busy.is_empty() {
                shard.wait(freed);
                return;
            }
        }
    }

    /// Excludes other threads from an extent while its state is read. Waits for a thread that runs
    /// its head.
    pub(crate) fn hold(&self, bytenr: u64) -> Hold<'_> {
        let (shard, freed) = self.shard(bytenr);
        let mut shard = shard.lock();
        while !shard.busy.insert(bytenr) {
            shard.wait(freed);
        }
        Hold { refs: self, bytenr }
    }
}

/// An extent whose head no other thread runs meanwhile.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    refs: &'a DelayedRefs,
    bytenr: u64,
}

impl Hold<'_> {
    /// A copy of the pending changes of the extent.
    pub(crate) fn pending(&self) -> Option<Head> {
        let (shard, _) = self.refs.shard(self.bytenr);
        shard.lock().heads.get(&self.bytenr).cloned()
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.refs.release(self.bytenr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: Extent = Extent {
        bytenr: 1 << 30,
        len: 16384,
        level: Some(0),
    };

    #[test]
    fn a_block_created_and_dropped_never_reaches_the_tree() {
        let refs = DelayedRefs::default();
        let key = RefKey::Tree { root: 5 };
        refs.insert(BLOCK, key, 1, ExtentFlags::TREE_BLOCK);
        assert_eq!(refs.pending(), 1);
        assert_eq!(refs.change(BLOCK, key, -1), Outcome::NeverExisted);
        assert_eq!(refs.pending(), 0);
        assert!(refs.take(0).is_none());
    }

    #[test]
    fn add_and_drop_cancel() {
        let refs = DelayedRefs::default();
        let key = RefKey::SharedTree { parent: 4096 };
        assert_eq!(refs.change(BLOCK, key, 1), Outcome::NewHead);
        assert_eq!(
            refs.change(BLOCK, RefKey::Tree { root: 5 }, -1),
            Outcome::Merged
        );
        assert_eq!(refs.change(BLOCK, key, -1), Outcome::Merged);
        let (_, head) = refs.take(7).unwrap();
        assert_eq!(head.refs.len(), 1);
        assert_eq!(head.total(), -1);
        refs.done(BLOCK.bytenr);
        assert_eq!(refs.change(BLOCK, key, 1), Outcome::NewHead);
        assert_eq!(refs.change(BLOCK, key, -1), Outcome::Cancelled);
        assert_eq!(refs.pending(), 0);
    }

    #[test]
    fn busy_heads_are_skipped() {
        let refs = DelayedRefs::default();
        let key = RefKey::Tree { root: 5 };
        let other = Extent {
            bytenr: BLOCK.bytenr + BLOCK.len,
            ..BLOCK
        };
        refs.change(BLOCK, key, 1);
        let (_, first) = refs.take(0).unwrap();
        assert_eq!(first.extent, BLOCK);
        refs.change(BLOCK, key, 1);
        refs.change(other, key, 1);
        assert_eq!(refs.pending(), 3);
        assert_eq!(refs.take(0).unwrap().1.extent, other);
        assert!(
            refs.take(0).is_none(),
            "the second change overtook the first"
        );
        refs.done(BLOCK.bytenr);
        assert_eq!(refs.take(0).unwrap().1.extent, BLOCK);
        refs.done(BLOCK.bytenr);
        refs.done(other.bytenr);
        assert_eq!(refs.pending(), 0);
    }

    #[test]
    fn only_a_head_that_may_free_its_extent_is_taken_early() {
        let refs = DelayedRefs::default();
        let data = |offset| RefKey::Data {
            root: 5,
            objectid: 257,
            offset,
        };
        let extent = Extent {
            level: None,
            ..BLOCK
        };
        assert!(refs.take_freed(extent.bytenr).is_none(), "there is none");
        refs.change(extent, data(0), -1);
        refs.change(extent, data(4096), 1);
        assert!(refs.take_freed(extent.bytenr).is_none(), "as many refs");
        refs.change(extent, data(4096), -1);
        let head = refs.take_freed(extent.bytenr).unwrap();
        assert_eq!(head.total(), -1);
        refs.change(extent, data(8192), -1);
        assert!(refs.take_freed(extent.bytenr).is_none(), "it is busy");
        refs.done(extent.bytenr);
        assert!(refs.take_freed(extent.bytenr).is_some());
        refs.done(extent.bytenr);
        refs.insert(extent, data(0), 1, ExtentFlags::DATA);
        refs.change(extent, data(0), -1);
        assert!(refs.take_freed(extent.bytenr).is_none(), "it is new");
    }

    #[test]
    fn hold_keeps_runners_off() {
        let refs = DelayedRefs::default();
        refs.change(BLOCK, RefKey::Tree { root: 5 }, 1);
        let hold = refs.hold(BLOCK.bytenr);
        assert_eq!(hold.pending().unwrap().total(), 1);
        assert!(refs.take(0).is_none());
        drop(hold);
        assert!(refs.take(0).is_some());
    }

    proptest! {
        #[test]
        fn net_change_equals_sum(steps in prop::collection::vec((0..6u64, 0..4u64, -2..3i64), 1..200)) {
            let refs = DelayedRefs::default();
            let mut model: BTreeMap<(u64, RefKey), i64> = BTreeMap::new();
            for (at, root, count) in steps {
                let extent = Extent { bytenr: at << 25, len: 4096, level: None };
                let key = RefKey::Data { root, objectid: 257, offset: 0 };
                refs.change(extent, key, count);
                *model.entry((extent.bytenr, key)).or_insert(0) += count;
            }
            model.retain(|_, count| *count != 0);
            let mut found = BTreeMap::new();
            while let Some((_, head)) = refs.take(3) {
                for (key, count) in &head.refs {
                    found.insert((head.extent.bytenr, *key), *count);
                }
                refs.done(head.extent.bytenr);
            }
            prop_assert_eq!(found, model);
            prop_assert_eq!(refs.pending(), 0);
        }
    }
}
