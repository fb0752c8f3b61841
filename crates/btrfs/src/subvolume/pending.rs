//! Snapshots that a commit is to take.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{RootFlags, RootItem, Timespec};

use super::uuid_tree::{self, Which};
use crate::Result;
use crate::inode::Inode;
use crate::lock::{Rank, RankedMutex};
use crate::namespace::names::{self, Target};
use crate::transaction::{Handle, Store};
use crate::tree::{Root, copy_root};

/// A snapshot that the commit is to take.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) source: Arc<Root>,
    pub(super) id: u64,
    pub(super) dir: Arc<Inode>,
    pub(super) name: Vec<u8>,
    pub(super) index: u64,
    pub(super) read_only: bool,
}

/// Snapshots to be taken at the end of a transaction.
#[derive(Debug)]
pub(super) struct PendingSnapshots {
    list: RankedMutex<Vec<Pending>>,
}

impl Default for PendingSnapshots {
    fn default() -> Self {
        Self {
            list: RankedMutex::new(Rank::Leaf, Vec::new()),
        }
    }
}

impl PendingSnapshots {
    /// Queues a snapshot for the commit of the transaction in which the caller holds a handle.
    pub(super) fn add(&self, snapshot: Pending) {
        self.list.lock().push(snapshot);
    }

    /// Takes the snapshots. For the commit, after everything delayed was written; adding the names
    /// delays further changes. True if there were any.
    ///
    /// # Errors
    /// The error that prevents a snapshot; the transaction must not be committed then.
    pub(super) fn take_all(&self, h: &mut Handle) -> Result<bool> {
        // No handle is open, so all of them were requested in this transaction.
        let pending = std::mem::take(&mut *self.list.lock());
        for snapshot in &pending {
            take(h, snapshot)?;
        }
        Ok(!pending.is_empty())
    }
}

fn take(h: &mut Handle, pending: &Pending) -> Result<()> {
    let Pending { source, dir, .. } = pending;
    let transid = h.transid();
    h.record_root(source);
    let top = copy_root(h, source, pending.id)?;
    source.set_last_snapshot(transid);
    let mut item = *source.item();
    describe(h.store(), &mut item, pending, transid);
    item.bytenr = top.bytenr().into();
    item.level = top.level();
    let root = Arc::new(Root::new(pending.id, transid, top, item));
    let highest = source.highest_objectid().load(Ordering::Acquire);
    root.highest_objectid().store(highest, Ordering::Release);
    // First the object: a thread that finds the item must not load a second one.
    h.store().roots.insert(root.clone());
    let root_tree = h.store().roots.root_tree.clone();
    root_tree.insert(h, &root.item_key(), item.bytes())?;
    h.record_root(&root);
    let (id, index) = (pending.id, pending.index);
    names::add_root_refs(h, dir, id, index, &pending.name)?;
    names::add_entry(h, dir, &pending.name, Target::subvolume(id), index)?;
    uuid_tree::add(h, Which::Own, &item.uuid, id)?;
    h.store()
        .clone()
        .quotas
        .add_group(h, (id, dir.root.id()), Some(source.id()))?;
    uuid_tree::add(h, Which::Received, &item.received_uuid, id)
}

/// Turns the source's root item into the snapshot's.
fn describe(store: &Store, item: &mut RootItem, pending: &Pending, transid: u64) {
    let now = store.now();
    item.generation = transid.into();
    item.generation_v2 = transid.into();
    item.last_snapshot = transid.into();
    let mut flags = item.root_flags();
    flags.set(RootFlags::RDONLY, pending.read_only);
    item.flags = flags.bits().into();
    item.parent_uuid = item.uuid;
    item.uuid = store.ambient.uuid();
    if !pending.read_only {
        // A subvolume that may change no longer equals the received one.
        item.received_uuid = [0; 16];
        item.stransid = 0.into();
        item.rtransid = 0.into();
        item.stime = Timespec::default();
        item.rtime = Timespec::default();
    }
    item.otransid = transid.into();
    item.otime = Timespec::new(now.sec, now.nsec);
}
