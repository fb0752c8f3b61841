//! The cache of tree blocks, by logical address.
//!
//! # How it works
//! Addresses are distributed over shards, each a map behind a lock of rank `BlockCacheShard`. The
//! first thread that asks for a missing block reads it without the lock; other threads that ask
//! meanwhile wait for that read. A shard above its part of the limit evicts by CLOCK: entries used
//! since the last round are kept for another, clean ones without other references are evicted.
//! Dirty blocks stay even above the limit, because memory has their only copy.
//!
//! A new block at the address of an old one ([`BlockCache::insert_new`]) replaces the entry, even a
//! read in flight. That read's block belongs to an earlier committed tree, and is returned only to
//! the threads that asked for it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sapwood_btrfs_format::Key;

use super::TreeBlock;
use crate::devices::{BlockExpect, Volume};
use crate::lock::{Held, Rank, RankedRwLock, TreeClass};
use crate::{Error, Result};

const SHARDS: usize = 64;

/// Hashes block addresses. They are multiples of the node size, so their low bits are constant.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

type Map = HashMap<u64, Slot, BuildHasherDefault<AddressHasher>>;

/// A read in flight.
struct Reading {
    done: Mutex<bool>,
    wake: Condvar,
}

enum Slot {
    There {
        block: Arc<TreeBlock>,
        used: AtomicBool,
    },
    Reading(Arc<Reading>),
}

#[derive(Default)]
struct Shard {
    map: Map,
    /// Addresses in the order of the clock. May have addresses of removed entries.
    ring: Vec<u64>,
    hand: usize,
}

/// Number of locks over which the addresses of blocks being left are distributed.
const LEAVE_LOCKS: usize = 64;

struct Inner {
    volume: Arc<Volume>,
    shards: Vec<RankedRwLock<Shard>>,
    /// Most blocks of a shard.
    limit: usize,
    reads: AtomicU64,
    leaving: [Mutex<()>; LEAVE_LOCKS],
}

/// The right to examine the refs of a block and to drop one of them. See
/// [`BlockCache::leave_lock`].
pub(crate) struct LeaveGuard<'a> {
    _guard: MutexGuard<'a, ()>,
    _held: Held,
}

/// The cache. Clones are handles of the same cache.
#[derive(Clone)]
pub(crate) struct BlockCache {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache")
            .field("limit", &self.inner.limit)
            .finish()
    }
}

/// The context for reading a tree: the engine, or only a cache while the engine is being created.
pub(crate) trait TreeRead {
    /// The block cache.
    fn blocks(&self) -> &BlockCache;
}

impl<T: TreeRead + ?Sized> TreeRead for Arc<T> {
    fn blocks(&self) -> &BlockCache {
        (**self).blocks()
    }
}

impl TreeRead for BlockCache {
    fn blocks(&self) -> &BlockCache {
        self
    }
}

/// The expectation that a pointer states about its block. Same as [`BlockExpect`], but cheap to
/// create.
pub(crate) type Expect = BlockExpect;

impl BlockCache {
    /// An empty cache of about `bytes`.
    pub(crate) fn new(volume: Arc<Volume>, bytes: usize) -> Self {
        let nodesize = volume.geometry().nodesize.max(4096) as usize;
        let shard = |_| RankedRwLock::new(Rank::BlockCacheShard, Shard::default());
        Self {
            inner: Arc::new(Inner {
                volume,
                shards: (0..SHARDS).map(shard).collect(),
                limit: (bytes / nodesize / SHARDS).max(4),
                reads: AtomicU64::new(0),
                leaving: [const { Mutex::new(()) }; LEAVE_LOCKS],
            }),
        }
    }

