//! Errors in the bytes of an image.

use thiserror::Error;

/// One of a group's two bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BitmapKind {
    /// One bit per cluster.
    Block,
    /// One bit per inode.
    Inode,
}

impl std::fmt::Display for BitmapKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Block => "block bitmap",
            Self::Inode => "inode bitmap",
        })
    }
}

/// Invalid bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Fewer bytes than the struct has.
    #[error("{what}: {found} bytes where {need} are needed")]
    Short {
        /// Struct or part that did not fit.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Length in bytes.
        found: usize,
    },
    /// A wrong magic number.
    #[error("{what}: magic {found:#x}, expected {expected:#x}")]
    Magic {
        /// Struct.
        what: &'static str,
        /// Found value.
        found: u32,
        /// Expected value.
        expected: u32,
    },
    /// The superblock's checksum does not match.
    #[error("superblock: checksum {stored:#010x}, computed {computed:#010x}")]
    SuperChecksum {
        /// On disk.
        stored: u32,
        /// Computed value.
        computed: u32,
    },
    /// A superblock field with an invalid value.
    #[error("superblock: {field} is {value}: {why}")]
    Super {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// The reason.
        why: &'static str,
    },
    /// The image has unknown incompatible features.
    #[error("unsupported features: {}", names.join(", "))]
    Features {
        /// Names of the features.
        names: Vec<String>,
    },
    /// The device is an external journal, not a file system.
    #[error("this is an external journal, not a file system")]
    JournalDevice,
    /// The file system is larger than its device.
    #[error("the file system has {need} bytes, the device only {device}")]
    DeviceTooSmall {
        /// Bytes of the file system.
        need: u64,
        /// Bytes of the device.
        device: u64,
    },
    /// No group has that number.
    #[error("no group {group}: there are {count}")]
    NoGroup {
        /// Group.
        group: u32,
        /// Number of groups.
        count: u32,
    },
    /// A block number outside the file system.
    #[error("no block {block}: there are {count}")]
    NoBlock {
        /// Block number.
        block: u64,
        /// Number of blocks.
        count: u64,
    },
    /// No inode has that number.
    #[error("no inode {ino}: there are {count}")]
    NoInode {
        /// Inode number.
        ino: u32,
        /// Number of inodes.
        count: u32,
    },
    /// A group descriptor's checksum does not match.
    #[error("group {group}: descriptor checksum {stored:#06x}, computed {computed:#06x}")]
    GroupChecksum {
        /// Group.
        group: u32,
        /// On disk.
        stored: u16,
        /// Computed value.
        computed: u16,
    },
    /// A bitmap or table of a group is at an invalid location.
    #[error("group {group}: {what} at block {block}: {why}")]
    GroupLocation {
        /// Group.
        group: u32,
        /// The part: bitmap or inode table.
        what: &'static str,
        /// First block of the part.
        block: u64,
        /// The reason.
        why: &'static str,
    },
    /// A count of a group descriptor is larger than the group.
    #[error("group {group}: {field} is {value}, at most {max} possible")]
    GroupCount {
        /// Group.
        group: u32,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u32,
        /// Largest possible.
        max: u32,
    },
    /// A group descriptor has flags that are invalid in this image.
    #[error("group {group}: flags {flags:#x} without a checksum feature")]
    GroupFlags {
        /// Group.
        group: u32,
        /// Flags of the descriptor.
        flags: u16,
    },
    /// A bitmap's checksum does not match.
    #[error("group {group}: {kind} checksum {stored:#x}, computed {computed:#x}")]
    BitmapChecksum {
        /// Group.
        group: u32,
        /// Kind of bitmap.
        kind: BitmapKind,
        /// On disk.
        stored: u32,
        /// Computed value.
        computed: u32,
    },
    /// A bitmap contradicts its descriptor.
    #[error("group {group}: {kind}: {why}")]
    Bitmap {
        /// Group.
        group: u32,
        /// Kind of bitmap.
        kind: BitmapKind,
        /// The reason.
        why: &'static str,
    },
    /// An inode's checksum does not match.
    #[error("inode {ino}: checksum {stored:#010x}, computed {computed:#010x}")]
    InodeChecksum {
        /// Inode number.
        ino: u32,
        /// On disk; 16 bits if the inode has no room for more.
        stored: u32,
        /// Computed value.
        computed: u32,
    },
    /// An inode field with an invalid value.
    #[error("inode {ino}: {field} is {value:#x}: {why}")]
    Inode {
        /// Inode number.
        ino: u32,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// The reason.
        why: &'static str,
    },
    /// A value does not fit its field in this image.
    #[error("{field}: {value} does not fit, at most {max}")]
    DoesNotFit {
        /// Name of the field.
        field: &'static str,
        /// The value to store.
        value: u64,
        /// Largest value that the image's features allow.
        max: u64,
    },
    /// The multiple-mount-protection block's checksum does not match.
    #[error("mmp block: checksum {stored:#010x}, computed {computed:#010x}")]
    MmpChecksum {
        /// On disk.
        stored: u32,
        /// Computed value.
        computed: u32,
    },
}
