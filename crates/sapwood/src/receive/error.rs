//! Why a receive failed.

use std::io;
use std::path::PathBuf;

use sapwood_btrfs_format::stream::StreamError;

use crate::copy::CopyError;
use crate::seal::SealError;
use crate::send::SendError;
use crate::vfs;

/// Why a receive failed. In an image the subvolume that was being received stays writable and
/// without the mark of a received one; on this machine its name ends in `.part`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The stream could not be read.
    #[error("the stream cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The stream does not match its seal.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The stream is damaged, or is no stream.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// The stream ends before its last command.
    #[error("the stream ends early, after {commands} commands")]
    Cut {
        /// Whole commands before the end.
        commands: u64,
    },
    /// A command at a position where it is not allowed.
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
    /// The parent of the stream is missing.
    #[error(
        "the parent of the stream is missing: no read-only subvolume or received directory here has the \
         UUID {}",
        uuid::Uuid::from_bytes(*.0)
    )]
    NoParent([u8; 16]),
    /// The subvolume has the identity of its parent, whose record a new one would replace.
    #[error(
        "nothing to receive: the subvolume and its parent have the same UUID, {}",
        uuid::Uuid::from_bytes(*.0)
    )]
    SameIdentity([u8; 16]),
    /// A subvolume or directory from which the stream clones data is missing.
    #[error(
        "a clone source is missing: no read-only subvolume or received directory here has the UUID {}",
        uuid::Uuid::from_bytes(*.0)
    )]
    NoCloneSource([u8; 16]),
    /// A receive in place into a format with snapshots.
    #[error("{}: not an ext4; a btrfs receives a difference as a snapshot, not in place", .0.display())]
    InPlaceFormat(PathBuf),
    /// A receive in place into an image that was not unmounted: written data may be on disk without
    /// the change of its inode, so the state of the image is unknown.
    #[error("{}: was not unmounted properly, so its files may have changed without a trace", .0.display())]
    NotUnmounted(PathBuf),
    /// A receive in place into a directory would change a file that has a name outside of it.
    #[error("{}: has a hard link outside of the directory, where it would change, too", .0.display())]
    LinkedOutside(PathBuf),
    /// A subvolume has a name that records of receives have.
    #[error("{}: this name is reserved for the records of receives", .0.display())]
    ReservedName(PathBuf),
    /// A receive in place of a whole tree.
    #[error("the stream is a whole tree; only a difference from a parent is received in place")]
    NoDifference,
    /// The directory is not the parent of the stream, or was changed.
    #[error(
        "the image is not in the state that the stream begins with, {}{}",
        uuid::Uuid::from_bytes(*parent),
        if *changed { ": it was changed since it received that state" } else { "" }
    )]
    OtherState {
        /// UUID of the parent.
        parent: [u8; 16],
        /// The image was in that state, and was changed.
        changed: bool,
    },
    /// The directory has the state that the stream leads to.
    #[error("the image is already in the state that the stream leads to, {}", uuid::Uuid::from_bytes(*.0))]
    AlreadyReceived([u8; 16]),
    /// The state of the image cannot be read.
    #[error("the state of the image cannot be read: {0}")]
    State(#[source] Box<SendError>),
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
    /// The directory of the parent could not be copied.
    #[error("{}: the directory of the parent cannot be copied: {source}", path.display())]
    CopyParent {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: Box<CopyError>,
    },
    /// An interrupted receive left a part.
    #[error("{}: an interrupted receive left it", .0.display())]
    Part(PathBuf),
    /// A partial receive of another stream has the name of the subvolume.
    #[error("{}: exists, and is not a part of this stream", .0.display())]
    OtherPart(PathBuf),
    /// A receive cannot continue: the subvolume has no record, or a power cut made it worthless.
    #[error("{}: exists, and has no usable record of an earlier receive", .0.display())]
    NoPosition(PathBuf),
    /// The stream is not the one that was received in part.
    #[error("{}: was received from another stream until now", crate::archive::path(.0).display())]
    OtherStream(Vec<u8>),
    /// A directory of this machine refused a command.
    #[error("cannot {action} {}: {source}", path.display())]
    Host {
        /// The command, as a verb.
        action: String,
        /// Path in the directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another receive of the same subvolume is at work in the mount.
    #[error(
        "another receive of the subvolume with the UUID {} is at work",
        uuid::Uuid::from_bytes(*.0)
    )]
    Busy([u8; 16]),
    /// The daemon of the mount that receives has failed; its reason.
    #[error("{0}")]
    Daemon(String),
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
