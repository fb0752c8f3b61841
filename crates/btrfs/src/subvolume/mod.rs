//! Subvolumes: making, snapshotting, naming and deleting them.
//!
//! # How it works
//! A subvolume is a tree of files. Its root item has its uuid, flags and times; a pair of root refs
//! in the root tree ties it to the directory that holds its name; the uuid tree leads from uuids to
//! it. One lock ([`Engine::subvolumes`](crate::engine::Engine)) is held by the thread that makes,
//! deletes, or changes the flags of one.
//!
//! - A *snapshot* is a copy of the top block. It is taken in the critical part of a commit, when
//!   no handle is open and all that was delayed is in the trees ([`snapshot`]).
//! - *Deletion* takes the name away, marks the tree as dead and adds an orphan item to the root
//!   tree, all in one handle ([`delete`]). The blocks go later, in steps, by the [`cleaner`]
//!   ([`dropping`] tells how).

mod choose;
pub(crate) mod cleaner;
mod create;
mod default;
mod delete;
mod dropping;
mod listing;
mod quota;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;
mod trait_impl;
mod uuid_tree;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{Key, objectid};

pub(crate) use choose::choose;
pub(crate) use cleaner::Cleaner;
pub(crate) use delete::delete_empty;
pub(crate) use quota::mark_inconsistent;
pub(crate) use snapshot::{PendingSnapshots, take_pending};

use crate::engine::Engine;
use crate::tree::Root;
use crate::{Error, Result};

/// Id for a new subvolume.
fn next_id(engine: &Engine) -> Result<u64> {
    let root_tree = &engine.roots.root_tree;
    let highest = root_tree.highest_objectid();
    if highest.load(Ordering::Acquire) == 0 {
        let last = Key::new(objectid::LAST_FREE, u8::MAX, u64::MAX);
        let found = root_tree.seek_back(engine, &last)?.key();
        let found = found.map_or(0, |key| key.objectid);
        highest.fetch_max(found.max(objectid::FIRST_FREE - 1), Ordering::AcqRel);
    }
    match highest.fetch_add(1, Ordering::AcqRel) {
        last if last < objectid::LAST_FREE - 1 => Ok(last + 1),
        _ => Err(Error::InodesExhausted(root_tree.id())),
    }
}

/// The tree of a subvolume that was not deleted.
fn live_root(engine: &Engine, id: u64) -> Result<Arc<Root>> {
    choose::by_id(&engine.roots, id)
}
