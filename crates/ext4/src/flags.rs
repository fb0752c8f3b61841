//! Inode flags: those on disk, and those that callers see.

use sapwood_ext4_format::InodeFlags as DiskFlags;
use sapwood_vfs::InodeFlags;

/// Flags that callers see and may change. Both sides use the numbers of `FS_IOC_GETFLAGS`.
const COMMON: [(DiskFlags, InodeFlags); 6] = [
    (DiskFlags::SYNC, InodeFlags::SYNC),
    (DiskFlags::IMMUTABLE, InodeFlags::IMMUTABLE),
    (DiskFlags::APPEND, InodeFlags::APPEND),
    (DiskFlags::NODUMP, InodeFlags::NODUMP),
    (DiskFlags::NOATIME, InodeFlags::NOATIME),
    (DiskFlags::DIRSYNC, InodeFlags::DIRSYNC),
];

/// Flags that callers see, out of those on disk.
pub(crate) fn vfs_flags(flags: DiskFlags) -> InodeFlags {
    let seen = COMMON.iter().filter(|(disk, _)| flags.contains(*disk));
    seen.fold(InodeFlags::empty(), |all, (_, flag)| all | *flag)
}

/// Bits of `FS_IOC_GETFLAGS` that callers see and cannot change: how the inode is stored, and what
/// only other tools set.
pub(crate) fn layout_flags(flags: DiskFlags) -> u32 {
    let known = DiskFlags::INDEX
        | DiskFlags::ENCRYPT
        | DiskFlags::JOURNAL_DATA
        | DiskFlags::TOPDIR
        | DiskFlags::HUGE_FILE
        | DiskFlags::EXTENTS
        | DiskFlags::VERITY
        | DiskFlags::EA_INODE
        | DiskFlags::INLINE_DATA
        | DiskFlags::PROJINHERIT
        | DiskFlags::CASEFOLD;
    (flags & known).bits()
}

/// Flags on disk after callers set `asked`; those that they cannot see stay.
pub(crate) fn disk_flags(current: DiskFlags, asked: InodeFlags) -> DiskFlags {
    let mut flags = current;
    for (disk, flag) in COMMON {
        flags.set(disk, asked.contains(flag));
    }
    flags
}
