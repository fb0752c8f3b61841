//! The objects of an engine that are in memory: inodes, by number.
//!
//! # How it works
//! A sharded map from a [`Key`] to the one object of that number. Loading one again costs a
//! search, so the map keeps some; beyond its bound the oldest that was not asked for lately leaves,
//! if nobody but the table holds its `Arc` and it [may](Resident::may_leave).
//!
//! Callers above the engine may know very many: a FUSE kernel holds references to all that it ever
//! saw. So an object leaves memory though it is referenced, and is *parked*: the table keeps only
//! the number of references, and gives it to the object that is loaded again.
//!
//! The trouble cases:
//! - A thread reads from disk, sleeps, and inserts what it read after another thread loaded,
//!   changed, wrote and evicted that object. Each shard counts what leaves it; a loader that sees
//!   the count changed reads again (`what_left_meanwhile_is_read_again`).
//! - Two threads load the same number: the second gets what the first inserted
//!   (`threads_share_one_object_and_lose_no_reference`).
//! - Objects that come and go: the clock names some that are gone. It is swept before those
//!   outnumber the others (`the_clock_does_not_grow_with_what_is_gone`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::hash::{NumberHash, NumberMap};
use crate::lock::{Rank, RankedMutex};

const SHARDS: usize = 64;
/// Objects of a shard that one call looks at to let them go.
const TRIES: usize = 8;
/// A clock of fewer entries is not swept.
const LEAST_SWEEP: usize = 64;

/// Number of an object: a space (a subvolume; 0 where there is one only), and within it.
pub type Key = (u64, u64);

/// What the table notes in an object.
#[derive(Debug, Default)]
pub struct Residence {
    references: AtomicU64,
    /// The table was asked for it lately.
    asked_for: AtomicBool,
}

impl Residence {
    /// Takes `count` references. Hold the object's `Arc`.
    pub fn refer(&self, count: u64) {
        self.references.fetch_add(count, Ordering::AcqRel);
    }

    /// References that are held.
    pub fn references(&self) -> u64 {
        self.references.load(Ordering::Acquire)
    }

    /// Gives all references back: at the end of a mount, when nobody can any more.
    pub fn clear_references(&self) {
        self.references.store(0, Ordering::Release);
    }

    /// Gives `count` references back; true if they were the last.
    fn release(&self, count: u64) -> bool {
        let rest = |held: u64| Some(held.saturating_sub(count));
        let before = self
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, rest);
        matches!(before, Ok(held) if held <= count)
    }
}

/// An object that a [`ResidentTable`] keeps.
pub trait Resident {
    /// Its number, which never changes.
    fn key(&self) -> Key;

    /// The table's notes.
    fn residence(&self) -> &Residence;

    /// Whether the object may leave memory when nobody holds it: all that it knows can be loaded
    /// again. One without a name must say no while it is referenced: whoever gives the last
    /// reference back has to find it. Called with a shard locked: take locks of higher ranks only,
    /// and wait for nothing.
    fn may_leave(&self) -> bool;
}

/// All objects in memory.
#[derive(Debug)]
pub struct ResidentTable<R: Rank, T> {
    shards: Vec<RankedMutex<R, Shard<T>>>,
}

#[derive(Debug)]
struct Shard<T> {
    bound: usize,
    objects: NumberMap<Key, Arc<T>>,
    /// All of them in the order of a clock; may name some that are gone.
    clock: VecDeque<Key>,
    /// Counts what left.
    departures: u64,
    /// References to objects that are not in memory, by space; never 0.
    parked: HashMap<u64, HashMap<u64, u64>>,
}

impl<T: Resident> Shard<T> {
    fn new(bound: usize) -> Self {
        Self {
            bound,
            objects: NumberMap::default(),
            clock: VecDeque::new(),
            departures: 0,
            parked: HashMap::new(),
        }
    }

    fn get(&self, key: Key) -> Option<Arc<T>> {
        let object = self.objects.get(&key)?;
        object.residence().asked_for.store(true, Ordering::Relaxed);
        Some(Arc::clone(object))
    }

