//! Errors of the journal.

use std::sync::Arc;

use crate::Tid;

/// What a [`Host`](crate::Host) may fail with.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Result of the journal.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the journal refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(Arc<sapwood_block::Error>),
    /// A block that does not lie on the device.
    #[error("block {block} lies past the end of the device ({blocks} blocks)")]
    BlockRange {
        /// What was asked for.
        block: u64,
        /// Blocks of the device.
        blocks: u64,
    },
    /// An earlier failure ended all changes.
    #[error("the journal was aborted: {0}")]
    Aborted(Arc<Self>),
    /// The engine gave up in the middle of a change.
    #[error("change given up: {0}")]
    GivenUp(Arc<str>),
    /// The engine failed in a callback.
    #[error("commit of transaction {tid}: {reason}")]
    Host {
        /// The transaction.
        tid: Tid,
        /// What it said.
        reason: Arc<str>,
    },
    /// A commit ended by a panic.
    #[error("the commit of transaction {0} did not end")]
    CommitUnfinished(Tid),
    /// More credits than one transaction may have.
    #[error("a handle of {credits} blocks; a transaction has at most {most}")]
    TooManyCredits {
        /// Asked for.
        credits: u32,
        /// Allowed.
        most: u32,
    },
    /// A handle changed more blocks than it announced, and the log has no room for them.
    #[error("a handle of transaction {0} changed more blocks than it announced")]
    OutOfCredits(Tid),
}

impl From<sapwood_block::Error> for Error {
    fn from(err: sapwood_block::Error) -> Self {
        Self::Device(Arc::new(err))
    }
}
