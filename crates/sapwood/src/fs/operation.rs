//! Why an operation on the files of an image failed.

use std::path::{Path, PathBuf};

use crate::error::{Cause, Error, ErrorKind};
use crate::vfs;

/// The attempted operation, its path, and the engine's error.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// An operation on a path failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Path {
        /// The attempted operation, as a verb.
        action: &'static str,
        /// Path in the image.
        path: PathBuf,
        /// Why it failed.
        source: vfs::Error,
    },
    /// An operation on the whole file system failed.
    #[error("cannot {action} the file system: {source}")]
    FileSystem {
        /// The attempted operation, as a verb.
        action: &'static str,
        /// Why it failed.
        source: vfs::Error,
    },
    /// The content of a file is not UTF-8.
    #[error("cannot read {}: not UTF-8", .0.display())]
    NotUtf8(PathBuf),
}

impl Cause for OperationError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::InvalidData
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Path { path, .. } | Self::NotUtf8(path) => Some(path),
            Self::FileSystem { .. } => None,
        }
    }
}

impl Error {
    pub(super) fn at(action: &'static str, path: &Path) -> impl FnOnce(vfs::Error) -> Self {
        move |source| {
            let path = path.to_owned();
            OperationError::Path {
                action,
                path,
                source,
            }
            .into()
        }
    }

    pub(super) fn whole(action: &'static str) -> impl FnOnce(vfs::Error) -> Self {
        move |source| OperationError::FileSystem { action, source }.into()
    }
}
