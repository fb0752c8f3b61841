//! Group descriptors, of 32, 64 or more bytes, as one owned type.
//!
//! Offsets and checksums: kernel documentation, `filesystems/ext4/group_descr.rst`.

use bitflags::bitflags;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use crate::checksum::{crc16, crc32c};
use crate::geometry::{DESC_SIZE_64BIT, DESC_SIZE_MIN};
use crate::layout::{disk_struct, offsets};
use crate::{FormatError, Geometry};

bitflags! {
    /// Flags of a group.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap was never written: all inodes are free.
        const INODE_UNINIT = 1;
        /// The block bitmap was never written: only the group's own metadata are in use.
        const BLOCK_UNINIT = 2;
        /// The inode table was zeroed.
        const INODE_ZEROED = 4;
        const _ = !0;
    }
}

disk_struct! {
    /// A group descriptor on disk; the second half only with 64bit.
    pub struct DiskGroupDesc = 64 {
        /// Block of the block bitmap, low half.
        pub block_bitmap_lo: U32,
        /// Block of the inode bitmap, low half.
        pub inode_bitmap_lo: U32,
        /// First block of the inode table, low half.
        pub inode_table_lo: U32,
        /// Free clusters, low half.
        pub free_clusters_lo: U16,
        /// Free inodes, low half.
        pub free_inodes_lo: U16,
        /// Directories, low half.
        pub used_dirs_lo: U16,
        /// [`GroupFlags`].
        pub flags: U16,
        /// Unused (snapshots).
        pub exclude_bitmap_lo: U32,
        /// Checksum of the block bitmap, low half.
        pub block_bitmap_csum_lo: U16,
        /// Checksum of the inode bitmap, low half.
        pub inode_bitmap_csum_lo: U16,
        /// Inodes at the end of the table that were never used, low half.
        pub itable_unused_lo: U16,
        /// Checksum of the descriptor.
        pub checksum: U16,
        /// Block of the block bitmap, high half.
        pub block_bitmap_hi: U32,
        /// Block of the inode bitmap, high half.
        pub inode_bitmap_hi: U32,
        /// First block of the inode table, high half.
        pub inode_table_hi: U32,
        /// Free clusters, high half.
        pub free_clusters_hi: U16,
        /// Free inodes, high half.
        pub free_inodes_hi: U16,
        /// Directories, high half.
        pub used_dirs_hi: U16,
        /// Never used inodes, high half.
        pub itable_unused_hi: U16,
        /// Unused (snapshots).
        pub exclude_bitmap_hi: U32,
        /// Checksum of the block bitmap, high half.
        pub block_bitmap_csum_hi: U16,
        /// Checksum of the inode bitmap, high half.
        pub inode_bitmap_csum_hi: U16,
        /// Zero.
        pub reserved: U32,
    }
}

offsets!(DiskGroupDesc {
    flags = 0x12,
    itable_unused_lo = 0x1c,
    checksum = 0x1e,
    block_bitmap_hi = 0x20,
    block_bitmap_csum_hi = 0x38,
});

const CHECKSUM_AT: usize = 0x1e;

/// One group's descriptor in memory. The high halves are zero in images without 64bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDesc {
    disk: DiskGroupDesc,
    /// Bytes beyond 64, for images with larger descriptors.
    tail: Vec<u8>,
    size: u16,
}

