//! Numbers of new inodes, and the inode numbers that callers see.
//!
//! Inodes of the mounted subvolume keep their btrfs numbers. An inode of another one appears as
//! `subvolume << 40 | number`, which is unique and stable as long as both parts fit. Other inodes
//! get a number with the top bit set, from a table that lives as long as the mount.
//!
//! In Linux, the empty directories that snapshots show in place of subvolumes are all inode 2. Here
//! a number is an identity, so each of them gets `top bit | place in a table << 40 | 2`.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{Key, kind, objectid};
use sapwood_vfs::Ino;

use super::object::{STUB, STUB_TREE, Stub};
use crate::lock::{Rank, RankedMutex};
use crate::transaction::Store;
use crate::tree::Root;
use crate::{Error, Result};

const NUMBER_BITS: u32 = 40;
const SUBVOLUME_BITS: u32 = 23;
const TABLE: u64 = 1 << 63;
const LOW: u64 = (1 << NUMBER_BITS) - 1;

/// Maps `(tree, objectid)` to [`Ino`] and back.
pub(crate) struct InoMap {
    mounted: u64,
    table: RankedMutex<Table>,
}

#[derive(Default)]
struct Table {
    by_key: HashMap<(u64, u64), u64>,
    keys: Vec<(u64, u64)>,
    by_stub: HashMap<Stub, u64>,
    stubs: Vec<Stub>,
}

impl Table {
    fn number(&mut self, key: (u64, u64)) -> u64 {
        *self.by_key.entry(key).or_insert_with(|| {
            self.keys.push(key);
            TABLE | (self.keys.len() as u64 - 1)
        })
    }
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
        Ino(self.table.lock().number((tree, objectid)))
    }

    /// Number to show for a stub, and the one by which [`stub`](Self::stub) finds it.
    pub(super) fn stub_number(&self, stub: Stub) -> (Ino, u64) {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let number = *table.by_stub.entry(stub).or_insert_with(|| {
            table.stubs.push(stub);
            table.stubs.len() as u64 - 1
        });
        let shown = number + 1;
        if shown >> SUBVOLUME_BITS == 0 {
            return (Ino(TABLE | (shown << NUMBER_BITS) | STUB), number);
        }
        (Ino(table.number((STUB_TREE, number))), number)
    }

    /// Number to show for the stub of `subvolume` in the directory `dir` of `tree`.
    pub(crate) fn stub_ino(&self, tree: u64, dir: u64, subvolume: u64) -> Ino {
        let stub = Stub {
            tree,
            dir,
            subvolume,
        };
        self.stub_number(stub).0
    }

    /// The stub with this number.
    pub(super) fn stub(&self, number: u64) -> Option<Stub> {
        let index = usize::try_from(number).ok()?;
        self.table.lock().stubs.get(index).copied()
    }

    /// `(tree, objectid)` of a number, if it can be one that was shown.
    pub(crate) fn key(&self, ino: Ino) -> Option<(u64, u64)> {
        if ino.0 & TABLE != 0 {
            let (place, low) = ((ino.0 & !TABLE) >> NUMBER_BITS, ino.0 & LOW);
            if let Some(number) = place.checked_sub(1) {
                let known = self.table.lock().stubs.len() as u64;
                return (low == STUB && number < known).then_some((STUB_TREE, number));
            }
            let index = usize::try_from(low).ok()?;
            return self.table.lock().keys.get(index).copied();
        }
        match ino.0 >> NUMBER_BITS {
            0 => Some((self.mounted, ino.0)),
            tree => Some((tree, ino.0 & LOW)),
        }
    }
}

/// Makes sure that the highest inode number of a tree is known. Call it before an inode is deleted,
/// so that the number is never reused: otherwise a log could use it for another inode than the last
/// commit.
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

    #[test]
    fn stubs_have_a_number_each() {
        let map = InoMap::new(5);
        let one = map.stub_ino(5, 256, 300);
        let two = map.stub_ino(5, 257, 300);
        assert_ne!(one, two);
        assert_eq!((one.0 & LOW, two.0 & LOW), (STUB, STUB));
        assert_eq!(map.stub_ino(5, 256, 300), one);
        let (tree, number) = map.key(two).unwrap();
        assert_eq!(tree, STUB_TREE);
        assert_eq!(map.stub(number).unwrap().dir, 257);
        assert_eq!(map.stub(number + 1), None);
    }
}
