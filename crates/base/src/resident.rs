//! The inodes of an engine that are in memory.
//!
//! # How it works
//! A sharded map from a [`Key`] to the only object with that key. Loading an object again costs a
//! search, so the map keeps objects up to a bound in bytes. Above the bound it evicts the oldest
//! object that was not used lately, if only the table holds its `Arc` and the object [may
//! leave](Resident::may_leave).
//!
//! An object's size changes. It is [weighed](Resident::footprint) when it is inserted and whenever
//! the clock's hand passes it. Each insertion, and some searches, move the hand.
//!
//! Callers above the engine may refer to very many objects: a FUSE kernel holds references to all
//! that it ever looked up. So an object may be evicted although it is referenced, and is then
//! *parked*: the table keeps only the number of references, and gives it to the object when it is
//! loaded again. Parked references count against the bound. Once they take half of it,
//! [`crowd`](ResidentTable::crowd) lists some that the caller above should release.
//!
//! Trouble cases:
//! - A thread reads an object from disk, sleeps, and inserts it after another thread loaded,
//!   changed, wrote and evicted it. Each shard counts evictions; a loader that finds the count
//!   changed reads again (`an_object_evicted_during_a_load_is_read_again`).
//! - Two threads load the same key: the second gets the object that the first inserted
//!   (`threads_share_one_object_and_lose_no_reference`).
//! - The clock has entries of removed objects. It is swept before they outnumber the others
//!   (`the_clock_does_not_grow_with_removed_objects`).
//! - Objects could not be evicted, and later may, while no insertion happens:
//!   [`trim`](ResidentTable::trim) evicts them (`trim_evicts_objects_that_could_not_leave_before`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::hash::{NumberHash, NumberMap};
use crate::lock::{Rank, RankedMutex};

const SHARDS: usize = 64;
/// Objects of a shard that one call examines for eviction.
const TRIES: usize = 8;
/// One search in this many weighs an object.
const WEIGH_EVERY: u32 = 16;
/// Bytes that a shard may keep whatever the bound.
const LEAST_BYTES: usize = 8 << 10;
/// Bytes that the table itself uses per object, and per parked reference: entries of the maps,
/// which are half empty on average.
const OBJECT_ENTRY: usize = 80;
const PARKED_ENTRY: usize = 40;
/// A clock with fewer entries is not swept.
const LEAST_SWEEP: usize = 64;

/// Key of an object: a space (a subvolume; 0 if there is only one) and a number within it.
pub type Key = (u64, u64);

/// The table's data in an object.
#[derive(Debug, Default)]
pub struct Residence {
    references: AtomicU64,
    /// It was looked up lately.
    asked_for: AtomicBool,
    /// Size in bytes when it was weighed last.
    weight: AtomicUsize,
}

impl Residence {
    /// Takes `count` references. The caller holds the object's `Arc`.
    pub fn refer(&self, count: u64) {
        self.references.fetch_add(count, Ordering::AcqRel);
    }

    /// Number of references held.
    pub fn references(&self) -> u64 {
        self.references.load(Ordering::Acquire)
    }

    /// Releases all references: at the end of a mount, when no caller can.
    pub fn clear_references(&self) {
        self.references.store(0, Ordering::Release);
    }

    /// Releases `count` references. True if they were the last.
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
    /// Key of the object, which never changes.
    fn key(&self) -> Key;

    /// The table's data.
    fn residence(&self) -> &Residence;

    /// Whether the object may be evicted when no thread holds it: all of its state can be loaded
    /// again. An object without a name must return false while it is referenced, because the thread
    /// that releases the last reference must find it. Called with a shard locked: it may only take
    /// locks of higher ranks, and must not wait.
    fn may_leave(&self) -> bool;

    /// Approximate size in bytes, without dirty data, which has its own bound. The rules for locks
    /// and waiting are the same as for [`may_leave`](Self::may_leave).
    fn footprint(&self) -> usize;
}

/// All objects in memory.
#[derive(Debug)]
pub struct ResidentTable<R: Rank, T> {
    shards: Vec<RankedMutex<R, Shard<T>>>,
}

