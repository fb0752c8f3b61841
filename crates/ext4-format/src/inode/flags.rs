//! Flags of an inode.

use bitflags::bitflags;

bitflags! {
    /// Flags of an inode.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InodeFlags: u32 {
        /// Secure deletion (unused).
        const SECRM = 0x1;
        /// Undelete (unused).
        const UNRM = 0x2;
        /// Compressed (unused).
        const COMPR = 0x4;
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// May not be changed.
        const IMMUTABLE = 0x10;
        /// May only grow.
        const APPEND = 0x20;
        /// `dump` leaves it out.
        const NODUMP = 0x40;
        /// The access time is not kept.
        const NOATIME = 0x80;
        /// Compression (unused).
        const DIRTY = 0x100;
        /// Compression (unused).
        const COMPRBLK = 0x200;
        /// Compression (unused).
        const NOCOMPR = 0x400;
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// A directory with a hash tree.
        const INDEX = 0x1000;
        /// AFS directory.
        const IMAGIC = 0x2000;
        /// Data go through the journal.
        const JOURNAL_DATA = 0x4000;
        /// Unused by ext4.
        const NOTAIL = 0x8000;
        /// Changes of the directory are synchronous.
        const DIRSYNC = 0x1_0000;
        /// Top of a directory hierarchy.
        const TOPDIR = 0x2_0000;
        /// Blocks are counted in file-system blocks.
        const HUGE_FILE = 0x4_0000;
        /// The map is a tree of extents.
        const EXTENTS = 0x8_0000;
        /// fs-verity.
        const VERITY = 0x10_0000;
        /// Holds an attribute's value.
        const EA_INODE = 0x20_0000;
        /// Blocks beyond the size (no longer used).
        const EOFBLOCKS = 0x40_0000;
        /// Snapshot (never merged).
        const SNAPFILE = 0x100_0000;
        /// Direct access.
        const DAX = 0x200_0000;
        /// Snapshot (never merged).
        const SNAPFILE_DELETED = 0x400_0000;
        /// Snapshot (never merged).
        const SNAPFILE_SHRUNK = 0x800_0000;
        /// Data in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// New files get the directory's project.
        const PROJINHERIT = 0x2000_0000;
        /// Names in the directory ignore case.
        const CASEFOLD = 0x4000_0000;
        /// Reserved.
        const RESERVED = 0x8000_0000;
        const _ = !0;
    }
}
