//! The three feature words, and the features that Sapwood supports.
//!
//! Rule: an unknown *incompatible* feature refuses the mount by its name, an unknown
//! *read-only-compatible* one allows only a read-only mount, a *compatible* one may be unknown.

use bitflags::bitflags;

bitflags! {
    /// Features that a reader and a writer may ignore.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Compat: u32 {
        /// Directories are preallocated.
        const DIR_PREALLOC = 0x1;
        /// "Imagic" inodes (AFS servers).
        const IMAGIC_INODES = 0x2;
        /// There is a journal.
        const HAS_JOURNAL = 0x4;
        /// Extended attributes.
        const EXT_ATTR = 0x8;
        /// Blocks after the descriptors are reserved for growth, held by inode 7.
        const RESIZE_INODE = 0x10;
        /// Directories may have hash trees.
        const DIR_INDEX = 0x20;
        /// Groups may be uninitialised (never used).
        const LAZY_BG = 0x40;
        /// Exclude inode (snapshots, never merged).
        const EXCLUDE_INODE = 0x80;
        /// Exclude bitmap (snapshots, never merged).
        const EXCLUDE_BITMAP = 0x100;
        /// At most two backup superblocks, in the groups that the superblock names.
        const SPARSE_SUPER2 = 0x200;
        /// The journal may have fast commits.
        const FAST_COMMIT = 0x400;
        /// Inode numbers and the UUID may not change (encryption).
        const STABLE_INODES = 0x800;
        /// Orphans are kept in a file.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// Features that a reader must know.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Incompat: u32 {
        /// Compressed files (never merged).
        const COMPRESSION = 0x1;
        /// Directory entries have a file type.
        const FILETYPE = 0x2;
        /// The journal must be replayed.
        const RECOVER = 0x4;
        /// This device is an external journal.
        const JOURNAL_DEV = 0x8;
        /// Descriptors are in the meta groups that they describe.
        const META_BG = 0x10;
        /// Files may have extents.
        const EXTENTS = 0x40;
        /// Block numbers of more than 32 bits, descriptors of 64 bytes.
        const BIT64 = 0x80;
        /// Multiple mount protection.
        const MMP = 0x100;
        /// Bitmaps and inode tables may be outside of their group.
        const FLEX_BG = 0x200;
        /// Large attribute values in inodes of their own.
        const EA_INODE = 0x400;
        /// Data in directory entries (never merged).
        const DIRDATA = 0x1000;
        /// The checksum seed is stored, not derived from the UUID.
        const CSUM_SEED = 0x2000;
        /// Directories of 2 GiB and more, hash trees of three levels.
        const LARGEDIR = 0x4000;
        /// Small files and directories live in their inode.
        const INLINE_DATA = 0x8000;
        /// Encrypted inodes.
        const ENCRYPT = 0x1_0000;
        /// Directories that ignore case.
        const CASEFOLD = 0x2_0000;
        const _ = !0;
    }

    /// Features that a writer must know.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RoCompat: u32 {
        /// Superblock copies in groups 0, 1 and powers of 3, 5 and 7 only.
        const SPARSE_SUPER = 0x1;
        /// A file reached 2 GiB.
        const LARGE_FILE = 0x2;
        /// B-tree directories (never existed).
        const BTREE_DIR = 0x4;
        /// Block counts of inodes have 48 bits and may count file-system blocks.
        const HUGE_FILE = 0x8;
        /// Descriptors have a CRC-16; groups may be uninitialised.
        const GDT_CSUM = 0x10;
        /// A directory with too many subdirectories has link count 1.
        const DIR_NLINK = 0x20;
        /// Inodes reserve room for fields beyond 128 bytes.
        const EXTRA_ISIZE = 0x40;
        /// Snapshots (never merged).
        const HAS_SNAPSHOT = 0x80;
        /// Quota files are hidden inodes kept by the file system.
        const QUOTA = 0x100;
        /// Allocation in clusters of blocks.
        const BIGALLOC = 0x200;
        /// All metadata have a CRC-32C.
        const METADATA_CSUM = 0x400;
        /// Replicas (never merged).
        const REPLICA = 0x800;
        /// Never to be written.
        const READONLY = 0x1000;
        /// Project ids.
        const PROJECT = 0x2000;
        /// Blocks are shared between files (images made once).
        const SHARED_BLOCKS = 0x4000;
        /// Files with fs-verity.
        const VERITY = 0x8000;
        /// The orphan file has entries.
        const ORPHAN_PRESENT = 0x1_0000;
        const _ = !0;
    }
}

const COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x40, "lazy_bg"),
    (0x100, "snapshot_bitmap"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];

const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];

const RO_COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
];

/// Names of the set bits; one without a name is `FEATURE_<letter><bit>`, as the tools print it.
fn bit_names(bits: u32, known: &[(u32, &str)], letter: char) -> Vec<String> {
    (0..32)
        .filter(|bit| bits & (1 << bit) != 0)
        .map(|bit| {
            let name = known.iter().find(|(value, _)| *value == 1 << bit);
            name.map_or_else(
                || format!("FEATURE_{letter}{bit}"),
                |(_, name)| (*name).to_string(),
            )
        })
        .collect()
}

