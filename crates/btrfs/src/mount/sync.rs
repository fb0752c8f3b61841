//! Makes an inode (fsync) or the whole file system (sync) durable.

use std::sync::Arc;

use sapwood_vfs::{FileKind, SyncKind};

use super::engine::Engine;
use crate::counters::Counters;
use crate::inode::Inode;
use crate::tree_log::{self, Outcome};
use crate::{Result, data};

/// Makes the current state of the inode durable. See [`sapwood_vfs::FileSystem::fsync`]. The parts
/// that `fdatasync` may omit cost nothing here.
pub(crate) fn fsync(engine: &Arc<Engine>, inode: &Arc<Inode>, _kind: SyncKind) -> Result<()> {
    let counters = &engine.counters;
    Counters::count(&counters.fsyncs);
    if engine.read_only() {
        return Ok(engine.health.check_unfailed()?);
    }
    if inode.is_stub() {
        return Ok(());
    }
    match tree_log::fsync(engine, &engine.fsyncs, inode)? {
        Outcome::Empty => Counters::count(&counters.empty_fsyncs),
        Outcome::Logged => Counters::count(&counters.fast_fsyncs),
        Outcome::Await(transid) => {
            Counters::count(&counters.empty_fsyncs);
            engine.commit(Some(transid))?;
        }
        Outcome::Commit(cause) => {
            counters.count_full(cause);
            return full(engine, inode);
        }
    }
    Ok(engine.health.check_unfailed()?)
}

/// Makes an inode durable by a commit.
fn full(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    if inode.kind == FileKind::Regular {
        data::flush_complete(engine, inode)?;
    }
    let changed = inode.state.lock().transid;
    if changed <= engine.last_committed() {
        return Ok(());
    }
    engine.commit(Some(changed))
}

/// Makes everything durable.
pub(crate) fn sync(engine: &Arc<Engine>) -> Result<()> {
    let flushed = data::flush_all(engine);
    // Written data is made durable although the host has no space for the rest.
    engine.commit(None)?;
    flushed
}
