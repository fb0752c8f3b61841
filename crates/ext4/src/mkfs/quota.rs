//! Quota files of a new file system: the usage of the directories that it begins with.

use std::collections::BTreeMap;

use sapwood_ext4_format::{
    Geometry, Inode, QUOTA_BLOCK, QUOTA_DEPTH, QUOTA_ENTRIES, QUOTA_ROOT, QuotaEntry, QuotaHeader,
    QuotaInfo, QuotaKind, QuotaLeaf, quota_reference, special_ino,
};

use crate::quota_table::Charge;

/// Seconds that a soft limit may be exceeded: a week.
const GRACE: u32 = 7 * 24 * 60 * 60;

/// The bytes of a quota file, in blocks of 1 KiB.
pub(super) fn content(kind: QuotaKind, inodes: &[(u32, Inode)], geometry: &Geometry) -> Vec<u8> {
    let mut usage: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let counted = [special_ino::ROOT, special_ino::LOST_FOUND];
    for (_, inode) in inodes.iter().filter(|(ino, _)| counted.contains(ino)) {
        let charge = Charge::of(inode, geometry);
        let sum = usage.entry(charge.owners.id(kind)).or_default();
        sum.0 += charge.space;
        sum.1 += 1;
    }
    let mut file = File {
        blocks: vec![[0; QUOTA_BLOCK]; 2],
    };
    // Two directories have two owners at most, so that all entries are in one block.
    let leaf = file.add();
    for (slot, (id, (space, inodes))) in usage.iter().enumerate().take(QUOTA_ENTRIES) {
        let entry = QuotaEntry {
            id: (*id).into(),
            space: (*space).into(),
            inodes: (*inodes).into(),
            ..QuotaEntry::default()
        };
        let at = QuotaLeaf::SIZE + slot * QuotaEntry::SIZE;
        file.put(leaf, at, entry.stored().bytes());
        file.refer(*id, leaf);
    }
    let head = QuotaLeaf {
        entries: (usage.len() as u16).into(),
        ..QuotaLeaf::default()
    };
    file.put(leaf, 0, head.bytes());
    let header = QuotaHeader {
        magic: kind.magic().into(),
        version: 1.into(),
    };
    let info = QuotaInfo {
        space_grace: GRACE.into(),
        inode_grace: GRACE.into(),
        blocks: (file.blocks.len() as u32).into(),
        free_entry: leaf.into(),
        ..QuotaInfo::default()
    };
    file.put(0, 0, zerocopy::IntoBytes::as_bytes(&header));
    file.put(0, size_of::<QuotaHeader>(), info.bytes());
    file.blocks.concat()
}

struct File {
    blocks: Vec<[u8; QUOTA_BLOCK]>,
}

impl File {
    fn add(&mut self) -> u32 {
        self.blocks.push([0; QUOTA_BLOCK]);
        self.blocks.len() as u32 - 1
    }

    fn put(&mut self, block: u32, at: usize, bytes: &[u8]) {
        let block = self.blocks.get_mut(block as usize);
        if let Some(to) = block.and_then(|block| block.get_mut(at..at + bytes.len())) {
            to.copy_from_slice(bytes);
        }
    }

    /// The reference in a block of the tree.
    fn reference(&self, block: u32, at: usize) -> u32 {
        let bytes = self.blocks.get(block as usize);
        let word = bytes.and_then(|bytes| bytes.get(at..at + 4)?.first_chunk());
        word.map_or(0, |word| u32::from_le_bytes(*word))
    }

    /// Makes the tree lead from an id to a block of entries.
    fn refer(&mut self, id: u32, leaf: u32) {
        let mut node = QUOTA_ROOT;
        for level in 0..QUOTA_DEPTH {
            let at = quota_reference(id, level);
            let mut next = self.reference(node, at);
            if next == 0 {
                let last = level + 1 == QUOTA_DEPTH;
                next = if last { leaf } else { self.add() };
                self.put(node, at, &next.to_le_bytes());
            }
            node = next;
        }
    }
}
