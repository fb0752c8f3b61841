//! On-disk structures of a journal. Everything is big-endian.
//!
//! Source: "ext4 Data Structures and Algorithms", section "Journal (jbd2)", in the kernel's
//! documentation.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of every block of the log that is not a copy of another block.
pub(crate) const MAGIC: u32 = 0xC03B_3998;
/// Bytes of the superblock.
pub(crate) const SUPERBLOCK_SIZE: usize = 1024;
/// Fast-commit blocks of a journal whose superblock has no number.
pub(crate) const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// Values of `s_checksum_type` and `h_chksum_type`.
pub(crate) const CHECKSUM_CRC32: u8 = 1;
pub(crate) const CHECKSUM_CRC32C: u8 = 4;

/// `h_blocktype`.
pub(crate) mod block_type {
    pub(crate) const DESCRIPTOR: u32 = 1;
    pub(crate) const COMMIT: u32 = 2;
    pub(crate) const SUPERBLOCK_V1: u32 = 3;
    pub(crate) const SUPERBLOCK_V2: u32 = 4;
    pub(crate) const REVOKE: u32 = 5;
}

bitflags::bitflags! {
    /// `s_feature_incompat`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Has revoke blocks.
        const REVOKE = 1;
        /// Block numbers have 64 bits.
        const WIDE = 2;
        /// Commit blocks may be written before the blocks that they commit.
        const ASYNC_COMMIT = 4;
        /// Checksums, version 2.
        const CSUM_V2 = 8;
        /// Checksums, version 3.
        const CSUM_V3 = 0x10;
        /// Has an area for fast commits.
        const FAST_COMMIT = 0x20;
    }

    /// `s_feature_compat`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// Commit blocks have a checksum of the transaction (version 1).
        const CHECKSUM = 1;
    }

    /// Flags of a tag.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct TagFlags: u16 {
        /// The block begins with the magic; the log has zeros in its place.
        const ESCAPED = 1;
        /// No UUID follows.
        const SAME_UUID = 2;
        /// Deleted by this transaction (never written).
        const DELETED = 4;
        /// The last tag of the descriptor.
        const LAST = 8;
    }
}

/// `journal_header_t`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: U32,
    pub(crate) block_type: U32,
    pub(crate) sequence: U32,
}
const _: () = assert!(size_of::<Header>() == 12);

impl Header {
    pub(crate) fn new(block_type: u32, sequence: u32) -> Self {
        Self {
            magic: MAGIC.into(),
            block_type: block_type.into(),
            sequence: sequence.into(),
        }
    }
}

/// `journal_superblock_t`. Version 1 has only the fields before `feature_compat`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawSuperblock {
    pub(crate) header: Header,
    pub(crate) block_size: U32,
    pub(crate) max_len: U32,
    pub(crate) first: U32,
    pub(crate) sequence: U32,
    pub(crate) start: U32,
    pub(crate) errno: U32,
    pub(crate) feature_compat: U32,
    pub(crate) feature_incompat: U32,
    pub(crate) feature_ro_compat: U32,
    pub(crate) uuid: [u8; 16],
    pub(crate) nr_users: U32,
    pub(crate) dyn_super: U32,
    pub(crate) max_transaction: U32,
    pub(crate) max_trans_data: U32,
    pub(crate) checksum_type: u8,
    pub(crate) padding2: [u8; 3],
    pub(crate) num_fc_blocks: U32,
    pub(crate) head: U32,
    pub(crate) padding: [U32; 40],
    pub(crate) checksum: U32,
    pub(crate) users: [u8; 768],
}
const _: () = {
    assert!(size_of::<RawSuperblock>() == SUPERBLOCK_SIZE);
    assert!(std::mem::offset_of!(RawSuperblock, start) == 0x1c);
    assert!(std::mem::offset_of!(RawSuperblock, feature_compat) == 0x24);
    assert!(std::mem::offset_of!(RawSuperblock, uuid) == 0x30);
    assert!(std::mem::offset_of!(RawSuperblock, checksum_type) == 0x50);
    assert!(std::mem::offset_of!(RawSuperblock, num_fc_blocks) == 0x54);
    assert!(std::mem::offset_of!(RawSuperblock, checksum) == 0xfc);
    assert!(std::mem::offset_of!(RawSuperblock, users) == 0x100);
};

/// `journal_block_tag3_t`: a tag with checksums of version 3.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawTag3 {
    pub(crate) block: U32,
    pub(crate) flags: U32,
    pub(crate) block_high: U32,
    pub(crate) checksum: U32,
}
const _: () = assert!(size_of::<RawTag3>() == 16);

/// The part of `journal_block_tag_t` that is always there, for all other forms. The high half of a
/// 64-bit block number follows it. With checksums of version 2, two unused bytes follow at the end.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawTag {
    pub(crate) block: U32,
    pub(crate) checksum: U16,
    pub(crate) flags: U16,
}
const _: () = assert!(size_of::<RawTag>() == 8);

/// `jbd2_journal_revoke_header_t`; block numbers follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RevokeHeader {
    pub(crate) header: Header,
    /// Bytes in use, including this header.
    pub(crate) count: U32,
}
const _: () = assert!(size_of::<RevokeHeader>() == 16);

/// `struct commit_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawCommit {
    pub(crate) header: Header,
    pub(crate) checksum_type: u8,
    pub(crate) checksum_size: u8,
    pub(crate) padding: [u8; 2],
    pub(crate) checksum: [U32; 8],
    pub(crate) seconds: U64,
    pub(crate) nanoseconds: U32,
}
const _: () = {
    assert!(size_of::<RawCommit>() == 60);
    assert!(std::mem::offset_of!(RawCommit, checksum) == 16);
};

/// A contiguous run of blocks, in the journal and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutRun {
    /// First block within the journal.
    pub logical: u64,
    /// First block on the device.
    pub physical: u64,
    /// Blocks.
    pub len: u64,
}
