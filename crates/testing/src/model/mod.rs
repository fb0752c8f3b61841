//! Random operations on a file system and on a model of it, compared: for property tests of
//! engines, with [`MemoryFs`](crate::MemoryFs) as the model.
//!
//! # How it works
//! A [`Generator`] makes [`Op`](crate::op::Op)s from a seed, with few names in a small tree, so
//! that operations collide. A [`Session`](crate::op::Session) applies them to a file system and
//! returns each result as an [`Outcome`](crate::op::Outcome), which leaves out all that may differ
//! (times, inode numbers, allocation). [`run_sequence`] applies the same operations to two file
//! systems, compares every outcome and, at intervals, the whole visible state ([`compare_trees`]).
//! The first difference is a [`Failure`] with the seed and the operations; [`minimize`] removes
//! operations that do not matter. [`Threads`] does the same from several threads at once. Each
//! thread works in a directory of its own with a model of its own, so that its outcome does not
//! depend on the other threads.
//!
//! ```
//! use sapwood_testing::MemoryFs;
//! use sapwood_testing::model::{Settings, Threads, run_sequence};
//!
//! let (fs, model) = (MemoryFs::new(), MemoryFs::new());
//! run_sequence(1, 300, &fs, &model, &Settings::default()).unwrap();
//!
//! let fs = MemoryFs::new();
//! let threads = Threads::run(2, 100, 3, &fs, &Settings::default()).unwrap();
//! // An engine would be unmounted and mounted again here.
//! threads.compare(&fs).unwrap();
//! ```

mod generate;
mod run;
mod shadow;

pub use generate::Generator;
pub use run::{Failure, Threads, compare_trees, minimize, replay, run_sequence};

use crate::conformance::Capabilities;

/// The operations to generate, and the depth of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The engine's capabilities; only operations within them are made.
    pub capabilities: Capabilities,
    /// Make subvolumes and snapshots, if the engine has them.
    pub subvolumes: bool,
    /// Make `sync` and `fsync` calls.
    pub syncs: bool,
    /// Files grow to about this many bytes.
    pub file_size: u64,
    /// Number of operations between two comparisons of the trees.
    pub compare_every: usize,
}

impl Default for Settings {
    /// For btrfs, without subvolumes.
    fn default() -> Self {
        Self {
            capabilities: Capabilities::BTRFS,
            subvolumes: false,
            syncs: true,
            file_size: 300_000,
            compare_every: 50,
        }
    }
}
