//! The default subvolume and the read-only flag.

use std::sync::Arc;

use sapwood_btrfs_format::{
    DirItemRef, Incompat, Key, RootFlags, dir_items, file_type, kind, name_hash, objectid,
};

use super::choose::{DEFAULT, by_id};
use super::layer::Subvolumes;
use crate::tree::{Change, Root};
use crate::{Error, Result};

/// Makes `id` the default subvolume.
///
/// # Errors
/// [`Error::NoSuchSubvolume`]; no space; unreadable blocks.
pub(crate) fn set_default(subvolumes: &Arc<Subvolumes>, id: u64) -> Result<()> {
    let _changes = subvolumes.changes.lock();
    by_id(&subvolumes.roots, id)?;
    let mut h = subvolumes.start(1)?;
    let dir = objectid::ROOT_TREE_DIR;
    let key = Key::new(dir, kind::DIR_ITEM, name_hash(DEFAULT).into());
    let entry = DirItemRef {
        location: Key::new(id, kind::ROOT_ITEM, u64::MAX),
        transid: h.transid(),
        kind: file_type::DIR,
        name: DEFAULT,
        data: &[],
    };
    let root_tree = subvolumes.roots.root_tree.clone();
    let done = root_tree.modify(&mut h, &key, |old| {
        let mut packed = Vec::new();
        for other in dir_items(old.unwrap_or_default()) {
            let other = other.map_err(|source| Error::BadItem {
                root: objectid::ROOT_TREE,
                key,
                source,
            })?;
            if other.name != DEFAULT {
                packed.extend(other.encode());
            }
        }
        packed.extend(entry.encode());
        Ok(Change::Put(packed))
    });
    subvolumes.add_incompat(Incompat::DEFAULT_SUBVOL);
    h.finish(done)
}

/// Makes a subvolume read-only or writable, durably.
///
/// # Errors
/// No space; the errors of [`Store::commit`](crate::transaction::Store::commit).
pub(crate) fn set_read_only(
    subvolumes: &Arc<Subvolumes>,
    root: &Arc<Root>,
    read_only: bool,
) -> Result<()> {
    let _changes = subvolumes.changes.lock();
    if root.is_read_only() == read_only {
        return Ok(());
    }
    let h = subvolumes.start(1)?;
    {
        let mut item = root.item();
        let mut flags = item.root_flags();
        flags.set(RootFlags::RDONLY, read_only);
        item.flags = flags.bits().into();
    }
    h.record_root(root);
    let transid = h.transid();
    h.end()?;
    subvolumes.commit(Some(transid))
}
