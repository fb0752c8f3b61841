//! Names: directories, links, renames, and operations on an inode by its name.
//!
//! Every operation that changes something has the same steps: lock inodes in their order, start a
//! handle (which reserves space or returns `NoSpace`), change, end the handle, unlock. Refusals
//! come before the first change; an error after it ends the handle with
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
pub(crate) mod seal;

pub(crate) use layer::{NameLog, Namespace};
