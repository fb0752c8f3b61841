//! Errors of the journal.

use std::sync::Arc;

use crate::Tid;
use crate::format::LayoutRun;

/// The error of a [`Host`](crate::Host).
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Unknown features of a journal.
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

/// Errors of the journal.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(Arc<sapwood_block::Error>),
    /// A block past the end of the device.
    #[error("block {block} lies past the end of the device ({blocks} blocks)")]
    BlockRange {
        /// Requested block.
        block: u64,
        /// Blocks of the device.
        blocks: u64,
    },
    /// An earlier failure aborted the journal.
    #[error("the journal was aborted: {0}")]
    Aborted(Arc<Self>),
    /// The engine gave up in the middle of a change.
    #[error("change given up: {0}")]
    GivenUp(Arc<str>),
    /// The engine failed in [`Host::before_commit`](crate::Host::before_commit).
    #[error("commit of transaction {tid}: {reason}")]
    Host {
        /// The transaction.
        tid: Tid,
        /// The engine's error.
        reason: Arc<str>,
    },
    /// A panic ended a commit.
    #[error("the commit of transaction {0} did not end")]
    CommitUnfinished(Tid),
    /// More credits than one transaction may have.
    #[error("a handle asks for {credits} blocks; a transaction has at most {most}")]
    TooManyCredits {
        /// Requested credits.
        credits: u32,
        /// Most credits of a transaction.
        most: u32,
    },
    /// Runs of blocks that cannot be a journal's.
    #[error("the journal's blocks are in an impossible place: {0:?}")]
    Layout(LayoutRun),
    /// The first block of the journal is not its superblock.
    #[error("journal superblock: wrong magic or type")]
    NotAJournal,
    /// A superblock field with an invalid value.
    #[error("journal superblock: {name} is {value}")]
    SuperblockField {
        /// Name of the field, without `s_`.
        name: &'static str,
        /// Value of the field.
        value: u32,
    },
    /// The superblock's checksum is wrong.
    #[error("journal superblock: wrong checksum")]
    SuperblockChecksum,
    /// The journal has unknown features.
    #[error("journal superblock: unknown features: {0}")]
    UnknownFeatures(Features),
    /// The superblock has version 1, which has no fields for the features that writing needs.
    #[error("journal superblock: version 1 can be recovered but not written")]
    OldSuperblock,
    /// The log has transactions that must be recovered first.
    #[error("the journal must be recovered first")]
    NeedsRecovery,
    /// A part of the log that must be intact is damaged.
    #[error("journal: block {block} of transaction {sequence}: {reason}")]
    Corrupt {
        /// Sequence number of the transaction.
        sequence: u32,
        /// Block of the journal.
        block: u64,
        /// The defect.
        reason: Damage,
    },
    /// The log has a copy of a block that cannot be metadata.
    #[error(
        "journal: transaction {sequence} has a copy of block {target}, which cannot be metadata"
    )]
    Target {
        /// Sequence number of the transaction.
        sequence: u32,
        /// Home location of the block.
        target: u64,
    },
    /// A handle changed more blocks than it reserved, and the log has no room for them.
    #[error("a handle of transaction {0} changed more blocks than it reserved")]
    OutOfCredits(Tid),
}

impl From<sapwood_block::Error> for Error {
    fn from(err: sapwood_block::Error) -> Self {
        Self::Device(Arc::new(err))
    }
}

/// Damage of a part of the log that must be intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A descriptor block has a wrong checksum.
    #[error("wrong checksum of a descriptor block")]
    Descriptor,
    /// A logged block has a wrong checksum.
    #[error("wrong checksum of a logged block")]
    Data,
    /// A revoke block has a wrong checksum or size.
    #[error("bad revoke block")]
    Revoke,
    /// A commit block has a wrong checksum, but a later transaction is committed.
    #[error("wrong checksum of a commit block before the last")]
    Commit,
    /// The log ends, but a later transaction is committed.
    #[error("the log ends here, but a later commit block exists")]
    Gap,
}
