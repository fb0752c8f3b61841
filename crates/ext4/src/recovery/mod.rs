//! What a mount does after a crash: it replays fast commits and finishes orphans.
//!
//! The journal's transactions are replayed before the engine exists; that is a part of
//! [`mount`](crate::mount).

mod apply;
mod area;
mod orphans;

#[cfg(test)]
pub(crate) use apply::table_inode;
pub(crate) use orphans::{find, finish_all, may_have_orphans};

use std::sync::Arc;

use sapwood_jbd2::{FastCommits, Log};

use crate::Result;
use crate::engine::Engine;

/// Replays the fast commits that follow the last transaction of the journal, if there are any.
/// Changes go straight home; the caller syncs and empties the journal.
///
/// # Errors
/// They contradict the image; the device.
pub(crate) fn replay(engine: &Arc<Engine>, log: &Log, commits: &FastCommits) -> Result<()> {
    let changes = area::read(&engine.geometry, log, commits)?;
    if changes.is_empty() {
        return Ok(());
    }
    log::info!("{} changes of fast commits", changes.len());
    apply::apply(engine, changes)
}
