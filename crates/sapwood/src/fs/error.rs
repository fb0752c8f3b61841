//! Why an operation of the library failed.

use std::io;
use std::path::{Path, PathBuf};

use crate::image::OpenError;
use crate::kind::DetectError;
use crate::vfs;

/// Why an operation failed: what was done, to which path, and the cause.
///
/// [`source`](std::error::Error::source) leads to the engine's own error, which names the block,
/// key or inode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The image cannot be opened.
    #[error(transparent)]
    Open(OpenError),
    /// The image is empty or holds something else than btrfs or ext4.
    #[error(transparent)]
    NoFileSystem(OpenError),
    /// An operation on a path failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Path {
        /// What was to be done, as a verb.
        action: &'static str,
        /// Path in the image.
        path: PathBuf,
        /// Why it failed.
        source: vfs::Error,
    },
    /// An operation on the whole file system failed.
    #[error("cannot {action} the file system: {source}")]
    FileSystem {
        /// What was to be done, as a verb.
        action: &'static str,
        /// Why it failed.
        source: vfs::Error,
    },
    /// The content of a file is not UTF-8.
    #[error("cannot read {}: not UTF-8", .0.display())]
    NotUtf8(PathBuf),
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Kind {
                source: DetectError::Neither,
                ..
            } => Self::NoFileSystem(error),
            error => Self::Open(error),
        }
    }
}

impl Error {
    pub(super) fn at(action: &'static str, path: &Path) -> impl FnOnce(vfs::Error) -> Self {
        move |source| Self::Path {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub(super) fn whole(action: &'static str) -> impl FnOnce(vfs::Error) -> Self {
        move |source| Self::FileSystem { action, source }
    }

    /// The cause, if the operation reached the file system.
    #[must_use]
    pub fn cause(&self) -> Option<&vfs::Error> {
        match self {
            Self::Open(_) | Self::NoFileSystem(_) | Self::NotUtf8(_) => None,
            Self::Path { source, .. } | Self::FileSystem { source, .. } => Some(source),
        }
    }

    /// The error number that a system call would return for this cause; `None` where there is none,
    /// as for an image without a known file system.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open(error) => error.errno(),
            Self::NoFileSystem(_) | Self::NotUtf8(_) => None,
            Self::Path { source, .. } | Self::FileSystem { source, .. } => Some(source.errno()),
        }
    }

    /// The standard library's kind of this error: the one of the [`errno`](Self::errno), or
    /// [`InvalidData`](io::ErrorKind::InvalidData) if the content of the image or file is wrong.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match (self.errno(), self) {
            (Some(errno), _) => io::Error::from_raw_os_error(errno).kind(),
            (None, Self::Open(error)) if !error.is_of_content() => io::ErrorKind::InvalidInput,
            (None, _) => io::ErrorKind::InvalidData,
        }
    }
}

/// The [`kind`](io::Error::kind) is the one of the errno. The error itself, with path and cause, is
/// inside: [`io::Error::get_ref`] and [`io::Error::downcast`] lead to it.
///
/// An [`io::Error`] contains either an error number or another error. This one contains the error,
/// so [`io::Error::raw_os_error`] is `None`; [`errno`] finds the number.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
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
    let inside = error.get_ref();
    let ours = inside.and_then(|inside| inside.downcast_ref::<Error>());
    let engine = || inside.and_then(|inside| inside.downcast_ref::<vfs::Error>());
    ours.and_then(Error::errno)
        .or_else(|| engine().map(vfs::Error::errno))
        .or_else(|| error.raw_os_error())
}

/// Result of an operation of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;
