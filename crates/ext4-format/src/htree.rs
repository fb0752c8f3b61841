//! Hash trees of directories: the root in the directory's first block, inner nodes, and the split
//! of a leaf.
//!
//! # How it works
//!
//! To readers that do not know hash trees, the root looks like a block with `.` and `..`, and an
//! inner node like a block with one free entry. Leaves are ordinary directory blocks. A node has an
//! array of (hash, block). Its first element has no hash: limit and count are stored in its place.
//! An entry's block has the names with hashes from its own up to the next entry's. Bit 0 of a
//! hash is 0 in every name's hash; if it is set, names with the same hash begin in the previous
//! block. With metadata checksums a node has a tail of 8 bytes directly after the room for `limit`
//! entries.
//!
//! - Lookup: [`DirFormat::dx_root`], [`DxNode::search`], then [`DirFormat::dx_node`] for each inner
//!   level.
//! - Insertion into a full leaf: [`DirFormat::split_leaf`], then [`DirFormat::dx_insert`] of the
//!   new half into the parent.
//! - A full parent is split before ([`DirFormat::dx_split`]). A full root moves its entries to a
//!   new node below it ([`DirFormat::dx_grow`]).
//!
//! Trouble cases and their tests:
//! - names with one hash in two leaves (`tests/suite/models.rs`)
//! - one to three levels with every hash, checked by `e2fsck` and the kernel (`tests/trees/own.rs`)
//! - hostile nodes (`tests/suite/hostile.rs`)
//!
//! Source: kernel documentation, `filesystems/ext4/directory.rst`.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::dir::{DIR_HEADER_SIZE, DirEntryHeader, DirFormat, rec_len_decode};

mod edit;
mod error;
mod split;

pub use error::HtreeError;
pub use split::{Incoming, LeafSplit};

/// Root information after `..`.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct DxRootInfo {
    /// Zero.
    pub reserved_zero: U32,
    /// Kind of the hash, a [`HashVersion`](crate::HashVersion).
    pub hash_version: u8,
    /// Bytes of this struct: 8.
    pub info_length: u8,
    /// Levels of inner nodes between the root and the leaves.
    pub indirect_levels: u8,
    /// Flags, none is in use.
    pub unused_flags: u8,
}
const _: () = assert!(size_of::<DxRootInfo>() == 8);

/// An entry; the first holds [`DxCountLimit`] in the place of its hash.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct RawDxEntry {
    /// Lowest hash in the block, with the continuation bit.
    pub hash: U32,
    /// Logical block of the directory; the top 4 bits do not count.
    pub block: U32,
}
const _: () = assert!(size_of::<RawDxEntry>() == DX_ENTRY_SIZE);

/// Head of the array of entries.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct DxCountLimit {
    /// Entries for which there is room, this one included.
    pub limit: U16,
    /// Entries in use, this one included.
    pub count: U16,
}
const _: () = assert!(size_of::<DxCountLimit>() == 4);

/// Tail of a node of a file system with metadata checksums.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct DxTail {
    /// Zero.
    pub reserved: U32,
    /// CRC-32C from the inode's seed: the block up to the last entry in use, then this tail with
    /// zero here.
    pub checksum: U32,
}
const _: () = assert!(size_of::<DxTail>() == DX_TAIL_SIZE);

const DX_ENTRY_SIZE: usize = 8;
const DX_TAIL_SIZE: usize = 8;
/// Position of the root's info: after two entries of 12 bytes.
const ROOT_INFO_AT: usize = 24;
/// Offset of the root's entries.
const ROOT_ENTRIES_AT: usize = ROOT_INFO_AT + size_of::<DxRootInfo>();
/// Offset of an inner node's entries.
const NODE_ENTRIES_AT: usize = DIR_HEADER_SIZE;
/// Bits of a block number in an entry.
const DX_BLOCK_MASK: u32 = 0x0fff_ffff;

/// Entry of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DxEntry {
    /// Lowest hash in the block; 0 in the first entry of a node.
    pub hash: u32,
    /// Logical block of the directory.
    pub block: u32,
}

/// A node for reading; also the array of a root.
#[derive(Clone, Copy, Debug)]
pub struct DxNode<'a> {
    entries: &'a [RawDxEntry],
    limit: u16,
}

/// A root for reading.
#[derive(Clone, Copy, Debug)]
pub struct DxRoot<'a> {
    /// Kind of the hash, levels.
    pub info: &'a DxRootInfo,
    /// The inode that `.` names.
    pub inode: u32,
    /// The inode that `..` names.
    pub parent: u32,
    /// The entries.
    pub node: DxNode<'a>,
}

impl<'a> DxNode<'a> {
    /// Entries in use; at least 1 in a validated node.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Entries for which there is room.
    pub fn limit(&self) -> usize {
        usize::from(self.limit)
    }

    /// No room for one more entry.
    pub fn is_full(&self) -> bool {
        self.count() >= self.limit()
    }

