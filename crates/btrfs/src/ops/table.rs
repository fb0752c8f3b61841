//! All inodes in memory.
//!
//! # How it works
//! A sharded map from `(tree, objectid)` to the one object of that inode. Loading one again costs
//! a search, so the map keeps some; beyond [`PER_SHARD`] the oldest that was not asked for lately
//! leaves, if nobody but the table holds it: a transaction that still has to write its item, or
//! the data path, does so by holding the `Arc`.
//!
//! Callers above the engine may know very many inodes: a FUSE kernel holds references to all that
//! it ever saw. So an inode leaves memory though it is referenced, and is *parked*: the table keeps
//! only the number of references. An inode without a name does not leave: its object tells that it is
//! to be deleted. What changed in a transaction does not leave before that writes the inode's item,
//! so the log finds all that it has to know of it.
//!
//! The trouble case is a thread that read an inode item, slept, and inserts an object made of
//! it after another thread loaded, changed, wrote and evicted that inode. Each shard therefore
//! counts evictions; a loader that sees the count changed reads again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{InodeItem, Key, kind};
use sapwood_vfs::{self as vfs, FileKind, Ino};

use super::bad_item;
use super::ino::InoMap;
use super::inode::{Inode, InodeState, STUB_TREE, Stub};
use crate::engine::Engine;
use crate::lock::{Rank, RankedMutex};
use crate::tree::Root;
use crate::{Error, Result};

const SHARDS: usize = 64;
/// Inodes kept per shard, but for those that are held.
const PER_SHARD: usize = 512;
/// Inodes of a shard that one call looks at to let them go.
const TRIES: usize = 8;

/// The inodes in memory.
pub(crate) struct InodeTable {
    shards: Vec<RankedMutex<Shard>>,
    numbers: InoMap,
    /// Trees whose orphans were looked for.
    visited: RankedMutex<HashSet<u64>>,
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<(u64, u64), Arc<Inode>>,
    /// All of them in the order of a clock; may name some that are gone.
    clock: VecDeque<(u64, u64)>,
    evictions: u64,
    /// References to inodes that are not in memory, by tree; never 0.
    parked: HashMap<u64, HashMap<u64, u64>>,
}

impl Shard {
    fn insert(&mut self, inode: &Arc<Inode>) {
        let key = inode.lock_key();
        if let Some(references) = self.take_parked(key) {
            inode.add_references(references);
        }
        self.inodes.insert(key, Arc::clone(inode));
        self.clock.push_back(key);
    }

    fn take_parked(&mut self, (tree, objectid): (u64, u64)) -> Option<u64> {
        let of_tree = self.parked.get_mut(&tree)?;
        let parked = of_tree.remove(&objectid);
        if of_tree.is_empty() {
            self.parked.remove(&tree);
        }
        parked
    }

    fn park(&mut self, (tree, objectid): (u64, u64), references: u64) {
        if references > 0 {
            let of_tree = self.parked.entry(tree).or_default();
            of_tree.insert(objectid, references);
        }
    }

    fn is_parked(&self, (tree, objectid): (u64, u64)) -> bool {
        let of_tree = self.parked.get(&tree);
        of_tree.is_some_and(|of_tree| of_tree.contains_key(&objectid))
    }

    /// Lets the oldest go that nobody asked for lately, down to the bound. Returned, so that
    /// they are dropped without the lock.
    fn trim(&mut self) -> Vec<Arc<Inode>> {
        let mut evicted = Vec::new();
        for _ in 0..TRIES {
            if self.inodes.len() <= PER_SHARD {
                break;
            }
            let Some(key) = self.clock.pop_front() else {
                break;
            };
            let Some(inode) = self.inodes.get(&key) else {
                continue;
            };
            let asked_for = inode.asked_for.swap(false, Ordering::Relaxed);
            if asked_for || Arc::strong_count(inode) > 1 || !inode.may_leave() {
                self.clock.push_back(key);
                continue;
            }
            let references = inode.references.load(Ordering::Acquire);
            self.park(key, references);
            self.evictions = self.evictions.wrapping_add(1);
            evicted.extend(self.inodes.remove(&key));
        }
        evicted
    }
}

