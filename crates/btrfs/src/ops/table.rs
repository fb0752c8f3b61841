//! All inodes in memory.
//!
//! # How it works
//! A sharded map from `(tree, objectid)` to the one object of that inode. An object whose
//! references from above are gone stays for a while (loading it again costs a search, and
//! would forget when it was last logged), in a queue of bounded length. It leaves when it is
//! the oldest there and nobody but the table holds it: a transaction that still has to write
//! its item, or the data path, does so by holding the `Arc`.
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
/// Unreferenced inodes kept per shard.
const IDLE_PER_SHARD: usize = 256;

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
    idle: VecDeque<(u64, u64)>,
    evictions: u64,
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
        self.shard((tree, objectid))
            .lock()
            .inodes
            .get(&(tree, objectid))
            .cloned()
    }

    /// The inode with this number; loads it if need be. `Stale` if there is none.
    pub(crate) fn by_number(&self, engine: &Arc<Engine>, ino: Ino) -> Result<Arc<Inode>> {
        let (tree, objectid) = self.numbers.key(ino).ok_or(vfs::Error::Stale)?;
        if let Some(inode) = self.peek(tree, objectid) {
            return Ok(inode);
        }
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
        self.load(engine, &root, objectid)
    }

    /// The inode `objectid` of a tree; loads it if need be. `Stale` if there is none.
    pub(crate) fn load(
        &self,
        engine: &Arc<Engine>,
        root: &Arc<Root>,
        objectid: u64,
    ) -> Result<Arc<Inode>> {
        let key = (root.id(), objectid);
        loop {
            let evictions = {
                let shard = self.shard(key).lock();
                if let Some(inode) = shard.inodes.get(&key) {
                    return Ok(Arc::clone(inode));
                }
                shard.evictions
            };
            let loaded = self.read(engine, root, objectid)?;
            let mut shard = self.shard(key).lock();
            if let Some(inode) = shard.inodes.get(&key) {
                return Ok(Arc::clone(inode));
            }
            if shard.evictions == evictions {
                let inode = Arc::new(loaded);
                shard.inodes.insert(key, Arc::clone(&inode));
                shard.idle.push_back(key);
                return Ok(inode);
            }
        }
    }

    fn read(&self, engine: &Arc<Engine>, root: &Arc<Root>, objectid: u64) -> Result<Inode> {
        if root.is_dead() {
            return Err(vfs::Error::Stale.into());
        }
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
        let mut guard = self.shard(key).lock();
        let shard = &mut *guard;
        let inode = shard.inodes.entry(key).or_insert_with(|| {
            shard.idle.push_back(key);
            Arc::new(Inode::new_stub(Arc::clone(root), stub, number, ino))
        });
        Arc::clone(inode)
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
        shard.inodes.insert(key, Arc::clone(&inode));
        shard.idle.push_back(key);
        inode
    }

    /// Gives `count` references back; true if they were the last.
    pub(crate) fn release(&self, inode: &Inode, count: u64) -> bool {
        let before = inode
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
                Some(held.saturating_sub(count))
            });
        matches!(before, Ok(held) if held <= count)
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

    /// Evicts the oldest idle inodes of the shard of `inode`, down to the bound. Returns them,
    /// so that they are dropped without the lock.
    pub(crate) fn trim(&self, inode: &Inode) -> Vec<Arc<Inode>> {
        let mut guard = self.shard(inode.lock_key()).lock();
        let shard = &mut *guard;
        let mut evicted = Vec::new();
        let mut tries = shard.idle.len().saturating_sub(IDLE_PER_SHARD).min(8);
        while tries > 0 {
            tries -= 1;
            let Some(key) = shard.idle.pop_front() else {
                break;
            };
            let Some(inode) = shard.inodes.get(&key) else {
                continue;
            };
            let held = inode.references.load(Ordering::Acquire) > 0;
            if held || Arc::strong_count(inode) > 1 || !inode.is_linked() {
                shard.idle.push_back(key);
                continue;
            }
            shard.evictions = shard.evictions.wrapping_add(1);
            evicted.extend(shard.inodes.remove(&key));
        }
        evicted
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
