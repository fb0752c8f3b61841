//! A mounted file system: assembles the layers, replays the log, serves the front, closes.

mod engine;
mod front;
mod open;
mod sync;

pub(crate) use engine::Engine;
pub use open::Mount;
#[cfg(test)]
pub(crate) use sync::{fsync, sync};

/// A mounted btrfs file system.
pub type Btrfs = sapwood_vfs::front::Front<Mount>;
