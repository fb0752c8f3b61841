//! System calls of Linux.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::{Errno, Result};

/// The error number of a damaged file system.
pub(crate) const CORRUPT: Errno = Errno::UCLEAN;
/// The error number of an image without a file system.
pub(crate) const NO_FILE_SYSTEM: Errno = Errno::MEDIUMTYPE;

/// The error number of a missing attribute.
pub(crate) const NO_ATTRIBUTE: Errno = Errno::NODATA;

/// The path below `/proc` that names an open file to system calls that take no descriptor.
pub(crate) fn by_descriptor(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// A path for `name` in a directory. Its last component is the name, before it is the descriptor
/// of the directory; an empty name is the directory.
fn by_path(dir: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
    // `CWD` is no descriptor.
    if dir.as_raw_fd() < 0 {
        return PathBuf::from(name);
    }
    let dir = by_descriptor(&dir);
    if name.is_empty() { dir } else { dir.join(name) }
}

/// A path that leads to a name in a directory, for functions of the C library that a preloaded
/// library replaces.
pub(crate) fn shown_path(dir: BorrowedFd<'_>, name: &OsStr) -> Option<PathBuf> {
    Some(by_path(dir, name))
}

/// A file without a name in a directory, if it can get one later.
pub(crate) fn unnamed(dir: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(dir, flags, Mode::from_raw_mode(0o666)).ok()?);
    let shown = std::fs::metadata(by_descriptor(&file)).ok()?;
    let found = file.metadata().ok()?;
    ((shown.dev(), shown.ino()) == (found.dev(), found.ino())).then_some(file)
}

/// Links a file without a name to a name that does not exist.
pub(crate) fn link(file: &File, path: &Path) -> io::Result<()> {
    let flags = AtFlags::SYMLINK_FOLLOW;
    Ok(rustix::fs::linkat(
        CWD,
        by_descriptor(file),
        CWD,
        path,
        flags,
    )?)
}

/// Renames a file to a name that does not exist.
pub(crate) fn rename_new(from: impl rustix::path::Arg + Copy, to: &Path) -> Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems support no flags.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(from, to),
        renamed => renamed,
    }
}

/// Makes a file share the extents of another. False if the file system cannot, or only within one
/// subvolume.
pub(crate) fn share(to: &OwnedFd, from: BorrowedFd<'_>) -> bool {
    rustix::fs::ioctl_ficlone(to, from).is_ok()
}

/// The kind of a node that is not a file, directory or link.
pub(crate) type Special = FileType;

/// Makes a device node, fifo or socket. `rdev` is a device number as in an image.
pub(crate) fn make_special(
    dir: &OwnedFd,
    name: &OsStr,
    kind: Special,
    mode: Mode,
    rdev: u64,
) -> Result<()> {
    rustix::fs::mknodat(dir, name, kind, mode, rdev)
}

/// A node of this machine for calls that need its descriptor, or a path if it is not open.
pub(crate) struct Named<'n> {
    dir: BorrowedFd<'n>,
    name: &'n OsStr,
    opened: Option<&'n OwnedFd>,
    /// Empty if it is open.
    path: PathBuf,
}

impl<'n> Named<'n> {
    /// The node `name` in `dir`, which is open as `opened`.
    pub(crate) fn new(dir: BorrowedFd<'n>, name: &'n OsStr, opened: Option<&'n OwnedFd>) -> Self {
        let path = opened.map_or_else(|| by_path(dir, name), |_| PathBuf::new());
        Self {
            dir,
            name,
            opened,
            path,
        }
    }

    /// Writes the names of its extended attributes to `names`, each with a NUL. Returns the bytes.
    pub(crate) fn list_xattrs(&self, names: &mut [u8]) -> Result<usize> {
        match self.opened {
            Some(fd) => rustix::fs::flistxattr(fd, names),
            None => rustix::fs::llistxattr(&self.path, names),
        }
    }

    /// Writes the value of an extended attribute to `value`. Returns its bytes.
    pub(crate) fn xattr(&self, name: &OsStr, value: &mut [u8]) -> Result<usize> {
        match self.opened {
            Some(fd) => rustix::fs::fgetxattr(fd, name, value),
            None => rustix::fs::lgetxattr(&self.path, name, value),
        }
    }

    pub(crate) fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Result<()> {
        match self.opened {
            Some(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            None => rustix::fs::lsetxattr(&self.path, name, value, XattrFlags::empty()),
        }
    }

    pub(crate) fn remove_xattr(&self, name: &OsStr) -> Result<()> {
        match self.opened {
            Some(fd) => rustix::fs::fremovexattr(fd, name),
            None => rustix::fs::lremovexattr(&self.path, name),
        }
    }

    /// Sets the mode of a node that is not a symbolic link.
    pub(crate) fn set_mode(&self, mode: Mode) -> Result<()> {
        if let Some(fd) = self.opened {
            return rustix::fs::fchmod(fd, mode);
        }
        // Of a special file a descriptor that opens nothing, and its path, which follows no link.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.dir, self.name, flags, Mode::empty())?;
        rustix::fs::chmod(by_descriptor(&fd), mode)
    }
}
