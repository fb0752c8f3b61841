//! What makes a file system impossible to create.

use sapwood_btrfs_format::{BlockError, ItemError, block};
use thiserror::Error;

/// Why no file system was made. Nothing was written unless the error is [`Device`](Self::Device).
#[derive(Debug, Error)]
pub enum MkfsError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// There is something on the device already.
    #[error("{device} contains {what}; force is needed to overwrite it")]
    Occupied {
        /// Device name.
        device: String,
        /// What was found, such as `a btrfs file system`.
        what: &'static str,
    },
    /// The chunks do not fit.
    #[error("{device} has {size} bytes, at least {minimum} are needed for these options")]
    TooSmall {
        /// Device name.
        device: String,
        /// Bytes of the device, or those asked for.
        size: u64,
        /// Bytes needed.
        minimum: u64,
    },
    /// More bytes asked for than the device has.
    #[error("{device} has {size} bytes, fewer than the {wanted} asked for")]
    PastEnd {
        /// Device name.
        device: String,
        /// Bytes of the device.
        size: u64,
        /// Bytes asked for.
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
    /// The block-group tree stands on other features.
    #[error("the block-group tree needs the free-space tree and no-holes")]
    BlockGroupTree,
    /// A chunk size that is zero or no multiple of 64 KiB, or too small to work with.
    #[error("{content} chunk of {bytes} bytes: must be a multiple of 65536, at least {minimum}")]
    ChunkSize {
        /// `system`, `metadata` or `data`.
        content: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// Smallest size.
        minimum: u64,
    },
    /// Over 255 bytes or with a zero or a newline in it.
    #[error("label of {0} bytes: at most 255, without zero bytes and newlines")]
    Label(usize),
    /// A block was made that the validator refuses: an error of ours.
    #[error("made a bad block: {0}")]
    BadBlock(#[from] BlockError),
    /// An item that does not fit: an error of ours.
    #[error("made a bad block: {0}")]
    Pack(#[from] block::Error),
    /// A superblock part that does not fit: an error of ours.
    #[error("made a bad superblock: {0}")]
    Super(#[from] ItemError),
}
