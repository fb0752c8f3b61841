//! Kinds and paths for the errors of streams and differences.

use std::path::Path;

use super::layers::{of_btrfs, of_ext4};
use crate::diff::DiffError;
use crate::error::{Cause, ErrorKind};
use crate::receive::ReceiveError;
use crate::seal::SealError;
use crate::send::SendError;

impl Cause for SendError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Tree(source) => of_btrfs(source),
            Self::Inodes(source) => of_ext4(source),
            Self::Changed(_) => ErrorKind::ResourceBusy,
            Self::NotSubvolume(_)
            | Self::Writable(_)
            | Self::OpenForWriting(_)
            | Self::ParentFormat(_)
            | Self::ParentImage
            | Self::SameIdentity
            | Self::CloneSources
            | Self::Name(_)
            | Self::Version(_)
            | Self::Compressed => ErrorKind::InvalidInput,
            Self::Damaged(_) | Self::TooLong { .. } => ErrorKind::Unsupported,
            Self::Names { .. } => ErrorKind::Corrupt,
            Self::Stopped => ErrorKind::Interrupted,
            Self::Mount { source, .. } => match source.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::InvalidInput,
            },
            Self::Write(_) | Self::File { .. } | Self::Daemon(_) => ErrorKind::Io,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Mount { path, .. }
            | Self::Damaged(path)
            | Self::OpenForWriting(path)
            | Self::ParentFormat(path)
            | Self::NotSubvolume(path)
            | Self::Writable(path)
            | Self::Changed(path)
            | Self::TooLong { path, .. }
            | Self::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

impl Cause for SealError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read(_) => ErrorKind::Io,
            Self::Format { .. }
            | Self::Damaged { .. }
            | Self::Moved { .. }
            | Self::Cut { .. }
            | Self::Longer { .. } => ErrorKind::InvalidData,
        }
    }
}

impl Cause for ReceiveError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Seal(source) => Cause::kind(source),
            Self::Stream(_) | Self::Cut { .. } | Self::Order { .. } | Self::Content { .. } => {
                ErrorKind::InvalidData
            }
            Self::NoParent(_) | Self::NoCloneSource(_) => ErrorKind::NotFound,
            Self::InPlaceFormat(_) | Self::NoContent => ErrorKind::Unsupported,
            Self::NoDifference
            | Self::OtherState { .. }
            | Self::NotUnmounted(_)
            | Self::LinkedOutside(_)
            | Self::ReservedName(_) => ErrorKind::InvalidInput,
            Self::State(source) => Cause::kind(&**source),
            Self::Busy(_) => ErrorKind::ResourceBusy,
            Self::NotDirectory(_) => ErrorKind::NotADirectory,
            Self::Part(_)
            | Self::OtherPart(_)
            | Self::SameIdentity(_)
            | Self::AlreadyReceived(_) => ErrorKind::AlreadyExists,
            Self::NoPosition(_) | Self::OtherStream(_) => ErrorKind::InvalidInput,
            Self::CopyParent { source, .. } => Cause::kind(&**source),
            Self::Stopped => ErrorKind::Interrupted,
            Self::Read(_) | Self::File { .. } | Self::Host { .. } | Self::Daemon(_) => {
                ErrorKind::Io
            }
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::NotDirectory(path)
            | Self::InPlaceFormat(path)
            | Self::NotUnmounted(path)
            | Self::LinkedOutside(path)
            | Self::ReservedName(path)
            | Self::Part(path)
            | Self::OtherPart(path)
            | Self::NoPosition(path)
            | Self::CopyParent { path, .. }
            | Self::Host { path, .. }
            | Self::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

impl Cause for DiffError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Path(error) => Cause::kind(error),
            Self::Tree(source) => of_btrfs(source),
            Self::Names(_) => ErrorKind::Corrupt,
            Self::Stopped => ErrorKind::Interrupted,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(error) => Cause::path(error),
            _ => None,
        }
    }
}
