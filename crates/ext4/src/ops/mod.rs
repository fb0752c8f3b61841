//! The operations of the [`FileSystem`](sapwood_vfs::FileSystem) trait.

pub(crate) mod sync;

use sapwood_ext4_format::InodeFlags as DiskFlags;
use sapwood_vfs::InodeFlags;

/// Flags that callers see, out of those on disk.
pub(crate) fn vfs_flags(flags: DiskFlags) -> InodeFlags {
    // Both use the numbers of FS_IOC_GETFLAGS where they mean the same.
    let common = InodeFlags::SYNC
        | InodeFlags::IMMUTABLE
        | InodeFlags::APPEND
        | InodeFlags::NODUMP
        | InodeFlags::NOATIME
        | InodeFlags::DIRSYNC;
    InodeFlags::from_bits_truncate(flags.bits()) & common
}
