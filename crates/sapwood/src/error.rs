//! The error of the library.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::{host, vfs};

/// Why an operation failed.
///
/// Its text names what was done, the path, and the cause. [`source`](std::error::Error::source)
/// leads to the engine's own error, which names the block, key or inode.
pub struct Error(Box<dyn Cause>);

/// Result of an operation of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`]. Kinds that [`io::ErrorKind`] has too have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file or an image does not exist.
    NotFound,
    /// A file or an image exists already.
    AlreadyExists,
    /// A component of a path is not a directory.
    NotADirectory,
    /// The operation is not for directories.
    IsADirectory,
    /// The directory has entries.
    DirectoryNotEmpty,
    /// A name is too long.
    InvalidFilename,
    /// A path leads through too many symbolic links.
    SymlinkLoop,
    /// A link or rename crosses a subvolume.
    CrossesDevices,
    /// An inode cannot have more links.
    TooManyLinks,
    /// A file would become too large.
    FileTooLarge,
    /// The file has no extended attribute of this name.
    NoAttribute,
    /// This process, or the flags of a file, do not permit it.
    PermissionDenied,
    /// The image is open for reading only.
    ReadOnlyFilesystem,
    /// The file system or the host is full.
    StorageFull,
    /// A quota of the host is exceeded.
    QuotaExceeded,
    /// The image is in use.
    ResourceBusy,
    /// The image has no file system that Sapwood knows.
    NoFileSystem,
    /// The file system is damaged.
    Corrupt,
    /// Sapwood or the format does not have this feature.
    Unsupported,
    /// An argument or option makes no sense.
    InvalidInput,
    /// An archive, a list or a text is malformed.
    InvalidData,
    /// The caller stopped the operation.
    Interrupted,
    /// A device failed, or anything else.
    Io,
}

/// Each kind with its error number.
const NUMBERS: [(ErrorKind, Errno); 23] = [
    (ErrorKind::NotFound, Errno::NOENT),
    (ErrorKind::AlreadyExists, Errno::EXIST),
    (ErrorKind::NotADirectory, Errno::NOTDIR),
    (ErrorKind::IsADirectory, Errno::ISDIR),
    (ErrorKind::DirectoryNotEmpty, Errno::NOTEMPTY),
    (ErrorKind::InvalidFilename, Errno::NAMETOOLONG),
    (ErrorKind::SymlinkLoop, Errno::LOOP),
    (ErrorKind::CrossesDevices, Errno::XDEV),
    (ErrorKind::TooManyLinks, Errno::MLINK),
    (ErrorKind::FileTooLarge, Errno::FBIG),
    (ErrorKind::NoAttribute, Errno::NODATA),
    (ErrorKind::PermissionDenied, Errno::ACCESS),
    (ErrorKind::ReadOnlyFilesystem, Errno::ROFS),
    (ErrorKind::StorageFull, Errno::NOSPC),
    (ErrorKind::QuotaExceeded, Errno::DQUOT),
    (ErrorKind::ResourceBusy, Errno::BUSY),
    (ErrorKind::NoFileSystem, host::NO_FILE_SYSTEM),
    (ErrorKind::Corrupt, host::CORRUPT),
    (ErrorKind::Unsupported, Errno::OPNOTSUPP),
    (ErrorKind::InvalidInput, Errno::INVAL),
    (ErrorKind::InvalidData, Errno::BADMSG),
    (ErrorKind::Interrupted, Errno::INTR),
    (ErrorKind::Io, Errno::IO),
];

/// Further error numbers of a kind.
const FURTHER: [(ErrorKind, Errno); 6] = [
    (ErrorKind::PermissionDenied, Errno::PERM),
    (ErrorKind::InvalidInput, Errno::NXIO),
    (ErrorKind::InvalidInput, Errno::TOOBIG),
    (ErrorKind::InvalidInput, Errno::OVERFLOW),
    (ErrorKind::ResourceBusy, Errno::TXTBSY),
    (ErrorKind::NotFound, Errno::STALE),
];

impl ErrorKind {
    /// The kind of an error number.
    fn of(errno: i32) -> Self {
        let mut known = NUMBERS.iter().chain(&FURTHER);
        let found = known.find(|(_, number)| number.raw_os_error() == errno);
        found.map_or(Self::Io, |(kind, _)| *kind)
    }

    fn errno(self) -> i32 {
        let known = NUMBERS.iter().find(|(kind, _)| *kind == self);
        known
            .map_or(Errno::IO, |(_, number)| *number)
            .raw_os_error()
    }
}

/// An error type of a part of the library, as an [`Error`] contains it.
pub trait Cause: std::error::Error + Send + Sync + 'static {
    /// The kind, unless one of the sources has an error number.
    fn kind(&self) -> ErrorKind;

    /// The path that the error is about.
    fn path(&self) -> Option<&Path> {
        None
    }
}

