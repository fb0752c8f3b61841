//! Subvolumes: making, snapshotting, naming and deleting them.
//!
//! # How it works
//! A subvolume is a tree of files. Its root item has its uuid, flags and times; a pair of root refs
//! in the root tree ties it to the directory that holds its name; the uuid tree leads from uuids to
//! it. The thread that makes or deletes one, or changes its flags, holds a lock of [`Subvolumes`].
//!
//! - A *snapshot* is a copy of the top block. It is taken in the critical part of a commit, when no
//!   handle is open and all delayed items are in the trees ([`snapshot`]).
//! - *Deletion* removes the name, marks the tree as dead and adds an orphan item to the root tree,
//!   all in one handle ([`delete`]). The [`cleaner`] drops the blocks later, in steps
//!   ([`dropping`]).

pub(crate) mod choose;
pub(crate) mod cleaner;
pub(crate) mod create;
pub(crate) mod default;
pub(crate) mod delete;
mod dropping;
mod layer;
pub(crate) mod listing;
mod pending;
pub(crate) mod received;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;
mod uuid_tree;

pub(crate) use choose::choose;
pub(crate) use delete::delete_empty;
pub(crate) use layer::Subvolumes;
