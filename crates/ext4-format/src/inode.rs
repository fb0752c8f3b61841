//! Inodes: 128 bytes that every image has, then fields up to `extra_isize`, then space for
//! attributes.
//!
//! Offsets and meanings: kernel documentation, `filesystems/ext4/inodes.rst`.

use zerocopy::little_endian::{U16, U32};

use crate::layout::{disk_struct, offsets};
use crate::{FormatError, Geometry, Incompat, RoCompat};

mod checksum;
mod device;
mod flags;
mod time;

pub use flags::InodeFlags;
pub use time::Timestamp;

/// Inode numbers with a meaning of their own.
pub mod special_ino {
    /// List of bad blocks.
    pub const BAD_BLOCKS: u32 = 1;
    /// Root directory.
    pub const ROOT: u32 = 2;
    /// User quota.
    pub const USER_QUOTA: u32 = 3;
    /// Group quota.
    pub const GROUP_QUOTA: u32 = 4;
    /// Boot loader.
    pub const BOOT_LOADER: u32 = 5;
    /// Undelete directory (never used).
    pub const UNDELETE: u32 = 6;
    /// Holds the blocks reserved for descriptors.
    pub const RESIZE: u32 = 7;
    /// Journal.
    pub const JOURNAL: u32 = 8;
    /// Exclude bitmap (snapshots).
    pub const EXCLUDE: u32 = 9;
    /// Replica (never merged).
    pub const REPLICA: u32 = 10;
    /// lost+found, where mkfs puts it.
    pub const LOST_FOUND: u32 = 11;
}

/// File type bits of a mode.
pub mod file_mode {
    /// Mask of the type.
    pub const TYPE: u16 = 0xf000;
    /// FIFO.
    pub const FIFO: u16 = 0x1000;
    /// Character device.
    pub const CHAR: u16 = 0x2000;
    /// Directory.
    pub const DIR: u16 = 0x4000;
    /// Block device.
    pub const BLOCK: u16 = 0x6000;
    /// Regular file.
    pub const REGULAR: u16 = 0x8000;
    /// Symbolic link.
    pub const SYMLINK: u16 = 0xa000;
    /// Socket.
    pub const SOCKET: u16 = 0xc000;
}

/// Most links that an inode may have. A directory beyond it has link count 1 (dir_nlink).
pub const LINK_MAX: u16 = 65_000;
/// Bytes of `i_block`: block map, extent root, short symlink or inline data.
pub const I_BLOCK_SIZE: usize = 60;
/// Bytes of the part that every inode has.
pub const INODE_BASE_SIZE: usize = 128;
/// Bytes beyond the base that current kernels use for fields.
pub const EXTRA_ISIZE_FULL: u16 = 32;

disk_struct! {
    /// The 128 bytes that every inode has.
    pub struct DiskInode = 128 {
        /// [`file_mode`] and permissions.
        pub mode: U16,
        /// Owner, low half.
        pub uid_lo: U16,
        /// Bytes, low half.
        pub size_lo: U32,
        /// Last access, seconds.
        pub atime: U32,
        /// Last change of the inode, seconds.
        pub ctime: U32,
        /// Last change of the data, seconds.
        pub mtime: U32,
        /// Deletion, seconds; of an orphan: the next orphan's inode number.
        pub dtime: U32,
        /// Group, low half.
        pub gid_lo: U16,
        /// Hard links.
        pub links_count: U16,
        /// Blocks, low half.
        pub blocks_lo: U32,
        /// [`InodeFlags`].
        pub flags: U32,
        /// Version, low half.
        pub version_lo: U32,
        /// Map, extents, symlink or data.
        pub block: [u8; 60],
        /// Generation.
        pub generation: U32,
        /// Attribute block, low half.
        pub file_acl_lo: U32,
        /// Bytes, high half.
        pub size_hi: U32,
        /// Unused.
        pub obso_faddr: U32,
        /// Blocks, high half.
        pub blocks_hi: U16,
        /// Attribute block, high half.
        pub file_acl_hi: U16,
        /// Owner, high half.
        pub uid_hi: U16,
        /// Group, high half.
        pub gid_hi: U16,
        /// Checksum, low half.
        pub checksum_lo: U16,
        /// Zero.
        pub reserved: U16,
    }
}

offsets!(DiskInode {
    dtime = 0x14,
    links_count = 0x1a,
    flags = 0x20,
    block = 0x28,
    generation = 0x64,
    size_hi = 0x6c,
    blocks_hi = 0x74,
    checksum_lo = 0x7c,
});

