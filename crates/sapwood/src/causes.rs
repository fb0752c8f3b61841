//! The kind of [`Error`](crate::Error) for each error of a part of the library, and its path.
//!
//! A part keeps one variant per cause. The kind that is given here counts if no source of the
//! error has an error number, such as an error of a device or of the host.

mod devices;
mod layers;
mod streams;
mod volumes;

use std::path::Path;

use sapwood_block::Error as DeviceError;
use sapwood_btrfs::mkfs::MkfsError as BtrfsMkfsError;
use sapwood_ext4::mkfs::MkfsError as Ext4MkfsError;

use crate::archive::ArchiveError;
use crate::build::BuildError;
use crate::changes::ChangeError;
use crate::check::CheckError;
use crate::copy::{CopyCause, CopyError};
use crate::daemon::DaemonError;
use crate::disk::DiskError;
use crate::error::{Cause, Error, ErrorKind};
use crate::export::ExportError;
use crate::fs::TransactionError;
use crate::image::OpenError;
use crate::inspect::InspectError;
use crate::kind::{DetectError, UnknownKind};
use crate::like::LikeError;
use crate::manifest::ManifestError;
use crate::mkfs::{MkfsError, MkfsOptionError};
#[cfg(feature = "fuse")]
use crate::mount::{MountError, UnmountError};
use crate::new_file::NewFileError;
use crate::oci::OciError;
use crate::options::OptionError;
use crate::output::{OutputError, UnknownFormat};
use crate::repair::RepairError;
use crate::resize::{BadSize, ResizeError};
use crate::storage::StorageError;
use crate::trim::TrimError;
use layers::{of_btrfs, of_device, of_ext4, of_luks, of_rescue, of_undo};

/// Errors of an argument.
macro_rules! arguments {
    ($($error:ty),*) => {$(
        impl Cause for $error {
            fn kind(&self) -> ErrorKind {
                ErrorKind::InvalidInput
            }
        }
    )*};
}

arguments!(
    BadSize,
    ChangeError,
    MkfsOptionError,
    OptionError,
    UnknownFormat,
    UnknownKind
);

impl Cause for OpenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(error)
            | Self::Kind {
                source: DetectError::Device(error),
                ..
            } => of_device(error),
            Self::Operand(_) | Self::Option { .. } | Self::HalfVerity(_) => ErrorKind::InvalidInput,
            Self::Verity { .. } => ErrorKind::Corrupt,
            Self::Luks { source, .. } => of_luks(source),
            Self::KeyFile { .. } => ErrorKind::Io,
            Self::Kind {
                source: DetectError::Encrypted,
                ..
            } => ErrorKind::PermissionDenied,
            Self::Kind { .. } | Self::OtherKind { .. } => ErrorKind::NoFileSystem,
            Self::Btrfs { source, .. } => of_btrfs(source),
            Self::Ext4 { source, .. } => of_ext4(source),
            Self::Rescue { source, .. } => of_rescue(source),
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Device(error) => device_path(error),
            Self::Operand(_) => None,
            Self::Kind { path, .. }
            | Self::Option { path, .. }
            | Self::OtherKind { path, .. }
            | Self::Verity { path, .. }
            | Self::Luks { path, .. }
            | Self::KeyFile { path, .. }
            | Self::HalfVerity(path)
            | Self::Btrfs { path, .. }
            | Self::Ext4 { path, .. }
            | Self::Rescue { path, .. } => Some(path),
        }
    }
}

fn device_path(error: &DeviceError) -> Option<&Path> {
    match error {
        DeviceError::Open { device, .. }
        | DeviceError::Busy { device, .. }
        | DeviceError::ReadOnly { device } => Some(Path::new(device)),
        _ => None,
    }
}

impl Cause for NewFileError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists(_) => ErrorKind::AlreadyExists,
            Self::NotRegular(_) | Self::Dangling(_) => ErrorKind::InvalidInput,
            Self::Changed(_) => ErrorKind::ResourceBusy,
            Self::Old(error) => of_device(error),
            Self::Host { .. } => ErrorKind::Io,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Exists(path)
            | Self::NotRegular(path)
            | Self::Dangling(path)
            | Self::Changed(path)
            | Self::Host { path, .. } => Some(path),
            Self::Old(error) => device_path(error),
        }
    }
}

