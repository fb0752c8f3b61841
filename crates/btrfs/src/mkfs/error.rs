//! Errors of creating a file system.

use sapwood_btrfs_format::{BlockError, ItemError, block};
use thiserror::Error;

/// Errors of mkfs. Nothing was written unless the error is [`Device`](Self::Device).
#[derive(Debug, Error)]
pub enum MkfsError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// No device was given.
    #[error("no device")]
    NoDevice,
    /// A profile needs more devices.
    #[error("{content} profile {profile} needs {needed} devices, {given} given")]
    TooFewDevices {
        /// `data` or `metadata`.
        content: &'static str,
        /// Name of the profile.
        profile: &'static str,
        /// Devices that it needs.
        needed: usize,
        /// Devices that were given.
        given: usize,
    },
    /// The device contains something already.
    #[error("{device} contains {what}; force is needed to overwrite it")]
    Occupied {
        /// Device name.
        device: String,
        /// The contents, such as `a btrfs file system`.
        what: &'static str,
    },
    /// The chunks do not fit.
    #[error("{device} has {size} bytes, at least {minimum} are needed for these options")]
    TooSmall {
        /// Device name.
        device: String,
        /// Bytes of the device, or requested bytes.
        size: u64,
        /// Bytes needed.
        minimum: u64,
    },
    /// More bytes requested than the device has.
    #[error("{device} has {size} bytes, fewer than the {wanted} asked for")]
    PastEnd {
        /// Device name.
        device: String,
        /// Bytes of the device.
        size: u64,
        /// Requested bytes.
        wanted: u64,
    },
    /// Not a power of two within 4 KiB..64 KiB.
    #[error("node size {0} is not a power of two from 4096 to 65536")]
    NodeSize(u32),
    /// Mixed groups need nodes as large as sectors.
    #[error("mixed block groups need node size 4096, not {0}")]
    MixedNodeSize(u32),
    /// Mixed groups have one profile.
    #[error("mixed block groups need the same profile for data and metadata")]
    MixedProfiles,
    /// The block-group tree requires other features.
    #[error("the block-group tree needs the free-space tree and no-holes")]
    BlockGroupTree,
    /// A chunk size that is zero, not a multiple of 64 KiB, or too small.
    #[error("{content} chunk of {bytes} bytes: must be a multiple of 65536, at least {minimum}")]
    ChunkSize {
        /// `system`, `metadata` or `data`.
        content: &'static str,
        /// Requested bytes.
        bytes: u64,
        /// Smallest size.
        minimum: u64,
    },
    /// The label has more than 255 bytes, or contains a zero or a newline.
    #[error("label of {0} bytes: at most 255, without zero bytes and newlines")]
    Label(usize),
    /// The validator refuses a created block: a bug.
    #[error("made a bad block: {0}")]
    BadBlock(#[from] BlockError),
    /// An item does not fit: a bug.
    #[error("made a bad block: {0}")]
    Pack(#[from] block::Error),
    /// A part of the superblock does not fit: a bug.
    #[error("made a bad superblock: {0}")]
    Super(#[from] ItemError),
}
