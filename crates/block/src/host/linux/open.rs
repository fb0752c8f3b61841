//! Opens a device, and locks it against other users of the image.
//!
//! | | lock | conflicts with |
//! |---|---|---|
//! | file, read-write | `flock` exclusive | every other locked open of it |
//! | file, read-only | `flock` shared | read-write opens |
//! | block device | `O_EXCL` | kernel mounts, swap, md, and every other locked open |
//!
//! Files and block devices also have QEMU's locks (`qemu_lock.rs`), so a read-write open conflicts
//! with every open by QEMU, and a read-only open with its opens for writing.
//!
//! A write-protected block device (`losetup -r`, `blockdev --setro`) is opened read-only, whatever
//! was requested, and [`Device::read_only`](crate::Device::read_only) returns true.
//!
//! An open of a loop device also locks the file below it. The kernel takes no `flock` on a file
//! that it mounts through a loop device, so a read-write open searches for loop devices in use
//! (`loop_device.rs`). All conflicts are [`Error::Busy`].
//!
//! A file's lock ends with its [`FileDevice`](crate::FileDevice), even if copies of the descriptor
//! exist: a process that another thread has just forked has one until it executes its program. A
//! block device stays claimed until that copy is closed (`claim.rs`).

use std::fs::File;
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::claim::open_exclusive;
use super::{calls, loop_device, qemu_lock, search};
use crate::host::{Medium, OpenOptions, Opened, not_an_image};
use crate::{Error, Result};

/// Alignment for direct I/O on a regular file; every host file system accepts it.
const FILE_ALIGN: u64 = 4096;

/// See [`FileDevice::open`](crate::FileDevice::open).
pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Opened> {
    let name = path.display().to_string();
    // Checked before the open, because opening a FIFO would wait for its other end.
    let stat = rustix::fs::stat(path).map_err(|e| Error::open(&name, e))?;
    let is_block = is_block_device(&stat, &name)?;
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    if options.direct {
        flags |= OFlags::DIRECT;
    }
    let opened = if is_block && options.lock {
        open_exclusive(path, flags)
    } else {
        retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
    };
    let file = match opened {
        Ok(fd) => File::from(fd),
        Err(Errno::BUSY) => return Err(busy(&name, &stat, None)),
        Err(e) => return Err(Error::open(&name, e)),
    };
    let backing = match (options.lock, is_block) {
        (false, _) => None,
        (true, false) => {
            lock_file(&file, &name, options.read_only)?;
            None
        }
        (true, true) => lock_block_device(&file, &name, options.read_only)?,
    };
    finish(file, backing, &name, options)
}

/// See [`FileDevice::create`](crate::FileDevice::create).
pub(crate) fn create(path: &Path, size: u64) -> Result<Opened> {
    let name = path.display().to_string();
    match rustix::fs::stat(path) {
        Err(Errno::NOENT) => {}
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
        Ok(_) => return Err(Error::open(&name, not_an_image())),
        Err(e) => return Err(Error::open(&name, e)),
    }
    let flags = OFlags::CLOEXEC | OFlags::RDWR | OFlags::CREATE;
    let fd = retry_on_intr(|| rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)))
        .map_err(|e| Error::open(&name, e))?;
    let file = File::from(fd);
    lock_file(&file, &name, false)?;
    file.set_len(0)
        .and_then(|()| file.set_len(size))
        .map_err(|e| Error::open(&name, e))?;
    finish(file, None, &name, OpenOptions::default())
}

