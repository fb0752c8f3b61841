//! Locks that have a rank among all locks of an engine.
//!
//! # How it works
//! An engine lists its locks in one enum, in the order in which a thread takes them, and implements
//! [`Rank`] for it. A thread may only take a lock whose rank is higher than all that it holds. Two
//! locks of one rank must be taken with rising keys, unless the rank allows equal keys
//! ([`side_by_side`](Rank::side_by_side)). So no two threads can wait for each other.
//!
//! Debug builds record the held ranks of each thread and panic on an inversion, with both locks in
//! the message. Release builds have no overhead. Each [order](Rank::Order) is checked separately: a
//! thread may work in several engines, whose locks are not compared. An engine and its journal
//! share an order. A crate whose locks are taken among those of an engine has the engine's rank as
//! a type parameter.
//!
//! Debug builds also count the threads that wait for a [`RankedMutex`] and those that sleep on a
//! condition variable with it. A test that must know that a thread is blocked reads these counts
//! instead of waiting for some time.
//!
//! Trouble cases:
//! - Guards may be dropped in another order than taken
//!   (`a_guard_may_be_dropped_before_an_older_one`).
//! - A failed `try_lock` leaves no record (`a_try_may_break_the_order_and_leaves_no_record`).

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A place in the order in which a thread may take locks, lower places first.
pub trait Rank: Copy + Ord + Debug + Send + Sync + 'static {
    /// The order to which the place belongs. Several types may share an order, so that a crate and
    /// the one below it are checked together. Ranks of different orders are not compared.
    type Order: 'static;

    /// The place.
    fn place(self) -> u16;

    /// Whether a thread may hold two locks of this rank with equal keys, because another rule keeps
    /// two threads from taking them in different order.
    fn side_by_side(self) -> bool {
        false
    }
}

/// Sub-key of a lock among those of its rank.
pub type RankKey = (u64, u64);

#[cfg(debug_assertions)]
mod held {
    use super::{Rank, RankKey};
    use std::any::TypeId;
    use std::cell::{Cell, RefCell};
    use std::fmt::Debug;
    use std::marker::PhantomData;

    /// A lock that the thread holds.
    #[derive(Debug)]
    struct One {
        id: u64,
        place: u16,
        key: RankKey,
        #[expect(dead_code, reason = "shown by the panic")]
        rank: Box<dyn Debug>,
    }

    thread_local! {
        /// The held locks of each order, the oldest first.
        static HELD: RefCell<Vec<(TypeId, Vec<One>)>> = const { RefCell::new(Vec::new()) };
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }

    fn with_list<R: Rank, T>(body: impl FnOnce(&mut Vec<One>) -> T) -> T {
        let order = TypeId::of::<R::Order>();
        HELD.with_borrow_mut(|lists| {
            if let Some((_, list)) = lists.iter_mut().find(|(of, _)| *of == order) {
                return body(list);
            }
            let mut list = Vec::new();
            let result = body(&mut list);
            lists.push((order, list));
            result
        })
    }

    /// Records that this thread holds a lock, until dropped. Create it before locking. For locks
    /// that are not a [`RankedMutex`](super::RankedMutex) or [`RankedRwLock`](super::RankedRwLock).
    #[derive(Debug)]
    pub struct Held<R: Rank>(u64, PhantomData<(*const (), R)>);

    impl<R: Rank> Held<R> {
        /// # Panics
        /// In debug builds, if the thread holds a lock that must be taken after this one.
        #[must_use]
        pub fn new(rank: R, key: RankKey) -> Self {
            Self::note(rank, key, true)
        }

        /// The same for a lock that is taken without waiting, which cannot cause a deadlock.
        #[must_use]
        pub fn tried(rank: R, key: RankKey) -> Self {
            Self::note(rank, key, false)
        }

        fn note(rank: R, key: RankKey, check: bool) -> Self {
            let id = NEXT.with(|next| next.replace(next.get() + 1));
            with_list::<R, _>(|held| {
                let place = rank.place();
                let bad = held.iter().find(|one| {
                    let rises = one.key < key || (rank.side_by_side() && one.key == key);
                    one.place > place || (one.place == place && !rises)
                });
                if let Some(bad) = bad.filter(|_| check) {
                    panic!("lock order: taking {rank:?} {key:?} while holding {bad:?} of {held:?}");
                }
                held.push(One {
                    id,
                    place,
                    key,
                    rank: Box::new(rank),
                });
            });
            Self(id, PhantomData)
        }
    }

