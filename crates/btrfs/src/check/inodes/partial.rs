//! Facts about an inode from part of its items.

use sapwood_btrfs_format::{InodeFlags, Key};

/// The relevant fields of the inode item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) mode: u32,
    pub(super) nlink: u32,
    pub(super) size: u64,
    pub(super) nbytes: u64,
    pub(super) flags: InodeFlags,
}

/// File extents so far, in the order of their offsets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extents {
    pub(super) first: Option<u64>,
    pub(super) end: u64,
    /// Bytes that count for `nbytes`.
    pub(super) bytes: u64,
    /// Start of the first gap.
    pub(super) gap: Option<u64>,
    /// Start of the first extent that overlaps the previous one.
    pub(super) overlap: Option<u64>,
    /// Start of the last extent with data.
    pub(super) last_data: Option<u64>,
    /// Bytes of an inline extent once uncompressed.
    pub(super) inline: Option<u64>,
}

impl Extents {
    /// One extent from `start` to `end`.
    pub(super) fn one(start: u64, end: u64) -> Self {
        Self {
            first: Some(start),
            end,
            ..Self::default()
        }
    }

    /// Adds extents that follow.
    pub(super) fn join(&mut self, right: &Self) {
        let Some(start) = right.first else {
            return;
        };
        let (mut gap, mut overlap) = (None, None);
        if self.first.is_some() {
            gap = (start > self.end).then_some(self.end);
            overlap = (start < self.end).then_some(start);
        }
        self.first = self.first.or(right.first);
        self.end = self.end.max(right.end);
        self.bytes = self.bytes.saturating_add(right.bytes);
        self.gap = self.gap.or(gap).or(right.gap);
        self.overlap = self.overlap.or(overlap).or(right.overlap);
        self.last_data = right.last_data.or(self.last_data);
        self.inline = self.inline.or(right.inline);
    }
}

/// Items of one kind of a hash tree so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    /// Bytes in the items.
    pub(super) count: u64,
    /// Position after the last one. Equal to `count` if no byte is missing or there twice.
    pub(super) end: u64,
}

impl Bytes {
    /// An item at a position.
    pub(super) fn one(at: u64, len: usize) -> Self {
        let count = len as u64;
        let end = at.saturating_add(count);
        Self { count, end }
    }

    /// All bytes, from position 0 on.
    pub(super) fn whole(count: u64) -> Self {
        Self { count, end: count }
    }

    fn join(&mut self, right: Self) {
        self.count = self.count.saturating_add(right.count);
        self.end = self.end.max(right.end);
    }
}

/// Items of the hash tree of a file so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HashTree {
    /// First item.
    pub(super) key: Option<Key>,
    /// Size of the descriptor according to its first item.
    pub(super) size: Option<u64>,
    pub(super) descriptor: Bytes,
    pub(super) tree: Bytes,
    /// Bytes of the file and of its tree according to the descriptor; `None` in the inner option if
    /// it is damaged.
    pub(super) described: Option<Option<(u64, u64)>>,
}

impl HashTree {
    fn join(&mut self, right: &Self) {
        self.key = self.key.or(right.key);
        self.size = self.size.or(right.size);
        self.descriptor.join(right.descriptor);
        self.tree.join(right.tree);
        self.described = self.described.or(right.described);
    }
}

/// Data of an inode: file offset, address, bytes.
pub(super) type DataAt = (u64, u64, u64);

/// The facts about an inode so far.
#[derive(Clone, Debug)]
pub(super) struct Partial {
    pub(super) inode: u64,
    /// First item.
    pub(super) first: Key,
    pub(super) facts: Option<Facts>,
    /// Some items may be missing because a block is bad.
    pub(super) damaged: bool,
    /// Names in refs.
    pub(super) names: u64,
    /// Entries of a directory: all except the top directory's own.
    pub(super) entries: u64,
    /// The directory of the first name.
    pub(super) parent: Option<u64>,
    /// Bytes of names in dir items and in indexes.
    pub(super) name_bytes: u64,
    /// Hashes of dir items minus hashes of indexes.
    pub(super) listing: u128,
    /// Hashes of its entries, as in [`Summary`](super::summary::Summary).
    pub(super) links: u128,
    pub(super) types: u128,
    /// An item that only a directory has.
    pub(super) dir_key: Option<Key>,
    /// An item that only a file or symbolic link has.
    pub(super) data_key: Option<Key>,
    pub(super) extents: Extents,
    pub(super) hash_tree: HashTree,
    /// First data without checksums.
    pub(super) bare: Option<DataAt>,
    /// First compressed data without checksums.
    pub(super) bare_compressed: Option<DataAt>,
    /// First data with checksums.
    pub(super) summed: Option<DataAt>,
}

impl Partial {
    pub(super) fn new(first: Key) -> Self {
        Self {
            inode: first.objectid,
            first,
            facts: None,
            damaged: false,
            names: 0,
            entries: 0,
            parent: None,
            name_bytes: 0,
            listing: 0,
            links: 0,
            types: 0,
            dir_key: None,
            data_key: None,
            extents: Extents::default(),
            hash_tree: HashTree::default(),
            bare: None,
            bare_compressed: None,
            summed: None,
        }
    }

    /// Adds following items of the same inode.
    pub(super) fn join(&mut self, right: &Self) {
        self.facts = self.facts.or(right.facts);
        self.damaged |= right.damaged;
        self.names = self.names.saturating_add(right.names);
        self.entries = self.entries.saturating_add(right.entries);
        self.parent = self.parent.or(right.parent);
        self.name_bytes = self.name_bytes.saturating_add(right.name_bytes);
        self.listing = self.listing.wrapping_add(right.listing);
        self.links = self.links.wrapping_add(right.links);
        self.types = self.types.wrapping_add(right.types);
        self.dir_key = self.dir_key.or(right.dir_key);
        self.data_key = self.data_key.or(right.data_key);
        self.extents.join(&right.extents);
        self.hash_tree.join(&right.hash_tree);
        self.bare = self.bare.or(right.bare);
        self.bare_compressed = self.bare_compressed.or(right.bare_compressed);
        self.summed = self.summed.or(right.summed);
    }
}

/// Complete inodes.
pub(super) type Finished = Vec<Partial>;
