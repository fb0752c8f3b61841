//! Entries of the uuid tree: from the uuid of a subvolume, or of the subvolume that it was received
//! from, to its id. A file system may lack the tree.

use sapwood_btrfs_format::{Key, kind, uuid_item, uuid_key_parts};

use crate::Result;
use crate::transaction::Handle;
use crate::tree::Change;

/// A uuid of a subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// The subvolume's own.
    Own,
    /// The uuid of the subvolume that it was received from.
    Received,
}

fn key(which: Which, uuid: &[u8; 16]) -> Key {
    let (objectid, offset) = uuid_key_parts(uuid);
    let kind = match which {
        Which::Own => kind::UUID_KEY_SUBVOL,
        Which::Received => kind::UUID_KEY_RECEIVED_SUBVOL,
    };
    Key::new(objectid, kind, offset)
}

/// Adds `id` to the entry of `uuid`, unless that is zero.
pub(super) fn add(h: &mut Handle, which: Which, uuid: &[u8; 16], id: u64) -> Result<()> {
    change(h, which, uuid, |ids| {
        if !ids.contains(&id) {
            ids.push(id);
        }
    })
}

/// Removes `id` from the entry of `uuid`.
pub(super) fn remove(h: &mut Handle, which: Which, uuid: &[u8; 16], id: u64) -> Result<()> {
    change(h, which, uuid, |ids| ids.retain(|other| *other != id))
}

fn change(
    h: &mut Handle,
    which: Which,
    uuid: &[u8; 16],
    change: impl Fn(&mut Vec<u64>),
) -> Result<()> {
    if *uuid == [0; 16] {
        return Ok(());
    }
    let Some(tree) = h.store().roots.uuid_tree()? else {
        return Ok(());
    };
    tree.modify(h, &key(which, uuid), |old| {
        let mut ids: Vec<u64> = uuid_item(old.unwrap_or_default()).collect();
        change(&mut ids);
        if ids.is_empty() {
            return Ok(Change::Delete);
        }
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Ok(Change::Put(bytes))
    })
}
