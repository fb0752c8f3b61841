//! System calls of this crate: opening and locking an image, requests to it, and the search for its
//! user.
//!
//! | | `linux` | `portable` |
//! |---|---|---|
//! | locks | `flock`, QEMU's locks, `O_EXCL`, the files below loop devices | the standard library's file locks |
//! | flush | `fdatasync` | `File::sync_data` (`F_FULLFSYNC` on macOS) |
//! | FUA write | `RWF_DSYNC` | a write and a flush |
//! | write-behind, read-ahead, direct I/O, discard | yes | none: the space of a discarded range is kept |
//! | holes of a file | `SEEK_DATA` | `SEEK_DATA` on Unix; elsewhere a file has none |
//! | block devices | yes | refused |
//! | user of an image, mount table | `/proc`, sysfs | unknown |
//!
//! `portable` is for every other system, and on Linux for `--cfg sapwood_portable`.

use std::fs::File;

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
mod linux;
#[cfg(all(target_os = "linux", not(sapwood_portable)))]
use linux as chosen;
#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
mod portable;
#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
use portable as chosen;

pub(crate) use chosen::{
    LocalStream, SHUT_DOWN, WRITES_THROUGH, adopt, begin_writeback, create, data_sync,
    discard_blocks, drop_cached, is_unsupported, make_writable, mount_table, next_data, next_hole,
    open, os_str, os_string, prepare_release, punch_hole, read_at, read_exact_at, release, unlock,
    will_read, write, write_all_at, writeback_failed,
};
pub use chosen::{mounted_elsewhere, open_for_writing};

/// Options for opening a [`FileDevice`](crate::FileDevice). The default is read-write, buffered and
/// locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Refuse writes; take only a shared lock (on a file).
    pub read_only: bool,
    /// Bypass the host's page cache (`O_DIRECT`), on Linux. The size is rounded down to the
    /// alignment: the last, partial block of an odd-sized file cannot be accessed.
    pub direct: bool,
    /// Take the lock. Without it an image in use can be read, at the caller's risk.
    pub lock: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            direct: false,
            lock: true,
        }
    }
}

impl OpenOptions {
    /// Read-only, buffered, locked against writers.
    #[must_use]
    pub fn read_only() -> Self {
        Self {
            read_only: true,
            ..Self::default()
        }
    }
}

/// The kind of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(all(target_os = "linux", not(sapwood_portable))),
    expect(dead_code, reason = "block devices are opened on Linux alone")
)]
pub(crate) enum Medium {
    /// A regular file.
    File,
    /// A block device and its logical block size in bytes.
    Block { logical: u64 },
}

/// An open and locked image.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    /// The file below a loop device, locked.
    pub(crate) backing: Option<File>,
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) medium: Medium,
    pub(crate) read_only: bool,
    /// Alignment of requests in bytes, if the file is open for direct I/O.
    pub(crate) align: Option<u64>,
}

fn not_an_image() -> std::io::Error {
    std::io::Error::new(
        std::io::ErrorKind::InvalidInput,
        if cfg!(all(target_os = "linux", not(sapwood_portable))) {
            "neither a regular file nor a block device"
        } else {
            "not a regular file"
        },
    )
}

/// A system call for durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Makes all writes durable.
    DataSync,
    /// A write.
    Write,
    /// A write that is durable on return.
    #[cfg_attr(
        not(all(target_os = "linux", not(sapwood_portable))),
        expect(dead_code, reason = "a call of Linux")
    )]
    WriteThrough,
    /// Starts writeback, without waiting.
    #[cfg_attr(
        not(all(target_os = "linux", not(sapwood_portable))),
        expect(dead_code, reason = "a call of Linux")
    )]
    BeginWriteback,
}

/// In the crate's tests each call is recorded in a list of its thread, because a test cannot
/// observe requests to the host otherwise.
#[cfg(test)]
pub(crate) mod calls {
    use std::cell::RefCell;

    use super::Call;

    thread_local! {
        static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn made(call: Call) {
        CALLS.with_borrow_mut(|calls| calls.push(call));
    }

    /// The calls of this thread since the last `take`.
    pub(crate) fn take() -> Vec<Call> {
        CALLS.take()
    }
}

#[cfg(not(test))]
mod calls {
    pub(super) fn made(_: super::Call) {}
}
