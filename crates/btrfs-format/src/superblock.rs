//! The superblock (4096 bytes) and the positions of its copies.

use zerocopy::little_endian::{U16, U32, U64};

use crate::chunk::{ChunkItem, DevItem};
use crate::layout::{disk_struct, offsets};
use crate::{ChecksumKind, CompatRo, DiskKey, Incompat, ItemError, Key, SuperFlags, kind};

/// `_BHRfS_M`, at byte 64.
pub const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Byte offsets of the copies: 64 KiB, 64 MiB, 256 GiB.
pub const SUPER_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// Bytes of one superblock.
pub const SUPER_SIZE: usize = 4096;
/// Bytes of the embedded system chunk array.
pub(crate) const SYS_CHUNK_ARRAY_SIZE: usize = 2048;
/// Bytes of the label, the closing zero included.
pub(crate) const LABEL_SIZE: usize = 256;

disk_struct! {
    /// Roots as of one of the last four commits.
    pub struct RootBackup = 168 {
        /// Root tree: logical address.
        pub tree_root: U64,
        /// Generation of the root tree.
        pub tree_root_gen: U64,
        /// Chunk tree.
        pub chunk_root: U64,
        /// Generation of the chunk tree.
        pub chunk_root_gen: U64,
        /// Extent tree.
        pub extent_root: U64,
        /// Generation of the extent tree.
        pub extent_root_gen: U64,
        /// Top-level subvolume.
        pub fs_root: U64,
        /// Generation of the top-level subvolume.
        pub fs_root_gen: U64,
        /// Device tree.
        pub dev_root: U64,
        /// Generation of the device tree.
        pub dev_root_gen: U64,
        /// Checksum tree.
        pub csum_root: U64,
        /// Generation of the checksum tree.
        pub csum_root_gen: U64,
        /// Copy of the superblock's field.
        pub total_bytes: U64,
        /// Copy of the superblock's field.
        pub bytes_used: U64,
        /// Copy of the superblock's field.
        pub num_devices: U64,
        /// Zero.
        pub unused_64: [U64; 4],
        /// Level of the root tree.
        pub tree_root_level: u8,
        /// Level of the chunk tree.
        pub chunk_root_level: u8,
        /// Level of the extent tree.
        pub extent_root_level: u8,
        /// Level of the top-level subvolume.
        pub fs_root_level: u8,
        /// Level of the device tree.
        pub dev_root_level: u8,
        /// Level of the checksum tree.
        pub csum_root_level: u8,
        /// Zero.
        pub unused_8: [u8; 10],
    }

    /// The superblock.
    pub struct SuperBlock = 4096 {
        /// Checksum of the rest.
        pub csum: [u8; 32],
        /// Identity of the file system for users.
        pub fsid: [u8; 16],
        /// Byte offset of this copy on the device.
        pub bytenr: U64,
        /// [`SuperFlags`].
        pub flags: U64,
        /// [`MAGIC`].
        pub magic: [u8; 8],
        /// Transid of the commit.
        pub generation: U64,
        /// Logical address of the root tree's root.
        pub root: U64,
        /// Logical address of the chunk tree's root.
        pub chunk_root: U64,
        /// Logical address of the log root tree's root, 0 if there is no log.
        pub log_root: U64,
        /// Zero.
        pub log_root_transid: U64,
        /// Sum of the devices' sizes.
        pub total_bytes: U64,
        /// Bytes allocated to extents.
        pub bytes_used: U64,
        /// Directory in the root tree, 6.
        pub root_dir_objectid: U64,
        /// Number of devices.
        pub num_devices: U64,
        /// Smallest unit of data.
        pub sectorsize: U32,
        /// Bytes of a tree block.
        pub nodesize: U32,
        /// Same as `nodesize`.
        pub leafsize: U32,
        /// Same as `sectorsize`; unused.
        pub stripesize: U32,
        /// Bytes used in `sys_chunk_array`.
        pub sys_chunk_array_size: U32,
        /// Generation of the chunk tree's root.
        pub chunk_root_generation: U64,
        /// Features that a reader and a writer may ignore.
        pub compat_flags: U64,
        /// [`CompatRo`].
        pub compat_ro_flags: U64,
        /// [`Incompat`].
        pub incompat_flags: U64,
        /// [`ChecksumKind`].
        pub csum_type: U16,
        /// Level of the root tree.
        pub root_level: u8,
        /// Level of the chunk tree.
        pub chunk_root_level: u8,
        /// Level of the log root tree.
        pub log_root_level: u8,
        /// Item of the device that this superblock is on.
        pub dev_item: DevItem,
        /// Label, zero-terminated.
        pub label: [u8; LABEL_SIZE],
        /// Generation of the v1 space cache; 0: cleared by the free-space tree; -1: none.
        pub cache_generation: U64,
        /// Generation at which the uuid tree was valid.
        pub uuid_tree_generation: U64,
        /// fsid of the tree blocks if METADATA_UUID is set.
        pub metadata_uuid: [u8; 16],
        /// Extent tree v2 only.
        pub nr_global_roots: U64,
        /// Zero.
        pub reserved: [U64; 27],
        /// Packed (key, chunk) pairs of the system chunks.
        pub sys_chunk_array: [u8; SYS_CHUNK_ARRAY_SIZE],
        /// Ring of backups.
        pub super_roots: [RootBackup; 4],
        /// Zero.
        pub padding: [u8; 565],
    }
}
offsets!(SuperBlock {
    magic = 64, log_root = 96, sectorsize = 144, sys_chunk_array_size = 160, incompat_flags = 188,
    csum_type = 196, dev_item = 201, label = 299, cache_generation = 555, metadata_uuid = 571,
    sys_chunk_array = 811, super_roots = 2859, padding = 3531,
});
offsets!(RootBackup { num_devices = 112, tree_root_level = 152 });