    /// An entry; `None` after the last one.
    pub fn entry(&self, index: usize) -> Option<DxEntry> {
        let raw = self.entries.get(index)?;
        let hash = if index == 0 { 0 } else { raw.hash.get() };
        Some(DxEntry {
            hash,
            block: raw.block.get() & DX_BLOCK_MASK,
        })
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = DxEntry> + use<'a> {
        let node = *self;
        (0..node.count()).map_while(move |index| node.entry(index))
    }

    /// The entry in whose block the search for a name with this hash begins: the last entry whose
    /// hash is not greater. [`DxNode::continues`] tells whether names of this hash continue in the
    /// next block.
    pub fn search(&self, hash: u32) -> usize {
        let rest = self.entries.get(1..).unwrap_or_default();
        rest.partition_point(|raw| raw.hash.get() <= hash)
    }

    /// Whether the next entry's block begins with names of this hash, so that a search must
    /// continue there.
    pub fn continues(&self, index: usize, hash: u32) -> bool {
        self.entry(index + 1)
            .is_some_and(|next| next.hash == hash | 1)
    }
}

impl DirFormat {
    /// Most levels of inner nodes that a root may have.
    pub fn dx_max_levels(&self) -> u8 {
        if self.large_dir { 2 } else { 1 }
    }

    fn dx_limit(&self, at: usize) -> usize {
        let tail = if self.checksums { DX_TAIL_SIZE } else { 0 };
        self.block_size.saturating_sub(at + tail) / DX_ENTRY_SIZE
    }

    /// Entries for which a root has room.
    pub(crate) fn dx_root_limit(&self) -> usize {
        self.dx_limit(ROOT_ENTRIES_AT)
    }

    /// Number of entries in an inner node. Where entries have hashes, the kernel reserves room for
    /// them in the free entry at the node's start, although there are none.
    pub(crate) fn dx_node_limit(&self) -> usize {
        self.dx_limit(NODE_ENTRIES_AT + if self.hash_in_entry { 8 } else { 0 })
    }

