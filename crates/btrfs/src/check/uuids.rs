//! The uuid tree: subvolumes by their own and their received uuid.

use std::collections::HashSet;

use sapwood_btrfs_format::objectid::FIRST_FREE;
use sapwood_btrfs_format::{kind, uuid_from_key_parts, uuid_item};

use super::finding::Finding;
use super::state::{Check, Pointer};
use super::walk::{Walk, entries};

impl Check<'_> {
    /// Walks the uuid tree and compares it with the root items.
    pub(super) fn uuid_tree(&mut self, root: &Pointer) {
        let tree = sapwood_btrfs_format::objectid::UUID_TREE;
        let mut listed = HashSet::new();
        let holes = std::mem::take(&mut self.uses_incomplete);
        self.walk(&Walk::own(tree), root, &mut |check, block| {
            for (key, data) in entries(block) {
                let received = match key.kind {
                    kind::UUID_KEY_SUBVOL => false,
                    kind::UUID_KEY_RECEIVED_SUBVOL => true,
                    // An old `mkfs.btrfs` gave every tree a top directory.
                    kind::INODE_ITEM | kind::INODE_REF if key.objectid == FIRST_FREE => continue,
                    _ => {
                        check.unexpected(tree, block, key);
                        continue;
                    }
                };
                let uuid = uuid_from_key_parts(key.objectid, key.offset);
                listed.extend(uuid_item(data).map(|id| (uuid, received, id)));
            }
        });
        let incomplete = std::mem::replace(&mut self.uses_incomplete, holes);
        self.uses_incomplete |= incomplete;
        let mut wanted = HashSet::new();
        for tree in self.roots.subvolumes() {
            let Some(item) = self.roots.item(tree) else {
                continue;
            };
            for (uuid, received) in [(item.uuid, false), (item.received_uuid, true)] {
                if uuid != [0; 16] {
                    wanted.insert((uuid, received, tree));
                }
            }
        }
        let sorted = |a: &HashSet<([u8; 16], bool, u64)>, b: &HashSet<_>| {
            let mut all: Vec<_> = a.difference(b).copied().collect();
            all.sort_unstable_by_key(|(uuid, received, id)| (*id, *received, *uuid));
            all
        };
        if !incomplete {
            for (uuid, _, tree) in sorted(&wanted, &listed) {
                let uuid = u128::from_be_bytes(uuid);
                self.found(Finding::UuidMissing { tree, uuid });
            }
        }
        for (uuid, _, tree) in sorted(&listed, &wanted) {
            let uuid = u128::from_be_bytes(uuid);
            self.found(Finding::UuidStray { tree, uuid });
        }
    }
}
