//! Parts of an inode with a coding of their own: flags, times, device numbers.

use bitflags::bitflags;
use zerocopy::IntoBytes;

use crate::{FormatError, Inode};

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

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl Timestamp {
    /// Earliest time that an inode can hold.
    pub const MIN: Self = Self {
        seconds: i32::MIN as i64,
        nanos: 0,
    };
    /// Latest time that an inode can hold which has room for 34 bits: in May 2446.
    pub const MAX: Self = Self {
        seconds: i32::MAX as i64 + (3 << 32),
        nanos: 999_999_999,
    };

    /// From the field of 32 signed bits and the extra one: two high bits and nanoseconds.
    pub(crate) fn decode(seconds: u32, extra: Option<u32>) -> Self {
        let low = i64::from(seconds as i32);
        let extra = extra.unwrap_or(0);
        Self {
            seconds: low + (i64::from(extra & 3) << 32),
            // 30 bits can hold more than a second has.
            nanos: (extra >> 2).min(999_999_999),
        }
    }

    /// The two fields. What is out of range becomes the nearest time in it; without the extra
    /// field only 32 signed bits of seconds are kept.
    pub(crate) fn encode(self, has_extra: bool) -> (u32, u32) {
        let max = if has_extra {
            Self::MAX.seconds
        } else {
            i64::from(i32::MAX)
        };
        let seconds = self.seconds.clamp(Self::MIN.seconds, max);
        if !has_extra {
            return (seconds as u32, 0);
        }
        let low = i64::from(seconds as i32);
        let epoch = ((seconds - low) >> 32) as u32 & 3;
        (seconds as u32, self.nanos.min(999_999_999) << 2 | epoch)
    }
}

/// Largest major number that the format holds.
pub const DEVICE_MAJOR_MAX: u32 = 0xfff;
/// Largest minor number that the format holds.
pub const DEVICE_MINOR_MAX: u32 = 0xf_ffff;

impl Inode {
    /// Word `index` of `i_block`; 0 beyond the 15 words.
    pub fn block_word(&self, index: usize) -> u32 {
        let (words, _) = self.block().as_chunks::<4>();
        words.get(index).map_or(0, |word| u32::from_le_bytes(*word))
    }

    /// Stores word `index` of `i_block`; nothing happens beyond the 15 words.
    pub fn set_block_word(&mut self, index: usize, value: u32) {
        let (words, _) = self.block_mut().as_chunks_mut::<4>();
        if let Some(word) = words.get_mut(index) {
            *word = value.to_le_bytes();
        }
    }

    /// Major and minor number of a device inode.
    ///
    /// The first word holds the old coding of 8 and 8 bits, or is zero; then the second one
    /// holds 12 and 20.
    pub fn device(&self) -> (u32, u32) {
        match self.block_word(0) {
            0 => {
                let new = self.block_word(1);
                ((new >> 8) & 0xfff, (new & 0xff) | ((new >> 12) & 0xf_ff00))
            }
            old => ((old >> 8) & 0xff, old & 0xff),
        }
    }

    /// Stores the numbers of a device inode, in the old coding where it can.
    ///
    /// # Errors
    /// `DoesNotFit`.
    pub fn set_device(&mut self, major: u32, minor: u32) -> Result<(), FormatError> {
        for (field, value, max) in [
            ("device major", major, DEVICE_MAJOR_MAX),
            ("device minor", minor, DEVICE_MINOR_MAX),
        ] {
            if value > max {
                return Err(FormatError::DoesNotFit {
                    field,
                    value: u64::from(value),
                    max: u64::from(max),
                });
            }
        }
        self.block_mut().as_mut_bytes().fill(0);
        if major < 256 && minor < 256 {
            self.set_block_word(0, major << 8 | minor);
        } else {
            let new = (minor & 0xff) | major << 8 | (minor & !0xff) << 12;
            self.set_block_word(1, new);
        }
        Ok(())
    }

    /// How many inodes use this one's value; only of an inode with the EA_INODE flag.
    pub const fn ea_refcount(&self) -> u64 {
        (self.base().ctime.get() as u64) << 32 | self.base().version_lo.get() as u64
    }

    /// Stores how many inodes use this one's value.
    pub fn set_ea_refcount(&mut self, count: u64) {
        self.base_mut().ctime = ((count >> 32) as u32).into();
        self.base_mut().version_lo = (count as u32).into();
    }

    /// Checksum of this inode's value; only of an inode with the EA_INODE flag.
    pub const fn ea_hash(&self) -> u32 {
        self.base().atime.get()
    }

    /// Stores the checksum of this inode's value.
    pub fn set_ea_hash(&mut self, hash: u32) {
        self.base_mut().atime = hash.into();
    }
}
