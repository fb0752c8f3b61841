//! The summary of one leaf of a subvolume.

use std::collections::HashSet;

use sapwood_btrfs_format::{
    Block, DirItemRef, FileExtent, FileExtentHeader, InodeItem, Key, RegularExtent, compression,
    dir_items, inode_extrefs, inode_refs, kind, objectid,
};

use super::super::extents::hash;
use super::super::finding::{Finding, shown};
use super::super::state::Check;
use super::super::walk::entries;
use super::hash_tree;
use super::partial::{Extents, Facts, Finished, Partial};
use super::summary::Summary;

/// Hash of a directory entry, equal to the hash of the matching name in the inode.
pub(super) fn link_hash(dir: u64, index: u64, name: &[u8], inode: u64) -> u128 {
    hash(&(dir, index, name, inode))
}

/// Hash of an inode's file type.
pub(super) fn type_hash(inode: u64, file_type: u8) -> u128 {
    hash(&(inode, file_type))
}

/// A name as in a ref: directory, index, name.
pub(in super::super) type Name<'n> = (u64, u64, &'n [u8]);

/// Names in an INODE_REF or INODE_EXTREF item.
pub(in super::super) fn names<'n>(key: &Key, data: &'n [u8]) -> Vec<Name<'n>> {
    if key.kind == kind::INODE_REF {
        let refs = inode_refs(data).filter_map(Result::ok);
        return refs.map(|r| (key.offset, r.index, r.name)).collect();
    }
    let refs = inode_extrefs(data).filter_map(Result::ok);
    refs.map(|r| (r.parent, r.index, r.name)).collect()
}

/// Whether it is the `..` that the top directory has for itself.
pub(super) fn is_own_name(inode: u64, name: &Name<'_>) -> bool {
    inode == objectid::FIRST_FREE && *name == (inode, 0, b"..".as_slice())
}

