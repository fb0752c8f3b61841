//! Keys: `(objectid, kind, offset)`, in memory and on disk; the numbers of item kinds and of
//! well-known objects. Facts: the btrfs on-disk format pages of the btrfs documentation.

use std::fmt;

use zerocopy::little_endian::U64;

use crate::layout::{disk_struct, offsets};

/// A key in memory. Ordered as btrfs orders it: objectid, then kind, then offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Object: inode number, logical address, tree id, ... by kind.
    pub objectid: u64,
    /// Raw item kind, see [`kind`].
    pub kind: u8,
    /// Depends on the kind: file offset, name hash, length, ...
    pub offset: u64,
}

impl Key {
    /// Smallest key.
    pub const MIN: Self = Self::new(0, 0, 0);
    /// Largest key.
    pub const MAX: Self = Self::new(u64::MAX, u8::MAX, u64::MAX);

    /// A key from its parts.
    pub const fn new(objectid: u64, kind: u8, offset: u64) -> Self {
        Self {
            objectid,
            kind,
            offset,
        }
    }

    /// The next larger key, or `None` after [`Key::MAX`].
    pub fn successor(&self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..*self });
        }
        if let Some(kind) = self.kind.checked_add(1) {
            return Some(Self::new(self.objectid, kind, 0));
        }
        self.objectid
            .checked_add(1)
            .map(|objectid| Self::new(objectid, 0, 0))
    }

    /// The next smaller key, or `None` before [`Key::MIN`].
    pub fn predecessor(&self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_sub(1) {
            return Some(Self { offset, ..*self });
        }
        if let Some(kind) = self.kind.checked_sub(1) {
            return Some(Self::new(self.objectid, kind, u64::MAX));
        }
        self.objectid
            .checked_sub(1)
            .map(|objectid| Self::new(objectid, u8::MAX, u64::MAX))
    }
}

impl fmt::Display for Key {
    /// `(257 EXTENT_DATA 4096)`; objects and kinds by name where they have one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(")?;
        if self.kind == kind::DEV_EXTENT || (self.objectid == 0 && self.kind != kind::DEV_STATS) {
            write!(f, "{}", self.objectid)?;
        } else {
            objectid::write_name(f, self.objectid, self.kind)?;
        }
        match kind::name(self.kind) {
            Some(name) => write!(f, " {name}")?,
            None => write!(f, " UNKNOWN.{}", self.kind)?,
        }
        if matches!(
            self.kind,
            kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL
        ) {
            return write!(f, " {:#018x})", self.offset);
        }
        if self.offset == u64::MAX {
            return write!(f, " -1)");
        }
        write!(f, " {})", self.offset)
    }
}

disk_struct! {
    /// A key on disk, 17 bytes.
    pub struct DiskKey = 17 {
        /// See [`Key::objectid`].
        pub objectid: U64,
        /// See [`Key::kind`].
        pub kind: u8,
        /// See [`Key::offset`].
        pub offset: U64,
    }
}
offsets!(DiskKey { kind = 8, offset = 9 });

impl DiskKey {
    /// The key in memory form.
    pub fn get(&self) -> Key {
        Key::new(self.objectid.get(), self.kind, self.offset.get())
    }
}

impl From<DiskKey> for Key {
    fn from(key: DiskKey) -> Self {
        key.get()
    }
}

impl From<&DiskKey> for Key {
    fn from(key: &DiskKey) -> Self {
        key.get()
    }
}

impl From<Key> for DiskKey {
    fn from(key: Key) -> Self {
        Self {
            objectid: key.objectid.into(),
            kind: key.kind,
            offset: key.offset.into(),
        }
    }
}

