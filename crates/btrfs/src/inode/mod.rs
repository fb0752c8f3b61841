//! Inodes in memory: their table and numbers, and the items that they delay until the commit.

mod delayed;
mod dir_index;
mod ino;
mod object;
pub(crate) mod orphan_item;
mod table;
#[cfg(test)]
mod table_tests;

pub(crate) use delayed::flush_if_many;
pub(crate) use dir_index::Changes;
pub(crate) use ino::{know_objectids, next_objectid};
pub(crate) use object::{Inode, InodeState, from_dev, timestamp, to_dev};
pub(crate) use table::InodeTable;
