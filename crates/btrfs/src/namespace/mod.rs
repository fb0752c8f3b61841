//! Names: directories, links, renames, and what is done to an inode under its name.
//!
//! Every operation that changes something has one skeleton: lock inodes in their order, start a
//! handle (which reserves space, so that `NoSpace` comes here), change, end the handle, unlock.
//! What can be refused is refused before the first change; an error after it ends the handle with
//! [`abort`](crate::transaction::Handle::abort), which makes the mount read-only.

pub(crate) mod attr;
pub(crate) mod create;
pub(crate) mod dir;
mod layer;
pub(crate) mod names;
pub(crate) mod orphan;
mod position;
pub(crate) mod remove;
pub(crate) mod rename;

pub(crate) use layer::{NameLog, Namespace};
