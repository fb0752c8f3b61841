//! Kinds for the errors of devices, volumes, engines, undo files and the reader of damaged images.

use sapwood_block::{Error as DeviceError, UndoError};

use crate::error::ErrorKind;

pub(super) fn of_device(error: &DeviceError) -> ErrorKind {
    match error {
        DeviceError::Busy { .. } => ErrorKind::ResourceBusy,
        DeviceError::ReadOnly { .. } | DeviceError::TakenOver { .. } => {
            ErrorKind::ReadOnlyFilesystem
        }
        DeviceError::StagedTooMuch { .. } => ErrorKind::StorageFull,
        // Neither a file nor a block device.
        DeviceError::Open { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}

pub(super) fn of_btrfs(error: &sapwood_btrfs::Error) -> ErrorKind {
    use sapwood_btrfs::Error;

    match error {
        Error::UnsupportedFeature(_) | Error::ReadOnlyFeature(_) => ErrorKind::Unsupported,
        Error::NoSuchSubvolume(_) => ErrorKind::NotFound,
        Error::NoSpace => ErrorKind::StorageFull,
        _ => ErrorKind::Corrupt,
    }
}

pub(super) fn of_ext4(error: &sapwood_ext4::Error) -> ErrorKind {
    use sapwood_ext4::Error;

    match error {
        Error::UnsupportedFeature(_) | Error::ReadOnlyFeature(_) => ErrorKind::Unsupported,
        Error::InUse { .. } | Error::CheckRunning { .. } => ErrorKind::ResourceBusy,
        Error::NoInternalJournal => ErrorKind::Unsupported,
        Error::ExternalJournal
        | Error::NeedlessJournalDevice { .. }
        | Error::NoQuota { .. }
        | Error::JournalDevice { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Corrupt,
    }
}

pub(super) fn of_rescue(error: &sapwood_rescue::Error) -> ErrorKind {
    use sapwood_rescue::Error;

    match error {
        Error::Device(error) => of_device(error),
        Error::Interrupted => ErrorKind::Interrupted,
        Error::NoBtrfs { .. } | Error::NoExt4 { .. } => ErrorKind::NoFileSystem,
        Error::NoSuchCopy { .. } => ErrorKind::InvalidInput,
        Error::NoGeneration { .. } | Error::NoRootAt { .. } => ErrorKind::NotFound,
        _ => ErrorKind::Corrupt,
    }
}

pub(super) fn of_undo(error: &UndoError) -> ErrorKind {
    match error {
        UndoError::Device(error) => of_device(error),
        UndoError::Write(_) => ErrorKind::Io,
        UndoError::Changed { .. } | UndoError::Size { .. } | UndoError::Name(_) => {
            ErrorKind::InvalidInput
        }
        _ => ErrorKind::InvalidData,
    }
}

pub(super) fn of_luks(error: &sapwood_luks::Error) -> ErrorKind {
    use sapwood_luks::Error;

    match error {
        Error::Device(error) => of_device(error),
        Error::WrongKey { .. } => ErrorKind::PermissionDenied,
        Error::NoHeader { .. } => ErrorKind::NoFileSystem,
        Error::Unsupported(_) | Error::Version { .. } => ErrorKind::Unsupported,
        Error::TooSmall { .. } => ErrorKind::InvalidInput,
        Error::NoMemory(_) | Error::Random(_) => ErrorKind::Io,
        _ => ErrorKind::Corrupt,
    }
}