#[derive(Debug)]
struct Shard<T> {
    /// Bound in bytes.
    bound: usize,
    /// Sum of the weights of all objects.
    weight: usize,
    /// Searches since one of them weighed an object.
    searches: u32,
    objects: NumberMap<Key, Arc<T>>,
    /// All objects in the order of a clock. May have keys of removed objects.
    clock: VecDeque<Key>,
    /// Number of evictions and removals.
    departures: u64,
    /// References to objects that are not in memory, by space. A number is never 0.
    parked: HashMap<u64, NumberMap<u64, u64>>,
    /// Number of parked objects.
    parked_count: usize,
}

impl<T: Resident> Shard<T> {
    fn new(bound: usize) -> Self {
        Self {
            bound,
            weight: 0,
            searches: 0,
            objects: NumberMap::default(),
            clock: VecDeque::new(),
            departures: 0,
            parked: HashMap::new(),
            parked_count: 0,
        }
    }

    /// Bytes that the shard uses.
    fn bytes(&self) -> usize {
        self.weight + self.parked_count * PARKED_ENTRY
    }

    /// Whether objects must be evicted. Parked references leave at least a quarter of the bound to
    /// objects.
    fn is_over(&self) -> bool {
        let parked = self.parked_count * PARKED_ENTRY;
        self.weight > self.bound.saturating_sub(parked).max(self.bound / 4)
    }

    /// Whether parked references take more than half of the bound.
    fn is_crowded(&self) -> bool {
        self.parked_count * PARKED_ENTRY > self.bound / 2
    }

    /// Weighs an object of the map.
    fn weigh(&mut self, object: &T) {
        let now = object.footprint() + OBJECT_ENTRY;
        let before = object.residence().weight.swap(now, Ordering::Relaxed);
        self.weight = (self.weight + now).saturating_sub(before);
    }

    fn get(&mut self, key: Key) -> Option<Arc<T>> {
        let object = Arc::clone(self.objects.get(&key)?);
        object.residence().asked_for.store(true, Ordering::Relaxed);
        self.searches += 1;
        if self.searches >= WEIGH_EVERY {
            self.searches = 0;
            self.weigh(&object);
        }
        Some(object)
    }

    /// Returns the evicted objects, which must be dropped without the lock.
    fn insert(&mut self, object: &Arc<T>) -> Vec<Arc<T>> {
        let key = object.key();
        if let Some(references) = self.take_parked(key) {
            object.residence().refer(references);
        }
        self.objects.insert(key, Arc::clone(object));
        self.weigh(object);
        self.clock.push_back(key);
        self.sweep();
        self.trim(TRIES)
    }

    fn remove(&mut self, key: Key) -> Option<Arc<T>> {
        self.departures = self.departures.wrapping_add(1);
        let gone = self.objects.remove(&key)?;
        let weight = gone.residence().weight.swap(0, Ordering::Relaxed);
        self.weight = self.weight.saturating_sub(weight);
        Some(gone)
    }

    fn take_parked(&mut self, (space, number): Key) -> Option<u64> {
        let of_space = self.parked.get_mut(&space)?;
        let parked = of_space.remove(&number);
        if of_space.is_empty() {
            self.parked.remove(&space);
        }
        self.parked_count -= usize::from(parked.is_some());
        parked
    }

    fn park(&mut self, (space, number): Key, references: u64) {
        if references > 0 {
            let of_space = self.parked.entry(space).or_default();
            let before = of_space.insert(number, references);
            self.parked_count += usize::from(before.is_none());
        }
    }

    /// Removes the clock entries of removed objects, once they outnumber the others.
    fn sweep(&mut self) {
        if self.clock.len() <= LEAST_SWEEP.max(self.objects.len() * 2) {
            return;
        }
        let mut seen = HashSet::with_capacity_and_hasher(self.objects.len(), NumberHash::default());
        let objects = &self.objects;
        self.clock
            .retain(|key| objects.contains_key(key) && seen.insert(*key));
    }