    impl<R: Rank> Drop for Held<R> {
        fn drop(&mut self) {
            with_list::<R, _>(|held| {
                if let Some(at) = held.iter().rposition(|one| one.id == self.0) {
                    held.remove(at);
                }
            });
        }
    }

    /// Panics in debug builds if this thread holds a lock of a higher rank. For places that may
    /// wait.
    pub fn assert_held_at_most<R: Rank>(rank: R) {
        with_list::<R, _>(|held| {
            let bad = held.iter().find(|one| one.place > rank.place());
            assert!(bad.is_none(), "may wait here, but holds {bad:?}");
        });
    }
}

#[cfg(not(debug_assertions))]
mod held {
    use super::{Rank, RankKey};
    use std::marker::PhantomData;

    /// Empty in release builds.
    #[derive(Debug)]
    pub struct Held<R: Rank>(PhantomData<(*const (), R)>);

    impl<R: Rank> Held<R> {
        /// Records nothing.
        #[inline(always)]
        #[must_use]
        pub fn new(_rank: R, _key: RankKey) -> Self {
            Self(PhantomData)
        }

        /// Records nothing.
        #[inline(always)]
        #[must_use]
        pub fn tried(_rank: R, _key: RankKey) -> Self {
            Self(PhantomData)
        }
    }

    /// Does nothing in release builds.
    #[inline(always)]
    pub fn assert_held_at_most<R: Rank>(_rank: R) {}
}

pub use held::{Held, assert_held_at_most};

/// Threads that are blocked because of one mutex.
#[cfg(debug_assertions)]
#[derive(Debug, Default)]
struct Waiting {
    /// Threads that wait for the lock.
    blocked: AtomicUsize,
    /// Threads that sleep on a condition variable.
    asleep: AtomicUsize,
}

#[cfg(debug_assertions)]
impl Waiting {
    const fn new() -> Self {
        Self {
            blocked: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
        }
    }
}

/// Counts one more thread while `body` runs.
#[cfg(debug_assertions)]
fn counted<T>(count: &AtomicUsize, body: impl FnOnce() -> T) -> T {
    count.fetch_add(1, Ordering::SeqCst);
    let result = body();
    count.fetch_sub(1, Ordering::SeqCst);
    result
}

/// A mutex with a rank, which contains its data.
#[derive(Debug)]
pub struct RankedMutex<R: Rank, T> {
    rank: R,
    key: RankKey,
    inner: Mutex<T>,
    #[cfg(debug_assertions)]
    waiting: Waiting,
}

impl<R: Rank, T> RankedMutex<R, T> {
    /// A mutex of which a thread holds at most one of this rank.
    pub const fn new(rank: R, value: T) -> Self {
        Self::with_key(rank, (0, 0), value)
    }

    /// A mutex of which a thread may hold several, taken in the order of their keys.
    pub const fn with_key(rank: R, key: RankKey, value: T) -> Self {
        Self {
            rank,
            key,
            inner: Mutex::new(value),
            #[cfg(debug_assertions)]
            waiting: Waiting::new(),
        }
    }

    /// Locks.
    ///
    /// # Panics
    /// In debug builds, if the thread holds a lock that must be taken after this one.
    pub fn lock(&self) -> RankedMutexGuard<'_, R, T> {
        let held = Held::new(self.rank, self.key);
        let guard = self.lock_inner();
        self.guard(guard, held)
    }

    #[cfg(debug_assertions)]
    fn lock_inner(&self) -> MutexGuard<'_, T> {
        let free = self.inner.try_lock();
        free.unwrap_or_else(|| counted(&self.waiting.blocked, || self.inner.lock()))
    }

    #[cfg(not(debug_assertions))]
    fn lock_inner(&self) -> MutexGuard<'_, T> {
        self.inner.lock()
    }

    fn guard<'a>(&'a self, guard: MutexGuard<'a, T>, held: Held<R>) -> RankedMutexGuard<'a, R, T> {
        RankedMutexGuard {
            guard,
            _held: held,
            #[cfg(debug_assertions)]
            waiting: &self.waiting,
        }
    }

    /// Threads that wait for the lock. Debug builds only.
    #[cfg(debug_assertions)]
    pub fn blocked(&self) -> usize {
        self.waiting.blocked.load(Ordering::SeqCst)
    }

    /// Threads that sleep on a condition variable with this lock. Debug builds only.
    #[cfg(debug_assertions)]
    pub fn asleep(&self) -> usize {
        self.waiting.asleep.load(Ordering::SeqCst)
    }

    /// Locks if that needs no waiting, whatever the order of ranks.
    pub fn try_lock(&self) -> Option<RankedMutexGuard<'_, R, T>> {
        let held = Held::tried(self.rank, self.key);
        let guard = self.inner.try_lock()?;
        Some(self.guard(guard, held))
    }
}

