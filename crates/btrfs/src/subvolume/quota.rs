//! Quota groups of a file system with quota: this engine does not update the numbers, and marks
//! them as inconsistent.
//!
//! Before the first change reaches disk the status item gets the flag "inconsistent", which makes
//! the kernel ignore the numbers until they are counted anew (`btrfs quota rescan`). A new
//! subvolume gets its group, so that a rescan finds one. When the last block of a deleted subvolume
//! is dropped, its group is deleted, with its relations to groups of higher levels.
//!
//! Simple quotas, which need an owner in every data extent, are an incompatible feature and
//! refused.

use std::sync::Arc;

use sapwood_btrfs_format::{Key, QgroupInfo, QgroupLimit, QgroupStatus, kind, objectid};

use crate::transaction::{Handle, Store};
use crate::tree::{Change, Root};
use crate::{Error, Result};

const ON: u64 = 1;
const INCONSISTENT: u64 = 4;
const STATUS: Key = Key::new(0, kind::QGROUP_STATUS, 0);

/// The quota tree, if quotas are on.
fn tree(store: &Store) -> Result<Option<Arc<Root>>> {
    let root = match store.roots.get(objectid::QUOTA_TREE) {
        Err(Error::NoSuchRoot(_)) => return Ok(None),
        Err(err) => {
            // An unreadable quota tree does not prevent changes.
            log::warn!("quota tree: {err}");
            return Ok(None);
        }
        Ok(root) => root,
    };
    let item = root.get(store, &STATUS)?;
    let status = item.and_then(|item| QgroupStatus::read(&item).ok());
    Ok(status.filter(|s| s.flags.get() & ON != 0).map(|_| root))
}

/// Marks the numbers as wrong. For the first commit of a mount.
///
/// # Errors
/// Unreadable blocks, no space.
pub(crate) fn mark_inconsistent(h: &mut Handle) -> Result<()> {
    let Some(tree) = tree(h.store())? else {
        return Ok(());
    };
    tree.modify(h, &STATUS, |old| {
        let mut status = QgroupStatus::read(old.unwrap_or_default()).map_err(|source| {
            let root = objectid::QUOTA_TREE;
            Error::BadItem {
                root,
                key: STATUS,
                source,
            }
        })?;
        if status.flags.get() & INCONSISTENT != 0 {
            return Ok(Change::Keep);
        }
        status.flags = (status.flags.get() | INCONSISTENT).into();
        // With simple quotas more follows.
        let mut bytes = old.unwrap_or_default().to_vec();
        bytes.splice(..QgroupStatus::SIZE, status.bytes().iter().copied());
        Ok(Change::Put(bytes))
    })
}

/// Makes the group of a new subvolume.
///
/// # Errors
/// Unreadable blocks, no space.
pub(super) fn add_group(h: &mut Handle, subvolume: u64) -> Result<()> {
    let Some(tree) = tree(h.store())? else {
        return Ok(());
    };
    let info = QgroupInfo {
        generation: h.transid().into(),
        ..QgroupInfo::default()
    };
    tree.put(h, &Key::new(0, kind::QGROUP_INFO, subvolume), info.bytes())?;
    let limit = QgroupLimit::default();
    tree.put(
        h,
        &Key::new(0, kind::QGROUP_LIMIT, subvolume),
        limit.bytes(),
    )
}

/// Deletes the group of a deleted subvolume.
///
/// # Errors
/// Unreadable blocks, no space.
pub(super) fn remove_group(h: &mut Handle, subvolume: u64) -> Result<()> {
    let Some(tree) = tree(h.store())? else {
        return Ok(());
    };
    for other in relations(h.store(), &tree, subvolume)? {
        let pairs = [(subvolume, other), (other, subvolume)];
        for (from, to) in pairs {
            tree.delete(h, &Key::new(from, kind::QGROUP_RELATION, to))?;
        }
    }
    for item in [kind::QGROUP_INFO, kind::QGROUP_LIMIT] {
        tree.delete(h, &Key::new(0, item, subvolume))?;
    }
    Ok(())
}

/// The groups that a group is in.
fn relations(store: &Store, tree: &Root, group: u64) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    let mut cursor = tree.seek(store, &Key::new(group, kind::QGROUP_RELATION, 0))?;
    while let Some(key) = cursor.key() {
        if key.objectid != group || key.kind != kind::QGROUP_RELATION {
            break;
        }
        found.push(key.offset);
        cursor.next()?;
    }
    Ok(found)
}
