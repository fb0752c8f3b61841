//! Bits of the protocol, by name.

use bitflags::bitflags;

bitflags! {
    /// Features that the kernel and the server can agree on in the handshake. The upper half goes
    /// over the wire as `flags2`, and only with [`INIT_EXT`](Self::INIT_EXT).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct InitFlags: u64 {
        /// Several reads of one file may be in flight.
        const ASYNC_READ = 1;
        /// The server keeps POSIX locks.
        const POSIX_LOCKS = 1 << 1;
        /// `FUSE_OPEN` truncates. Must not be set when opens are not sent: nothing would truncate.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// `.` and `..` may be looked up, so that file handles work.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask (a directory's default ACL overrides it).
        const DONT_MASK = 1 << 6;
        /// The server keeps BSD locks.
        const FLOCK_LOCKS = 1 << 10;
        /// The kernel drops data when times change.
        const AUTO_INVAL_DATA = 1 << 12;
        /// `FUSE_READDIRPLUS`.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between the two kinds of page.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Several direct reads and writes of one file may be in flight.
        const ASYNC_DIO = 1 << 15;
        /// The kernel collects writes in its page cache.
        const WRITEBACK_CACHE = 1 << 16;
        /// The kernel stops sending opens after `ENOSYS`.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Several lookups and listings of one directory may be in flight.
        const PARALLEL_DIROPS = 1 << 18;
        /// ACLs, checked by the kernel.
        const POSIX_ACL = 1 << 20;
        /// `max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// The kernel caches the targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        /// The kernel stops sending opendirs after `ENOSYS`.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// The kernel drops cached data only on request.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// The server clears set-id bits on request.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// `FUSE_SETXATTR` has the longer header.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Files opened for direct I/O may be mapped.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests may go through io_uring.
        const OVER_IO_URING = 1 << 41;
        /// `sync(1)` and `syncfs(2)` reach the server (protocol 7.46; only in mounts of type
        /// `fuseblk`).
        const HAS_SYNCFS = 1 << 43;
    }

    /// `valid` of `FUSE_SETATTR`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct SetAttrValid: u32 {
        const MODE = 1;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const CTIME = 1 << 10;
        /// Clear set-id bits: the caller has no right to keep them.
        const KILL_SUIDGID = 1 << 11;
    }
}

/// `write_flags`: written back from the page cache.
pub(crate) const WRITE_CACHE: u32 = 1;
/// `write_flags`: `lock_owner` is valid, which only direct writes have.
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `read_flags`: `lock_owner` is valid, which only direct reads have.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
/// `write_flags`: clear set-id bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fsync_flags`: data only.
pub(crate) const FSYNC_FDATASYNC: u32 = 1;
/// `setxattr_flags`: the caller that sets an ACL has no right to keep the set-group-id bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// `open_flags`: the kernel may keep its cache of the file.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
