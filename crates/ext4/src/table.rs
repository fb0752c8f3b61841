//! All inodes in memory.
//!
//! # How it works
//! A sharded map from the number of an inode to the one object of it. Loading one again costs a
//! copy out of the inode table, so the map keeps some; beyond [`PER_SHARD`] the oldest that was not
//! asked for lately leaves, if nobody but the table holds it.
//!
//! Callers above the engine may know very many inodes: a FUSE kernel holds references to all that it
//! ever saw. So an inode leaves memory though it is referenced, and is *parked*: the table keeps only
//! the number of references. An inode without a name does not leave: its object tells that it is to be
//! deleted. Nor does one with data in memory.
//!
//! The trouble case is a thread that read an inode, slept, and inserts an object made of it
//! after another thread loaded, changed, stored and evicted that inode. Each shard therefore counts
//! evictions; a loader that sees the count changed reads again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_vfs::Ino;

use crate::engine::Engine;
use crate::inode::Inode;
use crate::lock::{Rank, RankedMutex};
use crate::{Error, Result};

const SHARDS: usize = 64;
/// Inodes kept per shard, but for those that are held.
const PER_SHARD: usize = 512;
/// Inodes of a shard that one call looks at to let them go.
const TRIES: usize = 8;

/// The inodes in memory.
pub(crate) struct InodeTable {
    shards: Vec<RankedMutex<Shard>>,
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<u32, Arc<Inode>>,
    /// All of them in the order of a clock; may name some that are gone.
    clock: VecDeque<u32>,
    evictions: u64,
    /// References to inodes that are not in memory; never 0.
    parked: HashMap<u32, u64>,
}

impl Shard {
    fn insert(&mut self, inode: &Arc<Inode>) {
        if let Some(references) = self.parked.remove(&inode.ino) {
            inode.references.fetch_add(references, Ordering::AcqRel);
        }
        self.inodes.insert(inode.ino, Arc::clone(inode));
        self.clock.push_back(inode.ino);
    }

    /// Lets the oldest go that nobody asked for lately, down to the bound. Returned, so that they
    /// are dropped without the lock.
    fn trim(&mut self) -> Vec<Arc<Inode>> {
        let mut evicted = Vec::new();
        for _ in 0..TRIES {
            if self.inodes.len() <= PER_SHARD {
                break;
            }
            let Some(ino) = self.clock.pop_front() else {
                break;
            };
            let Some(inode) = self.inodes.get(&ino) else {
                continue;
            };
            let asked_for = inode.asked_for.swap(false, Ordering::Relaxed);
            if asked_for || Arc::strong_count(inode) > 1 || !inode.may_leave() {
                self.clock.push_back(ino);
                continue;
            }
            let references = inode.references.load(Ordering::Acquire);
            if references > 0 {
                self.parked.insert(ino, references);
            }
            self.evictions = self.evictions.wrapping_add(1);
            evicted.extend(self.inodes.remove(&ino));
        }
        evicted
    }
}

impl InodeTable {
    /// An empty table.
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS)
            .map(|_| RankedMutex::new(Rank::InodeTable, Shard::default()))
            .collect();
        Self { shards }
    }

    fn shard(&self, ino: u32) -> &RankedMutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// The object of an inode, if it is in memory.
    pub(crate) fn peek(&self, ino: u32) -> Option<Arc<Inode>> {
        let shard = self.shard(ino).lock();
        let inode = shard.inodes.get(&ino)?;
        inode.asked_for.store(true, Ordering::Relaxed);
        Some(Arc::clone(inode))
    }

    /// The inode with the number that callers know. `Stale` if there can be none.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn by_number(&self, engine: &Arc<Engine>, ino: Ino) -> Result<Arc<Inode>> {
        let number = u32::try_from(ino.0).map_err(|_| sapwood_vfs::Error::Stale)?;
        self.get(engine, number)
    }

    /// The inode with this number; loads it if need be.
    ///
    /// # Errors
    /// `Stale` if it is not in use, [`Error::BadInode`] if it is damaged, the device.
    pub(crate) fn get(&self, engine: &Arc<Engine>, ino: u32) -> Result<Arc<Inode>> {
        loop {
            let evictions = {
                let shard = self.shard(ino).lock();
                if let Some(inode) = shard.inodes.get(&ino) {
                    inode.asked_for.store(true, Ordering::Relaxed);
                    return Ok(Arc::clone(inode));
                }
                shard.evictions
            };
            let loaded = Inode::load(engine, ino)?;
            let mut shard = self.shard(ino).lock();
            if let Some(inode) = shard.inodes.get(&ino) {
                return Ok(Arc::clone(inode));
            }
            if shard.evictions == evictions {
                let inode = Arc::new(loaded);
                shard.insert(&inode);
                let evicted = shard.trim();
                drop(shard);
                drop(evicted);
                return Ok(inode);
            }
        }
    }

    /// Puts a new inode, whose number nobody else can know yet, into the table.
    ///
    /// # Errors
    /// [`Error::BadInode`] if it is in memory: the image says that an inode in use is free.
    pub(crate) fn insert_new(&self, inode: Inode) -> Result<Arc<Inode>> {
        let inode = Arc::new(inode);
        let mut shard = self.shard(inode.ino).lock();
        if shard.inodes.contains_key(&inode.ino) {
            return Err(Error::BadInode {
                ino: inode.ino,
                reason: "in use, but free in its bitmap".into(),
            });
        }
        shard.insert(&inode);
        let evicted = shard.trim();
        drop(shard);
        drop(evicted);
        Ok(inode)
    }

    /// Gives `count` references to the inode with this number back. Returns it if they were the
    /// last and it is in memory; one that is not has a name and nothing to be done about it.
    pub(crate) fn release(&self, ino: Ino, count: u64) -> Option<Arc<Inode>> {
        let ino = u32::try_from(ino.0).ok()?;
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            let before =
                inode
                    .references
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
                        Some(held.saturating_sub(count))
                    });
            let last = matches!(before, Ok(held) if held <= count);
            return last.then(|| Arc::clone(inode));
        }
        let held = shard.parked.remove(&ino)?;
        if held > count {
            shard.parked.insert(ino, held - count);
        }
        None
    }

    /// Takes a deleted inode out.
    pub(crate) fn remove(&self, inode: &Inode) {
        let mut shard = self.shard(inode.ino).lock();
        shard.evictions = shard.evictions.wrapping_add(1);
        shard.inodes.remove(&inode.ino);
    }

    /// Every inode in memory.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().inodes.values().cloned());
        }
        all
    }
}