/// Byte offsets beyond the base.
mod extra {
    pub(super) const CHECKSUM_HI: usize = 2;
    pub(super) const CTIME: usize = 4;
    pub(super) const MTIME: usize = 8;
    pub(super) const ATIME: usize = 12;
    pub(super) const CRTIME: usize = 16;
    pub(super) const CRTIME_EXTRA: usize = 20;
    pub(super) const VERSION_HI: usize = 24;
    pub(super) const PROJID: usize = 28;
}

/// One inode in memory, with all bytes that it has on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    base: DiskInode,
    /// The bytes after the base: fields, then attributes. Empty in inodes of 128 bytes.
    tail: Box<[u8]>,
    /// The attribute block's number has a high half. Without the 64bit feature its place may hold
    /// something else.
    wide_acl: bool,
}

const fn has_wide_acl(geometry: &Geometry) -> bool {
    geometry.features().has_incompat(Incompat::BIT64)
}

impl Inode {
    /// A zeroed inode with as many fields beyond 128 bytes as the superblock wants.
    pub fn new(geometry: &Geometry) -> Self {
        let size = usize::from(geometry.inode_size());
        let mut inode = Self {
            base: DiskInode::default(),
            tail: vec![0; size.saturating_sub(INODE_BASE_SIZE)].into(),
            wide_acl: has_wide_acl(geometry),
        };
        inode.store_extra_isize(geometry.want_extra_isize());
        inode
    }

    /// Reads an inode from the front of `bytes`. Nothing is checked but the length.
    pub fn read(bytes: &[u8], geometry: &Geometry) -> Result<Self, FormatError> {
        let need = usize::from(geometry.inode_size());
        let short = FormatError::Short {
            what: "inode",
            need,
            found: bytes.len(),
        };
        let tail = bytes.get(INODE_BASE_SIZE..need).ok_or(short)?;
        Ok(Self {
            base: DiskInode::read(bytes)?,
            tail: tail.into(),
            wide_acl: has_wide_acl(geometry),
        })
    }

    /// Writes the inode to the front of `bytes`.
    pub fn write(&self, bytes: &mut [u8]) -> Result<(), FormatError> {
        let need = self.size_on_disk();
        let found = bytes.len();
        let bytes = bytes.get_mut(..need).ok_or(FormatError::Short {
            what: "inode",
            need,
            found,
        })?;
        let (base, tail) = bytes.split_at_mut(INODE_BASE_SIZE);
        base.copy_from_slice(self.base.bytes());
        tail.copy_from_slice(&self.tail);
        Ok(())
    }

    /// Bytes that the inode has in its table.
    pub const fn size_on_disk(&self) -> usize {
        INODE_BASE_SIZE + self.tail.len()
    }

    /// The raw fields of the first 128 bytes.
    pub const fn base(&self) -> &DiskInode {
        &self.base
    }

    /// The raw fields of the first 128 bytes.
    pub const fn base_mut(&mut self) -> &mut DiskInode {
        &mut self.base
    }

    /// Bytes beyond the base that hold fields, as stored.
    pub(crate) fn stored_extra_isize(&self) -> u16 {
        match self.tail.first_chunk() {
            Some(bytes) => u16::from_le_bytes(*bytes),
            None => 0,
        }
    }

    /// Bytes beyond the base that hold fields; never more than there are.
    pub fn extra_isize(&self) -> usize {
        usize::from(self.stored_extra_isize()).min(self.tail.len())
    }

    /// Changes how many bytes beyond the base hold fields; fields that are new are zero.
    /// To be used only while the inode has no attributes in its body.
    ///
    /// # Errors
    /// `DoesNotFit` if there are fewer bytes, or no multiple of 4.
    pub fn set_extra_isize(&mut self, size: u16) -> Result<(), FormatError> {
        let room = self.tail.len();
        if usize::from(size) > room || !size.is_multiple_of(4) {
            return Err(FormatError::DoesNotFit {
                field: "extra_isize",
                value: u64::from(size),
                max: room as u64,
            });
        }
        let old = self.extra_isize().max(2);
        if let Some(bytes) = self.tail.get_mut(old..usize::from(size)) {
            bytes.fill(0);
        }
        self.store_extra_isize(size);
        Ok(())
    }

    fn store_extra_isize(&mut self, size: u16) {
        if let Some(bytes) = self.tail.first_chunk_mut() {
            *bytes = size.to_le_bytes();
        }
    }

    /// Bytes for attributes in the inode, after the fields; empty if there are none.
    pub fn attr_area(&self) -> &[u8] {
        match self.extra_isize() {
            0 => &[],
            fields => &self.tail[fields..],
        }
    }

