//! Options and report of a check.

use sapwood_base::finding;

use super::finding::Finding;

/// Extent of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Also read all data that has checksums, in every copy.
    pub check_data_csum: bool,
    /// Most findings to keep; further ones are only counted.
    pub max_findings: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            check_data_csum: false,
            max_findings: 10_000,
        }
    }
}

/// Phase of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Trees about space.
    Space,
    /// Subvolumes and all other trees.
    Trees,
    /// Comparing.
    Compare,
    /// Data checksums.
    Data,
}

/// Progress of a check; counts bytes.
pub type Progress = finding::Progress<Phase>;

/// Statistics of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckStats {
    /// Tree blocks reached.
    pub tree_blocks: u64,
    /// Bytes in data extents.
    pub data_bytes: u64,
    /// Data extents.
    pub data_extents: u64,
    /// Subvolumes and snapshots, including the top level.
    pub subvolumes: u64,
    /// Inodes; those in shared blocks count once.
    pub inodes: u64,
    /// Bytes of data whose checksums were verified, counting all copies.
    pub verified_bytes: u64,
}

/// Result of a check.
pub type CheckReport = finding::CheckReport<Finding, CheckStats>;
