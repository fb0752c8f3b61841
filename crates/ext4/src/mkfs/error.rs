//! Errors of creating a file system.

use sapwood_ext4_format::{DirError, ExtentError, FormatError, OrphanError};
use thiserror::Error;

/// Errors of mkfs. Nothing was written unless the error is [`Device`](Self::Device).
#[derive(Debug, Error)]
pub enum MkfsError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The device contains something already.
    #[error("{device} contains {what}; force is needed to overwrite it")]
    Occupied {
        /// Device name.
        device: String,
        /// The contents, such as `a btrfs file system`.
        what: &'static str,
    },
    /// More blocks requested than the device has.
    #[error("{device} has {size} bytes, fewer than the {wanted} asked for")]
    PastEnd {
        /// Device name.
        device: String,
        /// Bytes of the device.
        size: u64,
        /// Requested bytes.
        wanted: u64,
    },
    /// There is no room for the metadata.
    #[error("{blocks} blocks of {block_size} bytes are too few for these options")]
    TooSmall {
        /// Blocks of the file system.
        blocks: u64,
        /// Bytes of a block.
        block_size: u32,
    },
    /// Block numbers of 32 bits do not suffice.
    #[error("{0} blocks: more than 32 bits can name; the 64bit feature is needed")]
    TooLarge(u64),
    /// Descriptors fill most of group 0.
    #[error(
        "{blocks} blocks of descriptors in groups of {group}: larger blocks or meta_bg are needed"
    )]
    Descriptors {
        /// Blocks of descriptors, including reserved ones.
        blocks: u64,
        /// Blocks of a group.
        group: u32,
    },
    /// Not a block size that every kernel can mount.
    #[error("block size {0} is not 1024, 2048 or 4096")]
    BlockSize(u32),
    /// Not a power of two from 128 to the block size.
    #[error("inode size {size} is not a power of two from 128 to {block_size}, the block size")]
    InodeSize {
        /// Requested bytes.
        size: u32,
        /// Bytes of a block.
        block_size: u32,
    },
    /// Not a multiple of 8 that a bitmap can hold.
    #[error("groups of {0} blocks: must be a multiple of 8 from 256 to 8 times the block size")]
    GroupSize(u32),
    /// The number of bytes per inode is too small or too large.
    #[error("an inode for every {0} bytes: at least 1024, at most 67108864")]
    InodeRatio(u64),
    /// The tables would not leave room for data.
    #[error("{inodes} inodes of {size} bytes do not fit {blocks} blocks")]
    Inodes {
        /// Requested inodes.
        inodes: u64,
        /// Bytes of an inode.
        size: u32,
        /// Blocks of the file system.
        blocks: u64,
    },
    /// More than half of the blocks, or a negative number.
    #[error("{0} % of the blocks reserved: at least 0, at most 50")]
    Reserved(f64),
    /// Not a power of two of groups.
    #[error("flex groups of {0} groups: must be a power of two")]
    FlexGroups(u32),
    /// The label has more than 16 bytes, or contains a zero.
    #[error("label of {0} bytes: at most 16, without zero bytes")]
    Label(usize),
    /// The interval of multiple mount protection is too long.
    #[error("mmp_update_interval of {0} s: at least 1, at most 300")]
    MmpInterval(u16),
    /// The device that was named has no usable journal.
    #[error(transparent)]
    JournalDevice(Box<crate::Error>),
    /// Another file system uses the journal.
    #[error("{device}: a file system uses this journal; force is needed to take it")]
    JournalInUse {
        /// Name of the journal's device.
        device: String,
    },
    /// The feature is unknown.
    #[error("unknown feature {0}")]
    UnknownFeature(String),
    /// The feature exists, but cannot be written.
    #[error("feature {0} is not supported")]
    UnsupportedFeature(String),
    /// A feature that requires something else.
    #[error("feature {feature} needs {needs}")]
    Needs {
        /// The feature.
        feature: &'static str,
        /// The missing feature.
        needs: &'static str,
    },
    /// Two features that exclude each other.
    #[error("features {0} and {1} exclude each other")]
    Conflict(&'static str, &'static str),
    /// A journal that is too small, or takes more than half of the free space.
    #[error("journal of {blocks} blocks: at least {least}, at most {most}")]
    JournalSize {
        /// Requested blocks.
        blocks: u64,
        /// Fewest.
        least: u64,
        /// Most.
        most: u64,
    },
    /// A value does not fit: a bug.
    #[error("made a bad file system: {0}")]
    Format(#[from] FormatError),
    /// A directory does not fit: a bug.
    #[error("made a bad directory: {0}")]
    Dir(#[from] DirError),
    /// An extent does not fit: a bug.
    #[error("made a bad extent tree: {0}")]
    Extent(#[from] ExtentError),
    /// An orphan file does not fit: a bug.
    #[error("made a bad orphan file: {0}")]
    Orphan(#[from] OrphanError),
    /// A created journal is invalid: a bug.
    #[error("made a bad journal: {0}")]
    Journal(#[from] sapwood_jbd2::Error),
}

impl MkfsError {
    pub(super) fn journal_device(error: crate::Error) -> Self {
        Self::JournalDevice(Box::new(error))
    }
}
