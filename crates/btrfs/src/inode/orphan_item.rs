//! Orphan items: they mark inodes, or subvolumes, that have no name.
//!
//! A power cut can leave an inode without a name in the tree. Its orphan item tells the next mount,
//! which deletes the inode. The key is `(ORPHAN, ORPHAN_ITEM, inode)`, and there is no data
//! (btrfs on-disk format, "orphan item").
//!
//! Most files are deleted as soon as their last name is gone, in the same transaction. So the item
//! is delayed: the commit adds it for an inode that still exists then ([`delay`]).

use std::sync::Arc;

use sapwood_btrfs_format::{Key, kind, objectid};

use super::object::{Inode, InodeState};
use crate::transaction::{Handle, Store};
use crate::tree::{Root, TreeWrite};
use crate::{Error, Result};

/// Key of the item of an inode.
fn key_of(inode: u64) -> Key {
    Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, inode)
}

/// Adds the item of an inode, or subvolume, of this tree.
pub(crate) fn add(h: &mut dyn TreeWrite, root: &Arc<Root>, inode: u64) -> Result<()> {
    match root.insert(h, &key_of(inode), &[]) {
        Err(Error::ItemExists { .. }) => Ok(()),
        other => other,
    }
}

/// Removes it, if it is there.
pub(crate) fn remove(h: &mut dyn TreeWrite, root: &Arc<Root>, inode: u64) -> Result<()> {
    root.delete(h, &key_of(inode)).map(|_| ())
}

/// Ids in the orphan items of a tree.
///
/// # Errors
/// An unreadable tree.
pub(crate) fn all(store: &Store, root: &Root) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    let mut cursor = root.seek(store, &key_of(0))?;
    while let Some(key) = cursor.key() {
        if key.objectid != objectid::ORPHAN || key.kind != kind::ORPHAN_ITEM {
            break;
        }
        found.push(key.offset);
        cursor.next()?;
    }
    Ok(found)
}

/// Leaves it to the commit of the handle's transaction to add the item. Call it in the change that
/// removes the last name.
pub(crate) fn delay(h: &Handle, state: &mut InodeState) {
    state.orphan_delayed = true;
    h.keep_item();
}

/// Removes the item of an inode that gets a name or is deleted, or no longer delays it.
pub(crate) fn settle(h: &mut Handle, inode: &Inode) -> Result<()> {
    let delayed = std::mem::take(&mut inode.state.lock().orphan_delayed);
    if delayed {
        return Ok(());
    }
    remove(h, &inode.root, inode.objectid)
}
