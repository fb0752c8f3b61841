//! The error that an operation ends with, and its errno: the only place where one exists.

/// Why an operation failed. Engines turn their own typed errors into one of these at
/// the edge; the text for people goes to the log there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `ENOENT`
    #[error("no such file or directory")]
    NotFound,
    /// `EEXIST`
    #[error("file exists")]
    Exists,
    /// `ENOTDIR`
    #[error("not a directory")]
    NotDirectory,
    /// `EISDIR`
    #[error("is a directory")]
    IsDirectory,
    /// `ENOTEMPTY`
    #[error("directory not empty")]
    NotEmpty,
    /// `ENAMETOOLONG`
    #[error("name too long")]
    NameTooLong,
    /// `EINVAL`
    #[error("invalid argument")]
    Invalid,
    /// `EPERM`
    #[error("operation not permitted")]
    NotPermitted,
    /// `EACCES`
    #[error("permission denied")]
    AccessDenied,
    /// `EROFS`
    #[error("read-only file system")]
    ReadOnly,
    /// `ENOSPC`
    #[error("no space left on device")]
    NoSpace,
    /// `EDQUOT`
    #[error("quota exceeded")]
    Quota,
    /// `EMLINK`
    #[error("too many links")]
    TooManyLinks,
    /// `EFBIG`
    #[error("file too large")]
    FileTooLarge,
    /// `EXDEV`
    #[error("crosses a file system or subvolume")]
    CrossDevice,
    /// `ENODATA`
    #[error("no such attribute")]
    NoAttribute,
    /// `E2BIG`
    #[error("attribute too large")]
    AttributeTooLarge,
    /// `ENXIO`: no data or hole behind the offset
    #[error("no such data or hole")]
    NoSuchOffset,
    /// `EOPNOTSUPP`
    #[error("operation not supported")]
    NotSupported,
    /// `ETXTBSY`
    #[error("file is in use as swap or text")]
    TextBusy,
    /// `EBUSY`
    #[error("busy")]
    Busy,
    /// `ESTALE`: the inode is gone
    #[error("stale inode")]
    Stale,
    /// `EOVERFLOW`
    #[error("value too large")]
    Overflow,
    /// `EUCLEAN`: the image contradicts itself
    #[error("file system is damaged: {0}")]
    Corrupt(String),
    /// `EIO`
    #[error("input/output error: {0}")]
    Io(String),
}

impl Error {
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
            Self::CrossDevice => 18,
            Self::NoAttribute => 61,
            Self::AttributeTooLarge => 7,
            Self::NoSuchOffset => 6,
            Self::NotSupported => 95,
            Self::TextBusy => 26,
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
