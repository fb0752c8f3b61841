//! Random operations on a file system and on a model of it, and what differs: for property
//! tests of engines, with [`MemoryFs`](crate::MemoryFs) as the model.
//!
//! # How it works
//! A [`Generator`] makes [`Op`]s from a seed: a handful of names in a small tree, so that
//! operations meet. A [`Session`] applies them to a file system and says what came of each
//! as an [`Outcome`] that leaves out what may differ (times, inode numbers, allocation).
//! [`run_sequence`] applies the same operations to two file systems, compares every outcome
//! and, now and then, all that can be seen ([`compare_trees`]). The first difference is a
//! [`Failure`] that holds seed and operations; [`minimize`] leaves out of them what does not
//! matter. [`Threads`] does the same from several threads at once, each in a directory of its
//! own with a model of its own, so that the outcome of each is known whatever the others do.
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

mod compare;
mod generate;
mod op;
mod run;
mod session;
mod shadow;

pub use compare::{Difference, compare_below, compare_trees};
pub use generate::Generator;
pub use op::{Fill, Kind, Op, Place, Subject, Who};
pub use run::{Failure, Threads, minimize, replay, run_sequence};
pub use session::{Outcome, Seen, Session};

use crate::conformance::Capabilities;

/// What to generate and how closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// What the engine can do; only such operations are made.
    pub capabilities: Capabilities,
    /// Make subvolumes and snapshots, if the engine can.
    pub subvolumes: bool,
    /// Make `sync` and `fsync` calls.
    pub syncs: bool,
    /// Files grow to about this many bytes.
    pub file_size: u64,
    /// Compare the trees after this many operations.
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
