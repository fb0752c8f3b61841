//! Makes an inode (fsync) or the whole file system (sync) durable.
//!
//! # How it works
//! An fsync writes the file's data back, which puts its blocks into the map in a handle. Then the
//! last transaction that stored the inode becomes durable, by a fast commit or by a commit; both
//! flush the device. Data in existing blocks needs no transaction, but a flush.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_vfs::SyncKind;
use sapwood_vfs::front::InodeTable as _;

use crate::engine::Engine;
use crate::fast_commit::{self, Outcome};
use crate::inode::Inode;
use crate::{Result, data};

/// Makes a file or directory durable.
///
/// # Errors
/// Errors of the device and of the journal; nothing more will become durable.
pub(crate) fn fsync(engine: &Arc<Engine>, inode: &Arc<Inode>, kind: SyncKind) -> Result<()> {
    if engine.read_only() {
        return Ok(engine.health.check_unfailed()?);
    }
    data::flush(engine, inode)?;
    if kind == SyncKind::All {
        inode.store_late_changes(engine)?;
    }
    let tid = match kind {
        SyncKind::All => inode.sync_tid(),
        SyncKind::Data => inode.datasync_tid(),
    };
    let overwrites = inode.data.overwrites();
    let flushed = commit(engine, inode.ino, tid)?;
    if !flushed && inode.data.owes_flush() {
        engine.device.flush()?;
    }
    inode.data.overwrites_synced(overwrites);
    Ok(())
}

/// Makes the changes of an inode in transaction `tid` durable. True if the device was flushed since
/// the call began.
fn commit(engine: &Engine, ino: u32, tid: u64) -> Result<bool> {
    let counters = &engine.counters;
    if tid <= engine.journal.durable_tid() {
        counters.fsyncs_clean.fetch_add(1, Ordering::Relaxed);
        return Ok(false);
    }
    if engine.fast_commits.enabled() {
        match fast_commit::commit(engine, ino, tid)? {
            Outcome::Written => return Ok(true),
            Outcome::Found => return Ok(false),
            Outcome::Whole(reason) => counters.fast_commits.whole(reason),
        }
    }
    counters.fsyncs_committed.fetch_add(1, Ordering::Relaxed);
    // A commit that has left the running state may have flushed the device before the call.
    let covered = tid >= engine.journal.running_tid();
    engine.journal.commit(tid)?;
    Ok(covered)
}

/// Makes everything durable.
///
/// # Errors
/// Errors of the device and the journal; later changes are never durable.
pub(crate) fn sync(engine: &Arc<Engine>) -> Result<()> {
    if engine.read_only() {
        return Ok(engine.health.check_unfailed()?);
    }
    let flushed = data::flush_all(engine);
    for inode in engine.inodes.all() {
        inode.store_late_changes(engine)?;
    }
    engine.journal.commit_all()?;
    engine.device.flush()?;
    // Written data is durable although the host has no space for the rest.
    flushed
}
