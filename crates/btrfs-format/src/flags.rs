//! Flag words of superblock, inodes, extents and block groups, with their usual names.

use bitflags::bitflags;

bitflags! {
    /// Features that a reader must know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Incompat: u64 {
        /// Backrefs of mixed kinds; every image since 2009.
        const MIXED_BACKREF = 1;
        /// A default subvolume was set.
        const DEFAULT_SUBVOL = 1 << 1;
        /// Data and metadata share block groups.
        const MIXED_GROUPS = 1 << 2;
        /// LZO was used.
        const COMPRESS_LZO = 1 << 3;
        /// Zstandard was used.
        const COMPRESS_ZSTD = 1 << 4;
        /// Nodes larger than 4 KiB (once: than a page).
        const BIG_METADATA = 1 << 5;
        /// Extended inode refs.
        const EXTENDED_IREF = 1 << 6;
        /// Parity profiles.
        const RAID56 = 1 << 7;
        /// Tree blocks have METADATA_ITEM.
        const SKINNY_METADATA = 1 << 8;
        /// Holes have no file extent item.
        const NO_HOLES = 1 << 9;
        /// The fsid in tree blocks is the superblock's metadata uuid.
        const METADATA_UUID = 1 << 10;
        /// Three and four copies.
        const RAID1C34 = 1 << 11;
        /// Zoned devices.
        const ZONED = 1 << 12;
        /// Experimental next extent tree.
        const EXTENT_TREE_V2 = 1 << 13;
        /// Stripes in their own tree.
        const RAID_STRIPE_TREE = 1 << 14;
        /// Extent owner refs for simple quotas.
        const SIMPLE_QUOTA = 1 << 16;
        /// Remapped block groups.
        const REMAP_TREE = 1 << 17;
        const _ = !0;
    }

    /// Features that a writer must know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CompatRo: u64 {
        /// There is a free-space tree.
        const FREE_SPACE_TREE = 1;
        /// The free-space tree is right.
        const FREE_SPACE_TREE_VALID = 1 << 1;
        /// Files with fs-verity.
        const VERITY = 1 << 2;
        /// Block groups in their own tree.
        const BLOCK_GROUP_TREE = 1 << 3;
        const _ = !0;
    }

    /// Flags in the superblock's `flags` word; the low two are flags of tree blocks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SuperFlags: u64 {
        /// Written once.
        const WRITTEN = 1;
        /// Part of a relocation tree.
        const RELOC = 1 << 1;
        /// An error was found.
        const ERROR = 1 << 2;
        /// Seed device.
        const SEEDING = 1 << 32;
        /// Metadata dump.
        const METADUMP = 1 << 33;
        /// Metadata dump, second version.
        const METADUMP_V2 = 1 << 34;
        /// Change of fsid in progress.
        const CHANGING_FSID = 1 << 35;
        /// Second version of `CHANGING_FSID`.
        const CHANGING_FSID_V2 = 1 << 36;
        /// Conversion to the block-group tree in progress.
        const CHANGING_BG_TREE = 1 << 38;
        /// Change of data checksums in progress.
        const CHANGING_DATA_CSUM = 1 << 39;
        /// Change of metadata checksums in progress.
        const CHANGING_META_CSUM = 1 << 40;
        const _ = !0;
    }

    /// Contents and profile of a chunk or block group.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct BlockGroupFlags: u64 {
        /// File data.
        const DATA = 1;
        /// The chunk tree.
        const SYSTEM = 1 << 1;
        /// All other trees.
        const METADATA = 1 << 2;
        /// Striped.
        const RAID0 = 1 << 3;
        /// Two copies on two devices.
        const RAID1 = 1 << 4;
        /// Two copies on one device.
        const DUP = 1 << 5;
        /// Striped over mirrors.
        const RAID10 = 1 << 6;
        /// One parity.
        const RAID5 = 1 << 7;
        /// Two parities.
        const RAID6 = 1 << 8;
        /// Three copies.
        const RAID1C3 = 1 << 9;
        /// Four copies.
        const RAID1C4 = 1 << 10;
        const _ = !0;
    }

    /// Flags of an extent item.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ExtentFlags: u64 {
        /// File data.
        const DATA = 1;
        /// Tree block.
        const TREE_BLOCK = 1 << 1;
        /// All refs from this block are by parent.
        const FULL_BACKREF = 1 << 8;
        const _ = !0;
    }

    /// Flags of an inode item.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct InodeFlags: u64 {
        /// No data checksums.
        const NODATASUM = 1;
        /// Data is overwritten in place.
        const NODATACOW = 1 << 1;
        /// Read-only.
        const READONLY = 1 << 2;
        /// Never compressed.
        const NOCOMPRESS = 1 << 3;
        /// Has preallocated extents.
        const PREALLOC = 1 << 4;
        /// Writes are synchronous.
        const SYNC = 1 << 5;
        /// May not change.
        const IMMUTABLE = 1 << 6;
        /// May only grow.
        const APPEND = 1 << 7;
        /// Not dumped.
        const NODUMP = 1 << 8;
        /// No access times.
        const NOATIME = 1 << 9;
        /// Directory changes are synchronous.
        const DIRSYNC = 1 << 10;
        /// Compressed on write.
        const COMPRESS = 1 << 11;
        /// The inode within a root item was initialised.
        const ROOT_ITEM_INIT = 1 << 31;
        /// fs-verity is on (in the read-only-compatible half).
        const VERITY = 1 << 32;
        const _ = !0;
    }

    /// Flags of a root item.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RootFlags: u64 {
        /// Read-only subvolume.
        const RDONLY = 1;
        /// Deleted, cleaning not finished.
        const DEAD = 1 << 48;
        const _ = !0;
    }

    /// Flags of a free-space info item.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FreeSpaceFlags: u32 {
        /// The group's free space is in bitmaps.
        const USING_BITMAPS = 1;
        const _ = !0;
    }
}