/// A locked [`RankedMutex`].
#[derive(Debug)]
pub struct RankedMutexGuard<'a, R: Rank, T> {
    guard: MutexGuard<'a, T>,
    _held: Held<R>,
    #[cfg(debug_assertions)]
    waiting: &'a Waiting,
}

impl<R: Rank, T> RankedMutexGuard<'_, R, T> {
    /// Unlocks, waits for a notification, and locks again. The caller must not hold another lock
    /// that the notifier needs.
    pub fn wait(&mut self, condvar: &Condvar) {
        #[cfg(debug_assertions)]
        counted(&self.waiting.asleep, || condvar.wait(&mut self.guard));
        #[cfg(not(debug_assertions))]
        condvar.wait(&mut self.guard);
    }

    /// As [`wait`](Self::wait), for at most `timeout`. Returns false if the timeout passed.
    pub fn wait_for(&mut self, condvar: &Condvar, timeout: Duration) -> bool {
        !condvar.wait_for(&mut self.guard, timeout).timed_out()
    }
}

impl<R: Rank, T> Deref for RankedMutexGuard<'_, R, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<R: Rank, T> DerefMut for RankedMutexGuard<'_, R, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A reader-writer lock with a rank, which contains its data.
#[derive(Debug)]
pub struct RankedRwLock<R: Rank, T> {
    rank: R,
    key: RankKey,
    inner: RwLock<T>,
}

impl<R: Rank, T> RankedRwLock<R, T> {
    /// A lock of which a thread holds at most one of this rank.
    pub const fn new(rank: R, value: T) -> Self {
        Self::with_key(rank, (0, 0), value)
    }

    /// A lock of which a thread may hold several, taken in the order of their keys.
    pub const fn with_key(rank: R, key: RankKey, value: T) -> Self {
        Self {
            rank,
            key,
            inner: RwLock::new(value),
        }
    }

    /// Locks for reading. A thread must not lock twice for reading.
    ///
    /// # Panics
    /// In debug builds, if the thread holds a lock that must be taken after this one.
    pub fn read(&self) -> RankedReadGuard<'_, R, T> {
        let held = Held::new(self.rank, self.key);
        RankedReadGuard {
            guard: self.inner.read(),
            _held: held,
        }
    }

    /// Locks for writing.
    ///
    /// # Panics
    /// In debug builds, if the thread holds a lock that must be taken after this one.
    pub fn write(&self) -> RankedWriteGuard<'_, R, T> {
        let held = Held::new(self.rank, self.key);
        RankedWriteGuard {
            guard: self.inner.write(),
            _held: held,
        }
    }

    /// As [`read`](Self::read) if that needs no waiting, whatever the order of ranks.
    pub fn try_read(&self) -> Option<RankedReadGuard<'_, R, T>> {
        let held = Held::tried(self.rank, self.key);
        let guard = self.inner.try_read()?;
        Some(RankedReadGuard { guard, _held: held })
    }

    /// As [`write`](Self::write) if that needs no waiting, whatever the order of ranks.
    pub fn try_write(&self) -> Option<RankedWriteGuard<'_, R, T>> {
        let held = Held::tried(self.rank, self.key);
        let guard = self.inner.try_write()?;
        Some(RankedWriteGuard { guard, _held: held })
    }
}

