//! Comparable listings of file systems: everything that can be seen of a tree, read through a
//! mount ([`mounted`]) or through the `FileSystem` trait without one ([`library`]).

mod diff;
mod entry;
pub mod library;
pub mod mounted;

pub use diff::{Compare, compare};
pub use entry::{Content, Entry, Manifest};
