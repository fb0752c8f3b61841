//! Checks a whole file system, read-only. It trusts neither the image nor the engine, whose cache,
//! maps and directories it does not use.
//!
//! # How it works
//! 1. Superblock, its copies, the journal. A journal that needs recovery is replayed into memory on
//!    top of the device; the check then sees the result of a recovery.
//! 2. Group descriptors and the blocks that they claim: superblocks, descriptors, bitmaps, tables.
//! 3. All inodes in the order of the tables: fields, attributes, map. Every block of a map is
//!    entered into one set of used clusters. A block that is already in it is entered into a second
//!    set. If there is such a block, a second pass over the maps reports every inode that uses it.
//! 4. All directories: structure, names, hash trees. Names are counted per inode.
//! 5. Everything that depends on the previous steps: paths from the root, link counts, references
//!    of attribute blocks and values, the usage of owners in quota files.
//! 6. Both bitmaps and the counts of every group, then the superblock's sums.
//!
//! Trouble cases:
//! - An unreadable or damaged block leaves a hole. Consequences of the hole (blocks and inodes that
//!   seem unused) are not reported.
//! - Maps and trees may share blocks or have cycles. A block of pointers is entered once in each
//!   pass, a block of a directory is read once.
//! - Memory is bounded by two bits per cluster and 16 bytes per inode of groups in use, the names'
//!   hashes of one directory, and a few bytes per attribute block, directory and owner of quotas. An
//!   option bounds the number of findings.
//!
//! A test in `check/tests/` plants each finding.

mod claims;
mod compare;
mod connect;
mod dirs;
mod finding;
mod groups;
mod htree;
mod inodes;
mod journal;
mod notes;
mod orphans;
mod quotas;
pub mod repair;
mod report;
mod special;
mod state;
mod superblock;
#[cfg(test)]
mod tests;
mod walk;
mod xattrs;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::Device;

pub use finding::{Finding, QuotaSum};
pub use report::{CheckError, CheckOptions, CheckReport, CheckStats, Phase, Progress};
pub use sapwood_base::finding::Severity;

use notes::Parents;
use state::Check;

/// Checks the file system on `device`. Writes nothing to it. Nothing else may write to it
/// meanwhile. `progress` is called often; if it breaks, the check ends.
///
/// # Errors
/// If nothing can be checked: no superblock, an unusable one, unknown features; or
/// [`CheckError::Cancelled`]. Everything else is a finding.
pub fn check(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<CheckReport, CheckError> {
    Ok(examine(device, options, progress)?.0)
}

/// [`check`], which also returns where the directories are.
fn examine(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(CheckReport, HashMap<u32, Parents>), CheckError> {
    let mut findings = Vec::new();
    let opened = superblock::open(device, options.journal.as_ref(), &mut findings)?;
    let mut check = Check::new(opened.view, opened.recovered, options, progress);
    check.found_all(findings);
    check.copies_of_super();
    check.load_groups()?;
    check.orphans();
    check.all_inodes()?;
    check.shared_blocks();
    check.all_directories()?;
    check.connect();
    check.references();
    check.compare()?;
    Ok((check.report, check.parents))
}
