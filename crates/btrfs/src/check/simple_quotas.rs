//! Compares the numbers of simple quotas with the extents.
//!
//! An extent counts for the tree that it was allocated for, if it is not older than the quotas. A
//! data extent names that tree in its item, a tree block in its header. A group of a higher level
//! has the sum of its subvolumes.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_btrfs_format::{Block, ExtentFlags, ExtentItemRef, InlineRef, Key, kind, objectid};

use super::qgroups::Quotas;
use super::state::{Check, Pointer};

/// Extents of an extent tree.
#[derive(Default)]
struct Found {
    /// Bytes of data by owner.
    data: BTreeMap<u64, u64>,
    /// Blocks of files' trees, whose owners are in their headers.
    blocks: Vec<Pointer>,
}

impl Found {
    fn take(&mut self, key: Key, item: &[u8], since: u64) {
        if !matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) {
            return;
        }
        let Ok(extent) = ExtentItemRef::parse(key.kind, item) else {
            return;
        };
        if extent.generation < since {
            return;
        }
        let refs = extent.inline_refs().filter_map(Result::ok);
        if !extent.flags.contains(ExtentFlags::TREE_BLOCK) {
            for found in refs {
                if let InlineRef::Owner { root } = found {
                    *self.data.entry(root).or_default() += key.offset;
                }
            }
            return;
        }
        let mut refs = refs;
        let foreign = refs.any(|found| match found {
            InlineRef::TreeBlock { root } => !objectid::is_fs_tree(root),
            _ => false,
        });
        if !foreign {
            let level = extent
                .tree_block
                .map_or(key.offset as u8, |(_, level)| level);
            self.blocks.push(Pointer {
                logical: key.objectid,
                level,
                generation: extent.generation,
                first_key: None,
            });
        }
    }
}

impl Check<'_> {
    /// Compares the groups of simple quotas that count extents from transaction `since` on.
    pub(super) fn compare_simple_quotas(&mut self, quotas: &Quotas, since: u64) {
        let roots = self.all_roots();
        let root = roots
            .iter()
            .find(|(tree, ..)| *tree == objectid::EXTENT_TREE);
        let Some((tree, root, _)) = root else {
            return;
        };
        let mut found = Found::default();
        self.range(*tree, root, &Key::MIN, &Key::MAX, &mut |key, item| {
            found.take(key, item, since);
        });
        let nodesize = self.nodesize();
        let mut bytes = found.data;
        for at in found.blocks {
            let Some(block) = self.quiet_block(objectid::FS_TREE, &at) else {
                return;
            };
            let Ok(block) = Block::new(&block) else {
                return;
            };
            let sum = bytes.entry(block.owner()).or_default();
            *sum = sum.saturating_add(nodesize);
        }
        for (group, info) in quotas.groups() {
            let mut members = BTreeSet::new();
            quotas.subvolumes(*group, &mut members);
            let sums = members.iter().filter_map(|id| bytes.get(id));
            let sum = sums.fold(0, |all: u64, bytes| all.saturating_add(*bytes));
            self.compare_group(*group, info, (sum, sum));
        }
    }
}
