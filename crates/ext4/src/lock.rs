//! The one rank of all locks of this engine. See [`sapwood_base::Rank`] for what it is checked for.
//!
//! Starting a handle may wait for a commit, which takes locks from [`Rank::Group`] on: hold nothing
//! above [`Rank::Inode`] then.

/// Order of all locks, the one taken first at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rank {
    /// Renames of directories between parents.
    RenameTopology,
    /// `io` lock of an inode; key: inode number.
    Inode,
    /// Finding, sharing and counting attribute blocks.
    XattrBlocks,
    /// The list of inodes without a name.
    Orphans,
    /// Where an inode's blocks are; key: inode number.
    Map,
    /// Counts, bitmaps and free blocks of one group; key: group.
    Group,
    /// Which inodes are in memory.
    InodeTable,
    /// Which files have data in memory.
    ActiveFiles,
    /// Dirty ranges and flights of one inode; key: inode number.
    FileDataState,
    /// Attributes of one inode; key: inode number.
    InodeState,
    /// Sections that take no other lock.
    Leaf,
}

impl sapwood_base::Rank for Rank {}

pub(crate) type RankedMutex<T> = sapwood_base::RankedMutex<Rank, T>;
pub(crate) type RankedRwLock<T> = sapwood_base::RankedRwLock<Rank, T>;
pub(crate) type RankedMutexGuard<'a, T> = sapwood_base::lock::RankedMutexGuard<'a, Rank, T>;