/// A getter and a setter of a number of two halves. The high one is kept only where there is
/// room for it.
macro_rules! halves {
    ($($(#[$meta:meta])* $get:ident, $set:ident: $value:ty = $lo:ident, $hi:ident, $half:ty, $bits:literal, $wrap:ident;)*) => {$(
        $(#[$meta])*
        pub const fn $get(&self) -> $value {
            (self.disk.$hi.get() as $value) << $bits | self.disk.$lo.get() as $value
        }

        $(#[$meta])*
        ///
        /// # Errors
        /// `DoesNotFit` if it needs the high half and the descriptor has none.
        pub fn $set(&mut self, value: $value) -> Result<(), FormatError> {
            let high = (value >> $bits) as $half;
            if high != 0 && self.size < DESC_SIZE_64BIT {
                return Err(FormatError::DoesNotFit {
                    field: stringify!($get),
                    value: u64::from(value),
                    max: u64::from(<$half>::MAX),
                });
            }
            self.disk.$lo = $wrap::new(value as $half);
            self.disk.$hi = $wrap::new(high);
            Ok(())
        }
    )*};
}

impl GroupDesc {
    /// A descriptor of zeros.
    pub fn new(geometry: &Geometry) -> Self {
        let size = geometry.desc_size();
        Self {
            disk: DiskGroupDesc::default(),
            tail: vec![0; usize::from(size).saturating_sub(DiskGroupDesc::SIZE)],
            size,
        }
    }

    /// Reads a descriptor from the front of `bytes`. Nothing is checked but the length.
    pub fn read(bytes: &[u8], geometry: &Geometry) -> Result<Self, FormatError> {
        let mut desc = Self::new(geometry);
        let size = usize::from(desc.size);
        let bytes = bytes.get(..size).ok_or(FormatError::Short {
            what: "group descriptor",
            need: size,
            found: bytes.len(),
        })?;
        let head = size.min(DiskGroupDesc::SIZE);
        desc.disk.as_mut_bytes()[..head].copy_from_slice(&bytes[..head]);
        desc.tail.copy_from_slice(&bytes[head..]);
        Ok(desc)
    }

    /// Writes the descriptor to the front of `bytes`.
    pub fn write(&self, bytes: &mut [u8]) -> Result<(), FormatError> {
        let size = usize::from(self.size);
        let found = bytes.len();
        let bytes = bytes.get_mut(..size).ok_or(FormatError::Short {
            what: "group descriptor",
            need: size,
            found,
        })?;
        let head = size.min(DiskGroupDesc::SIZE);
        bytes[..head].copy_from_slice(&self.disk.bytes()[..head]);
        bytes[head..].copy_from_slice(&self.tail);
        Ok(())
    }

    /// Bytes on disk.
    pub const fn size(&self) -> u16 {
        self.size
    }

    halves! {
        /// Block of the block bitmap.
        block_bitmap, set_block_bitmap: u64 = block_bitmap_lo, block_bitmap_hi, u32, 32, U32;
        /// Block of the inode bitmap.
        inode_bitmap, set_inode_bitmap: u64 = inode_bitmap_lo, inode_bitmap_hi, u32, 32, U32;
        /// First block of the inode table.
        inode_table, set_inode_table: u64 = inode_table_lo, inode_table_hi, u32, 32, U32;
        /// Free clusters (without bigalloc: blocks).
        free_clusters, set_free_clusters: u32 = free_clusters_lo, free_clusters_hi, u16, 16, U16;
        /// Free inodes.
        free_inodes, set_free_inodes: u32 = free_inodes_lo, free_inodes_hi, u16, 16, U16;
        /// Directories.
        used_dirs, set_used_dirs: u32 = used_dirs_lo, used_dirs_hi, u16, 16, U16;
        /// Inodes at the end of the table that were never used.
        itable_unused, set_itable_unused: u32 = itable_unused_lo, itable_unused_hi, u16, 16, U16;
    }

    /// Flags.
    pub const fn flags(&self) -> GroupFlags {
        GroupFlags::from_bits_retain(self.disk.flags.get())
    }

    /// Stores the flags.
    pub const fn set_flags(&mut self, flags: GroupFlags) {
        self.disk.flags = U16::new(flags.bits());
    }

    /// Whether the bitmap checksums have 32 bits; else 16.
    pub(crate) const fn wide_bitmap_csum(&self) -> bool {
        self.size >= DESC_SIZE_64BIT
    }

    /// Stored checksum of the block bitmap; 16 bits without 64bit.
    pub const fn block_bitmap_csum(&self) -> u32 {
        (self.disk.block_bitmap_csum_hi.get() as u32) << 16
            | self.disk.block_bitmap_csum_lo.get() as u32
    }

    /// Stores the checksum of the block bitmap, truncated to the descriptor's size.
    pub const fn set_block_bitmap_csum(&mut self, sum: u32) {
        self.disk.block_bitmap_csum_lo = U16::new(sum as u16);
        if self.wide_bitmap_csum() {
            self.disk.block_bitmap_csum_hi = U16::new((sum >> 16) as u16);
        }
    }

    /// Stored checksum of the inode bitmap; 16 bits without 64bit.
    pub(crate) const fn inode_bitmap_csum(&self) -> u32 {
        (self.disk.inode_bitmap_csum_hi.get() as u32) << 16
            | self.disk.inode_bitmap_csum_lo.get() as u32
    }

    /// Stores the checksum of the inode bitmap, truncated to the descriptor's size.
    pub(crate) const fn set_inode_bitmap_csum(&mut self, sum: u32) {
        self.disk.inode_bitmap_csum_lo = U16::new(sum as u16);
        if self.wide_bitmap_csum() {
            self.disk.inode_bitmap_csum_hi = U16::new((sum >> 16) as u16);
        }
    }

    /// Stored checksum of the descriptor.
    pub const fn checksum(&self) -> u16 {
        self.disk.checksum.get()
    }

    /// Checksum of the descriptor: CRC-32C cut to 16 bits with metadata_csum, CRC-16 with
    /// uninit_bg, else 0.
    pub(crate) fn compute_checksum(&self, group: u32, geometry: &Geometry) -> u16 {
        let head = usize::from(self.size.max(DESC_SIZE_MIN)).min(DiskGroupDesc::SIZE);
        let bytes = &self.disk.bytes()[..head];
        let (before, after) = (&bytes[..CHECKSUM_AT], &bytes[CHECKSUM_AT + 2..]);
        let group = group.to_le_bytes();
        if geometry.metadata_csum() {
            let mut sum = crc32c(geometry.csum_seed(), &group);
            for part in [before, &[0, 0], after, &self.tail] {
                sum = crc32c(sum, part);
            }
            return sum as u16;
        }
        if !geometry.features().group_csum() {
            return 0;
        }
        // The checksum field itself is left out, not taken as zeros.
        [&geometry.uuid()[..], &group, before, after, &self.tail]
            .iter()
            .fold(!0, |sum, part| crc16(sum, part))
    }

    /// Compares the checksum, if the image has one.
    pub fn verify_checksum(&self, group: u32, geometry: &Geometry) -> Result<(), FormatError> {
        if !geometry.features().group_csum() {
            return Ok(());
        }
        let (stored, computed) = (self.checksum(), self.compute_checksum(group, geometry));
        if stored != computed {
            return Err(FormatError::GroupChecksum {
                group,
                stored,
                computed,
            });
        }
        Ok(())
    }

    /// Stores the checksum, if the image has one. To be called after the last change.
    pub fn set_checksum(&mut self, group: u32, geometry: &Geometry) {
        if geometry.features().group_csum() {
            self.disk.checksum = U16::new(self.compute_checksum(group, geometry));
        }
    }
}
