//! What can be chosen when mounting.

use std::path::PathBuf;
use std::time::Duration;

use sapwood_vfs::{Access, Choice};

/// Largest read or write in bytes: what the kernel allows by default.
pub(crate) const MAX_IO: u32 = 1 << 20;

/// Bound on request threads that are added as needed.
const MOST_THREADS: usize = 64;

/// What can be chosen when mounting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The users that may use the mount.
    pub access: Access,
    /// The kernel checks permissions, from modes and ACLs. Without, everything is allowed to those
    /// whom `access` lets in, and creating and removing files is faster.
    pub default_permissions: bool,
    /// Refuse changes. Also in force if the file system is read-only.
    pub read_only: bool,
    /// First column of the mount table: the image or device.
    pub fsname: String,
    /// Shown after `fuse.` as the type in the mount table.
    pub subtype: String,
    /// `fusermount3` stays and unmounts should we die. Needs `fusermount3` even as root.
    pub auto_unmount: bool,
    /// Ignore set-id bits. An ordinary user's mount always does.
    pub nosuid: bool,
    /// Ignore device nodes. An ordinary user's mount always does.
    pub nodev: bool,
    /// Refuse to execute.
    pub noexec: bool,
    /// Never change access times.
    pub noatime: bool,
    /// Shown as `strictatime`; access times are the daemon's. Only root's mounts.
    pub strictatime: bool,
    /// Shown as `nodiratime`. Only root's mounts.
    pub nodiratime: bool,
    /// Shown as `lazytime`. Only root's mounts.
    pub lazytime: bool,
    /// Follow no symbolic links. Only root's mounts.
    pub nosymfollow: bool,
    /// Every write is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
    /// Request threads; `None`: a few, and more while requests wait for the device.
    pub threads: Option<usize>,
    /// Bytes that the buffers of all request threads may take: bounds their number, unless that is
    /// chosen.
    pub buffer_bytes: Option<u64>,
    /// Whether requests come through io_uring (Linux 6.14 and newer, where
    /// `/sys/module/fuse/parameters/enable_uring` is on) or through `/dev/fuse`.
    pub io_uring: Choice,
    /// Whether the mount is of type `fuseblk` (Linux 6.18 and newer), whose `sync` and `umount` wait
    /// until the daemon has made everything durable. Needs root, a loop device and
    /// [`anchor`](Self::anchor).
    pub fuseblk: Choice,
    /// The image file or block device, for a mount of type `fuseblk`.
    pub anchor: Option<PathBuf>,
    /// The kernel collects writes in its page cache and keeps the times of files: better for very many
    /// small writes. But it then tells a file's times in a request of its own before each fsync and after each
    /// unlink, and makes its caller wait for it.
    pub writeback_cache: bool,
    /// How long the kernel may keep names and attributes. We are the only writer, so a
    /// long time is right unless something else changes the same [`FileSystem`].
    ///
    /// [`FileSystem`]: sapwood_vfs::FileSystem
    pub ttl: Duration,
    /// How long [`Session::unmount`](crate::Session::unmount) waits, after it detached a
    /// busy mount, for the last user to let go before it ends the session under them.
    pub busy_grace: Duration,
}

impl Default for MountOptions {
    fn default() -> Self {
        let root = rustix::process::geteuid().is_root();
        Self {
            access: Access::Owner,
            default_permissions: true,
            read_only: false,
            fsname: "sapwood".to_owned(),
            subtype: "sapwood".to_owned(),
            auto_unmount: false,
            nosuid: !root,
            nodev: !root,
            noexec: false,
            noatime: false,
            strictatime: false,
            nodiratime: false,
            lazytime: false,
            nosymfollow: false,
            sync: false,
            dirsync: false,
            threads: None,
            buffer_bytes: None,
            io_uring: Choice::Auto,
            fuseblk: Choice::Auto,
            anchor: None,
            writeback_cache: false,
            ttl: Duration::from_secs(3600),
            busy_grace: Duration::from_secs(2),
        }
    }
}

/// Buffers of a thread that serves `/dev/fuse`: a request and its answer.
const BUFFERS: u64 = 2;

impl MountOptions {
    /// Threads with so many of the largest buffers each that memory is for.
    pub(crate) fn most_buffers(&self, each: u64) -> usize {
        let threads = |bytes: u64| bytes / (each * u64::from(MAX_IO));
        let most = self.buffer_bytes.map_or(u64::MAX, threads);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Number of request threads to start with, and the most that there may be.
    #[must_use]
    pub(crate) fn thread_count(&self) -> (usize, usize) {
        match self.threads {
            Some(threads) => {
                let fixed = threads.clamp(1, 256);
                (fixed, fixed)
            }
            None => {
                let cores = std::thread::available_parallelism().map_or(2, usize::from);
                let first = cores.clamp(2, 16);
                (first, self.most_buffers(BUFFERS).clamp(first, MOST_THREADS))
            }
        }
    }
}