impl InodeTable {
    /// An empty table for a mount of the subvolume `mounted`.
    pub(crate) fn new(mounted: u64) -> Self {
        let shards = (0..SHARDS)
            .map(|_| RankedMutex::new(Rank::InodeTable, Shard::default()))
            .collect();
        Self {
            shards,
            numbers: InoMap::new(mounted),
            visited: RankedMutex::new(Rank::InodeTable, HashSet::new()),
        }
    }

    fn shard(&self, key: (u64, u64)) -> &RankedMutex<Shard> {
        let mixed = (key.1 ^ key.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    /// True for the first call with this tree.
    pub(crate) fn first_visit(&self, tree: u64) -> bool {
        self.visited.lock().insert(tree)
    }

    /// Numbers shown above the engine.
    pub(crate) fn numbers(&self) -> &InoMap {
        &self.numbers
    }

    /// The object of an inode, if it is in memory.
    pub(crate) fn peek(&self, tree: u64, objectid: u64) -> Option<Arc<Inode>> {
        let shard = self.shard((tree, objectid)).lock();
        let inode = shard.inodes.get(&(tree, objectid))?;
        inode.asked_for.store(true, Ordering::Relaxed);
        Some(Arc::clone(inode))
    }

    /// The inode with this number; loads it if need be. `Stale` if there is none.
    pub(crate) fn by_number(&self, engine: &Arc<Engine>, ino: Ino) -> Result<Arc<Inode>> {
        let (tree, objectid) = self.numbers.key(ino).ok_or(vfs::Error::Stale)?;
        if let Some(inode) = self.peek(tree, objectid) {
            return Ok(inode);
        }
        let key = (tree, objectid);
        let known = self.shard(key).lock().is_parked(key);
        let stub = match tree {
            STUB_TREE => Some(self.numbers.stub(objectid).ok_or(vfs::Error::Stale)?),
            _ => None,
        };
        let tree = stub.map_or(tree, |stub| stub.tree);
        let root = engine.roots.get(tree).map_err(|error| match error {
            Error::NoSuchRoot(_) => vfs::Error::Stale.into(),
            other => other,
        })?;
        if let Some(stub) = stub {
            return Ok(self.stub(&root, stub.dir, stub.subvolume));
        }
        self.load_if(engine, &root, objectid, known)
    }

    /// The inode `objectid` of a tree; loads it if need be. `Stale` if there is none.
    pub(crate) fn load(
        &self,
        engine: &Arc<Engine>,
        root: &Arc<Root>,
        objectid: u64,
    ) -> Result<Arc<Inode>> {
        self.load_if(engine, root, objectid, false)
    }

    /// As [`load`](Self::load). `known`: somebody refers to it, so that a deleted subvolume is no
    /// reason to refuse.
    fn load_if(
        &self,
        engine: &Arc<Engine>,
        root: &Arc<Root>,
        objectid: u64,
        known: bool,
    ) -> Result<Arc<Inode>> {
        let key = (root.id(), objectid);
        loop {
            let evictions = {
                let shard = self.shard(key).lock();
                if let Some(inode) = shard.inodes.get(&key) {
                    inode.asked_for.store(true, Ordering::Relaxed);
                    return Ok(Arc::clone(inode));
                }
                shard.evictions
            };
            if root.is_dead() && !known {
                return Err(vfs::Error::Stale.into());
            }
            let loaded = self.read(engine, root, objectid)?;
            let mut shard = self.shard(key).lock();
            if let Some(inode) = shard.inodes.get(&key) {
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

    fn read(&self, engine: &Arc<Engine>, root: &Arc<Root>, objectid: u64) -> Result<Inode> {
        let key = Key::new(objectid, kind::INODE_ITEM, 0);
        let bytes = root.get(engine, &key)?.ok_or(vfs::Error::Stale)?;
        let item = InodeItem::read(&bytes).map_err(|reason| bad_item(root.id(), key, reason))?;
        let state = InodeState::from_item(&item);
        let file_kind = FileKind::from_mode(state.mode).ok_or(Error::InodeMode {
            tree: root.id(),
            objectid,
            mode: state.mode,
        })?;
        let ino = self.numbers.ino(root.id(), objectid);
        Ok(Inode::new(
            Arc::clone(root),
            objectid,
            ino,
            file_kind,
            state,
        ))
    }

    /// The empty directory that a tree shows in its directory `dir` in place of a subvolume that
    /// is not its own.
    pub(crate) fn stub(&self, root: &Arc<Root>, dir: u64, subvolume: u64) -> Arc<Inode> {
        let tree = root.id();
        let stub = Stub {
            tree,
            dir,
            subvolume,
        };
        let (ino, number) = self.numbers.stub_number(stub);
        let key = (STUB_TREE, number);
        let mut shard = self.shard(key).lock();
        if let Some(inode) = shard.inodes.get(&key) {
            return Arc::clone(inode);
        }
        let inode = Arc::new(Inode::new_stub(Arc::clone(root), stub, number, ino));
        shard.insert(&inode);
        inode
    }

    /// Puts a new inode, whose number nobody else can know yet, into the table.
    pub(crate) fn insert_new(
        &self,
        root: &Arc<Root>,
        objectid: u64,
        kind: FileKind,
        state: InodeState,
    ) -> Arc<Inode> {
        let key = (root.id(), objectid);
        let ino = self.numbers.ino(root.id(), objectid);
        let inode = Arc::new(Inode::new(Arc::clone(root), objectid, ino, kind, state));
        let mut shard = self.shard(key).lock();
        shard.insert(&inode);
        let evicted = shard.trim();
        drop(shard);
        drop(evicted);
        inode
    }

    /// Gives `count` references to the inode with this number back. Returns it if they were the
    /// last and it is in memory; one that is not has a name and nothing to be done about it.
    pub(crate) fn release(&self, ino: Ino, count: u64) -> Option<Arc<Inode>> {
        let key = self.numbers.key(ino)?;
        let mut shard = self.shard(key).lock();
        if let Some(inode) = shard.inodes.get(&key) {
            let before =
                inode
                    .references
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
                        Some(held.saturating_sub(count))
                    });
            let last = matches!(before, Ok(held) if held <= count);
            return last.then(|| Arc::clone(inode));
        }
        let held = shard.take_parked(key)?;
        shard.park(key, held.saturating_sub(count));
        None
    }

    /// Whether somebody refers to an inode of a tree that is not in memory.
    pub(crate) fn refers_to_parked(&self, tree: u64) -> bool {
        self.shards.iter().any(|shard| {
            let shard = shard.lock();
            shard.parked.contains_key(&tree)
        })
    }

    /// Takes a deleted inode out.
    pub(crate) fn remove(&self, inode: &Inode) {
        let mut shard = self.shard(inode.lock_key()).lock();
        shard.evictions = shard.evictions.wrapping_add(1);
        shard.inodes.remove(&inode.lock_key());
    }

    /// Takes an inode of a deleted subvolume out, unless somebody besides the caller uses it.
    pub(crate) fn evict_unused(&self, inode: &Arc<Inode>) -> bool {
        let mut shard = self.shard(inode.lock_key()).lock();
        // The table's and the caller's.
        let used = inode.references.load(Ordering::Acquire) > 0 || Arc::strong_count(inode) > 2;
        if !used {
            shard.evictions = shard.evictions.wrapping_add(1);
            shard.inodes.remove(&inode.lock_key());
        }
        !used
    }

    /// Every inode in memory.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().inodes.values().cloned());
        }
        all
    }

    /// The inodes of one tree that are in memory.
    pub(crate) fn of_tree(&self, tree: u64) -> Vec<Arc<Inode>> {
        let mut found = self.all();
        found.retain(|inode| inode.root.id() == tree);
        found
    }
}
