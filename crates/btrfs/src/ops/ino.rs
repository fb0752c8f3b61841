//! Inode numbers above the engine.
//!
//! Inodes of the mounted subvolume keep their btrfs numbers. An inode of another one is shown
//! as `subvolume << 40 | number`, which is unique and stable as long as both parts fit. What
//! does not fit gets a number with the top bit set, from a table that lives as long as the
//! mount.

use std::collections::HashMap;

use sapwood_vfs::Ino;

use crate::lock::{Rank, RankedMutex};

const NUMBER_BITS: u32 = 40;
const SUBVOLUME_BITS: u32 = 23;
const TABLE: u64 = 1 << 63;

/// Maps `(tree, objectid)` to [`Ino`] and back.
pub(crate) struct InoMap {
    mounted: u64,
    table: RankedMutex<Table>,
}

#[derive(Default)]
struct Table {
    by_key: HashMap<(u64, u64), u64>,
    keys: Vec<(u64, u64)>,
}

impl InoMap {
    /// A map for a mount of the subvolume `mounted`.
    pub(crate) fn new(mounted: u64) -> Self {
        Self {
            mounted,
            table: RankedMutex::new(Rank::InodeTable, Table::default()),
        }
    }

    /// Tree of the mounted subvolume.
    pub(crate) fn mounted(&self) -> u64 {
        self.mounted
    }

    /// Number to show for an inode.
    pub(crate) fn ino(&self, tree: u64, objectid: u64) -> Ino {
        if objectid >> NUMBER_BITS == 0 {
            if tree == self.mounted {
                return Ino(objectid);
            }
            if tree >> SUBVOLUME_BITS == 0 {
                return Ino((tree << NUMBER_BITS) | objectid);
            }
        }
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let number = *table.by_key.entry((tree, objectid)).or_insert_with(|| {
            table.keys.push((tree, objectid));
            TABLE | (table.keys.len() as u64 - 1)
        });
        Ino(number)
    }

    /// `(tree, objectid)` of a number, if it can be one that was shown.
    pub(crate) fn key(&self, ino: Ino) -> Option<(u64, u64)> {
        if ino.0 & TABLE != 0 {
            let index = usize::try_from(ino.0 & !TABLE).ok()?;
            return self.table.lock().keys.get(index).copied();
        }
        match ino.0 >> NUMBER_BITS {
            0 => Some((self.mounted, ino.0)),
            tree => Some((tree, ino.0 & ((1 << NUMBER_BITS) - 1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_lead_back() {
        let map = InoMap::new(5);
        let keys = [
            (5, 256),
            (5, 1 << 41),
            (257, 256),
            (257, 1 << 40),
            (1 << 23, 256),
            (1 << 40, 7),
        ];
        let mut seen = std::collections::HashSet::new();
        for (tree, objectid) in keys {
            let ino = map.ino(tree, objectid);
            assert!(seen.insert(ino));
            assert_eq!(map.key(ino), Some((tree, objectid)));
            assert_eq!(map.ino(tree, objectid), ino);
        }
        assert_eq!(map.ino(5, 256), Ino(256));
        assert_eq!(map.key(Ino(TABLE | 99)), None);
    }
}
