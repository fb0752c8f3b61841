//! One rank for every lock of an engine, and locks that know theirs.
//!
//! # How it works
//! A thread may only take a lock whose rank is higher than all that it holds; two locks of one
//! rank only if their sub-keys rise (inodes in the order of their ids; tree blocks by class of
//! tree, then top down, where blocks of one level may stand beside each other because whoever
//! takes two of them holds their parent exclusively). So no two threads can wait for each other.
//! Debug builds keep the held ranks per thread and panic on an inversion, naming both sides;
//! release builds pay nothing.
//!
//! Starting a transaction handle may wait for a commit, which takes locks of every rank from
//! [`Rank::SuperblockOrder`] on: hold nothing above [`Rank::Inode`] then.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Order of all locks, the one taken first at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rank {
    /// Opening, remounting, closing.
    Mount,
    /// Renames of directories between parents.
    RenameTopology,
    /// Creation, deletion and flags of subvolumes.
    Subvolume,
    /// I/O lock of an inode; key: (root id, objectid).
    Inode,
    /// From a commit's start until its superblock is on disk.
    SuperblockOrder,
    /// Flushing one inode's data; key: (root id, objectid).
    FileDataFlush,
    /// Creating log trees.
    LogTrees,
    /// Logging one inode.
    InodeLog,
    /// Changing the checksum tree, or the checksums of a log tree.
    Checksums,
    /// Pointer to a tree's top block and the blocks below; key: ([`TreeClass`], depth).
    TreeBlock,
    /// Roots changed in the running transaction.
    DirtyRoots,
    /// Pending delayed refs.
    DelayedRefs,
    /// Which inodes are in memory.
    InodeTable,
    /// Which files have data in memory.
    ActiveFiles,
    /// Dirty ranges, ordered extents and extent maps of one inode; key: (root id, objectid).
    FileDataState,
    /// Attributes of one inode; key: (root id, objectid).
    InodeState,
    /// Names of a directory that are not in its tree yet.
    DirNames,
    /// Remembered properties of one inode.
    InodeProperty,
    /// Sums and reservations of one kind of space.
    SpaceInfo,
    /// Free space of one block group; key: (logical address, 0).
    BlockGroup,
    /// Which trees are in memory.
    RootTable,
    /// Small fields of one tree: its root item and commit root.
    RootState,
    /// Logical to physical addresses.
    ChunkMap,
    /// A part of the tree-block cache.
    BlockCacheShard,
    /// Dirty blocks of a transaction.
    DirtyBlocks,
    /// Which transactions wait for one ordered extent.
    OrderedPins,
    /// State and counts of a transaction.
    TransactionState,
    /// Sections that take no other lock.
    Leaf,
}

/// Kind of tree, in the order in which blocks of different trees may be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TreeClass {
    /// Log trees and their root.
    Log,
    /// Top-level tree and subvolumes.
    Subvolume,
    /// Quota, uuid and other small trees.
    Other,
    /// The tree of trees.
    Root,
    /// Data checksums.
    Csum,
    /// Extents.
    Extent,
    /// Block groups.
    BlockGroup,
    /// Free space.
    FreeSpace,
    /// Devices.
    Device,
    /// Chunks.
    Chunk,
    /// Any tree as of the last commit: its blocks never change, so readers come last.
    Committed,
}

/// Sub-key of a lock among those of its rank.
pub(crate) type RankKey = (u64, u64);

#[cfg(debug_assertions)]
mod held {
    use super::{Rank, RankKey};
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<(u64, Rank, RankKey)>> = const { RefCell::new(Vec::new()) };
        static NEXT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// Notes that this thread takes a lock, until dropped. Create it before locking.
    #[derive(Debug)]
    pub(crate) struct Held(u64, std::marker::PhantomData<*const ()>);

    impl Held {
        /// # Panics
        /// If the thread holds a lock that has to be taken after this one.
        pub(crate) fn new(rank: Rank, key: RankKey) -> Self {
            Self::note(rank, key, true)
        }

        /// The same for a lock that was taken without waiting: it cannot close a circle.
        pub(crate) fn tried(rank: Rank, key: RankKey) -> Self {
            Self::note(rank, key, false)
        }

        fn note(rank: Rank, key: RankKey, check: bool) -> Self {
            let id = NEXT.with(|next| next.replace(next.get() + 1));
            HELD.with_borrow_mut(|held| {
                let bad = held.iter().find(|(_, r, k)| {
                    *r > rank
                        || (*r == rank && !(*k < key || (rank == Rank::TreeBlock && *k == key)))
                });
                if let Some(bad) = bad.filter(|_| check) {
                    let bad = *bad;
                    let all = format!("{held:?}");
                    panic!("lock order: taking {rank:?} {key:?} while holding {bad:?} of {all}");
                }
                held.push((id, rank, key));
            });
            Self(id, std::marker::PhantomData)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|(id, ..)| *id == self.0) {
                    held.remove(at);
                }
            });
        }
    }

    /// Panics if this thread holds a lock of a higher rank. For places that may wait.
    pub(crate) fn assert_held_at_most(rank: Rank) {
        HELD.with_borrow(|held| {
            let bad = held.iter().find(|(_, r, _)| *r > rank);
            assert!(bad.is_none(), "may wait here, but holds {bad:?}");
        });
    }
}