    /// Bytes for attributes in the inode, after the fields; empty if there are none.
    pub fn attr_area_mut(&mut self) -> &mut [u8] {
        match self.extra_isize() {
            0 => &mut [],
            fields => &mut self.tail[fields..],
        }
    }

    /// The four bytes at `at` beyond the base, if they hold a field.
    fn extra_u32(&self, at: usize) -> Option<u32> {
        let fields = &self.tail[..self.extra_isize()];
        let bytes = fields.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Stores four bytes at `at` beyond the base; false if there is no field.
    fn set_extra_u32(&mut self, at: usize, value: u32) -> bool {
        let end = self.extra_isize();
        let field = self.tail[..end]
            .get_mut(at..)
            .and_then(<[u8]>::first_chunk_mut);
        match field {
            Some(bytes) => {
                *bytes = value.to_le_bytes();
                true
            }
            None => false,
        }
    }

    /// Mode: type and permissions.
    pub const fn mode(&self) -> u16 {
        self.base.mode.get()
    }

    /// Stores the mode.
    pub const fn set_mode(&mut self, mode: u16) {
        self.base.mode = U16::new(mode);
    }

    /// Type bits of the mode, one of [`file_mode`].
    pub const fn file_type(&self) -> u16 {
        self.mode() & file_mode::TYPE
    }

    /// Whether it is a directory.
    pub const fn is_dir(&self) -> bool {
        self.file_type() == file_mode::DIR
    }

    /// Whether it is a regular file.
    pub const fn is_regular(&self) -> bool {
        self.file_type() == file_mode::REGULAR
    }

    /// Whether it is a symbolic link.
    pub const fn is_symlink(&self) -> bool {
        self.file_type() == file_mode::SYMLINK
    }

    /// Owner.
    pub const fn uid(&self) -> u32 {
        (self.base.uid_hi.get() as u32) << 16 | self.base.uid_lo.get() as u32
    }

    /// Stores the owner.
    pub const fn set_uid(&mut self, uid: u32) {
        self.base.uid_lo = U16::new(uid as u16);
        self.base.uid_hi = U16::new((uid >> 16) as u16);
    }

    /// Group.
    pub const fn gid(&self) -> u32 {
        (self.base.gid_hi.get() as u32) << 16 | self.base.gid_lo.get() as u32
    }

    /// Stores the group.
    pub const fn set_gid(&mut self, gid: u32) {
        self.base.gid_lo = U16::new(gid as u16);
        self.base.gid_hi = U16::new((gid >> 16) as u16);
    }

    /// Size in bytes. Only regular files have a high half, and with large_dir all others.
    pub const fn size(&self, geometry: &Geometry) -> u64 {
        let low = self.base.size_lo.get() as u64;
        if self.is_regular() || geometry.features().has_incompat(Incompat::LARGEDIR) {
            (self.base.size_hi.get() as u64) << 32 | low
        } else {
            low
        }
    }

    /// Stores the size in bytes.
    ///
    /// # Errors
    /// `DoesNotFit` if it needs a high half and the inode has none. The caller that maintains the
    /// superblock must set large_file for a file of 2 GiB.
    pub const fn set_size(&mut self, size: u64, geometry: &Geometry) -> Result<(), FormatError> {
        let wide = self.is_regular() || geometry.features().has_incompat(Incompat::LARGEDIR);
        if !wide && size >> 32 != 0 {
            return Err(FormatError::DoesNotFit {
                field: "size",
                value: size,
                max: u32::MAX as u64,
            });
        }
        self.base.size_lo = U32::new(size as u32);
        if wide {
            self.base.size_hi = U32::new((size >> 32) as u32);
        }
        Ok(())
    }

    /// Hard links.
    pub const fn links(&self) -> u16 {
        self.base.links_count.get()
    }

    /// Stores the number of hard links.
    pub const fn set_links(&mut self, links: u16) {
        self.base.links_count = U16::new(links);
    }

    /// Space taken on disk in sectors of 512 bytes, maps and attribute block included.
    pub const fn sectors(&self, geometry: &Geometry) -> u64 {
        let low = self.base.blocks_lo.get() as u64;
        if !geometry.features().has_ro_compat(RoCompat::HUGE_FILE) {
            return low;
        }
        let count = (self.base.blocks_hi.get() as u64) << 32 | low;
        if self.flags().contains(InodeFlags::HUGE_FILE) {
            // 48 bits and at most 7 more.
            count << (geometry.block_bits() - 9)
        } else {
            count
        }
    }

    /// Stores the space taken, in sectors of 512 bytes; sets or clears the HUGE_FILE flag.
    ///
    /// # Errors
    /// `DoesNotFit` if the image cannot count so much, or sectors that are no whole blocks where
    /// only blocks can be counted.
    pub fn set_sectors(&mut self, sectors: u64, geometry: &Geometry) -> Result<(), FormatError> {
        let shift = geometry.block_bits() - 9;
        let huge = geometry.features().has_ro_compat(RoCompat::HUGE_FILE);
        let max = if huge {
            ((1 << 48) - 1) << shift
        } else {
            u64::from(u32::MAX)
        };
        let in_blocks = sectors >> 48 != 0;
        if sectors > max || in_blocks && !sectors.is_multiple_of(1 << shift) {
            return Err(FormatError::DoesNotFit {
                field: "sectors",
                value: sectors,
                max,
            });
        }
        let count = if in_blocks { sectors >> shift } else { sectors };
        let mut flags = self.flags();
        flags.set(InodeFlags::HUGE_FILE, in_blocks);
        self.set_flags(flags);
        self.base.blocks_lo = U32::new(count as u32);
        self.base.blocks_hi = U16::new((count >> 32) as u16);
        Ok(())
    }

    /// Flags.
    pub const fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.base.flags.get())
    }

    /// Stores the flags.
    pub const fn set_flags(&mut self, flags: InodeFlags) {
        self.base.flags = U32::new(flags.bits());
    }

    /// Generation: differs for two inodes that had the same number.
    pub const fn generation(&self) -> u32 {
        self.base.generation.get()
    }

    /// Stores the generation.
    pub const fn set_generation(&mut self, generation: u32) {
        self.base.generation = U32::new(generation);
    }

    /// Attribute block; 0: none.
    pub const fn file_acl(&self) -> u64 {
        let low = self.base.file_acl_lo.get() as u64;
        if self.wide_acl {
            (self.base.file_acl_hi.get() as u64) << 32 | low
        } else {
            low
        }
    }

    /// Stores the attribute block's number, of at most 48 bits, without the 64bit feature 32.
    ///
    /// # Errors
    /// `DoesNotFit`.
    pub const fn set_file_acl(&mut self, block: u64) -> Result<(), FormatError> {
        let bits = if self.wide_acl { 48 } else { 32 };
        if block >> bits != 0 {
            return Err(FormatError::DoesNotFit {
                field: "file_acl",
                value: block,
                max: (1 << bits) - 1,
            });
        }
        self.base.file_acl_lo = U32::new(block as u32);
        self.base.file_acl_hi = U16::new((block >> 32) as u16);
        Ok(())
    }

    /// Map, extent root, symlink or inline data.
    pub const fn block(&self) -> &[u8; I_BLOCK_SIZE] {
        &self.base.block
    }

    /// Map, extent root, symlink or inline data.
    pub const fn block_mut(&mut self) -> &mut [u8; I_BLOCK_SIZE] {
        &mut self.base.block
    }

    /// Deletion time in seconds since 1970; of an orphan the next one's inode number.
    pub const fn dtime(&self) -> u32 {
        self.base.dtime.get()
    }

    /// Stores deletion time or next orphan.
    pub const fn set_dtime(&mut self, dtime: u32) {
        self.base.dtime = U32::new(dtime);
    }

    /// Project; `None` if the inode has no room for it.
    pub fn projid(&self) -> Option<u32> {
        self.extra_u32(extra::PROJID)
    }

    /// Stores the project.
    ///
    /// # Errors
    /// `DoesNotFit` if there is no room for another than 0.
    pub fn set_projid(&mut self, projid: u32) -> Result<(), FormatError> {
        if self.set_extra_u32(extra::PROJID, projid) || projid == 0 {
            return Ok(());
        }
        Err(FormatError::DoesNotFit {
            field: "projid",
            value: u64::from(projid),
            max: 0,
        })
    }

    /// Whether the target of this symbolic link is in `i_block`.
    ///
    /// Where attribute values are in separate inodes, the block count includes their blocks, so
    /// only the size is decisive.
    pub fn is_fast_symlink(&self, geometry: &Geometry) -> bool {
        if !self.is_symlink() || self.flags().contains(InodeFlags::INLINE_DATA) {
            return false;
        }
        let size = self.size(geometry);
        if size == 0 || size >= I_BLOCK_SIZE as u64 {
            return false;
        }
        if geometry.features().has_incompat(Incompat::EA_INODE) {
            return true;
        }
        let attr_sectors = match self.file_acl() {
            0 => 0,
            _ => u64::from(geometry.cluster_size() / 512),
        };
        self.sectors(geometry) <= attr_sectors
    }
}
