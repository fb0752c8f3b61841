//! Copy-on-write B-trees: block cache, search, cursors, and concurrent change.
//!
//! # How it works
//! A tree is a [`Root`]: a lock around the pointer to its top block. Every block in memory is a
//! [`TreeBlock`] with its own lock around shared bytes. A thread that descends holds a block until
//! it holds the child (lock coupling). A reader holds read locks; at the leaf it takes a reference
//! to the bytes and unlocks. So it sees a snapshot of that leaf, which a later writer copies before
//! changing it.
//!
//! Blocks on disk never change. A block is changed in place only if it was created in the running
//! transaction, was not written yet, and cannot be shared with a snapshot taken in this
//! transaction. Otherwise it is copied to a new address first (`cow`), and the parent's pointer is
//! updated.
//!
//! Writers descend like readers and lock only the leaf. If that is not enough (copy, split, merge,
//! or a change of the leaf's first key, which its parent repeats), they start again and lock from
//! the topmost level that must change (`path`). On this path each node is made *safe* before its
//! child is locked: it has room for more pointers, and at least two. So a change never climbs above
//! the blocks still held.
//!
//! Addresses of blocks that were never written are reused at once. Yet a pointer that a thread
//! follows is never stale:
//! - A thread frees a block only while it holds the parent exclusively, and after it has held the
//!   block itself exclusively (`cow` drains it). So a block that a thread holds is still in the
//!   tree, and so are its children.
//! - A block is removed from the cache before its address is freed, and a new block replaces the
//!   cache entry at its address.
//! - A walk of a commit root holds that root's commit lock. The commit exchanges the root before
//!   the addresses of the old tree become free.
//!
//! Threads cannot deadlock:
//! - Tree blocks are locked top down, and two blocks of one level only under their parent's write
//!   lock.
//! - An old block (one that must be copied) is write-locked while its refs are looked up and
//!   changed. Meanwhile the thread waits only for readers below it and for the extent tree.
//! - Across trees the order is [`TreeClass`](crate::lock::TreeClass). Changing a tree allocates and
//!   frees blocks, which reads, but never changes, trees of higher classes (changes of the extent
//!   tree are delayed refs).
//!
//! A thread that changes the refs of a block that several trees may share (here, or when a
//! subvolume is dropped) holds the block's write lock from their lookup until they are changed.
//!
//! Trouble cases and their tests (`tests/`):
//! - threads that insert, change and delete in one tree, and threads that leave shared blocks at
//!   once (`concurrent`)
//! - random operations against a model (`model`)
//! - snapshots that share blocks, with every ref counted (`snapshots`)
//! - items that split a leaf in three, descending and ascending insertion, a tree emptied down to
//!   its root (`shapes`)

mod block;
pub(crate) mod bulk;
mod cache;
mod cow;
mod cursor;
mod edit;
mod items;
mod leaf;
mod nodes;
mod path;
mod read;
mod refs;
mod root;
mod roots;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) mod verify;
mod write;

pub(crate) use block::{BlockBytes, TreeBlock, view};
pub(crate) use cache::{BlockCache, Expect, TreeRead, expect_child};
pub(crate) use cow::{copy_root, create_root, drop_root};
pub(crate) use cursor::Cursor;
pub(crate) use items::Change;
pub(crate) use nodes::NodePlace;
pub(crate) use refs::{BlockRef, DataRef, TreeWrite, change_children};
pub(crate) use root::Root;
pub(crate) use roots::{Opened, Roots, open};
pub(crate) use write::{abandon, freeze, write_blocks};
