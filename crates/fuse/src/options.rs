//! Options of a mount.

use std::path::PathBuf;
use std::time::Duration;

use sapwood_vfs::{Access, Choice};

/// Largest read or write in bytes: the kernel's default limit.
pub(crate) const MAX_IO: u32 = 1 << 20;

/// Most request threads that are added on demand.
const MOST_THREADS: usize = 64;

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The users that may use the mount.
    pub access: Access,
    /// The kernel checks permissions, from modes and ACLs. If off, every user admitted by `access`
    /// may do everything, and creating and removing files is faster.
    pub default_permissions: bool,
    /// Refuse changes. Implied if the file system is read-only.
    pub read_only: bool,
    /// First column of the mount table: the image or device.
    pub fsname: String,
    /// Shown after `fuse.` as the type in the mount table.
    pub subtype: String,
    /// `fusermount3` stays, and unmounts if the daemon dies. Needs `fusermount3` even as root.
    pub auto_unmount: bool,
    /// Ignore set-id bits. An ordinary user's mount always does.
    pub nosuid: bool,
    /// Ignore device nodes. An ordinary user's mount always does.
    pub nodev: bool,
    /// Refuse to execute.
    pub noexec: bool,
    /// Never change access times.
    pub noatime: bool,
    /// Shown as `strictatime`; the daemon maintains access times. Only in root's mounts.
    pub strictatime: bool,
    /// Shown as `nodiratime`. Only in root's mounts.
    pub nodiratime: bool,
    /// Shown as `lazytime`. Only in root's mounts.
    pub lazytime: bool,
    /// Do not follow symbolic links. Only in root's mounts.
    pub nosymfollow: bool,
    /// Every write is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
    /// Number of request threads. `None`: a few, and more while requests wait for the device.
    pub threads: Option<usize>,
    /// Most bytes for the buffers of all request threads. Limits their number, unless `threads`
    /// sets it.
    pub buffer_bytes: Option<u64>,
    /// Whether requests come through io_uring (Linux 6.14 and newer, where
    /// `/sys/module/fuse/parameters/enable_uring` is on) or through `/dev/fuse`. `Auto` uses it
    /// where the kernel offers it. A caller that confines the process should replace `Auto` by
    /// `Off` ([`sandbox`](crate::sandbox)).
    pub io_uring: Choice,
    /// Whether a request thread polls for the next request of a lone client. `Auto`: if there are two
    /// CPUs or more.
    pub polling: Choice,
    /// Whether the mount is of type `fuseblk` (Linux 6.18 and newer): `sync` and `umount` wait
    /// until the daemon has made everything durable. Needs root, a loop device and
    /// [`anchor`](Self::anchor).
    pub fuseblk: Choice,
    /// The image file or block device, for a mount of type `fuseblk`.
    pub anchor: Option<PathBuf>,
    /// The kernel collects writes in its page cache and maintains file times: better for very many
    /// small writes. But it then sends a file's times in a separate request before each fsync and
    /// after each unlink, which the caller waits for.
    pub writeback_cache: bool,
    /// The daemon's answer to [`control::options`](crate::control::options).
    pub told: String,
    /// How long the kernel may cache names and attributes. The mount is the only writer, so a long
    /// time is right unless something else changes the same [`FileSystem`].
    ///
    /// [`FileSystem`]: sapwood_vfs::FileSystem
    pub ttl: Duration,
    /// How long [`Session::unmount`](crate::Session::unmount) waits for the last user after it
    /// detached a busy mount, before it ends the session.
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
            polling: Choice::Auto,
            fuseblk: Choice::Auto,
            anchor: None,
            writeback_cache: false,
            told: String::new(),
            ttl: Duration::from_secs(3600),
            busy_grace: Duration::from_secs(2),
        }
    }
}

/// Buffers of a thread that serves `/dev/fuse`: one for a request, one for its answer.
const BUFFERS: u64 = 2;

impl MountOptions {
    /// Number of threads for which memory suffices, with `each` largest buffers per thread.
    pub(crate) fn most_buffers(&self, each: u64) -> usize {
        let threads = |bytes: u64| bytes / (each * u64::from(MAX_IO));
        let most = self.buffer_bytes.map_or(u64::MAX, threads);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Number of request threads at the start, and the most that there may be.
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
