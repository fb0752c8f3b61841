//! Kinds for the errors of balances and of changes of the devices.

use std::path::Path;

use sapwood_btrfs::balance::BalanceError as Balance;
use sapwood_btrfs::membership::MembershipError as Membership;

use super::layers::of_btrfs;
use crate::devices::DevicesError;
use crate::error::{Cause, ErrorKind};

impl Cause for DevicesError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Open(error) => error.kind(),
            Self::Balance { source, .. } => match &**source {
                Balance::Engine(error) => of_btrfs(error),
                Balance::NoRoom { .. } => ErrorKind::StorageFull,
                _ => ErrorKind::InvalidInput,
            },
            Self::Membership { source, .. } => match &**source {
                Membership::Engine(error) => of_btrfs(error),
                Membership::NoRoom { .. } => ErrorKind::StorageFull,
                _ => ErrorKind::InvalidInput,
            },
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Open(error) => error.path(),
            Self::Balance { path, .. } | Self::Membership { path, .. } => Some(path),
        }
    }
}