/// Lists names of the set bits, unknown ones as `unknown(0x..)`, joined by `|`; `none` if empty.
macro_rules! names {
    ($($ty:ident),*) => {$(
        impl $ty {
            /// Bits without a name here.
            pub const fn unknown(self) -> Self {
                let mut known = 0;
                let mut i = 0;
                let all = <$ty as bitflags::Flags>::FLAGS;
                while i < all.len() {
                    if !all[i].name().is_empty() {
                        known |= all[i].value().bits();
                    }
                    i += 1;
                }
                Self::from_bits_retain(self.bits() & !known)
            }
        }

        impl std::fmt::Display for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut sep = "";
                for (name, _) in self.iter_names() {
                    write!(f, "{sep}{name}")?;
                    sep = "|";
                }
                let rest = self.unknown().bits();
                if rest != 0 {
                    write!(f, "{sep}unknown({rest:#x})")?;
                } else if sep.is_empty() {
                    f.write_str("none")?;
                }
                Ok(())
            }
        }
    )*};
}
names!(
    Incompat,
    CompatRo,
    SuperFlags,
    BlockGroupFlags,
    ExtentFlags,
    InodeFlags,
    RootFlags,
    FreeSpaceFlags
);

impl BlockGroupFlags {
    /// The three kinds of content.
    pub const TYPE_MASK: Self = Self::DATA.union(Self::SYSTEM).union(Self::METADATA);
    /// All profile bits; none of them set means "single".
    pub const PROFILE_MASK: Self = Self::RAID0
        .union(Self::RAID1)
        .union(Self::DUP)
        .union(Self::RAID10)
        .union(Self::RAID5)
        .union(Self::RAID6)
        .union(Self::RAID1C3)
        .union(Self::RAID1C4);

    /// Content bits only.
    pub const fn content(self) -> Self {
        self.intersection(Self::TYPE_MASK)
    }

    /// Profile bits only.
    pub const fn profile(self) -> Self {
        self.intersection(Self::PROFILE_MASK)
    }

    /// Name of the profile as `mkfs.btrfs` takes it, `unknown` for several bits.
    pub fn profile_name(self) -> &'static str {
        match self.profile() {
            p if p.is_empty() => "single",
            Self::RAID0 => "raid0",
            Self::RAID1 => "raid1",
            Self::DUP => "dup",
            Self::RAID10 => "raid10",
            Self::RAID5 => "raid5",
            Self::RAID6 => "raid6",
            Self::RAID1C3 => "raid1c3",
            Self::RAID1C4 => "raid1c4",
            _ => "unknown",
        }
    }
}

