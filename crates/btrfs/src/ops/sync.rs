//! Making things durable on demand.

use std::sync::Arc;

use sapwood_vfs::{FileKind, SyncKind};

use super::inode::Inode;
use crate::counters::Counters;
use crate::engine::Engine;
use crate::{Result, data};

/// Makes the inode as it is now durable. See [`sapwood_vfs::FileSystem::fsync`].
pub(crate) fn fsync(engine: &Arc<Engine>, inode: &Arc<Inode>, _kind: SyncKind) -> Result<()> {
    Counters::count(&engine.counters.fsyncs);
    if engine.read_only() {
        return engine.health.check_unfailed();
    }
    if inode.kind == FileKind::Regular {
        data::flush_complete(engine, inode)?;
    }
    let changed = inode.state.lock().transid;
    if changed <= engine.last_committed() {
        Counters::count(&engine.counters.empty_fsyncs);
        return Ok(());
    }
    engine.commit(Some(changed))
}

/// Makes everything durable.
pub(crate) fn sync(engine: &Arc<Engine>) -> Result<()> {
    data::flush_all(engine)?;
    engine.commit(None)
}
