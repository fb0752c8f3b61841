//! One rank for every lock of the engine; see [`sapwood_base::lock`].
//!
//! # How it works
//! Within a rank, inodes are locked in the order of their ids. Tree blocks are locked by class of
//! tree, then top down. Blocks of one level have no order, because a thread that takes two of them
//! holds their parent exclusively.
//!
//! Starting a transaction handle may wait for a commit, which takes locks of every rank from
//! [`Rank::SuperblockOrder`] on: hold nothing above [`Rank::Inode`] then.

use sapwood_base::lock;

/// Order of all locks, the one taken first at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rank {
    /// Opening, remounting, closing.
    Mount,
    /// Renames of directories between parents.
    RenameTopology,
    /// Creation, deletion and flags of subvolumes.
    Subvolume,
    /// I/O lock of an inode; key: (root id, objectid).
    Inode,
    /// The order of superblocks: held from "commit doing" until the superblock is on disk.
    SuperblockOrder,
    /// Reuse of freed space: held while a thread compares bytes with the trees of the last commit.
    Reuse,
    /// Flushing one inode's data; key: (root id, objectid).
    FileDataFlush,
    /// Creating log trees.
    LogTrees,
    /// Logging one inode.
    InodeLog,
    /// Changing the checksum tree, or the checksums of a log tree.
    Checksums,
    /// Pointer to a tree's top block and the blocks below; key: ([`TreeClass`], depth).
    TreeBlock,
    /// Roots changed in the running transaction.
    DirtyRoots,
    /// Pending delayed refs.
    DelayedRefs,
    /// The table of inodes in memory.
    InodeTable,
    /// The list of files with data in memory.
    ActiveFiles,
    /// Dirty ranges, ordered extents and extent maps of one inode; key: (root id, objectid).
    FileDataState,
    /// Attributes of one inode; key: (root id, objectid).
    InodeState,
    /// Names of a directory that are not in its tree yet.
    DirNames,
    /// Remembered properties of one inode.
    InodeProperty,
    /// Sums and reservations of one kind of space.
    SpaceInfo,
    /// Free space of one block group; key: (logical address, 0).
    BlockGroup,
    /// The table of trees in memory.
    RootTable,
    /// Small fields of one tree: its root item and commit root.
    RootState,
    /// Writes to the devices: shared by writes, exclusive while bytes are copied from one place to
    /// another.
    DeviceWrites,
    /// Reads of the devices: shared by reads, exclusive to wait for them.
    DeviceReads,
    /// The chunk that moves.
    DeviceMove,
    /// The device that is replaced.
    DeviceReplacement,
    /// Logical to physical addresses.
    ChunkMap,
    /// A part of the tree-block cache.
    BlockCacheShard,
    /// Dirty blocks of a transaction.
    DirtyBlocks,
    /// The list of transactions that wait for one ordered extent.
    OrderedPins,
    /// State and counts of a transaction.
    TransactionState,
    /// Sections that take no other lock.
    Leaf,
}

impl lock::Rank for Rank {
    type Order = Self;

    fn place(self) -> u16 {
        self as u16
    }

    fn side_by_side(self) -> bool {
        self == Self::TreeBlock
    }
}

/// Kind of tree, in the order in which blocks of different trees may be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TreeClass {
    /// Log trees and their root.
    Log,
    /// Top-level tree and subvolumes.
    Subvolume,
    /// Quota, uuid and other small trees.
    Other,
    /// The tree of trees.
    Root,
    /// Data checksums.
    Csum,
    /// Extents.
    Extent,
    /// Block groups.
    BlockGroup,
    /// Free space.
    FreeSpace,
    /// Devices.
    Device,
    /// Chunks.
    Chunk,
    /// Any tree as of the last commit: its blocks never change, so readers come last.
    Committed,
}

pub(crate) use lock::assert_held_at_most;

/// Records that this thread takes a lock, until dropped.
pub(crate) type Held = lock::Held<Rank>;
/// A mutex with a rank; its data lives inside.
pub(crate) type RankedMutex<T> = lock::RankedMutex<Rank, T>;
/// A locked [`RankedMutex`].
pub(crate) type RankedMutexGuard<'a, T> = lock::RankedMutexGuard<'a, Rank, T>;
/// A reader-writer lock with a rank; its data lives inside.
pub(crate) type RankedRwLock<T> = lock::RankedRwLock<Rank, T>;
/// A [`RankedRwLock`] locked for reading.
pub(crate) type RankedReadGuard<'a, T> = lock::RankedReadGuard<'a, Rank, T>;

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "lock order")]
    fn the_ranks_are_an_order() {
        let leaf = RankedMutex::new(Rank::Leaf, ());
        let mount = RankedMutex::new(Rank::Mount, ());
        let _leaf = leaf.lock();
        let _mount = mount.lock();
    }

    #[test]
    fn blocks_of_one_level_may_stand_side_by_side() {
        let _parent = Held::new(Rank::TreeBlock, (1, 3));
        let _left = Held::new(Rank::TreeBlock, (1, 4));
        let _right = Held::new(Rank::TreeBlock, (1, 4));
    }
}
