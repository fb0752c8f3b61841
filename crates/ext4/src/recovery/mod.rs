//! A mount after a crash: replays fast commits and finishes orphans.
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
/// They contradict the image; errors of the device.
pub(crate) fn replay(engine: &Arc<Engine>, log: &Log, commits: &FastCommits) -> Result<()> {
    let changes = area::read(&engine.geometry, log, commits)?;
    if changes.is_empty() {
        return Ok(());
    }
    log::info!("{} changes of fast commits", changes.len());
    apply::apply(engine, changes)
}

/// Erases fast commits of a committed transaction, durably. If the area holds such, `e2fsck` (1.47)
/// leaves out the whole log. This must not happen after a recovery has written a part of it home,
/// so the recovery calls this first.
///
/// # Errors
/// Errors of the device.
pub(crate) fn erase_stale(log: &Log, commits: &FastCommits) -> Result<()> {
    if area::is_stale(log, commits)? {
        log.erase_fast_commits()?;
    }
    Ok(())
}
