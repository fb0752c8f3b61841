//! Errors of operations and their errno, which exists only here.

use std::fmt;
use std::sync::Arc;

/// The typed error of an engine, a device or a journal. Its fields name the block, key or inode.
///
/// Two causes are equal if their messages are.
#[derive(Clone)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

impl Cause {
    /// Stores an error, or a message if there is no typed error.
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into().into())
    }

    /// The error, if it is of this type.
    #[must_use]
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for Cause {}

/// Why an operation failed. Engines convert their own typed errors to these at their interface. An
/// error without an errno of its own is kept as the [`source`](std::error::Error::source).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// `ENOENT`
    NotFound,
    /// `EEXIST`
    Exists,
    /// `ENOTDIR`
    NotDirectory,
    /// `EISDIR`
    IsDirectory,
    /// `ENOTEMPTY`
    NotEmpty,
    /// `ENAMETOOLONG`
    NameTooLong,
    /// `EINVAL`
    Invalid,
    /// `EPERM`
    NotPermitted,
    /// `EACCES`
    AccessDenied,
    /// `EROFS`
    ReadOnly,
    /// `ENOSPC`
    NoSpace,
    /// `EDQUOT`
    Quota,
    /// `EMLINK`
    TooManyLinks,
    /// `EFBIG`
    FileTooLarge,
    /// `ELOOP`
    SymlinkLoop,
    /// `EXDEV`
    CrossDevice,
    /// `ENODATA`
    NoAttribute,
    /// `E2BIG`
    AttributeTooLarge,
    /// `ENXIO`: no data or hole after the offset
    NoSuchOffset,
    /// `EOPNOTSUPP`
    NotSupported,
    /// `ETXTBSY`
    TextBusy,
    /// `EINTR`: the caller asked for an early end
    Interrupted,
    /// `EBUSY`
    Busy,
    /// `ESTALE`: the inode is gone
    Stale,
    /// `EOVERFLOW`
    Overflow,
    /// `EUCLEAN`: the image contradicts itself
    Corrupt(Cause),
    /// `EIO`
    Io(Cause),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NotFound => "no such file or directory",
            Self::Exists => "file exists",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "is a directory",
            Self::NotEmpty => "directory not empty",
            Self::NameTooLong => "name too long",
            Self::Invalid => "invalid argument",
            Self::NotPermitted => "operation not permitted",
            Self::AccessDenied => "permission denied",
            Self::ReadOnly => "read-only file system",
            Self::NoSpace => "no space left on device",
            Self::Quota => "quota exceeded",
            Self::TooManyLinks => "too many links",
            Self::FileTooLarge => "file too large",
            Self::SymlinkLoop => "too many levels of symbolic links",
            Self::CrossDevice => "crosses a file system or subvolume",
            Self::NoAttribute => "no such attribute",
            Self::AttributeTooLarge => "attribute too large",
            Self::NoSuchOffset => "no such data or hole",
            Self::NotSupported => "operation not supported",
            Self::TextBusy => "file is in use as swap or text",
            Self::Interrupted => "interrupted",
            Self::Busy => "busy",
            Self::Stale => "stale inode",
            Self::Overflow => "value too large",
            Self::Corrupt(cause) => return write!(f, "file system is damaged: {cause}"),
            Self::Io(cause) => return write!(f, "input/output error: {cause}"),
        };
        f.write_str(text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Corrupt(cause) | Self::Io(cause) => Some(&*cause.0),
            _ => None,
        }
    }
}

impl Error {
    /// `EUCLEAN`, with its cause.
    pub fn corrupt(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Corrupt(Cause::new(cause))
    }

    /// `EIO`, with its cause.
    pub fn io(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Io(Cause::new(cause))
    }

    /// The errno of this error, as Linux numbers them.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound => 2,
            Self::Exists => 17,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::NotEmpty => 39,
            Self::NameTooLong => 36,
            Self::Invalid => 22,
            Self::NotPermitted => 1,
            Self::AccessDenied => 13,
            Self::ReadOnly => 30,
            Self::NoSpace => 28,
            Self::Quota => 122,
            Self::TooManyLinks => 31,
            Self::FileTooLarge => 27,
            Self::SymlinkLoop => 40,
            Self::CrossDevice => 18,
            Self::NoAttribute => 61,
            Self::AttributeTooLarge => 7,
            Self::NoSuchOffset => 6,
            Self::NotSupported => 95,
            Self::TextBusy => 26,
            Self::Interrupted => 4,
            Self::Busy => 16,
            Self::Stale => 116,
            Self::Overflow => 75,
            Self::Corrupt(_) => 117,
            Self::Io(_) => 5,
        }
    }
}

/// Result of a file-system operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The errno decides the [`ErrorKind`](std::io::ErrorKind). An error with a cause is kept as a
/// whole.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let plain = Self::from_raw_os_error(error.errno());
        match error {
            Error::Corrupt(_) | Error::Io(_) => Self::new(plain.kind(), error),
            _ => plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct BadBlock(u64);

    impl fmt::Display for BadBlock {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "block {}", self.0)
        }
    }

    impl std::error::Error for BadBlock {}

    #[test]
    fn the_cause_keeps_its_type() {
        let error = Error::corrupt(BadBlock(7));
        assert_eq!(error.to_string(), "file system is damaged: block 7");
        let source = error.source().unwrap();
        assert_eq!(source.downcast_ref(), Some(&BadBlock(7)));
        let io = std::io::Error::from(error.clone());
        let inside = io
            .get_ref()
            .and_then(|inside| inside.downcast_ref::<Error>());
        assert_eq!(inside, Some(&error));
        assert_ne!(Error::io(BadBlock(7)), Error::io(BadBlock(8)));
    }

    #[test]
    fn kinds_of_std_follow_the_errno() {
        let kind = |error: Error| std::io::Error::from(error).kind();
        assert_eq!(kind(Error::NotFound), std::io::ErrorKind::NotFound);
        assert_eq!(kind(Error::NoSpace), std::io::ErrorKind::StorageFull);
        let none = std::io::Error::from(Error::NotEmpty);
        assert_eq!(none.raw_os_error(), Some(39));
    }
}