/// Opens an image file or a block device for writing and takes no lock, for a device of another
/// process that becomes writable with it ([`Device::make_writable`](crate::Device::make_writable)).
///
/// # Errors
/// [`Error::Open`] if it may not be opened so; [`Error::ReadOnly`] for a write-protected device;
/// [`Error::Busy`] if a loop device over it is in use.
pub fn open_for_writing(path: &Path) -> Result<File> {
    let name = path.display().to_string();
    let failed = |e: Errno| Error::open(&name, e);
    let stat = rustix::fs::stat(path).map_err(failed)?;
    let is_block = is_block_device(&stat, &name)?;
    let flags = OFlags::CLOEXEC | OFlags::RDWR;
    let opened = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
    let file = File::from(opened.map_err(failed)?);
    check_other_ways(&stat, None, &name, false)?;
    if is_block {
        if calls::is_write_protected(&file).map_err(failed)? {
            return Err(Error::ReadOnly { device: name });
        }
        if let Some((backing, _)) = loop_device::backing_file(&file, &stat) {
            let backing = rustix::fs::fstat(&backing).map_err(failed)?;
            let number = rustix::fs::minor(stat.st_rdev);
            check_other_ways(&backing, Some(number), &name, false)?;
        }
    }
    Ok(file)
}

/// Takes over a descriptor that another process opened with
/// [`open_to_pass`](crate::open_to_pass).
pub(crate) fn adopt(file: File, name: &str) -> Result<Opened> {
    let mode = rustix::fs::fcntl_getfl(&file).map_err(|e| Error::open(name, e))?;
    if mode & OFlags::ACCMODE != OFlags::RDWR {
        let device = name.to_owned();
        return Err(Error::ReadOnly { device });
    }
    finish(file, None, name, OpenOptions::default())
}

/// Makes the image `name`, which is open read-only as `file`, writable with `new`. `backing` is the
/// locked file below a loop device. Returns the descriptor of the replaced open, which has the
/// lock. See [`Device::make_writable`](crate::Device::make_writable).
///
/// # Errors
/// [`Error::ReadOnly`] if `new` is another file, or is not open for reading and writing;
/// [`Error::Busy`].
pub(crate) fn make_writable(
    file: &File,
    backing: Option<&File>,
    name: &str,
    new: &File,
) -> Result<File> {
    let failed = |e: Errno| Error::open(name, e);
    let old = rustix::fs::fstat(file).map_err(failed)?;
    let stat = rustix::fs::fstat(new).map_err(failed)?;
    let is_block = FileType::from_raw_mode(old.st_mode) == FileType::BlockDevice;
    let same = if is_block {
        old.st_rdev == stat.st_rdev && old.st_mode == stat.st_mode
    } else {
        (old.st_dev, old.st_ino) == (stat.st_dev, stat.st_ino)
    };
    let mode = rustix::fs::fcntl_getfl(new).map_err(failed)? & OFlags::ACCMODE;
    if !same || mode != OFlags::RDWR {
        return Err(Error::ReadOnly {
            device: name.to_owned(),
        });
    }
    let replaced = file.try_clone().map_err(|e| Error::open(name, e))?;
    let lock = if is_block { backing } else { Some(&replaced) };
    let take = |read_only| -> Result<bool> {
        let free = lock.map_or(Ok(true), |lock| take_locks(lock, name, read_only))?;
        Ok(free && (!is_block || qemu_lock::lock(&replaced, read_only)))
    };
    if !take(false)? {
        let busy = busy(name, &stat, None);
        // A failed attempt may release locks that the file had.
        take(true)?;
        return Err(busy);
    }
    calls::replace(file, new).map_err(failed)?;
    Ok(replaced)
}

/// Whether an image is a block device, and not a file.
///
/// # Errors
/// [`Error::Open`] if it is neither.
fn is_block_device(stat: &Stat, name: &str) -> Result<bool> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => Ok(true),
        FileType::RegularFile => Ok(false),
        _ => Err(Error::open(name, not_an_image())),
    }
}

/// An [`Error::Busy`] for the file or block device of `stat`, which is in use, through `other` if
/// that is given. Searches for the user.
fn busy(device: &str, stat: &Stat, other: Option<&Path>) -> Error {
    Error::busy(device, other, search::holder_of(stat))
}

/// Locks an open regular file. Fails if it is in use.
fn lock_file(file: &File, name: &str, read_only: bool) -> Result<()> {
    let stat = rustix::fs::fstat(file).map_err(|e| Error::open(name, e))?;
    check_other_ways(&stat, None, name, read_only)?;
    if take_locks(file, name, read_only)? {
        return Ok(());
    }
    Err(busy(name, &stat, None))
}

