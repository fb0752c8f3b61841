//! Operations on inodes and names.
//!
//! Every operation that changes something has one skeleton: lock inodes in their order, start a
//! handle (which reserves space, so that `NoSpace` comes here), change, end the handle, unlock.
//! What can be refused is refused before the first change; an error after it ends the handle with
//! [`abort`](crate::transaction::Handle::abort), which makes the mount read-only.

pub(crate) mod attr;
pub(crate) mod create;
pub(crate) mod delayed;
mod deletions;
pub(crate) mod dir;
mod filesystem;
pub(crate) mod ino;
pub(crate) mod inode;
pub(crate) mod link;
pub(crate) mod names;
pub(crate) mod orphan;
mod position;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod sync;
pub(crate) mod table;
#[cfg(test)]
mod table_tests;
pub(crate) mod xattr;

use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{ItemError, Key, kind, objectid};

use crate::engine::Engine;
use crate::tree::Root;
use crate::{Error, Result};
pub(crate) use delayed::flush_delayed;
pub(crate) use deletions::Deletions;
pub(crate) use inode::{Inode, InodeState};
pub(crate) use table::InodeTable;

/// The error for an item whose bytes do not parse.
fn bad_item(root: u64, key: Key, source: ItemError) -> Error {
    Error::BadItem { root, key, source }
}

/// Makes sure that the highest inode number of a tree is known. Before an inode goes: no mount
/// uses a number twice, or a log could name an inode that the last commit has as another one.
fn know_objectids(engine: &Engine, root: &Root) -> Result<()> {
    let highest = root.highest_objectid();
    if highest.load(Ordering::Acquire) == 0 {
        let last = Key::new(objectid::LAST_FREE, kind::INODE_ITEM, u64::MAX);
        let found = root
            .seek_back(engine, &last)?
            .key()
            .map_or(0, |key| key.objectid);
        highest.fetch_max(found.max(objectid::FIRST_FREE), Ordering::AcqRel);
    }
    Ok(())
}

/// Number for a new inode of a tree.
fn next_objectid(engine: &Engine, root: &Root) -> Result<u64> {
    know_objectids(engine, root)?;
    let highest = root.highest_objectid();
    match highest.fetch_add(1, Ordering::AcqRel) {
        last if last < objectid::LAST_FREE - 1 => Ok(last + 1),
        _ => Err(Error::InodesExhausted(root.id())),
    }
}
