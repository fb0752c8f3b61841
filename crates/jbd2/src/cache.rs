//! [`Cache`]: the metadata blocks in memory.
//!
//! # How it works
//! Maps block numbers to [`Buffer`]s, in shards with a mutex each. The thread that misses a block
//! inserts a buffer without content, then reads the block under the buffer's own lock. Threads that
//! ask for one block at once read it once (`two_threads_read_a_block_once`), and no other thread
//! waits for that read.
//!
//! A shard over its share of the capacity evicts by CLOCK. Only a buffer that no other owner holds
//! is evicted. Transactions and the journal hold the buffers that they still need, so a block that
//! is read again is never older than the evicted buffer (`a_held_buffer_is_not_evicted`). The cache
//! grows over its capacity for held buffers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sapwood_base::NumberMap;
use sapwood_block::Device;

use crate::buffer::Buffer;
use crate::rank::{Mutex, Rank};
use crate::{Error, Result};

const SHARDS: usize = 16;
/// Entries that one insertion examines for eviction: enough to shrink again after a burst of held
/// buffers.
const LOOKS: usize = 16;
/// Blocks that a shard may hold for any capacity.
const LEAST: usize = 4;

#[derive(Debug)]
struct CachedBuffer {
    buffer: Arc<Buffer>,
    /// Used since the clock's hand passed it.
    used: bool,
    /// Identifies its place in `clock`.
    ticket: u64,
}

#[derive(Debug, Default)]
struct Shard {
    entries: NumberMap<u64, CachedBuffer>,
    /// Block and ticket of each entry, the next to examine first. Tickets of removed entries stay
    /// until the hand passes them.
    clock: VecDeque<(u64, u64)>,
    next_ticket: u64,
}

impl Shard {
    fn insert(&mut self, buffer: Arc<Buffer>, most: usize) {
        let block = buffer.block();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let entry = CachedBuffer {
            buffer,
            used: true,
            ticket,
        };
        self.entries.insert(block, entry);
        self.clock.push_back((block, ticket));
        self.shrink(most);
    }

    fn shrink(&mut self, most: usize) {
        for _ in 0..LOOKS {
            // Stale tickets count: the hand must remove them too.
            if self.clock.len() <= most {
                return;
            }
            let Some((block, ticket)) = self.clock.pop_front() else {
                return;
            };
            let Some(entry) = self.entries.get_mut(&block) else {
                continue;
            };
            if entry.ticket != ticket {
                continue;
            }
            if entry.used || Arc::strong_count(&entry.buffer) > 1 {
                entry.used = false;
                self.clock.push_back((block, ticket));
            } else {
                self.entries.remove(&block);
            }
        }
    }
}

/// The metadata blocks of one device in memory.
#[derive(Debug)]
pub struct Cache {
    device: Arc<dyn Device>,
    block_size: u32,
    blocks: AtomicU64,
    most_per_shard: usize,
    shards: Vec<Mutex<Shard>>,
}

impl Cache {
    /// A cache of about `capacity` bytes for `device`, whose blocks have `block_size` bytes.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, block_size: u32, capacity: usize) -> Self {
        let block_size = block_size.max(1);
        let most = capacity / SHARDS / block_size as usize;
        let shard = || Mutex::new(Rank::CacheShard, Shard::default());
        Self {
            blocks: AtomicU64::new(device.size() / u64::from(block_size)),
            device,
            block_size,
            most_per_shard: most.max(LEAST),
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    /// The device below. Its copy of a block may be older than the cached one.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Blocks of the device.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Reads the size of the device again, which has become larger.
    pub fn renew_size(&self) {
        let blocks = self.device.size() / u64::from(self.block_size);
        self.blocks.fetch_max(blocks, Ordering::Relaxed);
    }

    fn shard(&self, block: u64) -> &Mutex<Shard> {
        // Fibonacci hashing: neighbours and multiples of the group size spread out.
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.shards[hash as usize % SHARDS]
    }

    fn check(&self, block: u64) -> Result<()> {
        let blocks = self.blocks();
        if block < blocks {
            return Ok(());
        }
        Err(Error::BlockRange { block, blocks })
    }

    /// The block, read from the device if it is not in memory.
    ///
    /// # Errors
    /// [`Error::BlockRange`], [`Error::Device`].
    pub fn get(&self, block: u64) -> Result<Arc<Buffer>> {
        self.check(block)?;
        let buffer = self.entry(block);
        if !buffer.is_loaded() {
            self.load(&buffer)?;
        }
        Ok(buffer)
    }

    fn entry(&self, block: u64) -> Arc<Buffer> {
        let mut shard = self.shard(block).lock();
        if let Some(entry) = shard.entries.get_mut(&block) {
            entry.used = true;
            return entry.buffer.clone();
        }
        let buffer = Arc::new(Buffer::empty(block));
        shard.insert(buffer.clone(), self.most_per_shard);
        buffer
    }

    /// Reads the block, unless another thread did so meanwhile. After an error the next caller
    /// tries again.
    fn load(&self, buffer: &Buffer) -> Result<()> {
        let _alone = buffer.loading.lock();
        if buffer.is_loaded() {
            return Ok(());
        }
        let mut bytes = vec![0; self.block_size as usize];
        let offset = buffer.block() * u64::from(self.block_size);
        self.device.read_at(offset, &mut bytes)?;
        buffer.fill(bytes);
        Ok(())
    }

    /// The block if it is in memory.
    #[must_use]
    pub fn peek(&self, block: u64) -> Option<Arc<Buffer>> {
        let mut shard = self.shard(block).lock();
        let entry = shard.entries.get_mut(&block)?;
        entry.used = true;
        Some(entry.buffer.clone()).filter(|buffer| buffer.is_loaded())
    }

    /// A new buffer of zeros, without a read, for a block that the caller has just allocated. An
    /// older buffer of the block is detached: its owners keep it, but it is no longer in the cache.
    ///
    /// # Errors
    /// [`Error::BlockRange`].
    pub fn get_new(&self, block: u64) -> Result<Arc<Buffer>> {
        self.check(block)?;
        let buffer = Arc::new(Buffer::zeroed(block, self.block_size as usize));
        let mut shard = self.shard(block).lock();
        shard.insert(buffer.clone(), self.most_per_shard);
        Ok(buffer)
    }

    /// Drops a block that is no longer metadata. [`Handle::forget`](crate::Handle::forget) drops a
    /// block that a transaction changed.
    pub fn forget(&self, block: u64) {
        // Dropped after the lock is released, as it may be the last reference.
        let _gone = self.shard(block).lock().entries.remove(&block);
    }

    /// Drops every block that has no other owner. Used after a recovery wrote below the cache.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard
                .entries
                .retain(|_, entry| Arc::strong_count(&entry.buffer) > 1);
        }
    }

    /// Advises the device that these blocks will be read soon.
    pub fn will_read(&self, block: u64, count: u64) {
        if let Some(end) = block.checked_add(count).filter(|end| *end <= self.blocks()) {
            let size = u64::from(self.block_size);
            self.device.will_read(block * size, (end - block) * size);
        }
    }

    /// Bytes of all blocks in memory.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let count = |shard: &Mutex<Shard>| shard.lock().entries.len() as u64;
        self.shards.iter().map(count).sum::<u64>() * u64::from(self.block_size)
    }
}