/// Item kinds (the middle part of a key).
pub mod kind {
    macro_rules! kinds {
        ($($(#[$meta:meta])* $name:ident = $value:literal;)*) => {
            $($(#[$meta])* pub const $name: u8 = $value;)*
            /// Usual name of a kind, or `None` if it is unknown.
            pub const fn name(kind: u8) -> Option<&'static str> {
                match kind { $($value => Some(stringify!($name)),)* _ => None }
            }
        };
    }
    kinds! {
        /// [`InodeItem`](crate::InodeItem): (inode, _, 0).
        INODE_ITEM = 1;
        /// Packed [`InodeRef`](crate::InodeRef)s: (inode, _, parent inode).
        INODE_REF = 12;
        /// Packed [`InodeExtref`](crate::InodeExtref)s: (inode, _, hash of parent and name).
        INODE_EXTREF = 13;
        /// Packed dir items: (inode, _, hash of name).
        XATTR_ITEM = 24;
        /// fs-verity descriptor.
        VERITY_DESC_ITEM = 36;
        /// fs-verity Merkle tree bytes.
        VERITY_MERKLE_ITEM = 37;
        /// Empty: (-5, _, inode or tree id).
        ORPHAN_ITEM = 48;
        /// Range of name hashes logged of a directory; only in log trees of old kernels.
        DIR_LOG_ITEM = 60;
        /// Range of dir indexes logged of a directory; only in log trees.
        DIR_LOG_INDEX = 72;
        /// Packed [`DirItem`](crate::DirItem)s: (dir inode, _, hash of name).
        DIR_ITEM = 84;
        /// One [`DirItem`](crate::DirItem): (dir inode, _, index).
        DIR_INDEX = 96;
        /// [`FileExtent`](crate::FileExtent): (inode, _, file offset).
        EXTENT_DATA = 108;
        /// Checksums, one per sector: (-10, _, logical address).
        EXTENT_CSUM = 128;
        /// [`RootItem`](crate::RootItem): (tree id, _, 0 or snapshot transid).
        ROOT_ITEM = 132;
        /// [`RootRef`](crate::RootRef) from child: (child tree, _, parent tree).
        ROOT_BACKREF = 144;
        /// [`RootRef`](crate::RootRef) from parent: (parent tree, _, child tree).
        ROOT_REF = 156;
        /// [`ExtentItem`](crate::ExtentItem): (logical address, _, length).
        EXTENT_ITEM = 168;
        /// Skinny [`ExtentItem`](crate::ExtentItem) of a tree block: (logical address, _, level).
        METADATA_ITEM = 169;
        /// Owner of a data extent (simple quotas), inline only.
        EXTENT_OWNER_REF = 172;
        /// Ref of a tree block by tree: (logical address, _, tree id).
        TREE_BLOCK_REF = 176;
        /// Ref of a data extent: (logical address, _, hash of root, inode, offset).
        EXTENT_DATA_REF = 178;
        /// Ref of a tree block by parent block.
        SHARED_BLOCK_REF = 182;
        /// Ref of a data extent by parent leaf.
        SHARED_DATA_REF = 184;
        /// [`BlockGroupItem`](crate::BlockGroupItem): (logical address, _, length).
        BLOCK_GROUP_ITEM = 192;
        /// [`FreeSpaceInfo`](crate::FreeSpaceInfo): (block group start, _, length).
        FREE_SPACE_INFO = 198;
        /// Empty: (start, _, length).
        FREE_SPACE_EXTENT = 199;
        /// Bitmap, one bit per sector: (start, _, length).
        FREE_SPACE_BITMAP = 200;
        /// [`DevExtent`](crate::DevExtent): (device id, _, physical offset).
        DEV_EXTENT = 204;
        /// [`DevItem`](crate::DevItem): (1, _, device id).
        DEV_ITEM = 216;
        /// [`Chunk`](crate::Chunk): (256, _, logical address).
        CHUNK_ITEM = 228;
        /// Stripes of one extent in a RAID stripe tree.
        RAID_STRIPE = 230;
        /// [`QgroupStatus`](crate::QgroupStatus).
        QGROUP_STATUS = 240;
        /// [`QgroupInfo`](crate::QgroupInfo).
        QGROUP_INFO = 242;
        /// [`QgroupLimit`](crate::QgroupLimit).
        QGROUP_LIMIT = 244;
        /// Empty: (qgroup, _, qgroup).
        QGROUP_RELATION = 246;
        /// Items about operations in progress, such as the balance item.
        TEMPORARY_ITEM = 248;
        /// Items that persist, such as [`DevStats`](crate::DevStats).
        PERSISTENT_ITEM = 249;
        /// State of a device replacement.
        DEV_REPLACE = 250;
        /// Tree ids of a subvolume's uuid: (low half, _, high half).
        UUID_KEY_SUBVOL = 251;
        /// Entries for received uuids.
        UUID_KEY_RECEIVED_SUBVOL = 252;
        /// Text for testing only.
        STRING_ITEM = 253;
    }
    /// Use of [`TEMPORARY_ITEM`].
    pub const BALANCE_ITEM: u8 = TEMPORARY_ITEM;
    /// Use of [`PERSISTENT_ITEM`].
    pub const DEV_STATS: u8 = PERSISTENT_ITEM;
}

/// Well-known objects (trees, and the first part of some keys).
pub mod objectid {
    use std::fmt;

    macro_rules! objects {
        ($($(#[$meta:meta])* $name:ident = $value:expr;)*) => {
            $($(#[$meta])* pub const $name: u64 = $value;)*
        };
    }
    objects! {
        /// Tree of tree roots.
        ROOT_TREE = 1;
        /// Extent allocation tree.
        EXTENT_TREE = 2;
        /// Chunk map.
        CHUNK_TREE = 3;
        /// Device extents and statistics.
        DEV_TREE = 4;
        /// Top-level subvolume.
        FS_TREE = 5;
        /// Directory in the root tree that names the default subvolume.
        ROOT_TREE_DIR = 6;
        /// Data checksums.
        CSUM_TREE = 7;
        /// Quota groups.
        QUOTA_TREE = 8;
        /// Subvolumes by uuid.
        UUID_TREE = 9;
        /// Free space.
        FREE_SPACE_TREE = 10;
        /// Block groups.
        BLOCK_GROUP_TREE = 11;
        /// Stripes of data extents.
        RAID_STRIPE_TREE = 12;
        /// Remapped block groups.
        REMAP_TREE = 13;
        /// Object of device statistics.
        DEV_STATS = 0;
        /// Object of all device items.
        DEV_ITEMS = 1;
        /// Inode of the kernel's metadata mapping; never on disk.
        BTREE_INODE = 1;
        /// Number of the empty directory in the place of a deleted subvolume.
        EMPTY_SUBVOL_DIR = 2;
        /// Balance state.
        BALANCE = 4u64.wrapping_neg();
        /// Orphan items.
        ORPHAN = 5u64.wrapping_neg();
        /// Log trees, and the root of log roots.
        TREE_LOG = 6u64.wrapping_neg();
        /// Link counts to fix in replay; only in memory.
        TREE_LOG_FIXUP = 7u64.wrapping_neg();
        /// Relocation trees.
        TREE_RELOC = 8u64.wrapping_neg();
        /// Tree of inodes that data relocation uses.
        DATA_RELOC_TREE = 9u64.wrapping_neg();
        /// Object of all checksum items.
        EXTENT_CSUM = 10u64.wrapping_neg();
        /// Headers of the v1 space cache.
        FREE_SPACE = 11u64.wrapping_neg();
        /// Inode of the (removed) inode number cache.
        FREE_INO = 12u64.wrapping_neg();
        /// Checksum change in progress.
        CSUM_CHANGE = 13u64.wrapping_neg();
        /// Dummy for "several".
        MULTIPLE = 255u64.wrapping_neg();
        /// First id that files and subvolumes have.
        FIRST_FREE = 256;
        /// Last id that files and subvolumes have.
        LAST_FREE = 256u64.wrapping_neg();
        /// Object of all chunk items.
        FIRST_CHUNK_TREE = 256;
    }

    /// Usual name of a tree, or `None` for a subvolume or an unknown one.
    pub(crate) const fn tree_name(id: u64) -> Option<&'static str> {
        Some(match id {
            ROOT_TREE => "ROOT_TREE",
            EXTENT_TREE => "EXTENT_TREE",
            CHUNK_TREE => "CHUNK_TREE",
            DEV_TREE => "DEV_TREE",
            FS_TREE => "FS_TREE",
            ROOT_TREE_DIR => "ROOT_TREE_DIR",
            CSUM_TREE => "CSUM_TREE",
            QUOTA_TREE => "QUOTA_TREE",
            UUID_TREE => "UUID_TREE",
            FREE_SPACE_TREE => "FREE_SPACE_TREE",
            BLOCK_GROUP_TREE => "BLOCK_GROUP_TREE",
            RAID_STRIPE_TREE => "RAID_STRIPE_TREE",
            REMAP_TREE => "REMAP_TREE",
            BALANCE => "BALANCE",
            ORPHAN => "ORPHAN",
            TREE_LOG => "TREE_LOG",
            TREE_LOG_FIXUP => "TREE_LOG_FIXUP",
            TREE_RELOC => "TREE_RELOC",
            DATA_RELOC_TREE => "DATA_RELOC_TREE",
            EXTENT_CSUM => "EXTENT_CSUM",
            FREE_SPACE => "FREE_SPACE",
            FREE_INO => "FREE_INO",
            CSUM_CHANGE => "CSUM_CHANGE",
            MULTIPLE => "MULTIPLE",
            _ => return None,
        })
    }

    /// Whether a tree holds files: the top-level one or a subvolume.
    pub const fn is_fs_tree(id: u64) -> bool {
        id == FS_TREE || (id >= FIRST_FREE && id <= LAST_FREE)
    }

    /// Writes the name that an objectid has in a key of kind `kind`, else its number.
    pub(super) fn write_name(f: &mut fmt::Formatter<'_>, id: u64, kind: u8) -> fmt::Result {
        use super::kind as k;
        let named = match (id, kind) {
            (_, k::UUID_KEY_SUBVOL | k::UUID_KEY_RECEIVED_SUBVOL) => {
                return write!(f, "{id:#018x}");
            }
            (DEV_STATS, k::PERSISTENT_ITEM) => Some("DEV_STATS"),
            (DEV_ITEMS, k::DEV_ITEM) => Some("DEV_ITEMS"),
            (FIRST_CHUNK_TREE, k::CHUNK_ITEM) => Some("FIRST_CHUNK_TREE"),
            (_, k::ROOT_ITEM | k::ROOT_REF | k::ROOT_BACKREF) => tree_name(id),
            (_, k::INODE_ITEM | k::INODE_REF | k::DIR_ITEM) if id == ROOT_TREE_DIR => tree_name(id),
            _ if id > LAST_FREE => tree_name(id),
            _ => None,
        };
        match named {
            Some(name) => f.write_str(name),
            None if id > LAST_FREE => write!(f, "-{}", id.wrapping_neg()),
            None => write!(f, "{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_objectid_kind_offset() {
        assert!(Key::new(1, 255, u64::MAX) < Key::new(2, 0, 0));
        assert!(Key::new(1, 1, 9) < Key::new(1, 2, 0));
        assert_eq!(
            Key::new(1, 1, u64::MAX).successor(),
            Some(Key::new(1, 2, 0))
        );
        assert_eq!(
            Key::new(1, 0, 0).predecessor(),
            Some(Key::new(0, 255, u64::MAX))
        );
        assert_eq!(Key::MAX.successor(), None);
        assert_eq!(Key::MIN.predecessor(), None);
    }

    #[test]
    fn display_names_objects() {
        assert_eq!(
            Key::new(257, kind::EXTENT_DATA, 4096).to_string(),
            "(257 EXTENT_DATA 4096)"
        );
        assert_eq!(
            Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, 8).to_string(),
            "(EXTENT_CSUM EXTENT_CSUM 8)"
        );
        assert_eq!(
            Key::new(objectid::FS_TREE, kind::ROOT_ITEM, 0).to_string(),
            "(FS_TREE ROOT_ITEM 0)"
        );
        assert_eq!(Key::new(1, 77, u64::MAX).to_string(), "(1 UNKNOWN.77 -1)");
    }
}
