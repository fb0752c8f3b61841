//! The operations of the [`FileSystem`](sapwood_vfs::FileSystem) trait.
//!
//! # How it works
//! Every change has the same steps: lock the inodes in the order of their numbers, check, start a
//! handle, change, store the inodes, end the handle, unlock, wait if requested. Refusals come
//! before the first change. An error after it makes the mount read-only
//! ([`Engine::abort`](crate::engine::Engine::abort)): the next mount finds the last commit.

pub(crate) mod attr;
pub(crate) mod create;
pub(crate) mod filled;
#[cfg(test)]
mod filled_tests;
pub(crate) mod reap;
pub(crate) mod remove;
pub(crate) mod rename;
#[cfg(test)]
mod residence_tests;
#[cfg(test)]
mod tests;

pub(crate) use create::name_lost;
pub(crate) use reap::delete;
