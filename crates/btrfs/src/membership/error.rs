//! Why a device was not added or removed.

use crate::Error;

/// Bytes that a device must have to be added.
pub(super) const LEAST_SIZE: u64 = 16 << 20;

/// Reasons why a device was not added or removed. The file system is consistent after each of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The device is part of the file system already.
    #[error("{device}: is device {devid} of the file system already")]
    Member {
        /// Name of the device.
        device: String,
        /// Its id.
        devid: u64,
    },
    /// The device contains something.
    #[error("{device} contains {what}; force is needed to overwrite it")]
    Occupied {
        /// Name of the device.
        device: String,
        /// The contents, such as `a btrfs file system`.
        what: &'static str,
    },
    /// The device is too small.
    #[error("{device}: has {size} bytes; a device needs at least {LEAST_SIZE}")]
    TooSmall {
        /// Name of the device.
        device: String,
        /// Its bytes.
        size: u64,
    },
    /// The device is smaller than the one that it replaces.
    #[error("{device}: has {size} bytes, and replaces a device of {needed} bytes")]
    Smaller {
        /// Name of the device.
        device: String,
        /// Its bytes.
        size: u64,
        /// Bytes of the other one.
        needed: u64,
    },
    /// A missing device has the only copy of something.
    #[error("device {devid} has parts of {profile}, of which no other device has a copy")]
    Unmirrored {
        /// Name of the profile.
        profile: &'static str,
        /// Id of the device.
        devid: u64,
    },
    /// Bytes of a device have no copy that can be read.
    #[error(
        "{bytes} bytes of device {devid} cannot be read and have no other copy, so it is not \
         replaced; force replaces it without them"
    )]
    Unreadable {
        /// Id of the device.
        devid: u64,
        /// Bytes.
        bytes: u64,
    },
    /// The new device refused a request, so it replaces none.
    #[error("{device}: {source}; nothing is replaced")]
    Refused {
        /// Name of the device.
        device: String,
        /// Its error.
        source: sapwood_block::Error,
    },
    /// A missing device has parts of a profile with parity.
    #[error("device {devid} has parts of {profile}, which is read only, so it is not rebuilt")]
    Parity {
        /// Name of the profile.
        profile: &'static str,
        /// Id of the device.
        devid: u64,
    },
    /// No device has this id.
    #[error("the file system has no device {0}")]
    NoSuchDevice(u64),
    /// No device has this name.
    #[error("{0}: is no device of the file system")]
    NoDeviceNamed(String),
    /// Block groups on it are allocated or removed again and again.
    #[error("device {0} is still in use; try again")]
    InUse(u64),
    /// No device is missing.
    #[error("no device of the file system is missing")]
    NoneMissing,
    /// It has only one device.
    #[error("device {0} is the only one of the file system")]
    OnlyDevice(u64),
    /// A profile in use needs more devices than would be left.
    #[error(
        "profile {profile} needs {needed} devices, {left} would be left; \
         convert it first with sapwood balance"
    )]
    TooFewDevices {
        /// Name of the profile.
        profile: &'static str,
        /// Devices that it needs.
        needed: usize,
        /// Devices that would be left.
        left: usize,
    },
    /// The other devices lack room.
    #[error(
        "block group {group} ({profile}, {len} bytes) fits nowhere in the unallocated space of the \
         other devices"
    )]
    NoRoom {
        /// Logical address.
        group: u64,
        /// Its profile.
        profile: &'static str,
        /// Bytes.
        len: u64,
    },
}