impl Cause for DaemonError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Mount { source, .. } => match source.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::InvalidInput,
            },
            Self::Refused { .. } => ErrorKind::Io,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Mount { path, .. } | Self::Refused { path, .. } => Some(path),
        }
    }
}

impl Cause for MkfsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Btrfs { source, .. } => match &**source {
                BtrfsMkfsError::Device(error) => of_device(error),
                BtrfsMkfsError::Occupied { .. } => ErrorKind::AlreadyExists,
                _ => ErrorKind::InvalidInput,
            },
            Self::Ext4 { source, .. } => match &**source {
                Ext4MkfsError::Device(error) => of_device(error),
                Ext4MkfsError::Occupied { .. } | Ext4MkfsError::JournalInUse { .. } => {
                    ErrorKind::AlreadyExists
                }
                _ => ErrorKind::InvalidInput,
            },
            Self::Journal { source, .. } => source.kind(),
            Self::OneDevice { .. } => ErrorKind::InvalidInput,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Btrfs { path, .. }
            | Self::Ext4 { path, .. }
            | Self::Journal { path, .. }
            | Self::OneDevice { path, .. } => Some(path),
        }
    }
}

impl Cause for ResizeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Open(error) => error.kind(),
            Self::File { .. } => ErrorKind::Io,
            Self::Partition(error) => error.kind(),
            Self::Daemon(error) => error.kind(),
            Self::TooMuchLess { .. } | Self::InUse { .. } | Self::NoMount { .. } => {
                ErrorKind::InvalidInput
            }
            Self::Btrfs { source, .. } => match &**source {
                sapwood_btrfs::resize::ResizeError::Engine(error) => of_btrfs(error),
                _ => ErrorKind::InvalidInput,
            },
            Self::Ext4 { source, .. } => match &**source {
                sapwood_ext4::resize::ResizeError::Engine(error) => of_ext4(error),
                sapwood_ext4::resize::ResizeError::Unclean => ErrorKind::Corrupt,
                _ => ErrorKind::InvalidInput,
            },
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Open(error) => error.path(),
            Self::Daemon(error) => error.path(),
            Self::Partition(_) => None,
            Self::File { path, .. }
            | Self::InUse { path }
            | Self::NoMount { path }
            | Self::TooMuchLess { path, .. }
            | Self::Btrfs { path, .. }
            | Self::Ext4 { path, .. } => Some(path),
        }
    }
}

impl Cause for TransactionError {
    fn kind(&self) -> ErrorKind {
        use sapwood_btrfs::StagingError as Btrfs;
        use sapwood_ext4::StagingError as Ext4;

        match self {
            Self::InUse(_) => ErrorKind::ResourceBusy,
            Self::ReadOnly(_) => ErrorKind::ReadOnlyFilesystem,
            Self::Btrfs { source, .. } => match &**source {
                Btrfs::Engine(error) => of_btrfs(error),
                _ => ErrorKind::Unsupported,
            },
            Self::Ext4 { source, .. } => match &**source {
                Ext4::Engine(sapwood_ext4::Error::Device(error)) => of_device(error),
                Ext4::Engine(error) => of_ext4(error),
                Ext4::Undecided(_) | Ext4::Committed(_) | Ext4::NotGivenBack(_) => ErrorKind::Io,
                _ => ErrorKind::StorageFull,
            },
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::InUse(path)
            | Self::ReadOnly(path)
            | Self::Btrfs { path, .. }
            | Self::Ext4 { path, .. } => Some(path),
        }
    }
}

impl Cause for TrimError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Io
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

impl Cause for CheckError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Corrupt
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Btrfs { path, .. } | Self::Ext4 { path, .. } => Some(path),
        }
    }
}

impl Cause for RepairError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(error) => of_device(error),
            Self::NoPlace(_) => ErrorKind::InvalidInput,
            Self::Taken(_) => ErrorKind::AlreadyExists,
            Self::Undo(error) => of_undo(error),
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Device(error) => device_path(error),
            Self::NoPlace(path) | Self::Taken(path) => Some(path),
            Self::Undo(_) => None,
        }
    }
}

impl Cause for InspectError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } => ErrorKind::InvalidInput,
            Self::Btrfs { source, .. } => of_btrfs(source),
            Self::Super { .. } | Self::Ext4 { .. } | Self::FileSystem { .. } => ErrorKind::Corrupt,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Unknown { .. } => None,
            Self::Super { path, .. }
            | Self::Btrfs { path, .. }
            | Self::Ext4 { path, .. }
            | Self::FileSystem { path, .. } => Some(path),
        }
    }
}

