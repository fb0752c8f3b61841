//! Reasons for committing the transaction although there is a log.

/// A change that a log cannot express, or an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CommitReason {
    /// The policy excludes the log.
    Disabled,
    /// The subvolume was made in this transaction: the trees of the last commit do not have it.
    NewSubvolume,
    /// The subvolume is being deleted.
    DeadSubvolume,
    /// The name of a subvolume was added or removed in a directory to log.
    SubvolumeName,
    /// A chunk was allocated in this transaction: after a power cut its contents would be
    /// unreadable.
    NewChunk,
    /// A name was moved away from a directory that was removed since.
    RemovedParent,
    /// A directory that was not empty at the last commit was removed, and its name is in use
    /// again.
    ReplacedDirectory,
    /// Very many names of a directory changed.
    ManyNames,
    /// A rename left a whiteout at a name that the last commit does not have.
    Whiteout,
    /// A file got a hash tree, which a log does not have.
    HashTree,
    /// No space for the log.
    NoSpace,
    /// Writing the log failed.
    LogWrite,
    /// A device is missing or failed, and a log would not make it recognizable as stale.
    LostDevice,
    /// Something else failed while the log was made.
    Failed,
}

impl CommitReason {
    /// All of them, in the order of the counters.
    pub(crate) const ALL: [Self; 14] = [
        Self::Disabled,
        Self::NewSubvolume,
        Self::DeadSubvolume,
        Self::SubvolumeName,
        Self::NewChunk,
        Self::RemovedParent,
        Self::ReplacedDirectory,
        Self::ManyNames,
        Self::Whiteout,
        Self::HashTree,
        Self::NoSpace,
        Self::LogWrite,
        Self::LostDevice,
        Self::Failed,
    ];

    /// Name of its counter.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::NewSubvolume => "new_subvolume",
            Self::DeadSubvolume => "dead_subvolume",
            Self::SubvolumeName => "subvolume_name",
            Self::NewChunk => "new_chunk",
            Self::RemovedParent => "removed_parent",
            Self::ReplacedDirectory => "replaced_directory",
            Self::ManyNames => "many_names",
            Self::Whiteout => "whiteout",
            Self::HashTree => "hash_tree",
            Self::NoSpace => "no_space",
            Self::LogWrite => "log_write",
            Self::LostDevice => "lost_device",
            Self::Failed => "failed",
        }
    }
}
