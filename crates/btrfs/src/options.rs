//! Options of a mount.

use std::time::Duration;

use sapwood_base::Memory;
use sapwood_vfs::Timestamp;

use crate::Compression;

/// The subvolume at the root of the mount.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SubvolumeChoice {
    /// The one that the file system names as its default.
    #[default]
    Default,
    /// The one with this id (`subvolid=`); 0 and 5 are the top level.
    Id(u64),
    /// The directory at this path from the top level (`subvol=`).
    Path(Vec<u8>),
}

/// Inodes get one of this many parts of the caches' memory. A changed inode stays in memory until
/// the commit, and the more inodes a commit writes, the fewer tree blocks it copies for each.
const INODE_PARTS: usize = 5;

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Changes nothing on disk.
    pub read_only: bool,
    /// Subvolume to mount.
    pub subvolume: SubvolumeChoice,
    /// Longest time from the first change of a transaction to its commit.
    pub commit_interval: Duration,
    /// Bytes of tree blocks kept in memory.
    pub cache_bytes: usize,
    /// Bytes of file data that may be dirty.
    pub dirty_bytes: usize,
    /// Time that a write of metadata waits for space on the host before the mount becomes
    /// read-only.
    pub patience: Duration,
    /// Bytes of inodes kept in memory.
    pub inode_bytes: usize,
    /// Compress new data.
    pub compress: Option<Compression>,
    /// Compress even data that does not look compressible.
    pub compress_force: bool,
    /// New files are overwritten in place, without checksums.
    pub nodatacow: bool,
    /// New files have no checksums.
    pub nodatasum: bool,
    /// Access times never change.
    pub noatime: bool,
    /// Discard freed space on the device.
    pub discard: bool,
    /// Largest chunk in bytes, so that little of the last one of each kind is unused.
    pub largest_chunk: Option<u64>,
    /// Largest file in bytes whose content is stored inline in the tree.
    pub max_inline: u32,
    /// Neither overwrites nor reuses any block or extent of the commit that the mount opened. The
    /// superblock of that commit leads to the same files until it is overwritten. For a
    /// [staged](crate::Staging) device.
    pub keep_opened: bool,
    /// Overwrites data in its place, as far as no other file or snapshot has it. Its checksums are
    /// stale until the next commit, so this is only for an image that is not used after a crash.
    pub in_place: bool,
    /// Devices may be missing, as far as the profiles allow.
    pub degraded: bool,
    /// Stale devices are accepted and written, for a scrub that makes them current.
    pub resync: bool,
    /// Mount without replaying the log; needs `read_only`.
    pub no_log_replay: bool,
    /// Threads for compression, checksums and writeback; 0: as many as there are processors.
    pub threads: usize,
    /// An fsync writes the log tree; else it commits the transaction (`notreelog`).
    pub tree_log: bool,
    /// All timestamps are this time, random numbers derive from the image, and the caller's thread
    /// does the work of the background threads. With the same memory bounds, the same operations of
    /// one thread on the same image give the same bytes.
    pub fixed_time: Option<Timestamp>,
    /// Run the commit and cleaner threads. Tests that step through a commit switch them off.
    pub background: bool,
}

impl Default for Options {
    /// Caches take a share of the memory that the process may have ([`Memory`]).
    fn default() -> Self {
        let memory = Memory::usual(INODE_PARTS);
        Self {
            read_only: false,
            subvolume: SubvolumeChoice::Default,
            commit_interval: Duration::from_secs(30),
            cache_bytes: memory.cache,
            dirty_bytes: memory.dirty,
            patience: sapwood_block::PATIENCE,
            inode_bytes: memory.inodes,
            compress: None,
            compress_force: false,
            nodatacow: false,
            nodatasum: false,
            noatime: false,
            discard: false,
            largest_chunk: None,
            max_inline: 2048,
            keep_opened: false,
            in_place: false,
            degraded: false,
            resync: false,
            no_log_replay: false,
            threads: 0,
            tree_log: true,
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
