//! Why a send failed.

use std::io;
use std::path::PathBuf;

use crate::vfs;

/// Why a send failed. The output until then is no complete stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The stream could not be written.
    #[error("the stream cannot be written: {0}")]
    Write(#[source] io::Error),
    /// The image is no btrfs.
    #[error("{0}: not a btrfs; only btrfs has snapshots to send")]
    NotBtrfs(PathBuf),
    /// The path leads to no subvolume.
    #[error("{}: not a subvolume", .0.display())]
    NotSubvolume(PathBuf),
    /// The subvolume may change.
    #[error("{}: not read-only; only a read-only snapshot can be sent", .0.display())]
    Writable(PathBuf),
    /// A version of the stream that is not known.
    #[error("version {0} of the stream is not known")]
    Version(u32),
    /// Compressed extents in a stream of version 1.
    #[error("version 1 of the stream has no compressed data")]
    Compressed,
    /// A file of the image could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path in the snapshot.
        path: PathBuf,
        /// Why.
        source: vfs::Error,
    },
    /// The trees of the image could not be read.
    #[error("{0}")]
    Tree(#[from] Box<sapwood_btrfs::Error>),
    /// The names of an inode contradict its directories.
    #[error("inode {number}: {why}")]
    Names {
        /// Inode number.
        number: u64,
        /// The contradiction.
        why: &'static str,
    },
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

pub(super) type Result<T, E = SendError> = std::result::Result<T, E>;

impl From<sapwood_btrfs::Error> for SendError {
    fn from(error: sapwood_btrfs::Error) -> Self {
        Self::Tree(Box::new(error))
    }
}

/// An error of a file at a path.
pub(super) fn at(path: &[u8]) -> impl FnOnce(vfs::Error) -> SendError {
    let path = crate::archive::path(path);
    move |source| SendError::File { path, source }
}
