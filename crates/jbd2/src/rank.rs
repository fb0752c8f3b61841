//! Order of the locks of a journal and its cache.

use sapwood_base::lock;

/// The lock order that a journal shares with the engine above it. Engine locks that are held while
/// the engine calls the journal have places below 1000. Engine locks that are taken while a block's
/// content is locked have places above the journal's.
#[derive(Debug)]
pub enum LockOrder {}

/// Place of the first of the journal's ranks.
const JOURNAL: u16 = 1000;

/// Ranks of the journal's locks, in the order in which a thread takes them. The journal calls the
/// engine with none of them held, except to seal a buffer's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// No lock. A thread that may wait for a commit holds nothing above it.
    Nothing,
    /// Serializes checkpoints; held across their device I/O.
    Checkpointer,
    /// The journal's superblock; held while it is written.
    LogSuperblock,
    /// Content of a buffer being changed.
    Content,
    /// A buffer being read from the device; held across that read.
    Loading,
    /// One shard of the cache.
    CacheShard,
    /// States of the transactions and the space of the log.
    Table,
    /// Buffers of one transaction.
    Members,
    /// Blocks that wait for a checkpoint.
    Pending,
    /// Sections that take no other lock.
    Leaf,
}

impl lock::Rank for Rank {
    type Order = LockOrder;

    fn place(self) -> u16 {
        JOURNAL + self as u16
    }

    /// A block and its child may both be locked; the engine orders them.
    fn side_by_side(self) -> bool {
        self == Self::Content
    }
}

pub(crate) type Mutex<T> = lock::RankedMutex<Rank, T>;
pub(crate) type RwLock<T> = lock::RankedRwLock<Rank, T>;
pub(crate) type WriteGuard<'a, T> = lock::RankedWriteGuard<'a, Rank, T>;
pub(crate) type MutexGuard<'a, T> = lock::RankedMutexGuard<'a, Rank, T>;
