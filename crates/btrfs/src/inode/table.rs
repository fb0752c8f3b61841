//! All inodes in memory.
//!
//! # How it works
//! A [`ResidentTable`] by `(tree, objectid)`: it bounds the number of inodes in memory, and keeps
//! the references to evicted ones. A transaction that still has to write an inode's item, or the
//! data path, holds the `Arc`. An inode without a name is not [evicted](Resident::may_leave),
//! because only its object records that it must be deleted. An inode that changed in a transaction
//! is not evicted before that writes the inode's item, so the log finds all its changes.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use sapwood_base::writeback::File;
use sapwood_base::{Residence, Resident, ResidentTable};
use sapwood_btrfs_format::{InodeItem, Key, kind};
use sapwood_vfs::{self as vfs, FileKind, Ino, front};

use super::ino::InoMap;
use super::object::{Inode, InodeState, STUB_TREE, Stub};
use crate::error::bad_item;
use crate::lock::{Rank, RankedMutex};
use crate::transaction::Store;
use crate::tree::Root;
use crate::{Error, Result};

/// The inodes in memory.
pub(crate) struct InodeTable {
    inodes: ResidentTable<Rank, Inode>,
    numbers: InoMap,
    /// Trees whose orphans were looked for.
    visited: RankedMutex<HashSet<u64>>,
}

impl Resident for Inode {
    fn key(&self) -> (u64, u64) {
        self.lock_key()
    }

    fn residence(&self) -> &Residence {
        &self.residence
    }

    /// Inodes of a deleted subvolume are never evicted, so that the cleaner finds all that are in
    /// use.
    fn may_leave(&self) -> bool {
        self.is_linked() && !self.root.is_dead() && !self.data.has_untold_failure()
    }

    fn footprint(&self) -> usize {
        size_of::<Self>() + self.data.footprint() + self.dir.footprint()
    }
}

impl File for Inode {
    fn dirty_bytes(&self) -> u64 {
        self.data.dirty_bytes()
    }

    fn is_idle(&self) -> bool {
        self.data.is_idle()
    }
}

impl front::InodeTable for InodeTable {
    type Inode = Inode;

    fn forget(&self, ino: Ino, count: u64) -> Option<Arc<Inode>> {
        self.inodes.release(self.numbers.key(ino)?, count)
    }

    fn all(&self) -> Vec<Arc<Inode>> {
        self.inodes.all()
    }

    /// The stubs of subvolumes are left out.
    fn referenced(&self) -> Vec<Ino> {
        self.shown(self.inodes.referenced())
    }

    fn is_crowded(&self, ino: Ino) -> bool {
        let key = self.numbers.key(ino);
        key.is_some_and(|key| self.inodes.is_crowded(key))
    }

    fn crowd(&self) -> Vec<Ino> {
        self.shown(self.inodes.crowd())
    }
}

impl InodeTable {
    /// An empty table for a mount of the subvolume `mounted`, that keeps inodes of about `bound`
    /// bytes, in addition to held ones.
    pub(crate) fn new(mounted: u64, bound: usize) -> Self {
        Self {
            inodes: ResidentTable::new(Rank::InodeTable, bound),
            numbers: InoMap::new(mounted),
            visited: RankedMutex::new(Rank::InodeTable, HashSet::new()),
        }
    }

    /// Evicts inodes, down to the bound.
    pub(crate) fn trim(&self) {
        self.inodes.trim();
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.inodes.bytes()
    }

    /// The numbers that callers know.
    fn shown(&self, mut keys: Vec<(u64, u64)>) -> Vec<Ino> {
        keys.retain(|(tree, _)| *tree != STUB_TREE);
        let number = |(tree, objectid)| self.numbers.ino(tree, objectid);
        keys.into_iter().map(number).collect()
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
        self.inodes.peek((tree, objectid))
    }

