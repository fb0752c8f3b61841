//! Options of a mount.

use std::time::Duration;

use sapwood_base::Memory;
use sapwood_ext4_format::QuotaKind;
use sapwood_vfs::Timestamp;

use crate::clock::SharedClock;
use crate::journal_device::JournalDevice;

/// The promise about the data of files (`data=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataMode {
    /// Blocks that a journaled change makes part of a file were written before it commits.
    #[default]
    Ordered,
    /// Like [`Ordered`](Self::Ordered) here: data is always written before its extent, so that
    /// leaving the order out would gain nothing.
    Writeback,
    /// Data goes through the journal like metadata.
    Journal,
}

/// The contents of a fast commit, which replaces a commit of the whole transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FastCommits {
    /// Nothing.
    Off,
    /// Only records that every reader replays correctly: this engine, the kernel, and `e2fsck`
    /// 1.47, which usually runs first at boot.
    #[default]
    Careful,
    /// Also the loss of an inode's last name, and of all blocks of a file. `e2fsck` 1.47 keeps such
    /// an inode, without a name, and may damage such a file.
    Full,
}

/// Inodes get one of this many parts of the caches' memory. A change of an inode is stored in its
/// table block, which counts as metadata, so the inode may be evicted at once.
const INODE_PARTS: usize = 17;

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Changes nothing on disk.
    pub read_only: bool,
    /// Do not recover the journal; needs `read_only` (`noload`).
    pub no_load: bool,
    /// The promise about data.
    pub data: DataMode,
    /// Longest time from the first change of a transaction to its commit.
    pub commit_interval: Duration,
    /// Bytes of metadata blocks kept in memory.
    pub cache_bytes: usize,
    /// Bytes of file data that may be dirty.
    pub dirty_bytes: usize,
    /// Time that a write of metadata waits for space on the host before the mount becomes
    /// read-only.
    pub patience: Duration,
    /// Bytes of inodes kept in memory.
    pub inode_bytes: usize,
    /// Access times never change.
    pub noatime: bool,
    /// `statfs` counts the blocks of metadata as part of the size (`minixdf`).
    pub minix_df: bool,
    /// Discard freed space on the device.
    pub discard: bool,
    /// Inodes are taken in the order of their numbers, so that the file system can shrink later.
    pub dense: bool,
    /// Threads for writeback; 0: as many as there are processors.
    pub threads: usize,
    /// Writes every change to its home location, past the journal. Only for a
    /// [staged](crate::Staging) device, and for an image that is not used after a crash.
    pub in_place: bool,
    /// The journal, if it is on another device.
    pub journal: Option<JournalDevice>,
    /// Enforce the limits of quotas, if the image keeps quotas.
    pub quota_limits: bool,
    /// Kinds of quotas that the image must keep.
    pub quotas: Vec<QuotaKind>,
    /// Does not take the multiple mount protection: the caller has it, or the device is in memory.
    pub unprotected: bool,
    /// Clock of the multiple mount protection.
    pub clock: SharedClock,
    /// Kind of fast commits, if the image has that feature.
    pub fast_commit: FastCommits,
    /// All timestamps are this time, random numbers derive from the image, and the caller's thread
    /// does the work of the background threads. With the same memory bounds, the same operations of
    /// one thread on the same image give the same bytes.
    pub fixed_time: Option<Timestamp>,
    /// Run the threads that commit and write back by time. Tests that step through a commit switch
    /// them off.
    pub background: bool,
}

impl Default for Options {
    /// Caches take a share of the memory that the process may have ([`Memory`]).
    fn default() -> Self {
        let memory = Memory::usual(INODE_PARTS);
        Self {
            read_only: false,
            no_load: false,
            data: DataMode::Ordered,
            commit_interval: Duration::from_secs(5),
            cache_bytes: memory.cache,
            dirty_bytes: memory.dirty,
            patience: sapwood_block::PATIENCE,
            inode_bytes: memory.inodes,
            noatime: false,
            minix_df: false,
            discard: false,
            dense: false,
            threads: 0,
            in_place: false,
            journal: None,
            quota_limits: true,
            quotas: Vec::new(),
            unprotected: false,
            clock: SharedClock::default(),
            fast_commit: FastCommits::default(),
            fixed_time: None,
            background: true,
        }
    }
}

impl Options {
    /// The same operations of one thread on the same image give the same bytes. Memory has a fixed
    /// bound.
    pub fn set_reproducible(&mut self, time: Timestamp) {
        self.fixed_time = Some(time);
        self.set_memory(Memory::REPRODUCIBLE);
    }

    /// Divides `total` bytes among all caches.
    pub fn set_memory(&mut self, total: u64) {
        let memory = Memory::of(total, INODE_PARTS);
        self.cache_bytes = memory.cache;
        self.dirty_bytes = memory.dirty;
        self.inode_bytes = memory.inodes;
    }
}