    /// Evicts the oldest objects that were not used lately, down to the bound, and examines at most
    /// `tries` objects. Returns them, to be dropped without the lock.
    fn trim(&mut self, tries: usize) -> Vec<Arc<T>> {
        let mut gone = Vec::new();
        for _ in 0..tries {
            if !self.is_over() {
                break;
            }
            let Some(key) = self.clock.pop_front() else {
                break;
            };
            let Some(object) = self.objects.get(&key).map(Arc::clone) else {
                continue;
            };
            let asked_for = object.residence().asked_for.swap(false, Ordering::Relaxed);
            // One reference is the table's and one this function's.
            if asked_for || Arc::strong_count(&object) > 2 || !object.may_leave() {
                self.weigh(&object);
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
    /// An empty table that keeps objects of about `bound` bytes, plus those that cannot be evicted.
    /// `rank` is the rank of its locks; no call takes two of them.
    pub fn new(rank: R, bound: usize) -> Self {
        let bound = (bound / SHARDS).max(LEAST_BYTES);
        let shards = (0..SHARDS)
            .map(|_| RankedMutex::new(rank, Shard::new(bound)))
            .collect();
        Self { shards }
    }

    fn shard(&self, key: Key) -> &RankedMutex<R, Shard<T>> {
        let mixed = (key.1 ^ key.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    /// The object with this key, if it is in memory.
    pub fn peek(&self, key: Key) -> Option<Arc<T>> {
        self.shard(key).lock().get(key)
    }

    /// The object with this key. `load` creates it from the data on disk, perhaps more than once,
    /// and is called without a lock of the table.
    ///
    /// # Errors
    /// Errors of `load`.
    pub fn get_or_load<E>(
        &self,
        key: Key,
        mut load: impl FnMut() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        loop {
            let departures = {
                let mut shard = self.shard(key).lock();
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

    /// Inserts a new object. Returns false if one with its key is there. Nothing may be loadable
    /// from disk for this key before: insert first, then write.
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

    /// Releases `count` references of the object with this key. Returns it if they were the last
    /// and it is in memory. An object that is not in memory has a name, so nothing remains to be
    /// done for it.
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

    /// Removes a deleted object. It must not be loadable from disk any more.
    pub fn remove(&self, object: &T) {
        let key = object.key();
        let gone = self.shard(key).lock().remove(key);
        drop(gone);
    }

    /// Evicts an object, unless another thread holds it or a caller refers to it.
    pub fn evict_unused(&self, object: &Arc<T>) -> bool {
        let key = object.key();
        let mut shard = self.shard(key).lock();
        // One reference is the table's and one the caller's.
        let referred = object.residence().references() > 0;
        let used = referred || Arc::strong_count(object) > 2;
        if !used {
            shard.remove(key);
        }
        !used
    }

    /// Whether a caller refers to this object while it is not in memory.
    pub fn is_parked(&self, (space, number): Key) -> bool {
        let shard = self.shard((space, number)).lock();
        let of_space = shard.parked.get(&space);
        of_space.is_some_and(|of_space| of_space.contains_key(&number))
    }

    /// Whether a caller refers to an object of the space that is not in memory.
    pub fn refers_to_parked(&self, space: u64) -> bool {
        self.shards
            .iter()
            .any(|shard| shard.lock().parked.contains_key(&space))
    }

    /// The keys that a caller refers to, in memory or not.
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

    /// Evicts all objects that may be evicted, down to the bound.
    pub fn trim(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            // An object that was used lately is examined twice.
            let tries = 2 * shard.clock.len();
            let gone = shard.trim(tries);
            drop(shard);
            drop(gone);
        }
    }

    /// Bytes that objects and parked references use, as they were weighed last.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// Estimated bytes that all objects use, from the shard of `key`.
    pub fn estimated_bytes(&self, key: Key) -> usize {
        self.shard(key).lock().weight.saturating_mul(SHARDS)
    }

    /// Whether parked references take more than half of their shard's memory.
    pub fn is_crowded(&self, key: Key) -> bool {
        self.shard(key).lock().is_crowded()
    }

    /// Parked objects of [crowded](Self::is_crowded) shards.
    pub fn crowd(&self) -> Vec<Key> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            if shard.is_crowded() {
                let parked = shard.parked.iter();
                found.extend(
                    parked.flat_map(|(space, of_space)| of_space.keys().map(|n| (*space, *n))),
                );
            }
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
mod tests;
