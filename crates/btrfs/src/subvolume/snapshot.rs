//! Snapshots.
//!
//! # How it works
//! A thread that wants a snapshot writes the source's data back, queues a [`Pending`] in the
//! running transaction and commits that. The commit, once no handle is open and all delayed changes
//! are in the trees, copies the top block of the source; from then on blocks of this transaction
//! count as shared in both trees (`last_snapshot`). So the snapshot has all of the transactions up
//! to its own, and nothing of later ones. The thread that asked holds the lock of the directory for the
//! new name until the commit is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{RootFlags, RootItem, Timespec};
use sapwood_vfs::{self as vfs, Timestamp};

use super::create::{self, check_new_name, new_uuid};
use super::uuid_tree::{self, Which};
use super::{next_id, quota};
use crate::data::Wait;
use crate::engine::Engine;
use crate::lock::{Rank, RankedMutex};
use crate::ops::names::{self, Target};
use crate::ops::{Inode, dir};
use crate::transaction::Handle;
use crate::tree::{Root, copy_root};
use crate::{Error, Result};

/// A snapshot that the commit is to take.
#[derive(Debug)]
pub(crate) struct Pending {
    source: Arc<Root>,
    id: u64,
    dir: Arc<Inode>,
    name: Vec<u8>,
    index: u64,
    read_only: bool,
}

/// Snapshots to be taken at the end of a transaction.
#[derive(Debug)]
pub(crate) struct PendingSnapshots {
    list: RankedMutex<Vec<Pending>>,
}

impl Default for PendingSnapshots {
    fn default() -> Self {
        Self {
            list: RankedMutex::new(Rank::Leaf, Vec::new()),
        }
    }
}

/// Takes a snapshot of `source`, named `name` in `dir`; returns its top directory.
///
/// # Errors
/// As [`sapwood_vfs::Subvolumes::snapshot`].
pub(crate) fn snapshot(
    engine: &Arc<Engine>,
    source: &Arc<Root>,
    dir: &Arc<Inode>,
    name: &[u8],
    read_only: bool,
) -> Result<Arc<Inode>> {
    let _subvolumes = engine.subvolumes.lock();
    let _io = dir.io.write();
    check_new_name(engine, dir, name)?;
    if source.is_dead() {
        return Err(vfs::Error::NotFound.into());
    }
    // First as usual, so that little is left to be copied that could have been overwritten.
    let writeback = &engine.writeback;
    writeback.flush_root(engine, source.id(), Wait::Completion)?;
    let _frozen = writeback.freeze_overwrites(source.id());
    writeback.flush_root(engine, source.id(), Wait::Completion)?;
    let id = next_id(engine)?;
    let index = dir::next_index(engine, dir)?;
    let h = engine.start(create::ITEMS)?;
    h.mark_dirty();
    h.trans().snapshots.list.lock().push(Pending {
        source: source.clone(),
        id,
        dir: dir.clone(),
        name: name.to_vec(),
        index,
        read_only,
    });
    let transid = h.transid();
    h.end()?;
    engine.commit(Some(transid))?;
    let root = engine.roots.get(id)?;
    engine.inodes.load(engine, &root, root.top_dir())
}

/// Takes the pending snapshots of a transaction. For the commit, after everything delayed was
/// written; the names leave delayed changes of their own. True if there were any.
///
/// # Errors
/// Whatever keeps one from being taken; the transaction must not be committed then.
pub(crate) fn take_pending(h: &mut Handle) -> Result<bool> {
    let pending = std::mem::take(&mut *h.trans().snapshots.list.lock());
    for snapshot in &pending {
        take(h, snapshot)?;
    }
    Ok(!pending.is_empty())
}

fn take(h: &mut Handle, pending: &Pending) -> Result<()> {
    let Pending { source, dir, .. } = pending;
    let transid = h.transid();
    h.record_root(source);
    let top = copy_root(h, source, pending.id)?;
    if !sapwood_fault::planted(87) {
        source.set_last_snapshot(transid);
    }
    let mut item = *source.item();
    describe(&mut item, pending, transid);
    item.bytenr = top.bytenr().into();
    item.level = top.level();
    let root = Arc::new(Root::new(pending.id, transid, top, item));
    let highest = source.highest_objectid().load(Ordering::Acquire);
    root.highest_objectid().store(highest, Ordering::Release);
    // First the object: who finds the item must not load a second one.
    h.engine().roots.insert(root.clone());
    let root_tree = h.engine().roots.root_tree.clone();
    root_tree.insert(h, &root.item_key(), item.bytes())?;
    h.record_root(&root);
    let (id, index) = (pending.id, pending.index);
    names::add_root_refs(h, dir, id, index, &pending.name)?;
    names::add_entry(h, dir, &pending.name, Target::subvolume(id), index)?;
    uuid_tree::add(h, Which::Own, &item.uuid, id)?;
    quota::add_group(h, id)?;
    uuid_tree::add(h, Which::Received, &item.received_uuid, id)
}

/// Turns the root item of the source into that of the snapshot.
fn describe(item: &mut RootItem, pending: &Pending, transid: u64) {
    let now = Timestamp::now();
    item.generation = transid.into();
    item.generation_v2 = transid.into();
    item.last_snapshot = transid.into();
    let mut flags = item.root_flags();
    flags.set(RootFlags::RDONLY, pending.read_only);
    item.flags = flags.bits().into();
    item.parent_uuid = item.uuid;
    item.uuid = new_uuid();
    if !pending.read_only {
        // What may change is no longer what was received.
        item.received_uuid = [0; 16];
        item.stransid = 0.into();
        item.rtransid = 0.into();
        item.stime = Timespec::default();
        item.rtime = Timespec::default();
    }
    item.otransid = transid.into();
    item.otime = Timespec::new(now.sec, now.nsec);
}

/// The tree whose top directory `inode` is.
pub(super) fn top_of(inode: &Inode) -> Result<Arc<Root>> {
    if inode.objectid == inode.root.top_dir() {
        return Ok(inode.root.clone());
    }
    Err(Error::Vfs(vfs::Error::Invalid))
}
