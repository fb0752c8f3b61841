//! The btrfs engine: volumes, trees, space, transactions, data, operations.

mod cause;
pub mod check;
mod compression;
mod counters;
mod data;
mod engine;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod inspect;
mod lock;
pub mod mkfs;
mod ops;
mod options;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod oracles;
mod space;
mod subvolume;
mod transaction;
mod tree;
mod tree_log;
mod volume;

pub use compression::{Compression, UnknownCompression};
pub use engine::Btrfs;
pub use error::{Error, Result};
#[cfg(feature = "ablation")]
pub use options::{Groups, LogPolicy};
pub use options::{Options, SubvolumeChoice};