    /// Returns what has to be dropped without the lock.
    fn insert(&mut self, object: &Arc<T>) -> Vec<Arc<T>> {
        let key = object.key();
        if let Some(references) = self.take_parked(key) {
            object.residence().refer(if sapwood_fault::planted(212) {
                0
            } else {
                references
            });
        }
        self.objects.insert(key, Arc::clone(object));
        self.clock.push_back(key);
        self.sweep();
        self.trim()
    }

    fn remove(&mut self, key: Key) -> Option<Arc<T>> {
        self.departures = self.departures.wrapping_add(1);
        self.objects.remove(&key)
    }

    fn take_parked(&mut self, (space, number): Key) -> Option<u64> {
        let of_space = self.parked.get_mut(&space)?;
        let parked = of_space.remove(&number);
        if of_space.is_empty() {
            self.parked.remove(&space);
        }
        parked
    }

    fn park(&mut self, (space, number): Key, references: u64) {
        if references > 0 {
            self.parked
                .entry(space)
                .or_default()
                .insert(number, references);
        }
    }

    /// Forgets clock entries of what is gone, once they outnumber the others.
    fn sweep(&mut self) {
        if self.clock.len() <= LEAST_SWEEP.max(self.objects.len() * 2) {
            return;
        }
        let mut seen = HashSet::with_capacity_and_hasher(self.objects.len(), NumberHash::default());
        let objects = &self.objects;
        self.clock
            .retain(|key| objects.contains_key(key) && seen.insert(*key));
    }

    /// Lets the oldest go that nobody asked for lately, down to the bound. Returned, so that
    /// they are dropped without the lock.
    fn trim(&mut self) -> Vec<Arc<T>> {
        let mut gone = Vec::new();
        for _ in 0..TRIES {
            if self.objects.len() <= self.bound {
                break;
            }
            let Some(key) = self.clock.pop_front() else {
                break;
            };
            let Some(object) = self.objects.get(&key) else {
                continue;
            };
            let asked_for = object.residence().asked_for.swap(false, Ordering::Relaxed);
            if asked_for || Arc::strong_count(object) > 1 || !object.may_leave() {
                self.clock.push_back(key);
                continue;
            }
            let references = object.residence().references();
            self.park(key, references);
            gone.extend(self.remove(key));
        }
        gone
    }
}

impl<R: Rank, T: Resident> ResidentTable<R, T> {
    /// An empty table that keeps about `bound` objects, but for those that cannot leave. `rank` is
    /// that of its locks, of which no call takes two.
    pub fn new(rank: R, bound: usize) -> Self {
        let bound = bound.div_ceil(SHARDS);
        let shards = (0..SHARDS)
            .map(|_| RankedMutex::new(rank, Shard::new(bound)))
            .collect();
        Self { shards }
    }

