//! The block of multiple mount protection.
//!
//! Offsets: kernel documentation, `filesystems/ext4/mmp.rst`.

use zerocopy::little_endian::{U16, U32, U64};

use crate::FormatError;
use crate::checksum::crc32c;
use crate::layout::{disk_struct, offsets};

/// Magic number of the block ("MMP").
pub const MMP_MAGIC: u32 = 0x004d_4d50;
/// Sequence: not in use.
pub const MMP_SEQ_CLEAN: u32 = 0xff4d_4d50;
/// Sequence: being checked by `e2fsck`, or `tune2fs` runs.
pub const MMP_SEQ_FSCK: u32 = 0xe24d_4d50;
/// Largest sequence of a holder.
pub const MMP_SEQ_MAX: u32 = 0xe24d_4d4f;
/// Seconds between two updates, if the superblock names none.
pub const MMP_UPDATE_INTERVAL: u16 = 5;
/// Fewest seconds that an opener takes for the interval.
pub const MMP_MIN_CHECK_INTERVAL: u16 = 5;
/// Most seconds between two updates.
pub const MMP_MAX_CHECK_INTERVAL: u16 = 300;

disk_struct! {
    /// The host that has the file system mounted: 1024 bytes at the start of the superblock's
    /// `mmp_block`.
    pub struct MmpBlock = 1024 {
        /// [`MMP_MAGIC`].
        pub magic: U32,
        /// Changes while it is mounted, or one of the constants.
        pub seq: U32,
        /// Last update, seconds since 1970.
        pub time: U64,
        /// Host, padded with zeros.
        pub nodename: [u8; 64],
        /// Device, padded with zeros.
        pub bdevname: [u8; 32],
        /// Seconds between two updates.
        pub check_interval: U16,
        /// Zero.
        pub pad1: U16,
        /// Zero.
        pub pad2: [U32; 226],
        /// Checksum of the 1020 bytes before.
        pub checksum: U32,
    }
}

offsets!(MmpBlock {
    nodename = 0x10,
    bdevname = 0x50,
    check_interval = 0x70,
    checksum = 0x3fc,
});

impl MmpBlock {
    /// Reads the block; compares the checksum if `seed` is given (metadata_csum).
    pub fn parse(bytes: &[u8], seed: Option<u32>) -> Result<Self, FormatError> {
        let block = Self::read(bytes)?;
        if block.magic.get() != MMP_MAGIC {
            return Err(FormatError::Magic {
                what: "mmp block",
                found: block.magic.get(),
                expected: MMP_MAGIC,
            });
        }
        if let Some(seed) = seed {
            let (stored, computed) = (block.checksum.get(), block.compute_checksum(seed));
            if stored != computed {
                return Err(FormatError::MmpChecksum { stored, computed });
            }
        }
        Ok(block)
    }

    /// The block of a file system that was just made, at `time`. Its checksum is not set.
    pub fn clean(time: u64, check_interval: u16) -> Self {
        Self {
            magic: MMP_MAGIC.into(),
            seq: MMP_SEQ_CLEAN.into(),
            time: time.into(),
            check_interval: check_interval.into(),
            ..Self::default()
        }
    }

    /// Checksum of the bytes before the checksum field.
    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        crc32c(seed, &self.bytes()[..Self::SIZE - 4])
    }

    /// Stores the checksum.
    pub fn set_checksum(&mut self, seed: u32) {
        self.checksum = U32::new(self.compute_checksum(seed));
    }
}