impl SuperBlock {
    /// Known incompatible features, unknown bits retained.
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.incompat_flags.get())
    }

    /// Known read-only-compatible features, unknown bits retained.
    pub fn compat_ro(&self) -> CompatRo {
        CompatRo::from_bits_retain(self.compat_ro_flags.get())
    }

    /// Flags, unknown bits retained.
    pub fn super_flags(&self) -> SuperFlags {
        SuperFlags::from_bits_retain(self.flags.get())
    }

    /// Checksum algorithm, `None` if unknown.
    pub fn checksum_kind(&self) -> Option<ChecksumKind> {
        ChecksumKind::from_u16(self.csum_type.get())
    }

    /// The fsid that tree blocks carry.
    pub fn tree_fsid(&self) -> [u8; 16] {
        if self.incompat().contains(Incompat::METADATA_UUID) {
            self.metadata_uuid
        } else {
            self.fsid
        }
    }

    /// Label up to its first zero.
    pub fn label_bytes(&self) -> &[u8] {
        let end = self
            .label
            .iter()
            .position(|b| *b == 0)
            .unwrap_or(LABEL_SIZE);
        self.label.get(..end).unwrap_or_default()
    }

    /// Sets the label; `false` (and no change) if it is longer than 255 bytes or has a zero.
    pub fn set_label(&mut self, label: &[u8]) -> bool {
        if label.len() >= LABEL_SIZE || label.contains(&0) {
            return false;
        }
        self.label = [0; LABEL_SIZE];
        self.label
            .iter_mut()
            .zip(label)
            .for_each(|(to, from)| *to = *from);
        true
    }

    /// Chunks of the embedded array: logical address and chunk.
    pub fn sys_chunks(&self) -> SysChunks<'_> {
        let size = self.sys_chunk_array_size.get() as usize;
        match self.sys_chunk_array.get(..size) {
            Some(rest) => SysChunks { rest, failed: None },
            None => SysChunks {
                rest: &[],
                failed: Some(ItemError::Value {
                    what: "SuperBlock",
                    field: "sys_chunk_array_size",
                    value: size as u64,
                }),
            },
        }
    }

    /// Replaces the embedded array.
    ///
    /// # Errors
    /// [`ItemError::Size`] if the chunks do not fit in 2048 bytes; nothing is changed then.
    pub fn set_sys_chunks<'c>(
        &mut self,
        chunks: impl IntoIterator<Item = (u64, &'c ChunkItem)>,
    ) -> Result<(), ItemError> {
        let mut packed = Vec::new();
        for (logical, chunk) in chunks {
            let key = Key::new(crate::objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, logical);
            packed.extend_from_slice(DiskKey::from(key).bytes());
            packed.extend_from_slice(&chunk.encode());
        }
        let Some(to) = self.sys_chunk_array.get_mut(..packed.len()) else {
            return Err(ItemError::Size {
                what: "sys_chunk_array",
                expected: SYS_CHUNK_ARRAY_SIZE,
                found: packed.len(),
            });
        };
        to.copy_from_slice(&packed);
        self.sys_chunk_array
            .iter_mut()
            .skip(packed.len())
            .for_each(|b| *b = 0);
        self.sys_chunk_array_size = (packed.len() as u32).into();
        Ok(())
    }
}

/// Iterator over a system chunk array; ends after its first error.
#[derive(Clone, Debug)]
pub struct SysChunks<'a> {
    rest: &'a [u8],
    failed: Option<ItemError>,
}

impl SysChunks<'_> {
    fn parse(&mut self) -> Result<(u64, ChunkItem), ItemError> {
        let (key, rest) = DiskKey::split(self.rest)?;
        if key.kind != kind::CHUNK_ITEM {
            return Err(ItemError::Value {
                what: "sys_chunk_array",
                field: "key kind",
                value: key.kind.into(),
            });
        }
        let (chunk, rest) = ChunkItem::parse_prefix(rest)?;
        self.rest = rest;
        Ok((key.offset.get(), chunk))
    }
}

impl Iterator for SysChunks<'_> {
    type Item = Result<(u64, ChunkItem), ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(err) = self.failed.take() {
            return Some(Err(err));
        }
        if self.rest.is_empty() {
            return None;
        }
        let result = self.parse();
        if result.is_err() {
            self.rest = &[];
        }
        Some(result)
    }
}