impl Cause for StorageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OnlyBtrfs(_) => ErrorKind::Unsupported,
            Self::NoDirectory(_) => ErrorKind::NotADirectory,
            Self::FileSystem(error) => error.kind(),
            _ => ErrorKind::InvalidInput,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) | Self::NoDirectory(path) | Self::File { path, .. } => Some(path),
            Self::FileSystem(error) => error.path(),
            _ => None,
        }
    }
}

impl Cause for CopyError {
    fn kind(&self) -> ErrorKind {
        match self.cause() {
            CopyCause::Image(error) => Error::kind_of(error),
            CopyCause::Host(error) | CopyCause::Closed(error) => Error::kind_of(error),
            CopyCause::Missing | CopyCause::NoDirectory | CopyCause::EntryGone(_) => {
                ErrorKind::NotFound
            }
            CopyCause::NotDirectory
            | CopyCause::DestinationNotDirectory
            | CopyCause::NotReplacedByDirectory => ErrorKind::NotADirectory,
            CopyCause::Directory | CopyCause::NeedsRecursive | CopyCause::Nameless => {
                ErrorKind::IsADirectory
            }
            CopyCause::Loop | CopyCause::SecondName | CopyCause::BadName(_) => ErrorKind::Corrupt,
            CopyCause::Damaged(_) => ErrorKind::Io,
            CopyCause::Changed | CopyCause::Replaced => ErrorKind::ResourceBusy,
            CopyCause::LinkLeaves => ErrorKind::CrossesDevices,
            CopyCause::TooDeep => ErrorKind::InvalidFilename,
            CopyCause::UnknownKind => ErrorKind::Unsupported,
            CopyCause::Interrupted | CopyCause::Ended => ErrorKind::Interrupted,
            CopyCause::Daemon(_) | CopyCause::DaemonEnded => ErrorKind::Io,
            _ => ErrorKind::InvalidInput,
        }
    }
}

impl Cause for ArchiveError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::FileSystem(error) => error.kind(),
            Self::Of { source, .. } => source.kind(),
            Self::Stopped => ErrorKind::Interrupted,
            Self::Compression(_) => ErrorKind::Unsupported,
            _ => ErrorKind::InvalidData,
        }
    }
}

impl Cause for OciError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Archive { source, .. } | Self::Layer { source, .. } => source.kind(),
            Self::NoTag { .. } | Self::Platform { .. } => ErrorKind::NotFound,
            Self::Several { .. } => ErrorKind::InvalidInput,
            Self::MediaType { .. } | Self::Encrypted { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::InvalidData,
        }
    }
}

impl Cause for ManifestError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::InvalidData
    }
}

impl Cause for OutputError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(error) => of_device(error),
            Self::TooLarge { .. } => ErrorKind::FileTooLarge,
            Self::Read { .. } | Self::Write { .. } => ErrorKind::Io,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Read { path, .. } | Self::Write { path, .. } => Some(path),
            Self::Device(_) | Self::TooLarge { .. } => None,
        }
    }
}

/// The part's own error in an error of the builder; `None` for the builder's own.
fn part(error: &BuildError) -> Option<&dyn Cause> {
    Some(match error {
        BuildError::Resize(error) => error,
        BuildError::NewFile(error) => error,
        BuildError::Output(error) => error,
        BuildError::Mkfs(error) => error,
        BuildError::Luks(error) => error,
        BuildError::Verity(error) => error,
        BuildError::Archive(error) => error,
        BuildError::Oci(error) => error,
        BuildError::Manifest(error) => error,
        BuildError::Copy(error) => error,
        BuildError::Option(error) => error,
        BuildError::Storage(error) => error,
        BuildError::Like(error) => error,
        _ => return None,
    })
}

impl Cause for BuildError {
    fn kind(&self) -> ErrorKind {
        if let Some(part) = part(self) {
            return part.kind();
        }
        match self {
            Self::FileSystem(error) => error.kind(),
            Self::Device(error) => of_device(error),
            Self::Stopped => ErrorKind::Interrupted,
            Self::NoSize(_) | Self::FixedSize { .. } => ErrorKind::InvalidInput,
            Self::JournalDevice(_) | Self::At(_) | Self::Encrypted(_) => ErrorKind::InvalidInput,
            _ => ErrorKind::Io,
        }
    }