#[cfg(not(debug_assertions))]
mod held {
    use super::{Rank, RankKey};

    /// Nothing in release builds.
    #[derive(Debug)]
    pub(crate) struct Held;

    impl Held {
        #[inline(always)]
        pub(crate) fn new(_rank: Rank, _key: RankKey) -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn tried(_rank: Rank, _key: RankKey) -> Self {
            Self
        }
    }

    #[inline(always)]
    pub(crate) fn assert_held_at_most(_rank: Rank) {}
}

pub(crate) use held::{Held, assert_held_at_most};

/// A mutex with a rank; its data lives inside.
#[derive(Debug)]
pub(crate) struct RankedMutex<T> {
    rank: Rank,
    key: RankKey,
    inner: Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// A mutex whose rank nobody holds twice at once.
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        Self::with_key(rank, (0, 0), value)
    }

    /// A mutex of which a thread may hold several, taken in the order of their keys.
    pub(crate) const fn with_key(rank: Rank, key: RankKey, value: T) -> Self {
        Self {
            rank,
            key,
            inner: Mutex::new(value),
        }
    }

    /// Locks.
    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, T> {
        let held = Held::new(self.rank, self.key);
        RankedMutexGuard {
            guard: self.inner.lock(),
            _held: held,
        }
    }
}

/// A locked [`RankedMutex`].
#[derive(Debug)]
pub(crate) struct RankedMutexGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> RankedMutexGuard<'_, T> {
    /// Unlocks, waits for a notification, locks again. Hold no other lock that the notifier
    /// needs.
    pub(crate) fn wait(&mut self, condvar: &Condvar) {
        condvar.wait(&mut self.guard);
    }

    /// As [`wait`](Self::wait) for at most `timeout`; `false` if that went by.
    pub(crate) fn wait_for(&mut self, condvar: &Condvar, timeout: Duration) -> bool {
        !condvar.wait_for(&mut self.guard, timeout).timed_out()
    }
}

impl<T> Deref for RankedMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A reader-writer lock with a rank; its data lives inside.
#[derive(Debug)]
pub(crate) struct RankedRwLock<T> {
    rank: Rank,
    key: RankKey,
    inner: RwLock<T>,
}

impl<T> RankedRwLock<T> {
    /// A lock whose rank nobody holds twice at once.
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        Self::with_key(rank, (0, 0), value)
    }

    /// A lock of which a thread may hold several, taken in the order of their keys.
    pub(crate) const fn with_key(rank: Rank, key: RankKey, value: T) -> Self {
        Self {
            rank,
            key,
            inner: RwLock::new(value),
        }
    }

    /// Locks together with other readers.
    pub(crate) fn read(&self) -> RankedReadGuard<'_, T> {
        let held = Held::new(self.rank, self.key);
        RankedReadGuard {
            guard: self.inner.read(),
            _held: held,
        }
    }

    /// Locks alone.
    pub(crate) fn write(&self) -> RankedWriteGuard<'_, T> {
        let held = Held::new(self.rank, self.key);
        RankedWriteGuard {
            guard: self.inner.write(),
            _held: held,
        }
    }
}

/// A [`RankedRwLock`] locked for reading.
#[derive(Debug)]
pub(crate) struct RankedReadGuard<'a, T> {
    guard: RwLockReadGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RankedReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

/// A [`RankedRwLock`] locked for writing.
#[derive(Debug)]
pub(crate) struct RankedWriteGuard<'a, T> {
    guard: RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RankedWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn rising_ranks_and_keys_are_fine() {
        let a = RankedRwLock::with_key(Rank::Inode, (5, 256), ());
        let b = RankedRwLock::with_key(Rank::Inode, (5, 257), ());
        let c = RankedMutex::new(Rank::Leaf, 1);
        let _a = a.write();
        let _b = b.read();
        let mut c = c.lock();
        *c += 1;
    }

    #[test]
    fn a_guard_may_go_before_an_older_one() {
        let a = RankedMutex::new(Rank::Mount, ());
        let b = RankedMutex::new(Rank::Leaf, ());
        let c = RankedMutex::new(Rank::SpaceInfo, ());
        let (guard, later) = (a.lock(), b.lock());
        drop(later);
        let last = c.lock();
        drop(guard);
        drop(last);
        drop(a.lock());
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn falling_rank_panics() {
        let a = RankedMutex::new(Rank::Leaf, ());
        let b = RankedMutex::new(Rank::Mount, ());
        let _a = a.lock();
        let _b = b.lock();
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn falling_key_panics() {
        let a = RankedMutex::with_key(Rank::Inode, (5, 258), ());
        let b = RankedMutex::with_key(Rank::Inode, (5, 257), ());
        let _a = a.lock();
        let _b = b.lock();
    }

    #[test]
    fn blocks_of_one_level_may_stand_side_by_side() {
        let _parent = Held::new(Rank::TreeBlock, (1, 3));
        let _left = Held::new(Rank::TreeBlock, (1, 4));
        let _right = Held::new(Rank::TreeBlock, (1, 4));
    }
}
