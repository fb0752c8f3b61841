//! Kinds for the errors of balances and scrubs, of changes of the devices, and of partition tables.

use std::path::Path;

use sapwood_btrfs::Error as Quota;
use sapwood_btrfs::balance::BalanceError as Balance;
use sapwood_btrfs::membership::MembershipError as Membership;

use super::layers::{of_btrfs, of_device};
use crate::devices::DevicesError;
use crate::error::{Cause, ErrorKind};
use crate::repartition::RepartitionError;
use crate::scrub::ScrubError;

impl Cause for DevicesError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Open(error) => error.kind(),
            Self::Daemon(error) => error.kind(),
            Self::NoBalance(_) => ErrorKind::InvalidInput,
            Self::Quota { source, .. } => match &**source {
                Quota::NoQuotas
                | Quota::SimpleQuotas
                | Quota::FullQuotas
                | Quota::NoSuchGroup { .. }
                | Quota::QuotaGroup { .. } => ErrorKind::InvalidInput,
                Quota::Vfs(sapwood_vfs::Error::Busy) => ErrorKind::ResourceBusy,
                error => of_btrfs(error),
            },
            Self::Balance { source, .. } => match &**source {
                Balance::Engine(error) => of_btrfs(error),
                Balance::NoRoom { .. } => ErrorKind::StorageFull,
                Balance::GroupsLeft { .. } => ErrorKind::ResourceBusy,
                _ => ErrorKind::InvalidInput,
            },
            Self::Membership { source, .. } => match &**source {
                Membership::Engine(error) => of_btrfs(error),
                Membership::NoRoom { .. } => ErrorKind::StorageFull,
                Membership::InUse(_) => ErrorKind::ResourceBusy,
                Membership::Parity { .. } | Membership::Unmirrored { .. } => ErrorKind::Unsupported,
                Membership::Unreadable { .. } => ErrorKind::Io,
                Membership::Refused { source, .. } => of_device(source),
                _ => ErrorKind::InvalidInput,
            },
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Open(error) => error.path(),
            Self::Daemon(error) => error.path(),
            Self::NoBalance(path)
            | Self::Balance { path, .. }
            | Self::Quota { path, .. }
            | Self::Membership { path, .. } => Some(path),
        }
    }
}

impl Cause for ScrubError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Btrfs { source, .. } => of_btrfs(source),
            Self::State { .. } => ErrorKind::Io,
            Self::Daemon(error) => error.kind(),
            Self::Source { source, .. } => source.kind(),
            Self::NoSources { .. } => ErrorKind::Unsupported,
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Btrfs { path, .. }
            | Self::State { path, .. }
            | Self::Source { path, .. }
            | Self::NoSources { path, .. } => Some(path),
            Self::Daemon(error) => error.path(),
        }
    }
}

impl Cause for RepartitionError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(error) => of_device(error),
            Self::Table(_) => ErrorKind::InvalidInput,
            Self::NoRoom { .. } => ErrorKind::StorageFull,
            Self::Damaged { .. } | Self::NoBackup { .. } => ErrorKind::Corrupt,
            Self::Logical { .. } => ErrorKind::Unsupported,
        }
    }
}
