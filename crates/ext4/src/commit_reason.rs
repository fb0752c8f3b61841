//! Reasons for committing a whole transaction rather than making a fast commit, and their counts.

use std::num::NonZeroU8;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reasons why a fast commit cannot express a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CommitReason {
    /// An operation that keeps no records: of directories, flags, files without a name and so on.
    Operation = 1,
    /// Attributes.
    Xattrs,
    /// A file with a block map.
    BlockMap,
    /// Content in the inode.
    Inline,
    /// No file or directory, a reserved inode, or a file whose data goes through the journal.
    SpecialFile,
    /// A directory was made, grew or changed its form.
    Directory,
    /// The target of a link is in a block.
    LongLink,
    /// Blocks of a file became unwritten, or moved.
    Moved,
    /// The number of a deleted inode was used again.
    InodeReused,
    /// A truncation or deletion of an inode began in an earlier transaction, or a truncation is in
    /// progress.
    Orphan,
    /// An inode lost its last name ([`FastCommits::Full`](crate::FastCommits::Full) can express
    /// it).
    Deleted,
    /// A file lost all its blocks; likewise.
    Emptied,
    /// Too many changes.
    TooMany,
    /// No room in the area.
    Area,
}

impl CommitReason {
    pub(crate) const ALL: [Self; 14] = [
        Self::Operation,
        Self::Xattrs,
        Self::BlockMap,
        Self::Inline,
        Self::SpecialFile,
        Self::Directory,
        Self::LongLink,
        Self::Moved,
        Self::InodeReused,
        Self::Orphan,
        Self::Deleted,
        Self::Emptied,
        Self::TooMany,
        Self::Area,
    ];

    /// The number in the journal.
    pub(crate) fn number(self) -> NonZeroU8 {
        NonZeroU8::new(self as u8).unwrap_or(NonZeroU8::MIN)
    }

    pub(crate) fn from_number(number: NonZeroU8) -> Self {
        let known = Self::ALL.into_iter().find(|one| one.number() == number);
        known.unwrap_or(Self::Operation)
    }

    /// Name of the counter.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Xattrs => "xattrs",
            Self::BlockMap => "block_map",
            Self::Inline => "inline",
            Self::SpecialFile => "special_file",
            Self::Directory => "directory",
            Self::LongLink => "long_link",
            Self::Moved => "moved",
            Self::InodeReused => "inode_reused",
            Self::Orphan => "orphan",
            Self::Deleted => "deleted",
            Self::Emptied => "emptied",
            Self::TooMany => "too_many",
            Self::Area => "area",
        }
    }
}

/// Counters; they only grow.
#[derive(Debug, Default)]
pub(crate) struct FastCommitCounters {
    commits: AtomicU64,
    blocks: AtomicU64,
    flushes: AtomicU64,
    whole: [AtomicU64; CommitReason::ALL.len()],
}

impl FastCommitCounters {
    /// Counts a fast commit of this many blocks.
    pub(crate) fn written(&self, blocks: u64) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Counts a flush of the device for a fast commit.
    pub(crate) fn flushed(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an fsync that committed its whole transaction.
    pub(crate) fn whole(&self, reason: CommitReason) {
        if let Some(counter) = self.whole.get(usize::from(reason.number().get() - 1)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All counters with their names.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let own = [
            ("commits", &self.commits),
            ("blocks", &self.blocks),
            ("flushes", &self.flushes),
        ];
        let own = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let whole = CommitReason::ALL.into_iter().zip(&self.whole);
        let whole = whole.map(|(reason, value)| (format!("whole_{}", reason.name()), value));
        own.chain(whole)
            .map(|(name, value)| (name, value.load(Ordering::Relaxed)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back() {
        for (at, reason) in CommitReason::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(reason.number().get()), at + 1);
            assert_eq!(CommitReason::from_number(reason.number()), reason);
        }
    }
}
