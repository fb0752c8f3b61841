//! Numbers of new inodes.

use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{Key, kind, objectid};

use crate::transaction::Store;
use crate::tree::Root;
use crate::{Error, Result};

/// Makes sure that the highest inode number of a tree is known. Before an inode goes: no mount
/// uses a number twice, or a log could name an inode that the last commit has as another one.
pub(crate) fn know_objectids(store: &Store, root: &Root) -> Result<()> {
    let highest = root.highest_objectid();
    if highest.load(Ordering::Acquire) == 0 {
        let last = Key::new(objectid::LAST_FREE, kind::INODE_ITEM, u64::MAX);
        let found = root
            .seek_back(store, &last)?
            .key()
            .map_or(0, |key| key.objectid);
        highest.fetch_max(found.max(objectid::FIRST_FREE), Ordering::AcqRel);
    }
    Ok(())
}

/// Number for a new inode of a tree.
pub(crate) fn next_objectid(store: &Store, root: &Root) -> Result<u64> {
    know_objectids(store, root)?;
    let highest = root.highest_objectid();
    match highest.fetch_add(1, Ordering::AcqRel) {
        last if last < objectid::LAST_FREE - 1 => Ok(last + 1),
        _ => Err(Error::InodesExhausted(root.id())),
    }
}
