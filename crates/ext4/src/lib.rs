//! The ext4 engine: volume, journal, allocators, mapping, data, operations.

mod alarm;
mod block_alloc;
pub mod check;
mod commit_reason;
pub mod compare;
mod counters;
mod data;
mod dir;
mod engine;
mod erase;
mod error;
mod fast_commit;
mod file_data;
mod group;
mod inode;
mod inode_alloc;
pub mod inspect;
mod lock;
mod map;
pub mod mkfs;
mod mount;
mod namespace;
mod on_demand;
mod options;
#[cfg(test)]
mod oracles;
mod orphan;
mod orphan_set;
mod recovery;
pub mod resize;
pub mod scrub;
mod seal;
mod staging;
mod store;
mod track;
mod volume;
mod xattr;

pub use erase::erase_unused;
pub use error::{Error, Result};
pub use mount::{Ext4, Mount};
pub use options::{DataMode, FastCommits, Options};
pub use staging::{Staging, StagingError};
