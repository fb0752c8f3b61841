//! System calls of this crate that not every system has.
//!
//! | | `linux` | `portable` |
//! |---|---|---|
//! | a new file | has no name until it is complete (`O_TMPFILE`) | has a temporary name |
//! | a new file may not replace another | `renameat2` | a hard link, then the old name is removed |
//! | extended attributes of host files | yes, also of links and special files | on Linux and macOS, of files and directories, `user.` alone on macOS |
//! | device nodes, fifos | `mknodat` | on Linux; refused on macOS |
//! | shared extents of a copy | `FICLONE` | copied |
//! | receiving a stream into a directory | yes | refused |
//!
//! `portable` is for every other Unix, and on Linux for `--cfg sapwood_portable`.

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
mod linux;
#[cfg(all(target_os = "linux", not(sapwood_portable)))]
use linux as chosen;
#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
mod portable;
#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
use portable as chosen;

pub(crate) use chosen::{
    CORRUPT, NO_ATTRIBUTE, NO_FILE_SYSTEM, Named, Special, by_descriptor, link, make_special,
    rename_new, share, shown_path, unnamed,
};

use rustix::fs::{Mode, RawMode, Stat};

use crate::vfs::{Timestamp, device_number};

/// Permission bits of a mode.
pub(crate) fn mode(perm: u32) -> Mode {
    #[allow(clippy::unnecessary_cast, reason = "narrower on some systems")]
    Mode::from_raw_mode((perm & 0o7777) as RawMode)
}

/// A file's attributes, in the types that images have.
pub(crate) struct Found {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Device number of a device node, as in an image.
    pub(crate) rdev: u64,
    pub(crate) size: u64,
    /// Bytes that are stored.
    pub(crate) stored: u64,
    pub(crate) nlink: u64,
    pub(crate) id: (u64, u64),
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
}

impl Found {
    #[allow(
        clippy::unnecessary_cast,
        clippy::useless_conversion,
        reason = "the types differ between systems"
    )]
    pub(crate) fn of(stat: &Stat) -> Self {
        let time = |sec: i64, nsec: i64| Timestamp {
            sec,
            nsec: u32::try_from(nsec).unwrap_or(0),
        };
        let (major, minor) = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        Self {
            mode: stat.st_mode.into(),
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: device_number::make(major, minor),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            stored: blocks.saturating_mul(512),
            nlink: stat.st_nlink.into(),
            id: (stat.st_dev as u64, stat.st_ino),
            atime: time(stat.st_atime.into(), stat.st_atime_nsec as i64),
            mtime: time(stat.st_mtime.into(), stat.st_mtime_nsec as i64),
        }
    }
}
