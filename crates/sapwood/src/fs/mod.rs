//! The files of an image, in the shape of [`std::fs`].
//!
//! [`FileSystem`] is an open image. Its methods take paths from the root of the image, with or
//! without a leading `/`; a symbolic link is followed within the image, and never leads out of it.
//! [`File`], [`ReadDir`] and [`Walk`] keep the file system open as long as they live.
//!
//! No permission is checked: a process that may write the image may do everything in it. New inodes
//! belong to the caller's effective user and group, or to [`FileSystem::set_creator`]'s.

mod accounts;
mod attributes;
mod dir;
mod file;
mod file_system;
mod handle;
mod metadata;
mod names;
mod operation;
mod paths;
mod replace;
mod subvolumes;
mod transaction;
pub(crate) mod verity;

pub use dir::{DirEntry, ReadDir, Step, Walk, WalkEntry};
pub use file::{File, OpenOptions};
pub use file_system::FileSystem;
pub use metadata::{FileType, Metadata, Times};
pub use operation::OperationError;
pub use transaction::TransactionError;
