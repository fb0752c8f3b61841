//! The btrfs engine: volumes, trees, space, transactions, data, operations.

pub mod balance;
pub mod check;
mod checksum;
mod commit_reason;
pub mod compare;
mod compression;
mod counters;
mod data;
mod devices;
mod error;
mod file_data;
#[doc(hidden)]
pub mod fuzzing;
mod inode;
pub mod inspect;
mod lock;
pub mod membership;
pub mod mkfs;
mod mount;
mod namespace;
mod options;
pub mod places;
mod quota;
pub mod quota_groups;
mod recovery;
mod relocate;
pub mod replacement;
pub mod resize;
pub mod scrub;
mod space;
mod staging;
mod subvolume;
mod transaction;
mod tree;
mod tree_log;
mod xattr;

pub use compression::{Compression, UnknownCompression};
pub use data::EncodedExtent;
pub use data::compress::expand;
pub use error::{Error, Result};
pub use mount::{Btrfs, Mount};
pub use options::{Options, SubvolumeChoice};
pub use staging::{Staging, StagingError};
