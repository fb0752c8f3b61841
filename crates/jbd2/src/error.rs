//! Errors of the journal.

use std::sync::Arc;

use crate::Tid;
use crate::format::LayoutRun;

/// What a [`Host`](crate::Host) may fail with.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Features of a journal that are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Unknown bits of `s_feature_compat`.
    pub compat: u32,
    /// Unknown bits of `s_feature_incompat`.
    pub incompat: u32,
    /// Unknown bits of `s_feature_ro_compat`.
    pub ro_compat: u32,
}

impl std::fmt::Display for Features {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [
            ("compat", self.compat),
            ("incompat", self.incompat),
            ("ro_compat", self.ro_compat),
        ];
        let mut comma = "";
        for (word, bits) in all {
            for bit in (0..32).map(|n| 1u32 << n).filter(|bit| bits & bit != 0) {
                write!(f, "{comma}{word} {bit:#x}")?;
                comma = ", ";
            }
        }
        Ok(())
    }
}

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
    /// Runs of blocks that are no journal's.
    #[error("the journal's blocks are not where a journal can be: {0:?}")]
    Layout(LayoutRun),
    /// The first block of the journal is not its superblock.
    #[error("journal superblock: not one")]
    NotAJournal,
    /// A field of the superblock.
    #[error("journal superblock: {name} is {value}")]
    SuperblockField {
        /// Its name, without `s_`.
        name: &'static str,
        /// Its value.
        value: u32,
    },
    /// The superblock's checksum is wrong.
    #[error("journal superblock: wrong checksum")]
    SuperblockChecksum,
    /// The journal has features that are not known.
    #[error("journal superblock: unknown features: {0}")]
    UnknownFeatures(Features),
    /// The superblock is of version 1, which has no place for the features that writing needs.
    #[error("journal superblock: version 1, which can be recovered and not written")]
    OldSuperblock,
    /// The journal is a device of its own.
    #[error("the journal is on a device of its own, which is not supported")]
    ExternalJournal,
    /// The log has transactions to recover first.
    #[error("the journal has to be recovered first")]
    NeedsRecovery,
    /// The log is damaged where it must not be.
    #[error("journal: block {block} of transaction {sequence}: {reason}")]
    Corrupt {
        /// Sequence number of the transaction.
        sequence: u32,
        /// Block of the journal.
        block: u64,
        /// What is wrong.
        reason: Damage,
    },
    /// The log has a block that belongs where no metadata can be.
    #[error("journal: transaction {sequence} has a block for {target}, which cannot be")]
    Target {
        /// Sequence number of the transaction.
        sequence: u32,
        /// Where the block belongs.
        target: u64,
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

/// What is wrong with a part of the log that must be whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A descriptor block's checksum.
    #[error("wrong checksum of a descriptor block")]
    Descriptor,
    /// A logged block's checksum.
    #[error("wrong checksum of a logged block")]
    Data,
    /// A revoke block's checksum or size.
    #[error("bad revoke block")]
    Revoke,
    /// A commit block's checksum, and a later transaction is committed.
    #[error("wrong checksum of a commit block before the last")]
    Commit,
    /// The log ends, and a later transaction is committed.
    #[error("the log ends here, but a later commit block is there")]
    Gap,
}
