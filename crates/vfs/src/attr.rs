//! Ids, attributes, and requests to change them.

use std::time::Duration;

use bitflags::bitflags;

/// Identity of an inode within one mounted file system: unique among all live inodes of all its
/// subvolumes, and the same after every mount.
///
/// `stat` shows it as the inode number ([`Attr::ino`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Seconds and nanoseconds since the Unix epoch; `nsec` is below 1,000,000,000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

impl Timestamp {
    /// The wall clock now.
    #[must_use]
    pub fn now() -> Self {
        std::time::SystemTime::now().into()
    }

    /// The time since 1970; none before.
    #[must_use]
    pub fn since_epoch(self) -> Duration {
        u64::try_from(self.sec).map_or(Duration::ZERO, |sec| Duration::new(sec, self.nsec))
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Self {
                sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nsec: after.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let sec = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => Self { sec, nsec: 0 },
                    nanos => Self {
                        sec: sec.saturating_sub(1),
                        nsec: 1_000_000_000 - nanos,
                    },
                }
            }
        }
    }
}

/// Type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
}

impl FileKind {
    /// The `S_IFMT` bits of a mode.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The kind in the `S_IFMT` bits of `mode`; `None` if they name no kind.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// The number of the kind in a directory entry on disk. Ext4 and btrfs have the same numbers
    /// (ext4 disk layout, "Directory Entries"; btrfs on-disk format, `DIR_ITEM`).
    #[must_use]
    pub fn entry_type(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// The kind with this number in a directory entry; `None` if it is no kind of file.
    #[must_use]
    pub fn from_entry_type(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }
}

/// Attributes of an inode, as `statx` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Identity and inode number.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits (`0o7777`).
    pub perm: u32,
    /// Number of names. A btrfs directory always has one.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev` composes it; otherwise 0.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space in bytes.
    pub allocated: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Distinguishes uses of the same inode number over time.
    pub generation: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Inode flags.
    pub flags: InodeFlags,
    /// Further bits of `FS_IOC_GETFLAGS`, which describe how the inode is stored. Read-only.
    pub layout: u32,
}

bitflags! {
    /// Inode flags, with the bits of `FS_IOC_GETFLAGS`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct InodeFlags: u32 {
        /// Compress new data (`c`).
        const COMPRESS = 0x4;
        /// Write synchronously (`S`).
        const SYNC = 0x8;
        /// Must not be changed (`i`).
        const IMMUTABLE = 0x10;
        /// May only grow at its end (`a`).
        const APPEND = 0x20;
        /// Excluded from `dump` (`d`).
        const NODUMP = 0x40;
        /// The access time does not change (`A`).
        const NOATIME = 0x80;
        /// Do not compress (`m`).
        const NOCOMPRESS = 0x400;
        /// Directory changes are synchronous (`D`).
        const DIRSYNC = 0x1_0000;
        /// Data is overwritten in place, without checksums (`C`).
        const NOCOW = 0x80_0000;
    }
}

/// `struct fsxattr` of `FS_IOC_FSGETXATTR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fsxattr {
    /// `FS_XFLAG_*` bits.
    pub xflags: u32,
    /// Extent size hint in bytes.
    pub extsize: u32,
    /// Number of extents, where known.
    pub nextents: u32,
    /// Project id.
    pub projid: u32,
    /// Copy-on-write extent size hint in bytes.
    pub cowextsize: u32,
}

/// An inode that was found or created. The caller that receives it holds one reference to the
/// inode, and releases it with [`FileSystem::forget`](crate::FileSystem::forget).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its attributes, including its identity.
    pub attr: Attr,
}

impl Entry {
    /// Identity of the inode.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.attr.ino
    }
}

/// One name in a directory. Holds no reference to the inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Identity of the inode that the name leads to.
    pub ino: Ino,
    /// Position after this entry: the next `readdir` continues there.
    pub next: u64,
    /// Type of the inode.
    pub kind: FileKind,
    /// Name, 1 to 255 bytes without `/` and NUL.
    pub name: Vec<u8>,
}

/// All of a new regular file that is not given with its name.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
}

/// The user that makes a request. Engines use it for the ownership of new inodes and for the set-id
/// rules. The front end checks permissions (with FUSE: the kernel, by `default_permissions`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Bits that are cleared in a new inode's mode if its directory has no default ACL.
    pub umask: u32,
    /// May keep the set-group-id bit for a group that it is not a member of (`CAP_FSETID`).
    pub keep_setgid: bool,
}

impl Credentials {
    /// The superuser, with no umask.
    pub const ROOT: Self = Self {
        uid: 0,
        gid: 0,
        umask: 0,
        keep_setgid: true,
    };
}

/// The inode to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewInode<'a> {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link with this target.
    Symlink(&'a [u8]),
    /// Character device with this device number.
    CharDevice(u64),
    /// Block device with this device number.
    BlockDevice(u64),
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
}

impl NewInode<'_> {
    /// The kind of the inode.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::CharDevice(_) => FileKind::CharDevice,
            Self::BlockDevice(_) => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// This time.
    To(Timestamp),
}

/// Attributes to change. `None` leaves an attribute as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission, set-id and sticky bits (`0o7777`).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes: truncates or extends with a hole.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode. A front end with a write-back cache maintains it itself.
    pub ctime: Option<Timestamp>,
    /// Creation (restoring a copy).
    pub btime: Option<Timestamp>,
    /// Clear the set-user-id bit, and the set-group-id bit of an executable, because the caller may
    /// not keep them.
    pub kill_setid: bool,
}

/// Result of `statfs`. Counts are in units of `block_size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStat {
    /// Unit of the counts, in bytes.
    pub block_size: u32,
    /// Size of the file system.
    pub blocks: u64,
    /// Unused.
    pub blocks_free: u64,
    /// Unused and available to ordinary users.
    pub blocks_available: u64,
    /// Number of inodes; 0 if they are created on demand.
    pub inodes: u64,
    /// Unused inodes.
    pub inodes_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Identifies the file system (and the subvolume).
    pub fsid: u64,
}
