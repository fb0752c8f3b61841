//! Items of the extent tree for an extent: encoding, and comparison with the items that are there.

use std::collections::BTreeMap;

use sapwood_btrfs_format::{ExtentFlags, ExtentItemRef, InlineRef, Key, kind};

use super::super::refs::{identity, listed};
use super::uses::{OfBlock, Used};
use crate::tree::bulk::Items;

/// Whether an item of the extent tree describes an extent, not a block group.
pub(super) fn describes(kind: u8) -> bool {
    matches!(
        kind,
        kind::EXTENT_ITEM
            | kind::METADATA_ITEM
            | kind::TREE_BLOCK_REF
            | kind::EXTENT_DATA_REF
            | kind::SHARED_BLOCK_REF
            | kind::SHARED_DATA_REF
    )
}

/// Properties of the file system that decide on the form of items.
#[derive(Clone, Copy)]
pub(super) struct Form {
    /// Tree blocks have a METADATA_ITEM.
    pub(super) skinny: bool,
    pub(super) nodesize: u64,
    /// An item with inline refs is smaller than this.
    pub(super) limit: usize,
}

impl Form {
    /// The items of an extent, ascending: the extent item with inline refs, and an item for each
    /// further ref.
    pub(super) fn encode(&self, used: &Used) -> Items {
        let key = match used.block {
            Some(block) if self.skinny => {
                Key::new(used.bytenr, kind::METADATA_ITEM, block.level.into())
            }
            _ => Key::new(used.bytenr, kind::EXTENT_ITEM, used.len),
        };
        let (flags, tree_block) = match used.block {
            None => (ExtentFlags::DATA, None),
            Some(block) => {
                let full = if block.full {
                    ExtentFlags::FULL_BACKREF
                } else {
                    ExtentFlags::empty()
                };
                let info = (!self.skinny).then_some((block.first_key, block.level));
                (ExtentFlags::TREE_BLOCK | full, info)
            }
        };
        let mut size = if tree_block.is_some() { 42 } else { 24 };
        let fits = |by: &&InlineRef| {
            size += InlineRef::inline_size(by.kind()).unwrap_or_default();
            size < self.limit
        };
        let inline: Vec<&InlineRef> = used.refs.iter().take_while(fits).collect();
        let head = ExtentItemRef {
            refs: used.count(),
            generation: used.generation,
            flags,
            tree_block,
            inline: &[],
        };
        let mut items = vec![(key, head.encode(inline.iter().copied()))];
        let mut keyed = BTreeMap::new();
        for by in used.refs.iter().skip(inline.len()) {
            let mut key = by.key(used.bytenr);
            // Refs with equal hashes take the next free offsets.
            while keyed.contains_key(&key) {
                key.offset = key.offset.wrapping_add(1);
            }
            keyed.insert(key, by.encode_keyed());
        }
        items.extend(keyed);
        items
    }

    /// Whether the items say the same about the extent: its place, kind and refs. Data keeps the
    /// generation that its item has.
    pub(super) fn agrees(&self, used: &Used, items: &Items) -> bool {
        let mut heads = items.iter().filter(|(key, _)| is_head(key));
        let (Some((key, data)), None) = (heads.next(), heads.next()) else {
            return false;
        };
        let Ok(item) = ExtentItemRef::parse(key.kind, data) else {
            return false;
        };
        let skinny = key.kind == kind::METADATA_ITEM;
        let len = if skinny { self.nodesize } else { key.offset };
        let block = item.flags.contains(ExtentFlags::TREE_BLOCK);
        let full = item.flags.contains(ExtentFlags::FULL_BACKREF);
        let level = match item.tree_block {
            Some((_, level)) => u64::from(level),
            None => key.offset,
        };
        let kinds = match used.block {
            None => !block && !skinny,
            Some(OfBlock {
                level: wanted,
                full: by_itself,
                ..
            }) => {
                block
                    && (level, full) == (wanted.into(), by_itself)
                    && item.generation == used.generation
            }
        };
        kinds && len == used.len && item.refs == used.count() && same_refs(used, items)
    }
}

fn is_head(key: &Key) -> bool {
    matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM)
}

/// The generation in the item of a data extent of this length.
pub(super) fn generation(items: &Items, len: u64) -> Option<u64> {
    let mut heads = items.iter();
    let (key, data) = heads.find(|(key, _)| key.kind == kind::EXTENT_ITEM && key.offset == len)?;
    let item = ExtentItemRef::parse(key.kind, data).ok()?;
    item.flags
        .contains(ExtentFlags::DATA)
        .then_some(item.generation)
}

/// Address, end and whether it is data, of the extent that items describe.
pub(super) fn place(items: &[(Key, Vec<u8>)], nodesize: u64) -> Option<(u64, u64, bool)> {
    let (key, data) = items.iter().find(|(key, _)| is_head(key))?;
    let item = ExtentItemRef::parse(key.kind, data).ok()?;
    let skinny = key.kind == kind::METADATA_ITEM;
    let len = if skinny { nodesize } else { key.offset };
    let end = key.objectid.saturating_add(len);
    Some((key.objectid, end, item.flags.contains(ExtentFlags::DATA)))
}

fn same_refs(used: &Used, items: &Items) -> bool {
    let mut found: Vec<InlineRef> = Vec::new();
    for (key, data) in items {
        found.extend(listed(key, data));
    }
    if found.len() != used.refs.len() {
        return false;
    }
    let order = |by: &InlineRef| (by.inline_order(), format!("{:?}", identity(by)));
    let mut wanted = used.refs.clone();
    // Nearly all extents have one ref.
    if wanted.len() > 1 {
        found.sort_by_cached_key(order);
        wanted.sort_by_cached_key(order);
    }
    found == wanted
}
