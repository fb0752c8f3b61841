//! Metadata, and changing it.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::time::{Duration, SystemTime};

use sapwood::vfs::Timestamp;
use sapwood::{FileSystem, Metadata, Times};

use crate::call::{self, Failure, Result, done};
use crate::file_system::Fs;

/// Seconds and nanoseconds since 1970 in UTC.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        let Timestamp { sec, nsec } = time;
        Self { sec, nsec }
    }
}

impl Time {
    fn system(self) -> Result<SystemTime> {
        let wrong = || Failure::invalid(format!("time {}.{:09}", self.sec, self.nsec));
        if self.nsec >= 1_000_000_000 {
            return Err(wrong());
        }
        let seconds = Duration::from_secs(self.sec.unsigned_abs());
        let whole = if self.sec < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(seconds)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(seconds)
        };
        let nanos = Duration::from_nanos(self.nsec.into());
        whole
            .and_then(|whole| whole.checked_add(nanos))
            .ok_or_else(wrong)
    }
}

/// Metadata of a file. Sizes are bytes.
#[repr(C)]
#[derive(Debug)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Length.
    pub size: u64,
    /// Allocated space.
    pub allocated: u64,
    /// Device number of a device node; otherwise 0.
    pub rdev: u64,
    /// Type (`S_IFMT`) and permissions, as `st_mode` of stat(2).
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Zero; for later versions.
    pub reserved: [u64; 4],
}

impl Stat {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let attr = metadata.attr();
        Self {
            ino: metadata.ino(),
            size: metadata.len(),
            allocated: metadata.allocated(),
            rdev: metadata.rdev(),
            mode: attr.kind.mode_bits() | metadata.mode(),
            nlink: metadata.nlink(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            btime: attr.btime.into(),
            reserved: [0; 4],
        }
    }
}

/// Metadata of a file. Follows symbolic links.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_stat(
    fs: *const Fs,
    path: *const c_char,
    result: *mut Stat,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { stat(fs, path, result, |fs, path| fs.metadata(path)) }
}

/// Metadata of a file; of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_lstat(
    fs: *const Fs,
    path: *const c_char,
    result: *mut Stat,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { stat(fs, path, result, |fs, path| fs.symlink_metadata(path)) }
}

/// Gives the metadata that `find` finds.
///
/// # Safety
/// The promise of the crate.
unsafe fn stat(
    fs: *const Fs,
    path: *const c_char,
    result: *mut Stat,
    find: impl FnOnce(&FileSystem, &Path) -> sapwood::Result<Metadata>,
) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe {
        let result = call::place("result", result)?;
        let fs = call::handle("fs", fs)?.get();
        result.write(Stat::of(&find(fs, call::path("path", path)?)?));
        Ok(())
    })
}

/// Sets permission, set-id and sticky bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_chmod(fs: *const Fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        Ok(fs.set_permissions(call::path("path", path)?, mode)?)
    })
}

/// Sets owner and group, of a symbolic link itself. `UINT32_MAX` leaves one as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_chown(
    fs: *const Fs,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let named = |id| (id != u32::MAX).then_some(id);
        Ok(fs.set_owner(call::path("path", path)?, named(uid), named(gid))?)
    })
}

/// Sets the times of the last access and of the last change. `NULL` leaves one as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_set_times(
    fs: *const Fs,
    path: *const c_char,
    atime: *const Time,
    mtime: *const Time,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let mut times = Times::new();
        if let Some(time) = atime.as_ref() {
            times = times.accessed(time.system()?);
        }
        if let Some(time) = mtime.as_ref() {
            times = times.modified(time.system()?);
        }
        Ok(fs.set_times(call::path("path", path)?, times)?)
    })
}