/// Locks an open block device, which is claimed already, against QEMU. Also locks the file below a
/// loop device, because other programs that open that file do not know of the loop device, and
/// returns it.
fn lock_block_device(device: &File, name: &str, read_only: bool) -> Result<Option<File>> {
    let stat = rustix::fs::fstat(device).map_err(|e| Error::open(name, e))?;
    check_other_ways(&stat, None, name, read_only)?;
    let backing = match loop_device::backing_file(device, &stat) {
        Some((file, path)) => {
            let number = rustix::fs::minor(stat.st_rdev);
            lock_below(file, &path, number, name, read_only)?
        }
        None => None,
    };
    if qemu_lock::lock(device, read_only) {
        return Ok(backing);
    }
    if let Some(file) = &backing {
        unlock(file);
    }
    Err(busy(name, &stat, None))
}

/// Locks the file at `path` below loop device `number`. `None` for a block device, which takes no
/// lock.
fn lock_below(
    file: File,
    path: &Path,
    number: u32,
    name: &str,
    read_only: bool,
) -> Result<Option<File>> {
    let stat = rustix::fs::fstat(&file).map_err(|e| Error::open(name, e))?;
    check_other_ways(&stat, Some(number), name, read_only)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    if take_locks(&file, name, read_only)? {
        return Ok(Some(file));
    }
    Err(busy(name, &stat, Some(path)))
}

/// Fails if a loop device over the file or block device of `stat` is in use by a writer. Called
/// without locks: the search for the image's user also finds locks of this process.
fn check_other_ways(stat: &Stat, except: Option<u32>, name: &str, read_only: bool) -> Result<()> {
    if read_only {
        return Ok(());
    }
    let Some(device) = loop_device::user_of(stat, except) else {
        return Ok(());
    };
    let stat = rustix::fs::stat(&device).unwrap_or(*stat);
    Err(busy(name, &stat, Some(&device)))
}

/// Takes the locks of an open regular file. Returns false, without locks, if it is in use.
fn take_locks(file: &File, name: &str, read_only: bool) -> Result<bool> {
    if !flock(file, name, read_only)? {
        return Ok(false);
    }
    let free = qemu_lock::lock(file, read_only);
    if !free {
        unlock(file);
    }
    Ok(free)
}

/// Takes the lock. Returns false if it is held elsewhere.
fn flock(file: &File, name: &str, read_only: bool) -> Result<bool> {
    let how = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match retry_on_intr(|| rustix::fs::flock(file, how)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(Error::open(name, e)),
    }
}

/// Releases the locks of a file, also for copies of the descriptor. Without locks nothing happens.
pub(crate) fn unlock(file: &File) {
    qemu_lock::unlock(file);
    // Closing the last descriptor unlocks in any case.
    let _ = retry_on_intr(|| rustix::fs::flock(file, FlockOperation::Unlock));
}

/// Reads kind and size from the descriptor.
fn finish(file: File, backing: Option<File>, name: &str, options: OpenOptions) -> Result<Opened> {
    let stat = rustix::fs::fstat(&file).map_err(|e| Error::open(name, e))?;
    let mut read_only = options.read_only;
    let (medium, mut size) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => (Medium::File, u64::try_from(stat.st_size).unwrap_or(0)),
        FileType::BlockDevice => {
            let size = calls::device_size(&file).map_err(|e| Error::open(name, e))?;
            let logical = rustix::fs::ioctl_blksszget(&file).map_err(|e| Error::open(name, e))?;
            let logical = u64::from(logical).max(512);
            let protected = calls::is_write_protected(&file).map_err(|e| Error::open(name, e))?;
            read_only |= protected;
            (Medium::Block { logical }, size)
        }
        _ => return Err(Error::open(name, not_an_image())),
    };
    let align = options.direct.then_some(match medium {
        Medium::File => FILE_ALIGN,
        Medium::Block { logical } => logical,
    });
    if let Some(align) = align {
        size = size / align * align;
    }
    Ok(Opened {
        file,
        backing,
        size,
        medium,
        read_only,
        align,
    })
}
