//! Trees of files as they are on disk, and the difference of two of them.
//!
//! # How it works
//! A [`FileTree`] reads a subvolume item by item, without inodes in memory. [`Difference`] walks
//! two trees together in the order of their keys. A snapshot shares its unchanged blocks with its
//! source. A pointer to the same block in both trees is passed without reading the block, so the
//! cost is in proportion to the changed items.
//!
//! Both need subvolumes that do not change meanwhile: read-only ones, or an image that is open for
//! reading only.

mod difference;
mod file_tree;
mod references;

pub use sapwood_btrfs_format::RegularExtent;

pub use difference::Difference;
pub use file_tree::{Entries, Extent, ExtentContent, Extents, FileTree, SubvolumeIdentity};
