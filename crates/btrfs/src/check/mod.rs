//! Checks a whole file system, read-only. It trusts neither the image nor the engine, whose tree
//! code it does not use.
//!
//! # How it works
//! 1. Superblocks; then the chunk map, from the superblock's array and the chunk tree.
//! 2. The root tree and the trees about space: extents with their refs, block groups, device
//!    extents, checksum ranges, free space.
//! 3. All other trees. Every block is read once, in all its copies. A block *uses* everything that
//!    it points at: a child, a data extent. The use is charged according to the block alone (to its
//!    owner, or to the block itself if its extent requires it), not to the tree through which the
//!    block was reached. So a block that snapshots share is charged once. Uses and listed refs of
//!    an extent are added into one balance of hashes. Only if it is not zero at the end, a second
//!    pass collects the refs in detail.
//! 4. Names are checked in the same way: directory entries against the names in inodes, with one
//!    balance per subvolume. The facts of a subtree about its inodes are a `summary`, which joins
//!    with the summaries of its neighbours. The summary of a shared block is kept and reused. So
//!    ten thousand snapshots cost as much as their unshared blocks.
//! 5. Sums and complements: used bytes, free space, checksums of data that has none.
//!
//! Trouble cases:
//! - A block that is bad in all copies leaves a hole. Consequences of the hole (its children
//!   unused, names without inodes) are not reported.
//! - Blocks may form cycles and lattices. Levels fall strictly, and each block is entered once.
//! - Memory is bounded by the actual contents of the image, the number of findings by an option.
//!
//! A test in `tests/check/` plants each finding.

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
pub mod repair;
mod report;
mod roots;
mod simple_quotas;
mod source;
mod state;
mod superblock;
mod uuids;
mod walk;

use sapwood_block::Device;

pub use error::CheckError;
pub use finding::{BlockFault, Finding};
pub use report::{CheckOptions, CheckReport, CheckStats, Phase, Progress};
pub use sapwood_base::finding::Severity;

use state::Check;

/// Checks the file system on `devices` (all of its devices, in any order). Writes nothing. Nothing
/// else may write to them meanwhile.
///
/// # Errors
/// If nothing can be checked: no valid superblock, missing devices, unknown features. Everything
/// else is a finding.
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
