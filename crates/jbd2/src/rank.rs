//! Order of the locks of a journal and its cache.

use sapwood_base::lock;

/// The order of the locks of a journal and of the engine above it. The engine's ranks share it:
/// those of its locks that are held when it calls the journal have places below 1000, those
/// that are taken while a block's content is locked have places above the journal's.
#[derive(Debug)]
pub enum LockOrder {}

/// Place of the first of the journal's ranks.
const JOURNAL: u16 = 1000;

/// The lock taken first at the top. The journal calls the engine with none of them held, but for
/// sealing a buffer's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// No lock: a thread that may wait for a commit holds nothing above it.
    Nothing,
    /// One checkpoint at a time; held across its device I/O.
    Checkpointer,
    /// The journal's superblock; held while it is written.
    LogSuperblock,
    /// Content of a buffer being changed.
    Content,
    /// A buffer being read from the device; held across that read.
    Loading,
    /// A part of the cache.
    CacheShard,
    /// States of the transactions and the space of the log.
    Table,
    /// Buffers of one transaction.
    Members,
    /// What is in the log and not at home.
    Pending,
    /// Sections that take no other lock.
    Leaf,
}

impl lock::Rank for Rank {
    type Order = LockOrder;

    fn place(self) -> u16 {
        JOURNAL + self as u16
    }

    /// A block and its child may both be changed; the engine orders them.
    fn side_by_side(self) -> bool {
        self == Self::Content
    }
}

pub(crate) type Mutex<T> = lock::RankedMutex<Rank, T>;
pub(crate) type RwLock<T> = lock::RankedRwLock<Rank, T>;
pub(crate) type WriteGuard<'a, T> = lock::RankedWriteGuard<'a, Rank, T>;
pub(crate) type MutexGuard<'a, T> = lock::RankedMutexGuard<'a, Rank, T>;
