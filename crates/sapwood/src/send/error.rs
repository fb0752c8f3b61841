//! Why a send failed.

use std::ffi::OsString;
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
    /// The image is damaged, and read without an engine.
    #[error("{}: damaged; only a sound image can be sent", .0.display())]
    Damaged(PathBuf),
    /// The ext4 image may change.
    #[error("{}: open for writing; an ext4 image is sent while it is open for reading only", .0.display())]
    OpenForWriting(PathBuf),
    /// The image of the parent has another format.
    #[error("{}: not an ext4; the parent of an ext4 image is an ext4 image", .0.display())]
    ParentFormat(PathBuf),
    /// The parent of a btrfs snapshot is in another image.
    #[error("the parent of a btrfs snapshot must be in the same image")]
    ParentImage,
    /// Files of two states of ext4 differ, but the UUIDs of the states do not.
    #[error(
        "the state and its parent have different content and the same identity, because no inode \
         changed; unmount the image properly or touch a file in it, and send it again"
    )]
    SameIdentity,
    /// A value that no command of the stream can hold.
    #[error("{}: a value is too long for a command of version {version} of the stream", path.display())]
    TooLong {
        /// The path of the command.
        path: PathBuf,
        /// Version of the stream.
        version: u32,
    },
    /// Clone sources for an ext4 image.
    #[error("ext4 shares no extents, so it has no clone sources")]
    CloneSources,
    /// The name for the sent subvolume is no file name.
    #[error("{}: not a name for a subvolume", .0.display())]
    Name(OsString),
    /// The path leads to no subvolume.
    #[error("{}: not a subvolume", .0.display())]
    NotSubvolume(PathBuf),
    /// The subvolume may change.
    #[error("{}: not read-only; only a read-only snapshot can be sent", .0.display())]
    Writable(PathBuf),
    /// A snapshot was made writable during the send.
    #[error("{}: changed while it was sent; the stream is worthless", .0.display())]
    Changed(PathBuf),
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
    /// The inodes of an ext4 image could not be read.
    #[error("{0}")]
    Inodes(#[from] Box<sapwood_ext4::Error>),
    /// The names of an inode contradict its directories.
    #[error("inode {number}: {why}")]
    Names {
        /// Inode number.
        number: u64,
        /// The contradiction.
        why: &'static str,
    },
    /// The directory is in no mount by Sapwood whose daemon sends for this process.
    #[error("{}: {}", path.display(), no_daemon(source))]
    Mount {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The daemon of the mount has failed; its reason.
    #[error("{0}")]
    Daemon(String),
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

pub(super) type Result<T, E = SendError> = std::result::Result<T, E>;

/// Why no daemon sends a directory.
fn no_daemon(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "only root and the owner of the mount may send its snapshots".to_owned()
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => error.to_string(),
        _ => "not a snapshot in a mount of a btrfs by Sapwood".to_owned(),
    }
}

impl From<sapwood_btrfs::Error> for SendError {
    fn from(error: sapwood_btrfs::Error) -> Self {
        Self::Tree(Box::new(error))
    }
}

impl From<sapwood_ext4::Error> for SendError {
    fn from(error: sapwood_ext4::Error) -> Self {
        Self::Inodes(Box::new(error))
    }
}

/// An error of a file at a path.
pub(super) fn at(path: &[u8]) -> impl FnOnce(vfs::Error) -> SendError {
    let path = crate::archive::path(path);
    move |source| SendError::File { path, source }
}