impl<C: Cause> From<C> for Error {
    fn from(cause: C) -> Self {
        Self(Box::new(cause))
    }
}

impl Error {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::of(self.errno())
    }

    /// The path that the error is about: in the image, or of the image.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path()
    }

    /// The error number that a system call would return for this cause.
    #[must_use]
    pub fn errno(&self) -> i32 {
        errno_in(self.as_std()).unwrap_or_else(|| self.0.kind().errno())
    }

    /// The kind of an error that has an error number; else [`ErrorKind::Io`].
    pub(crate) fn kind_of(error: &(dyn std::error::Error + 'static)) -> ErrorKind {
        errno_in(error).map_or(ErrorKind::Io, ErrorKind::of)
    }

    fn as_std(&self) -> &(dyn std::error::Error + 'static) {
        &*self.0
    }

    /// The error of a part of the library, if it is of this type.
    #[doc(hidden)]
    #[must_use]
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.as_std().downcast_ref()
    }

    /// The error of a part of the library by value, if it is of this type.
    ///
    /// # Errors
    /// This error, if it is of another type.
    #[doc(hidden)]
    pub fn downcast<E: std::error::Error + 'static>(self) -> Result<E> {
        if self.as_std().is::<E>() {
            let any: Box<dyn std::error::Error + Send + Sync> = self.0;
            Ok(*any.downcast().expect("the type was compared"))
        } else {
            Err(self)
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// The [`kind`](io::Error::kind) follows from the errno. The error itself, with path and cause, is
/// inside: [`io::Error::get_ref`] and [`io::Error::downcast`] lead to it.
///
/// An [`io::Error`] contains either an error number or another error. This one contains the error,
/// so [`io::Error::raw_os_error`] is `None`; [`errno`] finds the number.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::InvalidData | ErrorKind::NoFileSystem => io::ErrorKind::InvalidData,
            _ => Self::from_raw_os_error(error.errno()).kind(),
        };
        Self::new(kind, error)
    }
}

/// The error number of an [`io::Error`], whether it came from a system call or from this library.
///
/// ```
/// use std::io;
///
/// fn is_full(error: &io::Error) -> bool {
///     sapwood::errno(error) == Some(28) // ENOSPC
/// }
/// # assert!(is_full(&io::Error::from_raw_os_error(28)));
/// ```
#[must_use]
pub fn errno(error: &io::Error) -> Option<i32> {
    let inside = error.get_ref().and_then(|inside| own_errno(inside));
    inside.or_else(|| error.raw_os_error())
}

/// The error number of the first error of a chain of sources that has one.
pub fn errno_in(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| own_errno(error).filter(|errno| *errno > 0))
}

fn own_errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(error.errno());
    }
    if let Some(error) = error.downcast_ref::<vfs::Error>() {
        return Some(error.errno());
    }
    match error.downcast_ref::<sapwood_block::Error>() {
        Some(sapwood_block::Error::Busy { .. }) => return Some(vfs::Error::Busy.errno()),
        Some(sapwood_block::Error::ReadOnly { .. }) => return Some(vfs::Error::ReadOnly.errno()),
        _ => {}
    }
    errno(error.downcast_ref::<io::Error>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the archive is cut short")]
    struct Cut(#[source] Option<io::Error>);

    impl Cause for Cut {
        fn kind(&self) -> ErrorKind {
            ErrorKind::InvalidData
        }
    }

    #[test]
    fn each_kind_has_a_number_of_its_own() {
        for (kind, number) in NUMBERS {
            assert_eq!(ErrorKind::of(number.raw_os_error()), kind);
            assert_eq!(kind.errno(), number.raw_os_error());
        }
        assert_eq!(ErrorKind::of(1), ErrorKind::PermissionDenied);
        assert_eq!(ErrorKind::of(9999), ErrorKind::Io);
    }

    #[test]
    fn a_number_of_a_source_decides_over_the_cause() {
        let cut = Error::from(Cut(None));
        assert_eq!((cut.kind(), cut.errno()), (ErrorKind::InvalidData, 74));
        let full = Error::from(Cut(Some(io::Error::from_raw_os_error(28))));
        assert_eq!((full.kind(), full.errno()), (ErrorKind::StorageFull, 28));
        let inside = io::Error::from(full);
        assert_eq!(inside.kind(), io::ErrorKind::StorageFull);
        assert_eq!(errno(&inside), Some(28));
    }

    #[test]
    fn the_error_of_a_part_comes_back_by_its_type() {
        let error = Error::from(Cut(None));
        assert!(error.downcast_ref::<Cut>().is_some());
        let error = error.downcast::<io::Error>().unwrap_err();
        assert_eq!(error.to_string(), "the archive is cut short");
        assert!(error.downcast::<Cut>().is_ok());
    }
}