/// A [`RankedRwLock`] locked for reading.
#[derive(Debug)]
pub struct RankedReadGuard<'a, R: Rank, T> {
    guard: RwLockReadGuard<'a, T>,
    _held: Held<R>,
}

impl<R: Rank, T> Deref for RankedReadGuard<'_, R, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

/// A [`RankedRwLock`] locked for writing.
#[derive(Debug)]
pub struct RankedWriteGuard<'a, R: Rank, T> {
    guard: RwLockWriteGuard<'a, T>,
    _held: Held<R>,
}

impl<R: Rank, T> Deref for RankedWriteGuard<'_, R, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<R: Rank, T> DerefMut for RankedWriteGuard<'_, R, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum TestRank {
        Mount,
        Inode,
        Block,
        Space,
        Leaf,
    }

    impl Rank for TestRank {
        type Order = Self;

        fn place(self) -> u16 {
            self as u16
        }

        fn side_by_side(self) -> bool {
            self == Self::Block
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Other(u8);

    impl Rank for Other {
        type Order = Self;

        fn place(self) -> u16 {
            self.0.into()
        }
    }

    #[test]
    fn rising_ranks_and_keys_are_fine() {
        let a = RankedRwLock::with_key(TestRank::Inode, (5, 256), ());
        let b = RankedRwLock::with_key(TestRank::Inode, (5, 257), ());
        let c = RankedMutex::new(TestRank::Leaf, 1);
        let _a = a.write();
        let _b = b.read();
        let mut c = c.lock();
        *c += 1;
    }

    #[test]
    fn a_guard_may_be_dropped_before_an_older_one() {
        let a = RankedMutex::new(TestRank::Mount, ());
        let b = RankedMutex::new(TestRank::Leaf, ());
        let c = RankedMutex::new(TestRank::Space, ());
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
        let a = RankedMutex::new(TestRank::Leaf, ());
        let b = RankedMutex::new(TestRank::Mount, ());
        let _a = a.lock();
        let _b = b.lock();
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn falling_key_panics() {
        let a = RankedMutex::with_key(TestRank::Inode, (5, 258), ());
        let b = RankedMutex::with_key(TestRank::Inode, (5, 257), ());
        let _a = a.lock();
        let _b = b.lock();
    }

    #[test]
    fn blocks_of_one_level_may_be_locked_together() {
        let _parent = Held::new(TestRank::Block, (1, 3));
        let _left = Held::new(TestRank::Block, (1, 4));
        let _right = Held::new(TestRank::Block, (1, 4));
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn other_ranks_cannot_be_locked_together() {
        let _left = Held::new(TestRank::Inode, (1, 4));
        let _right = Held::new(TestRank::Inode, (1, 4));
    }

    #[test]
    fn ranks_of_different_orders_are_not_compared() {
        let first = RankedMutex::new(Other(9), ());
        let second = RankedMutex::new(TestRank::Mount, ());
        let third = RankedMutex::new(Other(10), ());
        let _guards = (first.lock(), second.lock(), third.lock());
        assert_held_at_most(TestRank::Mount);
    }

    #[test]
    #[should_panic(expected = "lock order")]
    fn falling_rank_panics_with_another_type_between() {
        let _first = Held::new(Other(9), (0, 0));
        let _second = Held::new(TestRank::Mount, (0, 0));
        let _third = Held::new(Other(8), (0, 0));
    }

    #[test]
    #[should_panic(expected = "may wait here")]
    fn waiting_with_a_higher_rank_panics() {
        let leaf = RankedMutex::new(TestRank::Leaf, ());
        let _guard = leaf.lock();
        assert_held_at_most(TestRank::Inode);
    }

    #[test]
    fn a_try_may_break_the_order_and_leaves_no_record() {
        let leaf = RankedMutex::new(TestRank::Leaf, ());
        let inode = RankedRwLock::new(TestRank::Inode, ());
        let _inode = inode.read();
        {
            let guard = leaf.lock();
            let early = RankedMutex::new(TestRank::Mount, ());
            assert!(early.try_lock().is_some());
            assert!(leaf.try_lock().is_none());
            assert!(inode.try_write().is_none());
            assert!(inode.try_read().is_some());
            drop(guard);
        }
        assert_held_at_most(TestRank::Inode);
    }
}
