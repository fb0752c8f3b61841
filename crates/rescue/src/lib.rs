//! Reads the remains of damaged file systems: superblocks, trees, inodes and files.
//!
//! # How it works
//! An engine refuses an image that contradicts itself. This crate reads the same structures with
//! other rules. It uses a structure that validates, and searches for another copy of one that does
//! not. A structure that it cannot find is an error only for the file, directory or range that
//! needs it.
//!
//! - [`Rescued`] is a read-only file system, so every command that reads works on it.
//! - [`btrfs`] scans devices for tree blocks, and builds trees from the blocks that it found.
//! - [`ext4`] uses backups of superblock and descriptors, and copies of blocks in the journal.
//!
//! Nothing here writes to a device. Input is never trusted: any bytes give a value or an error, in
//! bounded time and memory.

pub mod btrfs;
mod claims;
mod collected;
mod deleted;
mod error;
pub mod ext4;
mod name_index;
mod parallel;
mod progress;
mod tree;

pub use collected::Collected;
pub use deleted::{Deleted, Found, NameSource, OnDeleted};
pub use error::{Error, Lost, Result};
pub use progress::{Scanning, Watch};
pub use tree::{Rescued, Tree, Xattrs};