    fn path(&self) -> Option<&Path> {
        if let Some(part) = part(self) {
            return part.path();
        }
        match self {
            Self::FileSystem(error) => error.path(),
            Self::NoSize(path) | Self::JournalDevice(path) | Self::At(path) => Some(path),
            Self::FixedSize { path, .. } | Self::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

impl Cause for LikeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Open(error) => error.kind(),
            Self::Inspect(error) | Self::FileSystem(error) => error.kind(),
            Self::Device(error) => of_device(error),
            Self::Kind { .. } | Self::Several(_) | Self::NoSources(_) => ErrorKind::InvalidInput,
            Self::Unclean(_) => ErrorKind::Unsupported,
            Self::File { .. } => ErrorKind::Io,
            Self::Stopped => ErrorKind::Interrupted,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Open(error) => error.path(),
            Self::Inspect(error) | Self::FileSystem(error) => error.path(),
            Self::Kind { path, .. } | Self::File { path, .. } => Some(path),
            Self::Unclean(path) | Self::Several(path) | Self::NoSources(path) => Some(path),
            Self::Device(_) | Self::Stopped => None,
        }
    }
}

impl Cause for DiskError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Build { source, .. } => source.kind(),
            Self::Fat { source, .. } => source.kind(),
            Self::Encrypt { source, .. } => source.kind(),
            Self::Verity { source, .. } => source.kind(),
            Self::NewFile(error) => error.kind(),
            Self::Output(error) => error.kind(),
            Self::Open(error) => error.kind(),
            Self::Device(error) => of_device(error),
            Self::Existing(error) => error.kind(),
            Self::File { .. } | Self::Table { .. } | Self::Mbr { .. } | Self::OpenSsl(_) => {
                ErrorKind::Io
            }
            _ => ErrorKind::InvalidInput,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } | Self::Table { path, .. } | Self::Mbr { path, .. } => {
                Some(path)
            }
            Self::Build { source, .. } => source.path(),
            Self::Fat { source, .. } => source.path(),
            Self::Encrypt { source, .. } => source.path(),
            Self::Verity { source, .. } => source.path(),
            Self::NewFile(error) => error.path(),
            Self::Output(error) => error.path(),
            Self::Open(error) => error.path(),
            _ => None,
        }
    }
}

impl Cause for ExportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotDirectory(_) => ErrorKind::NotADirectory,
            Self::BadName(_) => ErrorKind::Corrupt,
            Self::Whiteout(_) | Self::Device { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Write(_) => None,
            Self::Image { path, .. }
            | Self::Damaged { path, .. }
            | Self::Base { path, .. }
            | Self::NotDirectory(path)
            | Self::BadName(path)
            | Self::Whiteout(path)
            | Self::Device { path, .. } => Some(path),
        }
    }
}

#[cfg(feature = "fuse")]
impl Cause for MountError {
    fn kind(&self) -> ErrorKind {
        use sapwood_fuse::MountError as Fuse;

        match self {
            Self::Open(error) => error.kind(),
            Self::Mount(Fuse::MissingMountPoint(_)) => ErrorKind::NotFound,
            Self::Mount(Fuse::NotDirectory(_)) => ErrorKind::NotADirectory,
            Self::Mount(Fuse::MountPointDenied(_) | Fuse::AllowOther) => {
                ErrorKind::PermissionDenied
            }
            Self::Mount(Fuse::Busy(_) | Fuse::Stale(_)) => ErrorKind::ResourceBusy,
            Self::Mount(Fuse::NoDevice | Fuse::NoFusermount) => ErrorKind::Unsupported,
            Self::Mount(_) | Self::Session { .. } | Self::Incomplete { .. } => ErrorKind::Io,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Open(error) => error.path(),
            Self::Mount(_) => None,
            Self::Session { path, .. } | Self::Incomplete { image: path, .. } => Some(path),
        }
    }
}

#[cfg(feature = "fuse")]
impl Cause for UnmountError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotMounted(_) => ErrorKind::InvalidInput,
            Self::Busy(_) => ErrorKind::ResourceBusy,
            Self::Denied(_) => ErrorKind::PermissionDenied,
            _ => ErrorKind::Io,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::NotMounted(path)
            | Self::Busy(path)
            | Self::Denied(path)
            | Self::Failed { path, .. } => Some(path),
            _ => None,
        }
    }
}
