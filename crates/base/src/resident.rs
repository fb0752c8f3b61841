//! The objects of an engine that are in memory: inodes, by number.
//!
//! # How it works
//! A sharded map from a [`Key`] to the one object of that number. Loading one again costs a search,
//! so the map keeps some; beyond its bound, in bytes, the oldest that was not asked for lately
//! leaves, if only the table holds its `Arc` and it [may](Resident::may_leave).
//!
//! What an object takes changes while it is there. It is [weighed](Resident::footprint) when it comes
//! and whenever the clock's hand passes; each insertion, and some searches, move the hand.
//!
//! Callers above the engine may know very many: a FUSE kernel holds references to all that it ever
//! saw. So an object leaves memory though it is referenced, and is *parked*: the table keeps only
//! the number of references, and gives it to the object that is loaded again. Parked references
//! count against the bound too. Once they take half of it, [`crowd`](ResidentTable::crowd) names
//! some, which the caller above the engine is to give back.
//!
//! The trouble cases:
//! - A thread reads from disk, sleeps, and inserts what it read after another thread loaded,
//!   changed, wrote and evicted that object. Each shard counts what leaves it; a loader that sees
//!   the count changed reads again (`what_left_meanwhile_is_read_again`).
//! - Two threads load the same number: the second gets what the first inserted
//!   (`threads_share_one_object_and_lose_no_reference`).
//! - Objects that come and go: the clock names some that are gone. It is swept before those
//!   outnumber the others (`the_clock_does_not_grow_with_what_is_gone`).
//! - Objects that could not leave, and then may while no other comes: [`trim`](ResidentTable::trim)
//!   (`what_could_not_leave_goes_when_the_table_is_trimmed`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::hash::{NumberHash, NumberMap};
use crate::lock::{Rank, RankedMutex};

const SHARDS: usize = 64;
/// Objects of a shard that one call looks at to let them go.
const TRIES: usize = 8;
/// A search in so many weighs an object.
const WEIGH_EVERY: u32 = 16;
/// Bytes that a shard keeps whatever the bound.
const LEAST_BYTES: usize = 8 << 10;
/// Bytes that the table itself takes for an object, and for a parked reference: the entries of the
/// maps, which are half empty on average.
const OBJECT_ENTRY: usize = 80;
const PARKED_ENTRY: usize = 40;
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
    /// Bytes that it took when it was weighed last.
    weight: AtomicUsize,
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

    /// Gives all references back: at the end of a mount, when no thread can any more.
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

    /// Whether the object may leave memory when nothing holds it: all that it knows can be loaded
    /// again. One without a name must say no while it is referenced: a thread that gives the last
    /// reference back has to find it. Called with a shard locked: take locks of higher ranks only,
    /// and wait for nothing.
    fn may_leave(&self) -> bool;

    /// Bytes of memory that it takes, about; but for dirty data, which is bounded by itself. Called
    /// as [`may_leave`](Self::may_leave).
    fn footprint(&self) -> usize;
}

/// All objects in memory.
#[derive(Debug)]
pub struct ResidentTable<R: Rank, T> {
    shards: Vec<RankedMutex<R, Shard<T>>>,
}

#[derive(Debug)]
struct Shard<T> {
    /// Bytes.
    bound: usize,
    /// Sum of the weights of all objects.
    weight: usize,
    /// Searches since one weighed an object.
    searches: u32,
    objects: NumberMap<Key, Arc<T>>,
    /// All of them in the order of a clock; may name some that are gone.
    clock: VecDeque<Key>,
    /// Counts what left.
    departures: u64,
    /// References to objects that are not in memory, by space; never 0.
    parked: HashMap<u64, NumberMap<u64, u64>>,
    /// Number of them.
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

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        self.weight + self.parked_count * PARKED_ENTRY
    }

    /// Whether objects are to leave. What is parked leaves them a quarter of the bound.
    fn is_over(&self) -> bool {
        let parked = self.parked_count * PARKED_ENTRY;
        self.weight > self.bound.saturating_sub(parked).max(self.bound / 4)
    }

    /// Whether parked references take more than half of the bound.
    fn is_crowded(&self) -> bool {
        self.parked_count * PARKED_ENTRY > self.bound / 2
    }

    /// Weighs an object that is in the map.
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

    /// Lets the oldest go that no thread asked for lately, down to the bound, and looks at `tries`
    /// objects for that. Returned, so that they are dropped without the lock.
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
            // The table's and this one.
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
    /// An empty table that keeps objects of about `bound` bytes together, but for those that cannot
    /// leave. `rank` is that of its locks, of which no call takes two.
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

    /// Takes an object out, unless another thread holds it or refers to it.
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

    /// Whether a caller refers to this object, which is not in memory.
    pub fn is_parked(&self, (space, number): Key) -> bool {
        let shard = self.shard((space, number)).lock();
        let of_space = shard.parked.get(&space);
        of_space.is_some_and(|of_space| of_space.contains_key(&number))
    }

    /// Whether a caller refers to an object of a space that is not in memory.
    pub fn refers_to_parked(&self, space: u64) -> bool {
        self.shards
            .iter()
            .any(|shard| shard.lock().parked.contains_key(&space))
    }

    /// The objects that a caller refers to, in memory or not.
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

    /// Lets all go that may leave, down to the bound.
    pub fn trim(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            // An object that was asked for lately is looked at twice.
            let tries = 2 * shard.clock.len();
            let gone = shard.trim(tries);
            drop(shard);
            drop(gone);
        }
    }

    /// Bytes that objects and parked references take, as they were weighed last.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// About the bytes that all objects take, from those of the shard of `key`.
    pub fn estimated_bytes(&self, key: Key) -> usize {
        self.shard(key).lock().weight.saturating_mul(SHARDS)
    }

    /// Whether parked references take more than half of what their shard may have.
    pub fn is_crowded(&self, key: Key) -> bool {
        self.shard(key).lock().is_crowded()
    }

    /// Parked objects of shards that are [crowded](Self::is_crowded).
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
