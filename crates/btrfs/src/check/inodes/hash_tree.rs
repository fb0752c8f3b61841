//! Hash trees of files (fs-verity): their items, the flag of the inode, the feature.

use sapwood_btrfs_format::{CompatRo, InodeFlags, Key, VerityHeader, file_type, kind};
use sapwood_verity::{DESCRIPTOR_SIZE, Descriptor, FileLayout};

use super::super::finding::Finding;
use super::super::state::Check;
use super::partial::{Bytes, Facts, HashTree, Partial};
use super::summary::Summary;

/// One item.
pub(super) fn item(key: Key, data: &[u8]) -> Partial {
    let mut part = Partial::new(key);
    let found = &mut part.hash_tree;
    found.key = Some(key);
    if key.kind == kind::VERITY_MERKLE_ITEM {
        found.tree = Bytes::one(key.offset, data.len());
        return part;
    }
    let Some(at) = key.offset.checked_sub(1) else {
        found.size = VerityHeader::read(data)
            .ok()
            .map(|header| header.size.get());
        return part;
    };
    found.descriptor = Bytes::one(at, data.len());
    // An item that is shorter is legal, and leaves these facts unknown.
    if let Some(fixed) = data.first_chunk::<DESCRIPTOR_SIZE>().filter(|_| at == 0) {
        found.described = Some(described(fixed));
    }
    part
}

/// Bytes of the file and of its tree; `None` if a field makes no sense.
fn described(fixed: &[u8; DESCRIPTOR_SIZE]) -> Option<(u64, u64)> {
    let descriptor = Descriptor::parse_fixed(fixed).ok()?;
    let tree = FileLayout::new(&descriptor.params, descriptor.data_size).size();
    Some((descriptor.data_size, tree))
}

/// The first defect of the items of a file with the flag.
fn defect(found: &HashTree, file_size: u64) -> Option<&'static str> {
    let Some(size) = found.size else {
        return Some("no size of the descriptor");
    };
    if found.descriptor != Bytes::whole(size) {
        return Some("the descriptor is not complete");
    }
    match found.described? {
        None => Some("the descriptor is damaged"),
        Some((data, _)) if data != file_size => Some("the descriptor is of a file of another size"),
        Some((_, tree)) if found.tree != Bytes::whole(tree) => Some("the tree is not complete"),
        Some(_) => None,
    }
}

impl Check<'_> {
    /// Reports problems of the hash tree of an inode whose items are all known.
    pub(super) fn judge_hash_tree(
        &mut self,
        tree: u64,
        partial: &Partial,
        facts: &Facts,
        sum: &mut Summary,
    ) {
        let inode = partial.inode;
        let found = &partial.hash_tree;
        let sealed = facts.flags.contains(InodeFlags::VERITY);
        // An inode without names may be half deleted.
        if facts.nlink == 0 || (!sealed && found.key.is_none()) {
            return;
        }
        if !sealed {
            sum.half_sealed.push(inode);
            return;
        }
        let reason = if file_type::from_mode(facts.mode) != file_type::REG_FILE {
            Some("the inode is no regular file")
        } else if !self.sb.compat_ro().contains(CompatRo::VERITY) {
            Some("the superblock lacks the feature")
        } else {
            defect(found, facts.size)
        };
        if let Some(reason) = reason {
            self.found(Finding::HashTreeBad {
                tree,
                inode,
                reason,
            });
        }
    }
}