impl Check<'_> {
    pub(super) fn leaf(&mut self, tree: u64, block: &Block<'_>) -> Summary {
        let mut sum = Summary::default();
        sum.last_key = block.last_key();
        let mut finished = Vec::new();
        for (key, data) in entries(block) {
            if key.objectid == objectid::ORPHAN && key.kind == kind::ORPHAN_ITEM {
                sum.orphans.push(key.offset);
            } else if key.objectid < objectid::FIRST_FREE {
                self.unexpected(tree, block, key);
            } else if key.objectid <= objectid::LAST_FREE {
                if !self.inode_part(tree, key, data, &mut sum, &mut finished) {
                    self.unexpected(tree, block, key);
                }
            } else if !matches!(key.objectid, objectid::FREE_INO | objectid::FREE_SPACE) {
                // These two belong to the inode cache of old kernels.
                self.unexpected(tree, block, key);
            }
        }
        for partial in finished {
            self.judge(tree, partial, &mut sum);
        }
        sum
    }

    /// Takes one item of an inode. Returns false if it does not belong in a subvolume.
    fn inode_part(
        &mut self,
        tree: u64,
        key: Key,
        data: &[u8],
        sum: &mut Summary,
        finished: &mut Finished,
    ) -> bool {
        match key.kind {
            kind::INODE_ITEM => {
                if let Ok(item) = InodeItem::read(data) {
                    sum.inode(key, finished).facts = Some(Facts {
                        mode: item.mode.get(),
                        nlink: item.nlink.get(),
                        size: item.size.get(),
                        nbytes: item.nbytes.get(),
                        flags: item.inode_flags(),
                    });
                }
            }
            kind::INODE_REF | kind::INODE_EXTREF => {
                for name in names(&key, data) {
                    let own = is_own_name(key.objectid, &name);
                    if !own {
                        let hash = link_hash(name.0, name.1, name.2, key.objectid);
                        sum.links = sum.links.wrapping_sub(hash);
                    }
                    let inode = sum.inode(key, finished);
                    inode.names += 1;
                    inode.entries += u64::from(!own);
                    if !own {
                        inode.parent = inode.parent.or(Some(name.0));
                    }
                }
            }
            kind::DIR_ITEM | kind::DIR_INDEX => {
                self.dir_entries(tree, key, data, sum, finished);
            }
            kind::XATTR_ITEM => {
                sum.inode(key, finished);
                self.same_names(tree, &key, data);
            }
            kind::EXTENT_DATA => {
                self.examine_extent(tree, &key, data);
                let part = self.file_extent(key, data);
                sum.inode(key, finished).join(&part);
            }
            kind::VERITY_DESC_ITEM | kind::VERITY_MERKLE_ITEM => {
                let part = hash_tree::item(key, data);
                sum.inode(key, finished).join(&part);
            }
            _ => return false,
        }
        true
    }

    fn dir_entries(
        &mut self,
        tree: u64,
        key: Key,
        data: &[u8],
        sum: &mut Summary,
        finished: &mut Finished,
    ) {
        let is_index = key.kind == kind::DIR_INDEX;
        for entry in dir_items(data).filter_map(Result::ok) {
            let dir = sum.inode(key, finished);
            dir.dir_key = dir.dir_key.or(Some(key));
            dir.name_bytes = dir.name_bytes.saturating_add(entry.name.len() as u64);
            let listed = listing_hash(&entry);
            if !is_index {
                dir.listing = dir.listing.wrapping_add(listed);
                continue;
            }
            dir.listing = dir.listing.wrapping_sub(listed);
            if entry.location.kind != kind::INODE_ITEM {
                sum.subvolumes += 1;
                continue;
            }
            let inode = entry.location.objectid;
            let link = link_hash(key.objectid, key.offset, entry.name, inode);
            dir.links = dir.links.wrapping_add(link);
            dir.types = dir.types.wrapping_add(type_hash(inode, entry.kind));
        }
        if !is_index {
            self.same_names(tree, &key, data);
        }
    }

    /// Names with one hash are in one item, so a duplicate name is found here.
    fn same_names(&mut self, tree: u64, key: &Key, data: &[u8]) {
        let mut seen = HashSet::new();
        for entry in dir_items(data).filter_map(Result::ok) {
            if !seen.insert(entry.name) {
                let (inode, name) = (key.objectid, shown(entry.name));
                self.found(Finding::NameTwice { tree, inode, name });
            }
        }
    }

    /// Reports problems within a file extent that do not prevent reading it.
    fn examine_extent(&mut self, tree: u64, key: &Key, data: &[u8]) {
        let (inode, offset) = (key.objectid, key.offset);
        let Ok(head) = FileExtentHeader::read(data) else {
            return;
        };
        let parsed = FileExtent::parse(data);
        let mut fields = vec![("other encoding", u64::from(head.other_encoding.get()), 0)];
        if let Ok(FileExtent::Regular(extent) | FileExtent::Prealloc(extent)) = &parsed
            && !extent.is_hole()
        {
            let least = extent.offset.saturating_add(extent.num_bytes);
            fields.push(("ram_bytes", extent.ram_bytes, extent.ram_bytes.max(least)));
        }
        if let Ok(FileExtent::Prealloc(extent)) = &parsed {
            fields.push(("compression", extent.compression.into(), 0));
            let (from, end) = summed_range(extent);
            if !extent.is_hole() && self.checksums.touch(from, end) {
                let at = (tree, inode, offset);
                self.inodes.unwritten.push((at, from, end));
            }
        }
        for (field, found, expected) in fields {
            if found != expected {
                self.found(Finding::FileExtentField {
                    tree,
                    inode,
                    offset,
                    field,
                    found,
                    expected,
                });
            }
        }
    }

    fn file_extent(&self, key: Key, data: &[u8]) -> Partial {
        let mut part = Partial::new(key);
        part.data_key = Some(key);
        let sectorsize = self.sectorsize();
        let start = key.offset;
        let (extent, written) = match FileExtent::parse(data) {
            Ok(FileExtent::Inline { ram_bytes, .. }) => {
                let end = ram_bytes.div_ceil(sectorsize).saturating_mul(sectorsize);
                part.extents = Extents {
                    bytes: ram_bytes,
                    inline: Some(ram_bytes),
                    ..Extents::one(start, start.saturating_add(end))
                };
                return part;
            }
            Ok(FileExtent::Regular(extent)) => (extent, true),
            Ok(FileExtent::Prealloc(extent)) => (extent, false),
            Err(_) => return part,
        };
        part.extents = Extents::one(start, start.saturating_add(extent.num_bytes));
        if extent.is_hole() {
            return part;
        }
        part.extents.bytes = extent.num_bytes;
        if !written {
            return part;
        }
        part.extents.last_data = Some(start);
        let (from, end) = summed_range(&extent);
        let len = end - from;
        part.bare = (!self.checksums.cover(from, end)).then_some((start, from, len));
        let compressed = extent.compression != compression::NONE;
        part.bare_compressed = part.bare.filter(|_| compressed);
        part.summed = self
            .checksums
            .touch(from, end)
            .then_some((start, from, len));
        part
    }
}

/// Range on disk of the checksums of a file extent's data, half-open. Compressed data is summed in
/// its form on disk, and always as a whole.
pub(in super::super) fn summed_range(extent: &RegularExtent) -> (u64, u64) {
    let (from, len) = if extent.compression == compression::NONE {
        let from = extent.disk_bytenr.saturating_add(extent.offset);
        (from, extent.num_bytes)
    } else {
        (extent.disk_bytenr, extent.disk_num_bytes)
    };
    (from, from.saturating_add(len))
}

/// Hash of the common fields of dir item and index.
pub(super) fn listing_hash(entry: &DirItemRef<'_>) -> u128 {
    hash(&(entry.name, entry.location, entry.kind))
}