impl Compat {
    /// Names of the set features, as `tune2fs` spells them.
    pub fn names(self) -> Vec<String> {
        bit_names(self.bits(), COMPAT_NAMES, 'C')
    }
}

impl Incompat {
    /// Features that Sapwood can read.
    pub const READ: Self = Self::FILETYPE
        .union(Self::RECOVER)
        .union(Self::META_BG)
        .union(Self::EXTENTS)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::CSUM_SEED)
        .union(Self::LARGEDIR)
        .union(Self::INLINE_DATA)
        .union(Self::ENCRYPT)
        .union(Self::CASEFOLD);

    /// Features that Sapwood can write. Encrypted inodes are refused one by one.
    pub const WRITE: Self = Self::READ.difference(Self::CASEFOLD);

    /// Names of the set features, as `tune2fs` spells them.
    pub fn names(self) -> Vec<String> {
        bit_names(self.bits(), INCOMPAT_NAMES, 'I')
    }
}

impl RoCompat {
    /// Features that Sapwood can write. Verity inodes are refused one by one. To *read*, every bit
    /// may be set.
    pub const WRITE: Self = Self::SPARSE_SUPER
        .union(Self::LARGE_FILE)
        .union(Self::HUGE_FILE)
        .union(Self::GDT_CSUM)
        .union(Self::DIR_NLINK)
        .union(Self::EXTRA_ISIZE)
        .union(Self::METADATA_CSUM)
        .union(Self::PROJECT)
        .union(Self::QUOTA)
        .union(Self::VERITY)
        .union(Self::ORPHAN_PRESENT);

    /// Names of the set features, as `tune2fs` spells them.
    pub fn names(self) -> Vec<String> {
        bit_names(self.bits(), RO_COMPAT_NAMES, 'R')
    }
}

/// The three words together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// May be ignored.
    pub compat: Compat,
    /// Must be known to read.
    pub incompat: Incompat,
    /// Must be known to write.
    pub ro_compat: RoCompat,
}

impl Features {
    /// Names of all set features, as `dumpe2fs` lists them: compatible, incompatible,
    /// read-only-compatible.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.compat.names();
        names.extend(self.incompat.names());
        names.extend(self.ro_compat.names());
        names
    }

    /// Incompatible features that forbid even reading; empty if the image can be read.
    pub fn read_blockers(&self) -> Incompat {
        self.incompat.difference(Incompat::READ)
    }

    /// Names of the features that forbid writing; empty if the image can be written.
    pub fn write_blockers(&self) -> Vec<String> {
        let mut names = self.incompat.difference(Incompat::WRITE).names();
        names.extend(self.ro_compat.difference(RoCompat::WRITE).names());
        if self.ro_compat.contains(RoCompat::QUOTA) && self.incompat.contains(Incompat::EA_INODE) {
            // Values of attributes count for each file that uses them.
            names.push("quota together with ea_inode".into());
        }
        names
    }

    /// Whether metadata carry a CRC-32C.
    pub const fn metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors carry a checksum of either kind, and groups may therefore be
    /// uninitialised.
    pub const fn group_csum(&self) -> bool {
        self.ro_compat
            .intersects(RoCompat::METADATA_CSUM.union(RoCompat::GDT_CSUM))
    }

    /// Whether all of `want` is set.
    pub const fn has_compat(&self, want: Compat) -> bool {
        self.compat.contains(want)
    }

    /// Whether all of `want` is set.
    pub const fn has_incompat(&self, want: Incompat) -> bool {
        self.incompat.contains(want)
    }

    /// Whether all of `want` is set.
    pub const fn has_ro_compat(&self, want: RoCompat) -> bool {
        self.ro_compat.contains(want)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_without_a_name_is_named_as_the_tools_do() {
        let bits = Incompat::EXTENTS | Incompat::from_bits_retain(0x8000_0020);
        assert_eq!(bits.names(), ["FEATURE_I5", "extent", "FEATURE_I31"]);
    }

    #[test]
    fn every_incompat_bit_that_is_not_known_blocks_reading() {
        for bit in 0..32 {
            let incompat = Incompat::from_bits_retain(1 << bit);
            let features = Features {
                incompat,
                ..Features::default()
            };
            let known = Incompat::READ.contains(incompat);
            assert_eq!(features.read_blockers().is_empty(), known, "bit {bit}");
            assert!(known || !features.write_blockers().is_empty(), "bit {bit}");
        }
    }

    #[test]
    fn every_ro_compat_bit_that_is_not_known_blocks_only_writing() {
        for bit in 0..32 {
            let ro_compat = RoCompat::from_bits_retain(1 << bit);
            let features = Features {
                ro_compat,
                ..Features::default()
            };
            assert!(features.read_blockers().is_empty());
            let known = RoCompat::WRITE.contains(ro_compat);
            assert_eq!(features.write_blockers().is_empty(), known, "bit {bit}");
        }
    }
}