    fn shard(&self, key: Key) -> &RankedMutex<R, Shard<T>> {
        let mixed = (key.1 ^ key.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    /// The object with this number, if it is in memory.
    pub fn peek(&self, key: Key) -> Option<Arc<T>> {
        self.shard(key).lock().get(key)
    }

    /// The object with this number; `load` makes it of what is on disk, if need be more than once,
    /// without a lock of the table.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn get_or_load<E>(
        &self,
        key: Key,
        mut load: impl FnMut() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        loop {
            let departures = {
                let shard = self.shard(key).lock();
                if let Some(object) = shard.get(key) {
                    return Ok(object);
                }
                shard.departures
            };
            let loaded = Arc::new(load()?);
            debug_assert_eq!(loaded.key(), key);
            let mut shard = self.shard(key).lock();
            if let Some(object) = shard.get(key) {
                return Ok(object);
            }
            if shard.departures == departures {
                let gone = shard.insert(&loaded);
                drop(shard);
                drop(gone);
                return Ok(loaded);
            }
        }
    }

    /// Puts a new object into the table, unless one with its number is there: then false. What is
    /// on disk for its number must not be loadable before: insert first, then write.
    #[must_use]
    pub fn insert_first(&self, object: &Arc<T>) -> bool {
        let key = object.key();
        let mut shard = self.shard(key).lock();
        if shard.objects.contains_key(&key) {
            return false;
        }
        let gone = shard.insert(object);
        drop(shard);
        drop(gone);
        true
    }

    /// Gives `count` references to the object with this number back. Returns it if they were the
    /// last and it is in memory; one that is not has a name and nothing to be done about it.
    pub fn release(&self, key: Key, count: u64) -> Option<Arc<T>> {
        let mut shard = self.shard(key).lock();
        if let Some(object) = shard.objects.get(&key) {
            let last = object.residence().release(count);
            return last.then(|| Arc::clone(object));
        }
        let held = shard.take_parked(key)?;
        shard.park(key, held.saturating_sub(count));
        None
    }

    /// Takes a deleted object out. What is on disk must not be loadable any more.
    pub fn remove(&self, object: &T) {
        let key = object.key();
        let gone = self.shard(key).lock().remove(key);
        drop(gone);
    }

    /// Takes an object out, unless somebody besides the caller holds it or refers to it.
    pub fn evict_unused(&self, object: &Arc<T>) -> bool {
        let key = object.key();
        let mut shard = self.shard(key).lock();
        // The table's and the caller's.
        let referred = object.residence().references() > 0 && !sapwood_fault::planted(215);
        let used = referred || Arc::strong_count(object) > 2;
        if !used {
            shard.remove(key);
        }
        !used
    }

    /// Whether somebody refers to this object, which is not in memory.
    pub fn is_parked(&self, (space, number): Key) -> bool {
        let shard = self.shard((space, number)).lock();
        let of_space = shard.parked.get(&space);
        of_space.is_some_and(|of_space| of_space.contains_key(&number))
    }

    /// Whether somebody refers to an object of a space that is not in memory.
    pub fn refers_to_parked(&self, space: u64) -> bool {
        self.shards
            .iter()
            .any(|shard| shard.lock().parked.contains_key(&space))
    }

    /// The objects that somebody refers to, in memory or not.
    pub fn referenced(&self) -> Vec<Key> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let here = shard.objects.iter();
            found.extend(
                here.filter(|(_, object)| object.residence().references() > 0)
                    .map(|(key, _)| *key),
            );
            let parked = shard.parked.iter();
            found.extend(
                parked
                    .flat_map(|(space, of_space)| of_space.keys().map(|number| (*space, *number))),
            );
        }
        found
    }

    /// Every object in memory.
    pub fn all(&self) -> Vec<Arc<T>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().objects.values().cloned());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Place;

    impl Rank for Place {}

    #[derive(Debug)]
    struct Object {
        key: Key,
        value: u64,
        pinned: bool,
        residence: Residence,
    }

    impl Object {
        fn new(key: Key, value: u64) -> Self {
            Self {
                key,
                value,
                pinned: false,
                residence: Residence::default(),
            }
        }
    }

    impl Resident for Object {
        fn key(&self) -> Key {
            self.key
        }

        fn residence(&self) -> &Residence {
            &self.residence
        }

        fn may_leave(&self) -> bool {
            !self.pinned
        }
    }

    type Table = ResidentTable<Place, Object>;

    fn table(bound: usize) -> Table {
        ResidentTable::new(Place, bound)
    }

    fn get(table: &Table, key: Key) -> Arc<Object> {
        let Ok(object) = table.get_or_load(key, || Ok::<_, Infallible>(Object::new(key, 0)));
        object
    }

    /// Loads others until `key` left.
    fn crowd_out(table: &Table, key: Key) {
        let here = |table: &Table| table.all().iter().any(|object| object.key == key);
        for number in 0..100_000 {
            if !here(table) {
                return;
            }
            get(table, (99, number));
        }
        panic!("{key:?} stays");
    }

    #[test]
    fn keeps_no_more_than_its_bound_but_for_those_that_cannot_leave() {
        let table = table(256);
        let held = get(&table, (1, 1));
        let mut pinned = Object::new((1, 2), 7);
        pinned.pinned = true;
        assert!(table.insert_first(&Arc::new(pinned)));
        for number in 0..20_000 {
            get(&table, (2, number));
        }
        let count = table.all().len();
        assert!((128..=256 + 2 * TRIES).contains(&count), "{count}");
        assert!(Arc::ptr_eq(&held, &table.peek((1, 1)).unwrap()));
        assert_eq!(table.peek((1, 2)).unwrap().value, 7);
        assert!(table.peek((2, 0)).is_none());
    }

    #[test]
    fn references_are_kept_for_what_left() {
        let table = table(64);
        get(&table, (1, 1)).residence.refer(3);
        crowd_out(&table, (1, 1));
        assert!(table.is_parked((1, 1)) && table.refers_to_parked(1));
        assert_eq!(table.referenced(), [(1, 1)]);
        assert!(!table.is_parked((1, 2)) && !table.refers_to_parked(2));
        assert!(table.release((1, 1), 1).is_none());
        let back = get(&table, (1, 1));
        assert_eq!(back.residence.references(), 2);
        assert_eq!(table.referenced(), [(1, 1)]);
        assert!(!table.is_parked((1, 1)) && !table.refers_to_parked(1));
        assert!(table.release((1, 1), 1).is_none());
        let last = table.release((1, 1), 1).unwrap();
        assert!(Arc::ptr_eq(&last, &back));

        back.residence.refer(2);
        assert!(!table.insert_first(&Arc::new(Object::new((1, 1), 9))));
        assert!(table.insert_first(&Arc::new(Object::new((1, 3), 9))));
        assert_eq!(table.peek((1, 3)).unwrap().value, 9);
        drop((back, last));
        crowd_out(&table, (1, 1));
        assert!(table.release((1, 1), 2).is_none());
        assert!(!table.is_parked((1, 1)));
        assert_eq!(get(&table, (1, 1)).residence.references(), 0);
        assert_eq!(table.referenced(), []);
    }

    #[test]
    fn what_left_meanwhile_is_read_again() {
        let table = table(64);
        let mut disk = 1;
        let mut loads = 0;
        let found = table.get_or_load((1, 1), || {
            loads += 1;
            let read = Object::new((1, 1), disk);
            if loads == 1 {
                // Another thread loads, changes and writes it, and it leaves.
                get(&table, (1, 1));
                disk = 2;
                crowd_out(&table, (1, 1));
            }
            Ok::<_, Infallible>(read)
        });
        assert_eq!((found.unwrap().value, loads), (2, 2));
    }

    #[test]
    fn an_error_of_loading_leaves_nothing() {
        let table = table(64);
        let result = table.get_or_load((1, 1), || Err("no such inode"));
        assert_eq!(result.unwrap_err(), "no such inode");
        assert!(table.peek((1, 1)).is_none() && table.all().is_empty());
    }

    #[test]
    fn only_what_is_unused_is_evicted() {
        let table = table(64);
        let object = get(&table, (1, 1));
        let other = Arc::clone(&object);
        assert!(!table.evict_unused(&object));
        drop(other);
        object.residence.refer(1);
        assert!(!table.evict_unused(&object));
        object.residence.clear_references();
        assert!(table.evict_unused(&object));
        assert!(table.peek((1, 1)).is_none());
    }

    #[test]
    fn the_clock_does_not_grow_with_what_is_gone() {
        let table = table(64 * 1024);
        for round in 0..100 {
            for number in 0..1000 {
                let object = Arc::new(Object::new((1, number), round));
                assert!(table.insert_first(&object));
                table.remove(&object);
            }
        }
        get(&table, (1, 1));
        let clocks = table.shards.iter().map(|shard| shard.lock().clock.len());
        assert!(clocks.max().unwrap() <= LEAST_SWEEP);
        assert_eq!(table.all().len(), 1);
    }

    #[test]
    fn threads_share_one_object_and_lose_no_reference() {
        const EACH: u64 = 2000;
        let table = table(64);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let table = &table;
                scope.spawn(move || {
                    for nth in 0..EACH {
                        get(table, (1, nth % 7)).residence.refer(1);
                        get(table, (2 + thread, nth));
                    }
                });
            }
        });
        let total: u64 = (0..7)
            .map(|number| get(&table, (1, number)).residence.references())
            .sum();
        assert_eq!(total, 4 * EACH);
    }
}
