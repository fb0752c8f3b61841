//! Options, progress, report and errors of a check.

use sapwood_base::finding;
use sapwood_ext4_format::FormatError;
use thiserror::Error;

use super::finding::Finding;
use crate::journal_device::JournalDevice;

/// Parameters of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Most findings to keep; further ones are only counted.
    pub max_findings: usize,
    /// The journal, if it is on another device. Without it such a journal is not checked, and one
    /// that must be replayed is an error.
    pub journal: Option<JournalDevice>,
    /// This process has the multiple mount protection, so a sequence of a holder is no finding.
    pub protected: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            max_findings: 10_000,
            journal: None,
            protected: false,
        }
    }
}

/// Phase of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Group descriptors; counts groups.
    Groups,
    /// Inodes; counts groups.
    Inodes,
    /// Directories; counts groups.
    Directories,
    /// Bitmaps; counts groups.
    Compare,
}

/// Progress of a check.
pub type Progress = finding::Progress<Phase>;

/// Statistics of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckStats {
    /// Inodes in use, including reserved ones.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Names, without `.` and `..`.
    pub names: u64,
    /// Blocks of maps: extent nodes and blocks of pointers.
    pub map_blocks: u64,
    /// Attribute blocks.
    pub xattr_blocks: u64,
    /// Free blocks as counted, in whole clusters.
    pub free_blocks: u64,
    /// Free inodes as counted.
    pub free_inodes: u64,
}

/// Result of a check.
pub type CheckReport = finding::CheckReport<Finding, CheckStats>;

/// Errors of a check without a report.
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
    #[error("{device}: {source}")]
    Super {
        /// Device name.
        device: String,
        /// The defect.
        source: FormatError,
    },
    /// Unknown features that change the rules of a check.
    #[error("unsupported features: {0}")]
    Features(String),
    /// The caller's progress function cancelled the check.
    #[error("the check was cancelled")]
    Cancelled,
}