/// Compression of a file extent.
pub mod compression {
    /// Stored as it is.
    pub const NONE: u8 = 0;
    /// zlib.
    pub const ZLIB: u8 = 1;
    /// LZO1X in btrfs' framing.
    pub const LZO: u8 = 2;
    /// Zstandard.
    pub const ZSTD: u8 = 3;

    /// Name of an algorithm.
    pub const fn name(raw: u8) -> Option<&'static str> {
        match raw {
            NONE => Some("none"),
            ZLIB => Some("zlib"),
            LZO => Some("lzo"),
            ZSTD => Some("zstd"),
            _ => None,
        }
    }
}

/// File types in dir items.
pub mod file_type {
    /// Unknown.
    pub const UNKNOWN: u8 = 0;
    /// Regular file.
    pub const REG_FILE: u8 = 1;
    /// Directory or subvolume.
    pub const DIR: u8 = 2;
    /// Character device.
    pub const CHRDEV: u8 = 3;
    /// Block device.
    pub const BLKDEV: u8 = 4;
    /// FIFO.
    pub const FIFO: u8 = 5;
    /// Socket.
    pub const SOCK: u8 = 6;
    /// Symbolic link.
    pub const SYMLINK: u8 = 7;
    /// Extended attribute.
    pub const XATTR: u8 = 8;

    /// Name for dumps.
    pub const fn name(raw: u8) -> Option<&'static str> {
        Some(match raw {
            UNKNOWN => "UNKNOWN",
            REG_FILE => "FILE",
            DIR => "DIR",
            CHRDEV => "CHRDEV",
            BLKDEV => "BLKDEV",
            FIFO => "FIFO",
            SOCK => "SOCK",
            SYMLINK => "SYMLINK",
            XATTR => "XATTR",
            _ => return None,
        })
    }

    /// File type of a mode (`S_IFMT` part), [`UNKNOWN`] if it has none.
    pub const fn from_mode(mode: u32) -> u8 {
        match mode & 0o170_000 {
            0o100_000 => REG_FILE,
            0o040_000 => DIR,
            0o020_000 => CHRDEV,
            0o060_000 => BLKDEV,
            0o010_000 => FIFO,
            0o140_000 => SOCK,
            0o120_000 => SYMLINK,
            _ => UNKNOWN,
        }
    }
}

impl Incompat {
    /// Features that Sapwood reads and writes.
    pub const SUPPORTED: Self = Self::MIXED_BACKREF
        .union(Self::DEFAULT_SUBVOL)
        .union(Self::MIXED_GROUPS)
        .union(Self::COMPRESS_LZO)
        .union(Self::COMPRESS_ZSTD)
        .union(Self::BIG_METADATA)
        .union(Self::EXTENDED_IREF)
        .union(Self::SKINNY_METADATA)
        .union(Self::NO_HOLES)
        .union(Self::METADATA_UUID)
        .union(Self::RAID56)
        .union(Self::RAID1C34)
        .union(Self::SIMPLE_QUOTA);
}

impl CompatRo {
    /// Features that Sapwood writes.
    pub const SUPPORTED: Self = Self::FREE_SPACE_TREE
        .union(Self::FREE_SPACE_TREE_VALID)
        .union(Self::VERITY)
        .union(Self::BLOCK_GROUP_TREE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_print_their_names() {
        let flags = Incompat::from_bits_retain(0x341 | 1 << 40);
        assert_eq!(
            flags.to_string(),
            "MIXED_BACKREF|EXTENDED_IREF|SKINNY_METADATA|NO_HOLES|unknown(0x10000000000)"
        );
        assert_eq!(flags.unknown().bits(), 1 << 40);
        assert_eq!(CompatRo::empty().to_string(), "none");
        assert_eq!(
            (BlockGroupFlags::DATA | BlockGroupFlags::DUP).profile_name(),
            "dup"
        );
    }
}
