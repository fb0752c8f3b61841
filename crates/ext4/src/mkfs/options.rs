//! Options of a new file system.

use sapwood_ext4_format::hash_version;

use crate::journal_device::JournalDevice;

/// Hash of names in directory indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirHash {
    /// The legacy hash.
    Legacy,
    /// Half of MD4.
    #[default]
    HalfMd4,
    /// The Tiny Encryption Algorithm.
    Tea,
}

impl DirHash {
    pub(super) fn on_disk(self) -> u8 {
        match self {
            Self::Legacy => hash_version::LEGACY,
            Self::HalfMd4 => hash_version::HALF_MD4,
            Self::Tea => hash_version::TEA,
        }
    }
}

/// The kernel's reaction to an error in the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The kernel continues.
    #[default]
    Continue,
    /// It makes the mount read-only.
    ReadOnly,
    /// It panics.
    Panic,
}

/// Parameters of a new file system. The defaults are the ones of Debian's `mke2fs -t ext4`.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Label, up to 16 bytes.
    pub label: String,
    /// Identity of the file system, from which the seed of hashes derives; random if not given.
    pub uuid: Option<[u8; 16]>,
    /// Bytes of a block: 1024, 2048 or 4096. Default 4096, or 1024 below 512 MiB.
    pub block_size: Option<u32>,
    /// Bytes of an inode: a power of two from 128 to the block size. Default 256.
    pub inode_size: Option<u32>,
    /// Number of inodes, rounded up to whole table blocks in each group.
    pub inodes: Option<u64>,
    /// Bytes per inode, if `inodes` is not given. Default 16384; 8192 below 3 MiB, 4096 below 512
    /// MiB, 32768 from 4 TiB on, 65536 from 16 TiB on.
    pub bytes_per_inode: Option<u64>,
    /// Features, by name, that are switched on or off, in order. `none` clears all.
    pub features: Vec<(String, bool)>,
    /// Percentage of the blocks that only the superuser may take.
    pub reserved_percent: f64,
    /// The journal, if it is on another device (feature `journal_dev` there).
    pub journal: Option<JournalDevice>,
    /// Bytes of the journal; default by the size of the file system.
    pub journal_size: Option<u64>,
    /// Blocks of a group: a multiple of 8 from 256 to the bits of a bitmap block, the default.
    pub blocks_per_group: Option<u32>,
    /// Groups of a flex group, a power of two.
    pub flex_groups: u32,
    /// Hash of names.
    pub dir_hash: DirHash,
    /// Seed of that hash; if not given it derives from the identity.
    pub hash_seed: Option<[u8; 16]>,
    /// Owner (user, group) of the root directory.
    pub root_owner: (u32, u32),
    /// The kernel's reaction to an error.
    pub on_error: OnError,
    /// Leave inode tables unchanged, for a kernel to zero them in the background. By default they
    /// are zeroed.
    pub lazy_itable_init: bool,
    /// Blocks of a RAID's chunk, only stored in the superblock.
    pub stride: u16,
    /// Blocks of a RAID's stripe, only stored in the superblock.
    pub stripe_width: u32,
    /// Seconds between two updates of the block of multiple mount protection, at most 300; default
    /// 5 with the feature `mmp`.
    pub mmp_update_interval: Option<u16>,
    /// Bytes of the device to use; default all.
    pub size: Option<u64>,
    /// Creation time in the superblock, in seconds since 1970; default now.
    pub time: Option<u64>,
    /// Overwrite existing contents.
    pub force: bool,
    /// Discard the device first.
    pub discard: bool,
}

impl MkfsOptions {
    /// Whether the options ask for a feature that is off by default: the last word about it counts.
    #[must_use]
    pub fn asks_for(&self, feature: &str) -> bool {
        let words = self.features.iter().rev();
        let mut words = words.filter(|(name, _)| name == feature || name == "none");
        words
            .next()
            .is_some_and(|(name, on)| name == feature && *on)
    }
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            uuid: None,
            block_size: None,
            inode_size: None,
            inodes: None,
            bytes_per_inode: None,
            features: Vec::new(),
            reserved_percent: 5.0,
            journal: None,
            journal_size: None,
            blocks_per_group: None,
            flex_groups: 16,
            dir_hash: DirHash::default(),
            hash_seed: None,
            root_owner: (0, 0),
            on_error: OnError::default(),
            lazy_itable_init: false,
            stride: 0,
            stripe_width: 0,
            mmp_update_interval: None,
            size: None,
            time: None,
            force: false,
            discard: true,
        }
    }
}
