//! Why a receive failed.

use std::io;
use std::path::PathBuf;

use sapwood_btrfs_format::stream::StreamError;

use crate::vfs;

/// Why a receive failed. The subvolume that was being received stays writable and without the mark
/// of a received one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The stream could not be read.
    #[error("the stream cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The stream is damaged, or none.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// The stream ends before its last command.
    #[error("the stream ends early, after {commands} commands")]
    Cut {
        /// Whole commands before the end.
        commands: u64,
    },
    /// A command where it cannot be.
    #[error("the command {command} cannot be {place}")]
    Order {
        /// Name of the command.
        command: String,
        /// The place.
        place: &'static str,
    },
    /// The data of a command does not expand.
    #[error("{}: the compressed data at {offset} is damaged", path.display())]
    Content {
        /// Path in the subvolume.
        path: PathBuf,
        /// Offset in the file.
        offset: u64,
    },
    /// The stream has no content.
    #[error("the stream was made without data and cannot be received")]
    NoContent,
    /// The snapshot that the stream is the difference from is missing.
    #[error(
        "the parent of the snapshot is missing: no read-only subvolume has the UUID {}",
        uuid::Uuid::from_bytes(*.0)
    )]
    NoParent([u8; 16]),
    /// A subvolume that data is to be shared with is missing.
    #[error(
        "a clone source is missing: no read-only subvolume has the UUID {}",
        uuid::Uuid::from_bytes(*.0)
    )]
    NoCloneSource([u8; 16]),
    /// The stream needs snapshots.
    #[error("the stream is a difference from a parent, and this format has no snapshots")]
    NoSnapshots,
    /// The place to receive into is no directory.
    #[error("{}: not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// A command failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The command, as a verb.
        action: String,
        /// Path in the subvolume.
        path: PathBuf,
        /// Why.
        source: vfs::Error,
    },
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

pub(super) type Result<T, E = ReceiveError> = std::result::Result<T, E>;

/// The error of a command on a path.
pub(super) fn at(action: &str, path: &[u8]) -> impl FnOnce(vfs::Error) -> ReceiveError {
    move |source| ReceiveError::File {
        action: action.to_owned(),
        path: crate::archive::path(path),
        source,
    }
}
