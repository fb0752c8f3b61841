//! Delayed changes: inode items and directory indexes that reach the tree in batches.
//!
//! An inode whose state changed is queued in its transaction once, however often it changes. The
//! commit, when no handle is open any more, writes the pending index items of each queued
//! directory, then the inode item, and the orphan item of an inode that has no name. To bound
//! memory, an operation that adds one item too many writes all of its directory earlier, in its own
//! handle.

use std::sync::Arc;

use sapwood_btrfs_format::{Key, kind};

use super::object::{Inode, InodeState};
use super::orphan_item;
use crate::Result;
use crate::transaction::{Delayed, Handle};
use crate::tree::TreeWrite;

/// Pending index changes that one directory may keep in memory.
const MANY: usize = 4096;

impl Inode {
    /// Changes the state and queues the inode item for the commit of the handle's transaction.
    pub(crate) fn change(self: &Arc<Self>, h: &Handle, change: impl FnOnce(&mut InodeState)) {
        let queue = {
            let mut state = self.state.lock();
            change(&mut state);
            state.transid = h.transid();
            let queue = state.queued_in != h.transid() && !state.deleted;
            if queue {
                state.queued_in = h.transid();
            }
            queue
        };
        if queue {
            h.delay(self.clone());
        }
    }
}

/// Writes pending index items if there are many.
pub(crate) fn flush_if_many(h: &mut Handle, dir: &Inode) -> Result<()> {
    if dir.dir.pending() < MANY {
        Ok(())
    } else {
        flush_names(h, dir)
    }
}

/// Writes pending index items. No operation may change the names meanwhile: the caller holds
/// the `io` lock exclusively, or is the commit. They stay in memory until they are in the tree,
/// so that a listing sees them all the while.
fn flush_names(h: &mut dyn TreeWrite, dir: &Inode) -> Result<()> {
    let (added, removed) = {
        let names = dir.dir.lock();
        (names.added.clone(), names.removed.clone())
    };
    if added.is_empty() && removed.is_empty() {
        return Ok(());
    }
    for index in &removed {
        dir.root
            .delete(h, &Key::new(dir.objectid, kind::DIR_INDEX, *index))?;
    }
    let batch: Vec<(Key, Vec<u8>)> = added
        .into_iter()
        .map(|(index, entry)| (Key::new(dir.objectid, kind::DIR_INDEX, index), entry))
        .collect();
    dir.root.insert_batch(h, &batch)?;
    let mut names = dir.dir.lock();
    for (key, _) in &batch {
        names.added.remove(&key.offset);
    }
    for index in &removed {
        names.removed.remove(index);
    }
    Ok(())
}

impl Delayed for Inode {
    fn write(&self, h: &mut dyn TreeWrite) -> Result<()> {
        flush_names(h, self)?;
        write_inode_item(h, self)
    }
}

/// Writes the inode item as the state has it now, and the orphan item.
fn write_inode_item(h: &mut dyn TreeWrite, inode: &Inode) -> Result<()> {
    let (item, orphan) = {
        let mut state = inode.state.lock();
        state.queued_in = 0;
        if state.deleted {
            return Ok(());
        }
        (state.to_item(), std::mem::take(&mut state.orphan_delayed))
    };
    if orphan {
        orphan_item::add(h, &inode.root, inode.objectid)?;
    }
    inode
        .root
        .update(h, &Key::new(inode.objectid, kind::INODE_ITEM, 0), |bytes| {
            bytes.copy_from_slice(item.bytes());
        })
}
