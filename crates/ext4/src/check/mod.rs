//! Checks a whole file system, read-only, trusting nothing: neither the image nor the engine, whose cache, maps and
//! directories are not used here.
//!
//! # How it works
//! 1. Superblock, its copies, the journal. One that has to be replayed is replayed into memory in front of the device; the
//!    check goes on over what a recovery would give.
//! 2. Group descriptors and what they claim: superblocks, descriptors, bitmaps, tables.
//! 3. All inodes in the order of the tables: fields, attributes, map. Every block of a map is entered in one set of used
//!    clusters; what is there already is kept in a second set, and a second pass over the maps, only run if there is such a
//!    block, names everyone who uses it.
//! 4. All directories: structure, names, hash trees. Names are counted per inode.
//! 5. What needs everything before: paths from the root, link counts, references of attribute blocks and values.
//! 6. Both bitmaps and the counts of every group against what was found, then the superblock's sums.
//!
//! Trouble cases: a block that cannot be read or is damaged leaves a hole; what would follow from
//! the hole alone (blocks and inodes that nothing seems to use) is not reported. Maps and trees
//! that share blocks or run in circles: a block of pointers is entered once in each pass, a block
//! of a directory is read once. Memory is bounded by two bits per cluster and 16 bytes per inode of
//! groups in use, the names' hashes of one directory, and a few bytes per attribute block and
//! directory; the number of findings by an option. Each finding is planted by a test in
//! `check/tests/`.

mod claims;
mod compare;
mod connect;
mod dirs;
mod error;
mod finding;
mod groups;
mod htree;
mod inodes;
mod journal;
mod notes;
mod orphans;
mod special;
mod state;
mod superblock;
#[cfg(test)]
mod tests;
mod walk;
mod xattrs;

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::Device;

pub use error::CheckError;
pub use finding::{Finding, Severity};

use state::Check;

/// What to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Findings to keep; further ones are only counted.
    pub max_findings: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            max_findings: 10_000,
        }
    }
}

/// What a check is at.
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

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is at.
    pub phase: Phase,
    /// Groups done in this phase.
    pub done: u64,
    /// Groups to do in this phase.
    pub total: u64,
}

/// Numbers of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inodes in use, reserved ones included.
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
    /// Free blocks by what was found, in whole clusters.
    pub free_blocks: u64,
    /// Free inodes by what was found.
    pub free_inodes: u64,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Findings in the order in which they were made.
    pub findings: Vec<Finding>,
    /// Findings beyond the limit of the options.
    pub suppressed: u64,
    /// Numbers.
    pub counts: Counts,
}

impl Report {
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

/// Checks the file system on `device`. Nothing is written to it, and nothing else may write to
/// it meanwhile. `progress` is called often; when it breaks, the check ends.
///
/// # Errors
/// When there is nothing that could be checked: no superblock, one that makes no sense, features that this code does not
/// know; or [`CheckError::Cancelled`]. Everything else is a finding.
pub fn check(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Report, CheckError> {
    let mut check = Check::open(device, options, progress)?;
    check.copies_of_super();
    check.load_groups()?;
    check.orphans();
    check.all_inodes()?;
    check.shared_blocks();
    check.all_directories()?;
    check.connect();
    check.references();
    check.compare()?;
    Ok(check.into_report())
}
