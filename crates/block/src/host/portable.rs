//! The standard library's calls, for systems without a module of their own. Positions of holes are
//! from POSIX.
//!
//! Locks are the standard library's: `flock` on Unix, so a build for Linux with this module
//! excludes the others.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;

use super::{Call, Medium, OpenOptions, Opened, calls, not_an_image};
use crate::holder::{Holder, MountElsewhere, MountEntry};
use crate::{Error, Result};

#[cfg(unix)]
mod unix;
#[cfg(unix)]
use unix as positions;
#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as positions;

pub(crate) use positions::{
    LocalStream, SHUT_DOWN, next_data, next_hole, os_str, os_string, read_exact_at, write_all_at,
};

/// A write cannot be durable on return.
pub(crate) const WRITES_THROUGH: bool = false;

/// See [`FileDevice::open`](crate::FileDevice::open).
pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Opened> {
    let name = path.display().to_string();
    let failed = |e: io::Error| Error::open(&name, e);
    if options.direct {
        let text = "direct I/O is for Linux alone";
        return Err(failed(io::Error::new(ErrorKind::Unsupported, text)));
    }
    // Checked before the open, because opening a FIFO would wait for its other end.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(failed(not_an_image()));
    }
    let how = File::options()
        .read(true)
        .write(!options.read_only)
        .open(path);
    let file = how.map_err(failed)?;
    if options.lock {
        lock(&file, &name, options.read_only)?;
    }
    finish(file, &name, options.read_only)
}

/// See [`FileDevice::create`](crate::FileDevice::create).
pub(crate) fn create(path: &Path, size: u64) -> Result<Opened> {
    let name = path.display().to_string();
    let failed = |e: io::Error| Error::open(&name, e);
    match path.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(failed(not_an_image())),
        Err(error) => return Err(failed(error)),
    }
    let how = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let file = how.map_err(failed)?;
    lock(&file, &name, false)?;
    file.set_len(0)
        .and_then(|()| file.set_len(size))
        .map_err(failed)?;
    finish(file, &name, false)
}

/// Opens an image file for writing, and takes no lock.
///
/// # Errors
/// [`Error::Open`] if it may not be opened so.
pub fn open_for_writing(path: &Path) -> Result<File> {
    let name = path.display().to_string();
    let failed = |e: io::Error| Error::open(&name, e);
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(failed(not_an_image()));
    }
    let how = File::options().read(true).write(true).open(path);
    how.map_err(failed)
}

/// Takes over a descriptor that another process opened.
pub(crate) fn adopt(file: File, name: &str) -> Result<Opened> {
    finish(file, name, false)
}

/// An open image stays read-only: only mounts change it.
pub(crate) fn make_writable(_: &File, _: Option<&File>, name: &str, _: &File) -> Result<File> {
    Err(Error::ReadOnly {
        device: name.to_owned(),
    })
}

fn lock(file: &File, name: &str, read_only: bool) -> Result<()> {
    let locked = if read_only {
        file.try_lock_shared()
    } else {
        file.try_lock()
    };
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::busy(name, None, Holder::Unknown)),
        Err(TryLockError::Error(error)) => Err(Error::open(name, error)),
    }
}

/// Releases the lock of a file, also for copies of the descriptor.
pub(crate) fn unlock(file: &File) {
    // Closing the last descriptor unlocks in any case.
    let _ = file.unlock();
}

fn finish(file: File, name: &str, read_only: bool) -> Result<Opened> {
    let found = file.metadata().map_err(|e| Error::open(name, e))?;
    if !found.is_file() {
        return Err(Error::open(name, not_an_image()));
    }
    Ok(Opened {
        file,
        backing: None,
        size: found.len(),
        medium: Medium::File,
        read_only,
        align: None,
    })
}

/// Reads at `offset`. Returns the number of bytes; 0 at the end of the file.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    retry(|| positions::read_at(file, buf, offset))
}

/// Writes the first of `slices` that is not empty at `at`. Returns the number of bytes.
pub(crate) fn write(
    file: &File,
    slices: &[IoSlice<'_>],
    at: u64,
    _through: bool,
) -> io::Result<usize> {
    let Some(first) = slices.iter().find(|slice| !slice.is_empty()) else {
        return Ok(0);
    };
    calls::made(Call::Write);
    retry(|| positions::write_at(file, first, at))
}

/// Makes all writes to `file` durable.
pub(crate) fn data_sync(file: &File) -> io::Result<()> {
    calls::made(Call::DataSync);
    retry(|| file.sync_data())
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Whether the host has no such operation.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == ErrorKind::Unsupported
}

/// Reads nothing ahead.
pub(crate) fn will_read(_: &File, _: u64, _: u64) {}

/// Drops nothing: only Linux has the call.
pub(crate) fn drop_cached(_: &File, _: u64, _: u64) {}

/// Starts nothing: the flush writes.
#[allow(clippy::unnecessary_wraps, reason = "the same on every system")]
pub(crate) fn begin_writeback(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// No write-behind fails.
pub(crate) fn writeback_failed(_: &io::Error) -> Option<i32> {
    None
}

/// Makes no holes.
pub(crate) fn punch_hole(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Discards nothing.
pub(crate) fn discard_blocks(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Nothing to prepare.
pub(crate) fn prepare_release() {}

/// Ends the lock of `file`. The descriptor stays open.
#[allow(clippy::unnecessary_wraps, reason = "the same on every system")]
pub(crate) fn release(file: &File) -> io::Result<()> {
    unlock(file);
    Ok(())
}

/// There is no table.
pub(crate) fn mount_table() -> io::Result<Vec<MountEntry>> {
    Err(ErrorKind::Unsupported.into())
}

/// There are no mount namespaces.
#[must_use]
pub fn mounted_elsewhere(_: &MountEntry) -> Vec<MountElsewhere> {
    Vec::new()
}
