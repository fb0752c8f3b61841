//! Kinds and paths for the errors of hash trees, encrypted volumes and FAT volumes.

use std::path::Path;

use super::layers::{of_device, of_luks};
use crate::error::{Cause, ErrorKind};
use crate::fat::FatError;
use crate::luks::LuksError;
use crate::verity::VerityError;

impl Cause for VerityError {
    fn kind(&self) -> ErrorKind {
        use sapwood_verity::Error;

        match self {
            Self::Open(error) => error.kind(),
            Self::NewFile(error) => error.kind(),
            Self::Tree { source, .. } => match source {
                Error::Device(error) => of_device(error),
                Error::NoHeader { .. } | Error::Field { .. } | Error::Mismatch { .. } => {
                    ErrorKind::Corrupt
                }
                Error::Algorithm(_) => ErrorKind::Unsupported,
                _ => ErrorKind::InvalidInput,
            },
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Open(error) => error.path(),
            Self::NewFile(error) => error.path(),
            Self::Tree { path, .. } => Some(path),
        }
    }
}

impl Cause for LuksError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Open(error) => error.kind(),
            Self::NewFile(error) => error.kind(),
            Self::Occupied { .. } => ErrorKind::AlreadyExists,
            Self::Content { .. } => ErrorKind::Io,
            Self::Volume { source, .. } => of_luks(source),
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Open(error) => error.path(),
            Self::NewFile(error) => error.path(),
            Self::Occupied { path, .. }
            | Self::Content { path, .. }
            | Self::Volume { path, .. } => Some(path),
        }
    }
}

impl Cause for FatError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Build(error) => error.kind(),
            Self::NewFile(error) => error.kind(),
            Self::Device(error) => of_device(error),
            Self::FileSystem(error) => error.kind(),
            Self::Read { .. } | Self::Write(_) => ErrorKind::Io,
            Self::Full { .. } => ErrorKind::StorageFull,
            _ => ErrorKind::InvalidInput,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Build(error) => error.path(),
            Self::NewFile(error) => error.path(),
            Self::FileSystem(error) => error.path(),
            Self::Read { path, .. }
            | Self::Kind { path, .. }
            | Self::Name { path, .. }
            | Self::Case(path)
            | Self::TooLarge { path, .. }
            | Self::TooManyNames(path) => Some(path),
            _ => None,
        }
    }
}