    /// The volume that blocks are read from.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.inner.volume
    }

    /// Locks a block that a tree is about to leave and that other trees may share. Hold it from the
    /// lookup of its number of refs until the tree's own ref is dropped. Otherwise two trees that
    /// leave at once could each count the other's ref. Taken after all blocks of files' trees, one
    /// at a time.
    pub(crate) fn leave_lock(&self, bytenr: u64) -> LeaveGuard<'_> {
        let held = Held::new(Rank::TreeBlock, (TreeClass::Subvolume as u64, 9));
        let mixed = bytenr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let lock = &self.inner.leaving[mixed as usize % LEAVE_LOCKS];
        LeaveGuard {
            _guard: lock.lock(),
            _held: held,
        }
    }

    fn shard(&self, bytenr: u64) -> &RankedRwLock<Shard> {
        let mut hasher = AddressHasher::default();
        hasher.write_u64(bytenr);
        // Not the bits that the map uses.
        let nth = (hasher.finish() >> 20) as usize % SHARDS;
        &self.inner.shards[nth]
    }

    /// The block at an address, read if it is not cached. May wait for I/O. The caller holds the
    /// lock that guards the pointer to the block.
    ///
    /// # Errors
    /// The errors of [`Volume::read_tree_block`]; [`Error::StaleBlock`] if the cached block is not
    /// the expected one.
    pub(crate) fn get(&self, bytenr: u64, expect: &Expect) -> Result<Arc<TreeBlock>> {
        loop {
            let reading = {
                let shard = self.shard(bytenr).read();
                match shard.map.get(&bytenr) {
                    Some(Slot::There { block, used }) => {
                        if !used.load(Ordering::Relaxed) {
                            used.store(true, Ordering::Relaxed);
                        }
                        check(block, expect)?;
                        return Ok(block.clone());
                    }
                    Some(Slot::Reading(reading)) => Some(reading.clone()),
                    None => None,
                }
            };
            if let Some(reading) = reading {
                let mut done = reading.done.lock();
                while !*done {
                    reading.wake.wait(&mut done);
                }
                continue;
            }
            if let Some(found) = self.read(bytenr, expect)? {
                return Ok(found);
            }
        }
    }

    /// Reads a block, unless another thread started to.
    fn read(&self, bytenr: u64, expect: &Expect) -> Result<Option<Arc<TreeBlock>>> {
        let reading = Arc::new(Reading {
            done: Mutex::new(false),
            wake: Condvar::new(),
        });
        {
            let mut shard = self.shard(bytenr).write();
            if shard.map.contains_key(&bytenr) {
                return Ok(None);
            }
            shard.map.insert(bytenr, Slot::Reading(reading.clone()));
        }
        self.inner.reads.fetch_add(1, Ordering::Relaxed);
        let result = self.inner.volume.read_tree_block(bytenr, expect);
        let result = result.and_then(|data| {
            let root = expect.owner.unwrap_or(0);
            let block = TreeBlock::from_disk(data);
            Ok(Arc::new(
                block.map_err(|source| Error::Block { root, source })?,
            ))
        });
        {
            let mut shard = self.shard(bytenr).write();
            let own = matches!(shard.map.get(&bytenr),
                Some(Slot::Reading(r)) if Arc::ptr_eq(r, &reading));
            match &result {
                Ok(block) if own => shard.put(bytenr, block.clone(), self.inner.limit),
                Err(_) if own => {
                    shard.map.remove(&bytenr);
                }
                _ => {}
            }
        }
        *reading.done.lock() = true;
        reading.wake.notify_all();
        result.map(Some)
    }

    /// Inserts a new block, replacing the entry at its address.
    pub(crate) fn insert_new(&self, block: &Arc<TreeBlock>) {
        let bytenr = block.bytenr();
        let limit = self.inner.limit;
        self.shard(bytenr).write().put(bytenr, block.clone(), limit);
    }

    /// Removes a block whose address is about to be freed.
    pub(crate) fn forget(&self, bytenr: u64) {
        self.shard(bytenr).write().map.remove(&bytenr);
    }

    /// Number of cached blocks that were created for a tree.
    #[cfg(test)]
    pub(crate) fn count_of(&self, owner: u64) -> usize {
        let is_there =
            |slot: &Slot| matches!(slot, Slot::There { block, .. } if block.owner() == owner);
        let shards = self.inner.shards.iter();
        shards
            .map(|shard| {
                shard
                    .read()
                    .map
                    .values()
                    .filter(|slot| is_there(slot))
                    .count()
            })
            .sum()
    }

    /// Advises the volume of those blocks that are not cached and will be read soon.
    pub(super) fn will_read(&self, mut blocks: Vec<u64>) {
        blocks.retain(|bytenr| !self.shard(*bytenr).read().map.contains_key(bytenr));
        blocks.sort_unstable();
        let nodesize = u64::from(self.inner.volume.geometry().nodesize);
        for run in blocks.chunk_by(|a, b| a + nodesize == *b) {
            if let Some(first) = run.first() {
                self.inner
                    .volume
                    .will_read(*first, run.len() as u64 * nodesize);
            }
        }
    }
}

impl Shard {
    fn put(&mut self, bytenr: u64, block: Arc<TreeBlock>, limit: usize) {
        let slot = Slot::There {
            block,
            used: AtomicBool::new(true),
        };
        if !matches!(self.map.insert(bytenr, slot), Some(Slot::There { .. })) {
            self.ring.push(bytenr);
        }
        if self.ring.len() > 2 * self.map.len() + 64 {
            self.ring = self.map.keys().copied().collect();
        }
        if self.map.len() > limit {
            self.evict(limit);
        }
    }

    /// Examines only a few entries: a shard full of dirty blocks must not make each insertion slow.
    fn evict(&mut self, limit: usize) {
        let mut steps = 32;
        while self.map.len() > limit && steps > 0 && !self.ring.is_empty() {
            steps -= 1;
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let bytenr = self.ring[self.hand];
            let goes = match self.map.get(&bytenr) {
                // Under the shard's write lock no thread can take a new reference.
                Some(Slot::There { block, used }) => {
                    !used.swap(false, Ordering::Relaxed)
                        && !block.is_dirty()
                        && Arc::strong_count(block) == 1
                }
                Some(Slot::Reading(_)) => false,
                None => {
                    self.ring.swap_remove(self.hand);
                    continue;
                }
            };
            if goes {
                self.map.remove(&bytenr);
                self.ring.swap_remove(self.hand);
            } else {
                self.hand += 1;
            }
        }
    }
}

/// Checks a cached block against the pointer to it.
fn check(block: &TreeBlock, expect: &Expect) -> Result<()> {
    let level = expect.level.is_none_or(|level| level == block.level());
    let generation = expect.generation.is_none_or(|g| g == block.generation());
    if level && generation {
        return Ok(());
    }
    Err(Error::StaleBlock {
        root: expect.owner.unwrap_or(0),
        logical: block.bytenr(),
        reason: format!(
            "level {} generation {}, its parent has level {:?} generation {:?}",
            block.level(),
            block.generation(),
            expect.level,
            expect.generation
        ),
    })
}

/// The expectation that a node's pointer states about its child.
pub(crate) fn expect_child(root_id: u64, level: u8, generation: u64, key: Key) -> Expect {
    Expect {
        level: Some(level),
        generation: Some(generation),
        owner: Some(root_id),
        first_key: Some(key),
    }
}