    /// The inode with this number; loads it if need be. `Stale` if there is none.
    pub(crate) fn by_number(&self, store: &Store, ino: Ino) -> Result<Arc<Inode>> {
        let (tree, objectid) = self.numbers.key(ino).ok_or(vfs::Error::Stale)?;
        if let Some(inode) = self.peek(tree, objectid) {
            return Ok(inode);
        }
        let known = self.inodes.is_parked((tree, objectid));
        let stub = match tree {
            STUB_TREE => Some(self.numbers.stub(objectid).ok_or(vfs::Error::Stale)?),
            _ => None,
        };
        let tree = stub.map_or(tree, |stub| stub.tree);
        let root = store.roots.get(tree).map_err(|error| match error {
            Error::NoSuchRoot(_) => vfs::Error::Stale.into(),
            other => other,
        })?;
        if let Some(stub) = stub {
            return Ok(self.stub(&root, stub.dir, stub.subvolume));
        }
        self.load_if(store, &root, objectid, known)
    }

    /// The inode `objectid` of a tree; loads it if need be. `Stale` if there is none.
    pub(crate) fn load(
        &self,
        store: &Store,
        root: &Arc<Root>,
        objectid: u64,
    ) -> Result<Arc<Inode>> {
        self.load_if(store, root, objectid, false)
    }

    /// Like [`load`](Self::load). With `known`, a caller holds a reference, so the inode is loaded
    /// even if its subvolume is deleted.
    fn load_if(
        &self,
        store: &Store,
        root: &Arc<Root>,
        objectid: u64,
        known: bool,
    ) -> Result<Arc<Inode>> {
        self.inodes.get_or_load((root.id(), objectid), || {
            if root.is_dead() && !known {
                return Err(vfs::Error::Stale.into());
            }
            self.read(store, root, objectid)
        })
    }

    fn read(&self, store: &Store, root: &Arc<Root>, objectid: u64) -> Result<Inode> {
        let key = Key::new(objectid, kind::INODE_ITEM, 0);
        let bytes = root.get(store, &key)?.ok_or(vfs::Error::Stale)?;
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
        let make = || Ok(Inode::new_stub(Arc::clone(root), stub, number, ino));
        let made: Result<_, Infallible> = self.inodes.get_or_load((STUB_TREE, number), make);
        let Ok(inode) = made;
        inode
    }

    /// Puts a new inode, whose number no other thread can know yet, into the table. Call it before
    /// its items are written. `default_acl` is the directory's, as [`DirState`] keeps it.
    ///
    /// # Errors
    /// [`Error::ItemExists`] if it is in memory: the number is not new.
    pub(crate) fn insert_new(
        &self,
        root: &Arc<Root>,
        objectid: u64,
        kind: FileKind,
        state: InodeState,
        default_acl: Option<Option<Arc<[u8]>>>,
    ) -> Result<Arc<Inode>> {
        let ino = self.numbers.ino(root.id(), objectid);
        let inode = Arc::new(Inode::new(Arc::clone(root), objectid, ino, kind, state));
        inode.dir.lock().default_acl = default_acl;
        if self.inodes.insert_first(&inode) {
            Ok(inode)
        } else {
            Err(Error::ItemExists {
                root: root.id(),
                key: Key::new(objectid, kind::INODE_ITEM, 0),
            })
        }
    }

    /// Whether a caller refers to an inode of a tree that is not in memory.
    pub(crate) fn refers_to_parked(&self, tree: u64) -> bool {
        self.inodes.refers_to_parked(tree)
    }

    /// Takes a deleted inode out.
    pub(crate) fn remove(&self, inode: &Inode) {
        self.inodes.remove(inode);
    }

    /// Takes an inode of a deleted subvolume out, unless another thread uses it.
    pub(crate) fn evict_unused(&self, inode: &Arc<Inode>) -> bool {
        self.inodes.evict_unused(inode)
    }

    /// The inodes of one tree that are in memory.
    pub(crate) fn of_tree(&self, tree: u64) -> Vec<Arc<Inode>> {
        let mut found = self.inodes.all();
        found.retain(|inode| inode.root.id() == tree);
        found
    }
}
