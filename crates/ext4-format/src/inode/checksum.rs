//! The checksum of an inode.

use zerocopy::little_endian::U16;

use super::{DiskInode, extra};
use crate::checksum::crc32c;
use crate::{FormatError, Geometry, Inode};

impl Inode {
    /// Whether the checksum has 32 bits; else 16.
    fn wide_checksum(&self) -> bool {
        self.extra_isize() >= extra::CHECKSUM_HI + 2
    }

    /// Checksum on disk; 16 bits if there is no room for more.
    pub fn checksum(&self) -> u32 {
        let low = u32::from(self.base.checksum_lo.get());
        match self.extra_u32(0) {
            // The upper half of the first word beyond the base.
            Some(word) if self.wide_checksum() => (word & 0xffff_0000) | low,
            _ => low,
        }
    }

    /// Checksum of the bytes, the checksum taken as zero; 16 bits if there is no room for more.
    pub(crate) fn compute_checksum(&self, ino: u32, geometry: &Geometry) -> u32 {
        const LOW_AT: usize = std::mem::offset_of!(DiskInode, checksum_lo);
        let base = self.base.bytes();
        let mut sum = geometry.inode_seed(ino, self.generation());
        for part in [&base[..LOW_AT], &[0, 0], &base[LOW_AT + 2..]] {
            sum = crc32c(sum, part);
        }
        if self.wide_checksum() {
            let (before, after) = self.tail.split_at(extra::CHECKSUM_HI);
            for part in [before, &[0, 0], &after[2..]] {
                sum = crc32c(sum, part);
            }
            sum
        } else {
            crc32c(sum, &self.tail) & 0xffff
        }
    }

    /// Compares the checksum, if the image has metadata_csum.
    pub fn verify_checksum(&self, ino: u32, geometry: &Geometry) -> Result<(), FormatError> {
        if !geometry.metadata_csum() {
            return Ok(());
        }
        let (stored, computed) = (self.checksum(), self.compute_checksum(ino, geometry));
        if stored != computed {
            return Err(FormatError::InodeChecksum {
                ino,
                stored,
                computed,
            });
        }
        Ok(())
    }

    /// Stores the checksum, if the image has metadata_csum. To be called after the last change.
    pub fn set_checksum(&mut self, ino: u32, geometry: &Geometry) {
        if !geometry.metadata_csum() {
            return;
        }
        let sum = self.compute_checksum(ino, geometry);
        self.base.checksum_lo = U16::new(sum as u16);
        if self.wide_checksum() {
            let high = ((sum >> 16) as u16).to_le_bytes();
            self.tail[extra::CHECKSUM_HI..extra::CHECKSUM_HI + 2].copy_from_slice(&high);
        }
    }
}
