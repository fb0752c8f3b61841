//! The rank of all locks of this engine. See [`sapwood_base::Rank`] for the checks.
//!
//! The journal's locks come after all of these but [`Rank::Leaf`].
//!
//! Starting a handle may wait for a commit, which takes locks from [`Rank::Group`] on: a debug
//! build panics if a lock above [`Rank::Inode`] is held then.

/// Order of all locks, the one taken first at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rank {
    /// Renames of directories between parents.
    RenameTopology,
    /// `io` lock of an inode; key: inode number.
    Inode,
    /// Adding an entry to a quota file; inside a handle.
    QuotaFile,
    /// Finding, sharing and counting attribute blocks.
    XattrBlocks,
    /// The list of inodes without a name.
    Orphans,
    /// Map of an inode; key: inode number.
    Map,
    /// Counts, bitmaps and free blocks of one group; key: group.
    Group,
    /// The table of inodes in memory.
    InodeTable,
    /// The list of files with data in memory.
    ActiveFiles,
    /// Dirty and in-flight ranges of one inode; key: inode number.
    FileDataState,
    /// Attributes of one inode; key: inode number.
    InodeState,
    /// Entries of the quotas of one kind.
    Quota,
    /// The superblock in memory; held while it is copied to its block.
    Superblock,
    /// Sections that take no other lock.
    Leaf,
}

impl sapwood_base::Rank for Rank {
    /// The journal's locks are taken among these.
    type Order = sapwood_jbd2::LockOrder;

    fn place(self) -> u16 {
        match self {
            Self::Leaf => u16::MAX,
            other => other as u16,
        }
    }
}

pub(crate) use sapwood_base::lock::assert_held_at_most;

pub(crate) type RankedMutex<T> = sapwood_base::RankedMutex<Rank, T>;
pub(crate) type RankedRwLock<T> = sapwood_base::RankedRwLock<Rank, T>;
pub(crate) type RankedMutexGuard<'a, T> = sapwood_base::lock::RankedMutexGuard<'a, Rank, T>;
