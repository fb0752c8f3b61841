//! Bits of the protocol, by name.

use bitflags::bitflags;

bitflags! {
    /// What kernel and server can agree on in the handshake. The upper half crosses the
    /// wire as `flags2`, and only with [`INIT_EXT`](Self::INIT_EXT).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct InitFlags: u64 {
        /// Reads of one file may be under way together.
        const ASYNC_READ = 1;
        /// The server keeps POSIX locks.
        const POSIX_LOCKS = 1 << 1;
        /// `FUSE_OPEN` truncates. Never without opens: nothing would.
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
        /// Direct reads and writes of one file may be under way together.
        const ASYNC_DIO = 1 << 15;
        /// The kernel collects writes.
        const WRITEBACK_CACHE = 1 << 16;
        /// An open that is not known needs no answer.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and listings of one directory may be under way together.
        const PARALLEL_DIROPS = 1 << 18;
        /// ACLs, checked by the kernel.
        const POSIX_ACL = 1 << 20;
        /// `max_pages` counts.
        const MAX_PAGES = 1 << 22;
        /// The kernel keeps the targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        /// An opendir that is not known needs no answer.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// The kernel drops data only when told.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// The server clears set-id bits when told.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// `FUSE_SETXATTR` has the longer header.
        const SETXATTR_EXT = 1 << 29;
        /// There is an upper half.
        const INIT_EXT = 1 << 30;
        /// Files opened for direct I/O may be mapped.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests may go through io_uring.
        const OVER_IO_URING = 1 << 41;
        /// `sync(1)` and `syncfs(2)` reach the server (protocol 7.46; offered to root's alone).
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
        /// The caller has no right to keep set-id bits.
        const KILL_SUIDGID = 1 << 11;
    }
}

/// `write_flags`: written back from the page cache.
pub(crate) const WRITE_CACHE: u32 = 1;
/// `write_flags`: `lock_owner` is told, which is so of direct writes alone.
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `read_flags`: `lock_owner` is told, which is so of direct reads alone.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
/// `write_flags`: clear set-id bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fsync_flags`: data only.
pub(crate) const FSYNC_FDATASYNC: u32 = 1;
/// `setxattr_flags`: an ACL is set by a caller that has no right to keep the set-group-id bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// `open_flags`: what the kernel has cached of the file stays good.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
