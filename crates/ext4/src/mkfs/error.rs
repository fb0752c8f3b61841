//! What makes a file system impossible to create.

use sapwood_ext4_format::{DirError, ExtentError, FormatError, OrphanError};
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
    /// More blocks asked for than the device has.
    #[error("{device} has {size} bytes, fewer than the {wanted} asked for")]
    PastEnd {
        /// Device name.
        device: String,
        /// Bytes of the device.
        size: u64,
        /// Bytes asked for.
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
    /// Block numbers of 32 bits do not reach.
    #[error("{0} blocks: more than 32 bits can name; the 64bit feature is needed")]
    TooLarge(u64),
    /// Descriptors fill most of group 0.
    #[error(
        "{blocks} blocks of descriptors in groups of {group}: larger blocks or meta_bg are needed"
    )]
    Descriptors {
        /// Blocks of descriptors, those reserved included.
        blocks: u64,
        /// Blocks of a group.
        group: u32,
    },
    /// Not one of those that every kernel can mount.
    #[error("block size {0} is not 1024, 2048 or 4096")]
    BlockSize(u32),
    /// Not a power of two from 128 to the block size.
    #[error("inode size {size} is not a power of two from 128 to {block_size}, the block size")]
    InodeSize {
        /// Bytes asked for.
        size: u32,
        /// Bytes of a block.
        block_size: u32,
    },
    /// Not a multiple of 8 that a bitmap can hold.
    #[error("groups of {0} blocks: must be a multiple of 8 from 256 to 8 times the block size")]
    GroupSize(u32),
    /// An inode for every so many bytes is too many or too few.
    #[error("an inode for every {0} bytes: at least 1024, at most 67108864")]
    InodeRatio(u64),
    /// The tables would not leave room for data.
    #[error("{inodes} inodes of {size} bytes do not fit {blocks} blocks")]
    Inodes {
        /// Inodes asked for.
        inodes: u64,
        /// Bytes of an inode.
        size: u32,
        /// Blocks of the file system.
        blocks: u64,
    },
    /// More than half of the blocks, or less than none.
    #[error("{0} % of the blocks reserved: at least 0, at most 50")]
    Reserved(f64),
    /// Not a power of two of groups.
    #[error("flex groups of {0} groups: must be a power of two")]
    FlexGroups(u32),
    /// Over 16 bytes or with a zero in it.
    #[error("label of {0} bytes: at most 16, without zero bytes")]
    Label(usize),
    /// No thread knows it.
    #[error("unknown feature {0}")]
    UnknownFeature(String),
    /// It exists, and we cannot write what has it.
    #[error("feature {0} is not supported")]
    UnsupportedFeature(String),
    /// A feature that stands on something else.
    #[error("feature {feature} needs {needs}")]
    Needs {
        /// The feature.
        feature: &'static str,
        /// What is missing.
        needs: &'static str,
    },
    /// Two features that exclude each other.
    #[error("features {0} and {1} exclude each other")]
    Conflict(&'static str, &'static str),
    /// A journal that is too small, or takes more than half of what is free.
    #[error("journal of {blocks} blocks: at least {least}, at most {most}")]
    JournalSize {
        /// Blocks asked for.
        blocks: u64,
        /// Fewest.
        least: u64,
        /// Most.
        most: u64,
    },
    /// A value that does not fit: an error of ours.
    #[error("made a bad file system: {0}")]
    Format(#[from] FormatError),
    /// A directory that does not fit: an error of ours.
    #[error("made a bad directory: {0}")]
    Dir(#[from] DirError),
    /// An extent that does not fit: an error of ours.
    #[error("made a bad extent tree: {0}")]
    Extent(#[from] ExtentError),
    /// An orphan file that does not fit: an error of ours.
    #[error("made a bad orphan file: {0}")]
    Orphan(#[from] OrphanError),
    /// A journal that is not one: an error of ours.
    #[error("made a bad journal: {0}")]
    Journal(#[from] sapwood_jbd2::Error),
}
