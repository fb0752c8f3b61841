//! Calls of POSIX, for systems without a module of their own.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, XattrFlags};
use rustix::io::{Errno, Result};

/// The error number of a damaged file system: the one of Linux, which other systems do not use.
pub(crate) const CORRUPT: Errno = Errno::from_raw_os_error(117);
/// The error number of an image without a file system: the one of Linux, which other systems do not
/// use.
pub(crate) const NO_FILE_SYSTEM: Errno = Errno::from_raw_os_error(124);

/// The error number of a missing attribute.
#[cfg(target_os = "linux")]
pub(crate) const NO_ATTRIBUTE: Errno = Errno::NODATA;
/// The error number of a missing attribute: `ENOATTR`.
#[cfg(not(target_os = "linux"))]
pub(crate) const NO_ATTRIBUTE: Errno = Errno::from_raw_os_error(93);

/// A path that names an open file.
pub(crate) fn by_descriptor(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/dev/fd/{}", file.as_fd().as_raw_fd()))
}

/// Preloaded libraries are not asked.
pub(crate) fn shown_path(_: BorrowedFd<'_>, _: &OsStr) -> Option<PathBuf> {
    None
}

/// There are no files without a name.
pub(crate) fn unnamed(_: &Path) -> Option<File> {
    None
}

/// Fails: there are no files without a name.
pub(crate) fn link(_: &File, _: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Renames a file to a name that does not exist. If the process is killed meanwhile, the file may
/// have both names.
pub(crate) fn rename_new(from: impl rustix::path::Arg + Copy, to: &Path) -> Result<()> {
    match rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()) {
        Ok(()) => rustix::fs::unlink(from),
        // The file system has no hard links.
        Err(Errno::PERM | Errno::NOTSUP | Errno::NOSYS) => rustix::fs::rename(from, to),
        Err(error) => Err(error),
    }
}

/// Shares nothing.
pub(crate) fn share(_: &OwnedFd, _: BorrowedFd<'_>) -> bool {
    false
}

/// The kind of a node that is not a file, directory or link.
pub(crate) type Special = FileType;

/// Makes a device node, fifo or socket, on Linux. `rdev` is a device number as in an image.
#[cfg(target_os = "linux")]
pub(crate) fn make_special(
    dir: &OwnedFd,
    name: &OsStr,
    kind: Special,
    mode: Mode,
    rdev: u64,
) -> Result<()> {
    rustix::fs::mknodat(dir, name, kind, mode, rdev)
}

/// Fails.
#[cfg(not(target_os = "linux"))]
pub(crate) fn make_special(_: &OwnedFd, _: &OsStr, _: Special, _: Mode, _: u64) -> Result<()> {
    Err(Errno::NOTSUP)
}

/// A node of this machine for calls that need its descriptor.
pub(crate) struct Named<'n> {
    dir: BorrowedFd<'n>,
    name: &'n OsStr,
    opened: Option<&'n OwnedFd>,
}

impl<'n> Named<'n> {
    /// The node `name` in `dir`, which is open as `opened`.
    pub(crate) fn new(dir: BorrowedFd<'n>, name: &'n OsStr, opened: Option<&'n OwnedFd>) -> Self {
        Self { dir, name, opened }
    }

    /// Calls `work` with a descriptor of a file or directory. Other nodes have no attributes.
    fn with<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        if let Some(fd) = self.opened {
            return work(fd.as_fd());
        }
        let stat = rustix::fs::statat(self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Directory => {}
            _ => return Err(Errno::NOTSUP),
        }
        // Without blocking, in case a fifo took the place of a file meanwhile.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(self.dir, self.name, flags, Mode::empty()) {
            // The content cannot be read either, which is the error.
            Err(Errno::ACCESS) => Err(Errno::NOTSUP),
            opened => work(opened?.as_fd()),
        }
    }

    /// Writes the names of its extended attributes to `names`, each with a NUL. Returns the bytes.
    /// Only attributes of users have meaning in an image if the host is not Linux.
    pub(crate) fn list_xattrs(&self, names: &mut [u8]) -> Result<usize> {
        let len = self.with(|fd| rustix::fs::flistxattr(fd, &mut *names))?;
        let listed = names.get(..len).unwrap_or_default();
        let kept: Vec<u8> = listed
            .split_inclusive(|byte| *byte == 0)
            .filter(|name| is_kept(name))
            .flatten()
            .copied()
            .collect();
        if let Some(place) = names.get_mut(..kept.len()) {
            place.copy_from_slice(&kept);
        }
        Ok(kept.len())
    }

    /// Writes the value of an extended attribute to `value`. Returns its bytes.
    pub(crate) fn xattr(&self, name: &OsStr, value: &mut [u8]) -> Result<usize> {
        self.with(|fd| rustix::fs::fgetxattr(fd, name, value))
    }

    pub(crate) fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Result<()> {
        if !is_kept(name.as_bytes()) {
            return Err(Errno::NOTSUP);
        }
        self.with(|fd| rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()))
    }

    pub(crate) fn remove_xattr(&self, name: &OsStr) -> Result<()> {
        self.with(|fd| rustix::fs::fremovexattr(fd, name))
    }

    /// Sets the mode of a node that is not a symbolic link.
    pub(crate) fn set_mode(&self, mode: Mode) -> Result<()> {
        if let Some(fd) = self.opened {
            return rustix::fs::fchmod(fd, mode);
        }
        let flags = if cfg!(target_os = "linux") {
            // Linux has no such call that follows no link.
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        rustix::fs::chmodat(self.dir, self.name, mode, flags)
    }
}

/// Whether an attribute of a host's file has the same meaning in an image.
fn is_kept(name: &[u8]) -> bool {
    cfg!(target_os = "linux") || name.starts_with(b"user.")
}
