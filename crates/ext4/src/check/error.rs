//! Why a file system could not be checked at all.

use sapwood_ext4_format::FormatError;
use thiserror::Error;

/// Why there is no report.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The device could not be read.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// Nothing says that there is an ext2, ext3 or ext4.
    #[error("{device}: no ext4 file system")]
    NotExt4 {
        /// Device name.
        device: String,
    },
    /// The superblock says nothing that could be checked.
    #[error("{device}: {error}")]
    Super {
        /// Device name.
        device: String,
        /// What is wrong with it.
        error: FormatError,
    },
    /// Features that change what would have to be checked.
    #[error("unsupported features: {0}")]
    Features(String),
    /// The caller's progress function said so.
    #[error("the check was cancelled")]
    Cancelled,
}
