//! Free space: the free-space tree and the v1 space cache. Quota groups.

use zerocopy::little_endian::{U32, U64};

use crate::layout::{disk_struct, offsets};
use crate::{DiskKey, FreeSpaceFlags};

/// Bits that one FREE_SPACE_BITMAP item has at most.
pub const FREE_SPACE_BITMAP_BITS: u64 = 256 * 8;

disk_struct! {
    /// Form in which the free-space tree stores a block group's free space.
    pub struct FreeSpaceInfo = 8 {
        /// Number of free extents (runs), in either form.
        pub extent_count: U32,
        /// [`FreeSpaceFlags`].
        pub flags: U32,
    }

    /// v1 space cache of a block group, in the root tree: (-11, 0, block group).
    pub struct FreeSpaceHeader = 41 {
        /// Inode in the root tree that holds the cache.
        pub location: DiskKey,
        /// Generation in which it was valid.
        pub generation: U64,
        /// Number of entries.
        pub num_entries: U64,
        /// Number of bitmaps among them.
        pub num_bitmaps: U64,
    }

    /// One entry of a v1 space cache.
    pub struct FreeSpaceEntry = 17 {
        /// Logical address.
        pub offset: U64,
        /// Free bytes.
        pub bytes: U64,
        /// 1: extent, 2: bitmap.
        pub kind: u8,
    }

    /// State of quotas.
    pub struct QgroupStatus = 32 {
        /// 1.
        pub version: U64,
        /// Transid at which it was valid.
        pub generation: U64,
        /// 1: on, 2: rescan, 4: inconsistent, 8: simple.
        pub flags: U64,
        /// Progress of a rescan. With simple quotas, the transid at which they were enabled
        /// follows.
        pub rescan: U64,
    }

    /// Usage of a quota group.
    pub struct QgroupInfo = 40 {
        /// Transid at which it was valid.
        pub generation: U64,
        /// Referenced bytes.
        pub referenced: U64,
        /// Referenced bytes, compressed.
        pub referenced_compressed: U64,
        /// Exclusive bytes.
        pub exclusive: U64,
        /// Exclusive bytes, compressed.
        pub exclusive_compressed: U64,
    }

    /// Limits of a quota group.
    pub struct QgroupLimit = 40 {
        /// The limits that are set, one bit each.
        pub flags: U64,
        /// Limit of referenced bytes.
        pub max_referenced: U64,
        /// Limit of exclusive bytes.
        pub max_exclusive: U64,
        /// Unused.
        pub reserved_referenced: U64,
        /// Unused.
        pub reserved_exclusive: U64,
    }
}
offsets!(FreeSpaceHeader { generation = 17 });

impl FreeSpaceInfo {
    /// Flags, unknown bits retained.
    pub fn info_flags(&self) -> FreeSpaceFlags {
        FreeSpaceFlags::from_bits_retain(self.flags.get())
    }
}
