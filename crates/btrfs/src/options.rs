//! How a file system is mounted.

use std::time::Duration;

use sapwood_base::Memory;

use crate::Compression;

/// Which subvolume is the root of the mount.
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

/// Which mechanisms of the log are in use. Each can be switched to what file systems did before
/// it was invented, so that its worth can be measured; users have no reason to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPolicy {
    /// Log at all; else every `fsync` commits the transaction.
    pub enabled: bool,
    /// Log while the transaction before is still being written, and wait for it only before the
    /// superblock; else wait before anything is logged.
    pub overlap: bool,
    /// Wait for the I/O of the data only; else until the trees have it.
    pub fast_wait: bool,
    /// Log attributes again only if one changed; else always.
    pub xattrs_when_changed: bool,
    /// A rename or unlink touches single names in the log; else the directory's changes are
    /// all logged again.
    pub single_names: bool,
    /// Which names that went away an fsync brings up to date. Needs `single_names`, without which it is all.
    pub groups: Groups,
}

/// When an fsync brings only those names up to date that belong together with what it logs, and
/// not all of the subvolume, for which it needs the locks of all clients' inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Groups {
    /// Never: as in the kernel any fsync makes renames of others durable.
    Never,
    /// While other fsyncs are under way.
    #[default]
    WhenBusy,
    /// Always.
    Always,
}

impl Default for LogPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            overlap: true,
            fast_wait: true,
            xattrs_when_changed: true,
            single_names: true,
            groups: Groups::default(),
        }
    }
}

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Changes nothing on disk.
    pub read_only: bool,
    /// What to mount.
    pub subvolume: SubvolumeChoice,
    /// Longest time from the first change of a transaction to its commit.
    pub commit_interval: Duration,
    /// Bytes of tree blocks kept in memory.
    pub cache_bytes: usize,
    /// Bytes of file data that may be dirty.
    pub dirty_bytes: usize,
    /// How long a write of metadata waits for space on the host before the mount becomes read-only.
    pub patience: Duration,
    /// Bytes of inodes kept in memory.
    pub inode_bytes: usize,
    /// Compress new data.
    pub compress: Option<Compression>,
    /// Compress even what does not look compressible.
    pub compress_force: bool,
    /// New files are overwritten in place, without checksums.
    pub nodatacow: bool,
    /// New files have no checksums.
    pub nodatasum: bool,
    /// Access times never change.
    pub noatime: bool,
    /// Tell the device what was freed.
    pub discard: bool,
    /// Largest file in bytes whose content stands in the tree.
    pub max_inline: u32,
    /// Mount without replaying the log; needs `read_only`.
    pub no_log_replay: bool,
    /// Threads for compression, checksums and writeback; 0: as many as there are processors.
    pub threads: usize,
    /// Mechanisms of the log.
    pub log: LogPolicy,
    /// Run the commit and cleaner threads. Tests that step through a commit switch them off.
    pub background: bool,
}

impl Default for Options {
    /// Caches take a share of the memory that the process may have ([`Memory`]).
    fn default() -> Self {
        let memory = Memory::default();
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
            max_inline: 2048,
            no_log_replay: false,
            threads: 0,
            log: LogPolicy::default(),
            background: true,
        }
    }
}