    /// Validates a root. `blocks` is the directory's size in blocks.
    pub fn dx_root<'a>(&self, block: &'a [u8], blocks: u32) -> Result<DxRoot<'a>, HtreeError> {
        self.dx_size(block)?;
        let dots = HtreeError::Dots;
        let (dot, _) = DirEntryHeader::ref_from_prefix(block).map_err(|_| dots)?;
        let (dotdot, _) = DirEntryHeader::ref_from_prefix(&block[12..]).map_err(|_| dots)?;
        let lens = [dot, dotdot].map(|entry| {
            (
                entry.name_len,
                rec_len_decode(entry.rec_len.get(), self.block_size),
            )
        });
        if lens != [(1, 12), (2, self.block_size - 12)]
            || &block[8..12] != b".\0\0\0"
            || &block[20..22] != b".."
        {
            return Err(dots);
        }
        let (inode, parent) = (dot.inode.get(), dotdot.inode.get());
        if [inode, parent]
            .iter()
            .any(|&inode| inode == 0 || inode > self.inodes)
        {
            return Err(dots);
        }
        let (info, _) = DxRootInfo::ref_from_prefix(&block[ROOT_INFO_AT..]).map_err(|_| dots)?;
        if info.reserved_zero.get() != 0 || usize::from(info.info_length) != size_of::<DxRootInfo>()
        {
            return Err(HtreeError::Info {
                info_length: info.info_length,
                flags: info.unused_flags,
            });
        }
        if info.unused_flags & 1 != 0 {
            return Err(HtreeError::Info {
                info_length: info.info_length,
                flags: info.unused_flags,
            });
        }
        if info.indirect_levels > self.dx_max_levels() {
            return Err(HtreeError::Levels {
                found: info.indirect_levels,
                most: self.dx_max_levels(),
            });
        }
        let node = self.dx_entries(block, ROOT_ENTRIES_AT, self.dx_root_limit(), blocks)?;
        Ok(DxRoot {
            info,
            inode,
            parent,
            node,
        })
    }

    /// Validates an inner node. `blocks` is the directory's size in blocks.
    pub fn dx_node<'a>(&self, block: &'a [u8], blocks: u32) -> Result<DxNode<'a>, HtreeError> {
        self.dx_size(block)?;
        let (head, _) = DirEntryHeader::ref_from_prefix(block).map_err(|_| HtreeError::NoNode)?;
        if head.inode.get() != 0
            || rec_len_decode(head.rec_len.get(), self.block_size) != self.block_size
        {
            return Err(HtreeError::NoNode);
        }
        self.dx_entries(block, NODE_ENTRIES_AT, self.dx_node_limit(), blocks)
    }

    /// The entries of a root or inner node that was validated when it was read. Validates only the
    /// fields that locate them.
    pub fn dx_judged<'a>(&self, block: &'a [u8]) -> Result<DxNode<'a>, HtreeError> {
        dx_array(block, self.dx_begin(block)?)
    }

    /// The info of a validated root.
    pub fn dx_info<'a>(&self, block: &'a [u8]) -> Result<&'a DxRootInfo, HtreeError> {
        if self.dx_begin(block)? != ROOT_ENTRIES_AT {
            return Err(HtreeError::NoNode);
        }
        let (info, _) =
            DxRootInfo::ref_from_prefix(&block[ROOT_INFO_AT..]).map_err(|_| HtreeError::NoNode)?;
        Ok(info)
    }

    /// The inode of `..` in a validated root.
    pub fn dx_parent(&self, block: &[u8]) -> Result<u32, HtreeError> {
        self.dx_info(block)?;
        let (head, _) =
            DirEntryHeader::ref_from_prefix(&block[12..]).map_err(|_| HtreeError::Dots)?;
        Ok(head.inode.get())
    }

    fn dx_size(&self, block: &[u8]) -> Result<(), HtreeError> {
        if block.len() == self.block_size && block.len() >= 1024 {
            Ok(())
        } else {
            Err(HtreeError::Size {
                found: block.len(),
                expected: self.block_size,
            })
        }
    }

    fn dx_entries<'a>(
        &self,
        block: &'a [u8],
        at: usize,
        room: usize,
        blocks: u32,
    ) -> Result<DxNode<'a>, HtreeError> {
        let node = dx_array(block, at)?;
        if node.limit() != room {
            return Err(HtreeError::Limit {
                found: node.limit,
                expected: room,
            });
        }
        let mut before = 0;
        for (index, entry) in node.entries().enumerate() {
            if entry.hash < before {
                return Err(HtreeError::Order {
                    index,
                    hash: entry.hash,
                    before,
                });
            }
            if entry.block == 0 || entry.block >= blocks {
                return Err(HtreeError::Block {
                    index,
                    block: entry.block,
                    blocks,
                });
            }
            before = entry.hash;
        }
        Ok(node)
    }

    /// Start of a node's entries. A root is recognized by its first entry: `.` with 12 bytes.
    fn dx_begin(&self, block: &[u8]) -> Result<usize, HtreeError> {
        self.dx_size(block)?;
        let (head, _) = DirEntryHeader::ref_from_prefix(block).map_err(|_| HtreeError::NoNode)?;
        let rec_len = rec_len_decode(head.rec_len.get(), self.block_size);
        match (head.inode.get(), rec_len) {
            (0, len) if len == self.block_size => Ok(NODE_ENTRIES_AT),
            (_, 12) => Ok(ROOT_ENTRIES_AT),
            _ => Err(HtreeError::NoNode),
        }
    }

    /// Checksum of a node, and its position in the block.
    fn dx_checksum(&self, block: &[u8], seed: u32) -> Result<(u32, usize), HtreeError> {
        let at = self.dx_begin(block)?;
        let (limit, count) = dx_count_limit(block, at).ok_or(HtreeError::NoNode)?;
        if count > limit {
            return Err(HtreeError::Count { count, limit });
        }
        let tail = at + usize::from(limit) * DX_ENTRY_SIZE;
        let expected = self.dx_limit(at);
        let reserved = block.get(tail..tail + 4).ok_or(HtreeError::Limit {
            found: limit,
            expected,
        })?;
        if tail + DX_TAIL_SIZE > block.len() {
            return Err(HtreeError::Limit {
                found: limit,
                expected,
            });
        }
        let sum = crc32c(seed, &block[..at + usize::from(count) * DX_ENTRY_SIZE]);
        Ok((crc32c(crc32c(sum, reserved), &[0; 4]), tail + 4))
    }

    /// Verifies the checksum of a root or inner node, if there are metadata checksums. `seed` is
    /// the inode's.
    pub fn dx_verify(&self, block: &[u8], seed: u32) -> Result<(), HtreeError> {
        if !self.checksums {
            return Ok(());
        }
        let (expected, at) = self.dx_checksum(block, seed)?;
        let found = U32::read_from_prefix(&block[at..]).map_or(0, |(sum, _)| sum.get());
        if found == expected {
            Ok(())
        } else {
            Err(HtreeError::Checksum { found, expected })
        }
    }

    /// Writes the checksum of a root or inner node, if there are metadata checksums. `seed` is the
    /// inode's.
    pub fn dx_seal(&self, block: &mut [u8], seed: u32) -> Result<(), HtreeError> {
        if !self.checksums {
            return Ok(());
        }
        let (sum, at) = self.dx_checksum(block, seed)?;
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        Ok(())
    }
}

fn dx_count_limit(block: &[u8], at: usize) -> Option<(u16, u16)> {
    let (head, _) = DxCountLimit::ref_from_prefix(block.get(at..)?).ok()?;
    Some((head.limit.get(), head.count.get()))
}

/// The entries whose array begins at byte `at`.
fn dx_array(block: &[u8], at: usize) -> Result<DxNode<'_>, HtreeError> {
    let (limit, count) = dx_count_limit(block, at).ok_or(HtreeError::NoNode)?;
    if count == 0 || count > limit {
        return Err(HtreeError::Count { count, limit });
    }
    let bytes = block
        .get(at..at + usize::from(count) * DX_ENTRY_SIZE)
        .ok_or(HtreeError::NoNode)?;
    let entries = <[RawDxEntry]>::ref_from_bytes(bytes).map_err(|_| HtreeError::NoNode)?;
    Ok(DxNode { entries, limit })
}
