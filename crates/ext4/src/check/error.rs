//! Why a file system could not be checked at all.

use sapwood_ext4_format::FormatError;
use thiserror::Error;

/// Why a check produced no report.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The device could not be read.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// No sign of ext2, ext3 or ext4.
    #[error("{device}: no ext4 file system")]
    NotExt4 {
        /// Device name.
        device: String,
    },
    /// The superblock has no usable content.
    #[error("{device}: {error}")]
    Super {
        /// Device name.
        device: String,
        /// The error.
        error: FormatError,
    },
    /// Features that change what would have to be checked.
    #[error("unsupported features: {0}")]
    Features(String),
    /// The caller's progress function cancelled the check.
    #[error("the check was cancelled")]
    Cancelled,
}
