//! Options of a new file system.

use std::fmt;
use std::time::SystemTime;

use sapwood_btrfs_format::{BlockGroupFlags, ChecksumKind, CompatRo, Incompat};

use super::error::MkfsError;

/// Bytes of a sector; the only size that every kernel can mount.
pub(crate) const SECTOR_SIZE: u32 = 4096;

/// Copies of a block group, and their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// One copy.
    Single,
    /// Two copies on one device.
    Dup,
    /// One copy, striped over all devices.
    Raid0,
    /// Two copies on two devices.
    Raid1,
    /// Three copies on three devices.
    Raid1c3,
    /// Four copies on four devices.
    Raid1c4,
    /// Two copies, striped over all devices.
    Raid10,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Single,
        Self::Dup,
        Self::Raid0,
        Self::Raid1,
        Self::Raid1c3,
        Self::Raid1c4,
        Self::Raid10,
    ];

    /// The profile of a name, in small or capital letters.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|profile| name.eq_ignore_ascii_case(profile.flags().profile_name()))
    }

    pub(crate) fn flags(self) -> BlockGroupFlags {
        match self {
            Self::Single => BlockGroupFlags::empty(),
            Self::Dup => BlockGroupFlags::DUP,
            Self::Raid0 => BlockGroupFlags::RAID0,
            Self::Raid1 => BlockGroupFlags::RAID1,
            Self::Raid1c3 => BlockGroupFlags::RAID1C3,
            Self::Raid1c4 => BlockGroupFlags::RAID1C4,
            Self::Raid10 => BlockGroupFlags::RAID10,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.flags().profile_name())
    }
}

/// Parameters of a new file system. The defaults are the ones of `mkfs.btrfs` 6.19.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Label, up to 255 bytes.
    pub label: String,
    /// Identity of the file system, from which the identities of devices and trees derive; all
    /// random if not given.
    pub uuid: Option<[u8; 16]>,
    /// Bytes of a tree block: 4096 to 65536, a power of two. Default 16384, or 4096 if mixed.
    pub node_size: Option<u32>,
    /// Checksum algorithm.
    pub checksum: ChecksumKind,
    /// Profile of metadata and of the chunk tree. Default RAID1 on several devices and DUP on one;
    /// if mixed, the data's, or single.
    pub metadata: Option<Profile>,
    /// Profile of data. Default single; if mixed, the metadata's.
    pub data: Option<Profile>,
    /// Data and metadata share block groups.
    pub mixed: bool,
    /// Holes have no items.
    pub no_holes: bool,
    /// Free space is stored in a tree (otherwise nowhere).
    pub free_space_tree: bool,
    /// Block groups have their own tree. Default: on, if `no_holes` and `free_space_tree` are on.
    pub block_group_tree: Option<bool>,
    /// Allows more hard links in one directory than fit in a leaf.
    pub extended_refs: bool,
    /// Small extent items for tree blocks.
    pub skinny_metadata: bool,
    /// Bytes of each device to use; default all.
    pub size: Option<u64>,
    /// Bytes of the first system chunk, a multiple of 64 KiB; default by the device's size.
    pub system_chunk: Option<u64>,
    /// Bytes of the first metadata (or mixed) chunk, likewise.
    pub metadata_chunk: Option<u64>,
    /// Bytes of the first data chunk, likewise.
    pub data_chunk: Option<u64>,
    /// Time of creation; default now.
    pub time: Option<SystemTime>,
    /// Overwrite existing contents.
    pub force: bool,
    /// Discard the device first.
    pub discard: bool,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            uuid: None,
            node_size: None,
            checksum: ChecksumKind::Crc32c,
            metadata: None,
            data: None,
            mixed: false,
            no_holes: true,
            free_space_tree: true,
            block_group_tree: None,
            extended_refs: true,
            skinny_metadata: true,
            size: None,
            system_chunk: None,
            metadata_chunk: None,
            data_chunk: None,
            time: None,
            force: false,
            discard: true,
        }
    }
}

impl MkfsOptions {
    /// Bytes of a tree block.
    pub fn node_size(&self) -> u32 {
        self.node_size
            .unwrap_or(if self.mixed { SECTOR_SIZE } else { 16 << 10 })
    }

    /// Profile of metadata and system groups.
    pub(crate) fn metadata_profile(&self) -> Profile {
        let of_mixed = || self.data.unwrap_or(Profile::Single);
        self.metadata
            .unwrap_or_else(|| if self.mixed { of_mixed() } else { Profile::Dup })
    }

    /// The options for this number of devices, on which the default profile of metadata depends.
    pub(super) fn on(&self, devices: usize) -> Self {
        let mut options = self.clone();
        if devices > 1 && !options.mixed {
            options.metadata.get_or_insert(Profile::Raid1);
        }
        options
    }

    /// Profile of data groups.
    pub(crate) fn data_profile(&self) -> Profile {
        let default = if self.mixed {
            self.metadata_profile()
        } else {
            Profile::Single
        };
        self.data.unwrap_or(default)
    }

    /// Whether there will be a block-group tree.
    pub fn block_group_tree(&self) -> bool {
        self.block_group_tree
            .unwrap_or(self.no_holes && self.free_space_tree)
    }

    pub(super) fn incompat(&self) -> Incompat {
        let mut flags = Incompat::MIXED_BACKREF;
        flags.set(Incompat::MIXED_GROUPS, self.mixed);
        flags.set(Incompat::BIG_METADATA, self.node_size() > SECTOR_SIZE);
        flags.set(Incompat::EXTENDED_IREF, self.extended_refs);
        flags.set(Incompat::SKINNY_METADATA, self.skinny_metadata);
        flags.set(Incompat::NO_HOLES, self.no_holes);
        let many = [Profile::Raid1c3, Profile::Raid1c4];
        let used = [self.metadata_profile(), self.data_profile()];
        let uses_many = used.iter().any(|profile| many.contains(profile));
        flags.set(Incompat::RAID1C34, uses_many);
        flags
    }

    pub(super) fn compat_ro(&self) -> CompatRo {
        let mut flags = CompatRo::empty();
        let tree = CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        flags.set(tree, self.free_space_tree);
        flags.set(CompatRo::BLOCK_GROUP_TREE, self.block_group_tree());
        flags
    }

    pub(super) fn verify(&self) -> Result<(), MkfsError> {
        let nodesize = self.node_size();
        if !nodesize.is_power_of_two() || !(SECTOR_SIZE..=64 << 10).contains(&nodesize) {
            return Err(MkfsError::NodeSize(nodesize));
        }
        if self.mixed && nodesize != SECTOR_SIZE {
            return Err(MkfsError::MixedNodeSize(nodesize));
        }
        if self.mixed && self.metadata_profile() != self.data_profile() {
            return Err(MkfsError::MixedProfiles);
        }
        if self.block_group_tree() && !(self.no_holes && self.free_space_tree) {
            return Err(MkfsError::BlockGroupTree);
        }
        if self.label.len() > 255 || self.label.contains(['\0', '\n']) {
            return Err(MkfsError::Label(self.label.len()));
        }
        Ok(())
    }
}
