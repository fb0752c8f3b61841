//! The bytes of a new quota file, for a new file system and for a repair.

use sapwood_ext4_format::{
    QUOTA_BLOCK, QUOTA_DEPTH, QUOTA_ENTRIES, QUOTA_ROOT, QuotaEntry, QuotaHeader, QuotaInfo,
    QuotaKind, QuotaLeaf, quota_reference,
};

/// Seconds that a soft limit may be exceeded by default: a week.
pub(crate) const GRACE: u32 = 7 * 24 * 60 * 60;

/// The file with these entries, in blocks of [`QUOTA_BLOCK`] bytes, as few as possible. Each id
/// has one entry. `grace`: seconds that space and inodes may exceed their soft limits.
pub(crate) fn build(kind: QuotaKind, grace: (u32, u32), entries: &[QuotaEntry]) -> Vec<u8> {
    let mut file = File {
        blocks: vec![[0; QUOTA_BLOCK]; 2],
    };
    let mut last = 0;
    for part in entries.chunks(QUOTA_ENTRIES) {
        last = file.add();
        for (slot, entry) in part.iter().enumerate() {
            let at = QuotaLeaf::SIZE + slot * QuotaEntry::SIZE;
            file.put(last, at, entry.stored().bytes());
            file.refer(entry.id.get(), last);
        }
        let head = QuotaLeaf {
            entries: (part.len() as u16).into(),
            ..QuotaLeaf::default()
        };
        file.put(last, 0, head.bytes());
    }
    if entries.len().is_multiple_of(QUOTA_ENTRIES) {
        // No block has room.
        last = 0;
    }
    let header = QuotaHeader {
        magic: kind.magic().into(),
        version: 1.into(),
    };
    let info = QuotaInfo {
        space_grace: grace.0.into(),
        inode_grace: grace.1.into(),
        blocks: (file.blocks.len() as u32).into(),
        free_entry: last.into(),
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
