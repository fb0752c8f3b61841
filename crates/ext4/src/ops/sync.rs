//! Making things durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_vfs::SyncKind;

use crate::engine::Engine;
use crate::fast_commit::{self, Outcome};
use crate::inode::Inode;
use crate::{Result, data};

/// Makes a file or directory durable.
///
/// # Errors
/// The device, the journal; nothing more will become durable.
pub(crate) fn fsync(engine: &Arc<Engine>, inode: &Arc<Inode>, kind: SyncKind) -> Result<()> {
    if engine.read_only() {
        return Ok(engine.health.check_unfailed()?);
    }
    if !sapwood_fault::planted(115) {
        data::flush(engine, inode)?;
    }
    if kind == SyncKind::All {
        inode.store_late_changes(engine)?;
    }
    let tid = match kind {
        SyncKind::All => inode.sync_tid(),
        SyncKind::Data => inode.datasync_tid(),
    };
    let tid = tid.saturating_sub(u64::from(sapwood_fault::planted(123)));
    if tid <= engine.journal.durable_tid() {
        engine.counters.fsyncs_clean.fetch_add(1, Ordering::Relaxed);
        // Data that went to blocks which the file had needs no transaction, but a flush.
        return data::sync_overwrites(engine, inode);
    }
    if engine.fast_commits.enabled() {
        let overwrites = data::overwrites(inode);
        match fast_commit::commit(engine, inode.ino, tid)? {
            Outcome::Written => {
                data::overwrites_synced(inode, overwrites);
                return Ok(());
            }
            Outcome::Found => return data::sync_overwrites(engine, inode),
            Outcome::Whole(reason) => engine.counters.fast_commits.whole(reason),
        }
    }
    engine
        .counters
        .fsyncs_committed
        .fetch_add(1, Ordering::Relaxed);
    let overwrites = data::overwrites(inode);
    // A commit that has left the running state may have flushed the device before this file's data
    // was written.
    let covered = tid >= engine.journal.running_tid() || sapwood_fault::planted(152);
    engine.journal.commit(tid)?;
    if covered {
        data::overwrites_synced(inode, overwrites);
        return Ok(());
    }
    data::sync_overwrites(engine, inode)
}

/// Makes everything durable.
///
/// # Errors
/// As [`fsync`].
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
    // What could be written is durable though the host has no space for the rest.
    flushed
}
