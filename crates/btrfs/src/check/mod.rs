//! Checks a whole file system, read-only, trusting nothing: neither the image nor the engine,
//! whose tree code is not used here.
//!
//! # How it works
//! 1. Superblocks; then the chunk map, from the superblock's array and the chunk tree.
//! 2. The root tree and the trees about space: extents with their refs, block groups, device
//!    extents, checksum ranges, free space.
//! 3. All other trees. Every block is read once, in all its copies. A block *uses* what it points
//!    at: a child, a data extent. Who is charged with the use depends on the block alone (its
//!    owner, or the block itself if its extent says so), not on the tree by which it was reached;
//!    so a block that snapshots share is charged once. Uses and listed refs of an extent are
//!    added into one balance of hashes. Only where it is not zero at the end, a second pass
//!    collects the refs in detail.
//! 4. Names work the same: entries of directories against the names in inodes, in one balance
//!    per subvolume. What a subtree says of its inodes is a `summary` that
//!    joins with that of its neighbours; the summary of a shared block is kept and used again.
//!    Thereby ten thousand snapshots cost as much as their unshared blocks.
//! 5. Sums and complements: used bytes, free space, checksums of data that has none.
//!
//! Trouble cases: a block that is bad in all copies leaves a hole; what would follow from the
//! hole alone (its children unused, names without inodes) is not reported. Cycles and lattices of
//! blocks: levels fall strictly and each block is entered once. All memory is bounded by what the
//! image really contains, and the number of findings by an option. Each finding is planted by a
//! test in `tests/check/`.

mod chunks;
mod csums;
mod data;
mod error;
mod extents;
mod finding;
mod free_space;
mod inodes;
mod log;
mod qgroups;
mod refs;
mod roots;
mod source;
mod state;
mod superblock;
mod uuids;
mod walk;

use sapwood_block::Device;

pub use error::CheckError;
pub use finding::{BlockFault, Finding, Severity};

use state::Check;

/// What to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Also read all data that has checksums, in every copy.
    pub check_data_csum: bool,
    /// Findings to keep; further ones are only counted.
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

/// What a check is at.
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

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is at.
    pub phase: Phase,
    /// Bytes done in this phase.
    pub done: u64,
    /// Bytes to do in this phase, as far as known.
    pub total: u64,
}

/// Numbers of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckStats {
    /// Tree blocks reached.
    pub tree_blocks: u64,
    /// Bytes in data extents.
    pub data_bytes: u64,
    /// Data extents.
    pub data_extents: u64,
    /// Subvolumes and snapshots, the top level included.
    pub subvolumes: u64,
    /// Inodes, those in shared blocks counted once.
    pub inodes: u64,
    /// Bytes of data whose checksums were verified, all copies counted.
    pub verified_bytes: u64,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Findings in the order in which they were made.
    pub findings: Vec<Finding>,
    /// Findings beyond the limit of the options.
    pub suppressed: u64,
    /// Numbers.
    pub stats: CheckStats,
}

impl CheckReport {
    /// Whether nothing was found but warnings.
    pub fn is_clean(&self) -> bool {
        self.suppressed == 0 && self.errors().next().is_none()
    }

    /// Findings that are errors.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        let errors = self.findings.iter();
        errors.filter(|f| f.severity() == Severity::Error)
    }
}

/// Checks the file system on `devices` (one per device of it, in any order). Nothing is written,
/// and nothing else may write to them meanwhile.
///
/// # Errors
/// When there is nothing that could be checked: no valid superblock, devices missing, features
/// that this code does not know. Everything else is a finding.
pub fn check(
    devices: &[&dyn Device],
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckReport, CheckError> {
    let mut check = Check::open(devices, options, progress)?;
    check.space_trees();
    check.other_trees();
    check.compare();
    if options.check_data_csum && superblock::is_dump(&check.sb) {
        check.found(Finding::DataOfDump {});
    } else if options.check_data_csum {
        check.verify_data();
    }
    Ok(check.report)
}
