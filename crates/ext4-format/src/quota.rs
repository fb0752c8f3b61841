//! Quota files (version 2): header, tree of ids, entries.
//!
//! A file consists of blocks of 1 KiB, whatever the size of the file system's blocks. Block 0 has
//! the header and the [`QuotaInfo`], block 1 is the root of a tree of four levels: each has 256
//! references, one for each value of a byte of the id, the most significant byte first. The last
//! level refers to blocks of entries. Source: the format that `quotacheck` and `mke2fs -O quota`
//! write.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a quota file.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct QuotaHeader {
    /// Identifies the kind of quota.
    pub magic: U32,
    /// 0 for v2r0, 1 for v2r1.
    pub version: U32,
}
const _: () = assert!(size_of::<QuotaHeader>() == 8);

/// Kind of quota in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    /// The magic of its file.
    pub fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xd9c0_1f11,
            QuotaKind::Group => 0xd9c0_1927,
            QuotaKind::Project => 0xd9c0_3f14,
        }
    }

    /// Kind and version of a quota file, from its first bytes; `None` if it is not a quota file of
    /// version 2.
    pub fn recognise(bytes: &[u8]) -> Option<(Self, u32)> {
        let (header, _) = QuotaHeader::ref_from_prefix(bytes).ok()?;
        let kinds = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
        let kind = kinds
            .into_iter()
            .find(|kind| kind.magic() == header.magic.get())?;
        (header.version.get() <= 1).then_some((kind, header.version.get()))
    }
}

impl std::fmt::Display for QuotaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        })
    }
}

/// Bytes of a block of a quota file.
pub const QUOTA_BLOCK: usize = 1024;
/// Block of a quota file that is the root of the tree.
pub const QUOTA_ROOT: u32 = 1;
/// Levels of the tree above the entries.
pub const QUOTA_DEPTH: u32 = 4;
/// Entries of a block.
pub const QUOTA_ENTRIES: usize = (QUOTA_BLOCK - QuotaLeaf::SIZE) / QuotaEntry::SIZE;

crate::layout::disk_struct! {
    /// Follows the [`QuotaHeader`].
    pub struct QuotaInfo = 24 {
        /// Seconds that space may exceed its soft limit.
        pub space_grace: U32,
        /// Seconds that the number of inodes may exceed its soft limit.
        pub inode_grace: U32,
        /// Unused.
        pub flags: U32,
        /// Blocks of the file.
        pub blocks: U32,
        /// First free block; 0: none. Its first field is the next one.
        pub free_block: U32,
        /// First block of entries that has room; 0: none.
        pub free_entry: U32,
    }

    /// The start of a block of entries.
    pub struct QuotaLeaf = 16 {
        /// Next block of entries that has room.
        pub next: U32,
        /// Previous one.
        pub previous: U32,
        /// Entries in use.
        pub entries: U16,
        /// Zero.
        pub pad1: U16,
        /// Zero.
        pub pad2: U32,
    }

    /// Usage and limits of an id. An entry that is zero is free; the entry of id 0 without usage
    /// and limits has the inode time 1.
    pub struct QuotaEntry = 72 {
        /// User, group or project.
        pub id: U32,
        /// Zero.
        pub pad: U32,
        /// Most inodes; 0: no limit.
        pub inode_hard: U64,
        /// Inodes from which the grace time runs; 0: no limit.
        pub inode_soft: U64,
        /// Inodes.
        pub inodes: U64,
        /// Most space, in KiB; 0: no limit.
        pub space_hard: U64,
        /// Space from which the grace time runs, in KiB; 0: no limit.
        pub space_soft: U64,
        /// Space in bytes.
        pub space: U64,
        /// End of the grace time of the space, seconds since 1970; 0: it does not run.
        pub space_time: U64,
        /// End of the grace time of the inodes.
        pub inode_time: U64,
    }
}

impl QuotaEntry {
    /// The bytes to store, which differ from a free entry.
    pub fn stored(&self) -> Self {
        let mut stored = self.clone();
        if stored == Self::default() {
            stored.inode_time = 1.into();
        }
        stored
    }

    /// The entry that [`stored`](Self::stored) made the bytes of.
    pub fn loaded(mut self) -> Self {
        let marker = Self {
            inode_time: 1.into(),
            ..Self::default()
        };
        if self == marker {
            self.inode_time = 0.into();
        }
        self
    }

    /// Whether the place has no entry.
    pub fn is_free(&self) -> bool {
        *self == Self::default()
    }
}

/// The reference of an id in a block of the tree, as its byte in the block.
pub fn quota_reference(id: u32, level: u32) -> usize {
    let shift = 8 * (QUOTA_DEPTH - 1).saturating_sub(level);
    ((id >> shift) & 0xff) as usize * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_without_usage_is_not_free() {
        let none = QuotaEntry::default();
        assert!(none.is_free() && !none.stored().is_free());
        assert_eq!(none.stored().loaded(), none);
        let limited = QuotaEntry {
            space_hard: 7.into(),
            ..QuotaEntry::default()
        };
        assert_eq!(limited.stored().loaded(), limited);
    }

    #[test]
    fn the_most_significant_byte_comes_first() {
        let found: Vec<usize> = (0..4)
            .map(|level| quota_reference(0x0102_0304, level))
            .collect();
        assert_eq!(found, [4, 8, 12, 16]);
        assert_eq!(QUOTA_ENTRIES, 14);
    }
}
