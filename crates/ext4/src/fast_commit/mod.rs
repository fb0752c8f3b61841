//! Fast commits: small records of what an fsync needs, beside the journal's transactions.
//!
//! # How it works
//! An image with this feature has an area behind its log. In place of a whole transaction, the kernel writes there what an
//! fsync needs: inodes, ranges of blocks, names. They count only if they belong to the transaction that would have come next;
//! a commit of it makes them old.
//!
//! [`area`] reads them: all up to the last one that is whole and has the right checksum. What is torn ends the area; what is whole and
//! makes no sense is an error, found before anything is changed. [`apply`] then makes the image as they say, as often as need be: a
//! name that is there is not added, a block that is in use is not counted twice.
//!
//! The changes go straight to the device that the engine has. The caller gives it an overlay, so that a
//! contradiction that is found late leaves the image untouched.
//!
//! We write whole transactions to such images, which make fast commits old.
//!
//! Tags: kernel documentation, `filesystems/ext4/journal.rst` ("Fast commits"), and what the kernel writes.

mod apply;
mod area;
mod counters;
mod encode;
pub(crate) mod note;
mod reason;
mod records;
mod write;

pub(crate) use counters::FastCommitCounters;
pub(crate) use reason::Reason;
pub(crate) use records::Tracker;
pub(crate) use write::{Outcome, commit};

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
    let changes = area::read(&engine.geometry, log, commits)?;
    if changes.is_empty() {
        return Ok(());
    }
    log::info!("{} changes of fast commits", changes.len());
    apply::apply(engine, changes)
}
