//! Chunks, devices, device extents: the map from logical to physical addresses.

use zerocopy::little_endian::{U16, U32, U64};

use crate::layout::{disk_struct, offsets};
use crate::{BlockGroupFlags, ItemError};

disk_struct! {
    /// One copy or stripe of a chunk.
    pub struct Stripe = 32 {
        /// Device id.
        pub devid: U64,
        /// Byte offset on the device.
        pub offset: U64,
        /// Device uuid.
        pub dev_uuid: [u8; 16],
    }

    /// Fixed part of a chunk item; `num_stripes` [`Stripe`]s follow.
    pub struct Chunk = 48 {
        /// Logical length in bytes.
        pub length: U64,
        /// Tree that owns it, always the extent tree.
        pub owner: U64,
        /// Bytes per stripe element, 64 KiB.
        pub stripe_len: U64,
        /// [`BlockGroupFlags`].
        pub flags: U64,
        /// Advice only.
        pub io_align: U32,
        /// Advice only.
        pub io_width: U32,
        /// Sector size when made.
        pub sector_size: U32,
        /// Number of stripes that follow.
        pub num_stripes: U16,
        /// 2 for RAID10, else 1 (or 0).
        pub sub_stripes: U16,
    }

    /// A device, in the chunk tree and in its superblocks.
    pub struct DevItem = 98 {
        /// Device id, from 1.
        pub devid: U64,
        /// Size in bytes.
        pub total_bytes: U64,
        /// Bytes in device extents.
        pub bytes_used: U64,
        /// Advice only.
        pub io_align: U32,
        /// Advice only.
        pub io_width: U32,
        /// Sector size when made.
        pub sector_size: U32,
        /// Zero.
        pub kind: U64,
        /// Zero.
        pub generation: U64,
        /// Zero.
        pub start_offset: U64,
        /// Zero.
        pub dev_group: U32,
        /// Zero.
        pub seek_speed: u8,
        /// Zero.
        pub bandwidth: u8,
        /// Device uuid.
        pub uuid: [u8; 16],
        /// fsid of the file system that it belongs to.
        pub fsid: [u8; 16],
    }

    /// A range of a device that belongs to a chunk; the key's offset is its start.
    pub struct DevExtent = 48 {
        /// Tree of the chunk, 3.
        pub chunk_tree: U64,
        /// Object of the chunk, 256.
        pub chunk_objectid: U64,
        /// Logical address of the chunk.
        pub chunk_offset: U64,
        /// Bytes on the device.
        pub length: U64,
        /// uuid of the chunk tree.
        pub chunk_tree_uuid: [u8; 16],
    }

    /// Error counters of a device.
    pub struct DevStats = 40 {
        /// Write errors.
        pub write_errors: U64,
        /// Read errors.
        pub read_errors: U64,
        /// Flush errors.
        pub flush_errors: U64,
        /// Checksum errors.
        pub corruption_errors: U64,
        /// Generation errors.
        pub generation_errors: U64,
    }
}
offsets!(Chunk { flags = 24, num_stripes = 44 });
offsets!(DevItem { kind = 36, uuid = 66, fsid = 82 });

/// A stripe in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeItem {
    /// Device id.
    pub devid: u64,
    /// Byte offset on the device.
    pub offset: u64,
    /// Device uuid.
    pub dev_uuid: [u8; 16],
}

/// A chunk item in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkItem {
    /// Logical length in bytes.
    pub length: u64,
    /// Always the extent tree.
    pub owner: u64,
    /// Bytes per stripe element.
    pub stripe_len: u64,
    /// Content and profile, unknown bits retained.
    pub flags: BlockGroupFlags,
    /// Advice only.
    pub io_align: u32,
    /// Advice only.
    pub io_width: u32,
    /// Sector size when made.
    pub sector_size: u32,
    /// 2 for RAID10.
    pub sub_stripes: u16,
    /// Copies or stripes, at least one.
    pub stripes: Vec<StripeItem>,
}

impl ChunkItem {
    /// Parses a chunk and returns the bytes after it.
    pub(crate) fn parse_prefix(bytes: &[u8]) -> Result<(Self, &[u8]), ItemError> {
        let (chunk, rest) = Chunk::split(bytes)?;
        let count = usize::from(chunk.num_stripes.get());
        if count == 0 {
            return Err(ItemError::Value {
                what: "Chunk",
                field: "num_stripes",
                value: 0,
            });
        }
        let need = count * Stripe::SIZE;
        let Some((stripes, rest)) = rest.split_at_checked(need) else {
            return Err(ItemError::Short {
                what: "chunk stripes",
                need,
                found: rest.len(),
            });
        };
        let stripes = stripes
            .chunks_exact(Stripe::SIZE)
            .map(|raw| {
                let stripe = Stripe::read(raw)?;
                Ok(StripeItem {
                    devid: stripe.devid.get(),
                    offset: stripe.offset.get(),
                    dev_uuid: stripe.dev_uuid,
                })
            })
            .collect::<Result<_, ItemError>>()?;
        let item = Self {
            length: chunk.length.get(),
            owner: chunk.owner.get(),
            stripe_len: chunk.stripe_len.get(),
            flags: BlockGroupFlags::from_bits_retain(chunk.flags.get()),
            io_align: chunk.io_align.get(),
            io_width: chunk.io_width.get(),
            sector_size: chunk.sector_size.get(),
            sub_stripes: chunk.sub_stripes.get(),
            stripes,
        };
        Ok((item, rest))
    }

    /// Parses an item that is exactly one chunk.
    pub fn parse(bytes: &[u8]) -> Result<Self, ItemError> {
        let (item, rest) = Self::parse_prefix(bytes)?;
        if rest.is_empty() {
            return Ok(item);
        }
        let expected = bytes.len() - rest.len();
        Err(ItemError::Size {
            what: "Chunk",
            expected,
            found: bytes.len(),
        })
    }

    /// The item's bytes. More than 65535 stripes cannot be stored; the count is then cut.
    pub fn encode(&self) -> Vec<u8> {
        let count = u16::try_from(self.stripes.len()).unwrap_or(u16::MAX);
        let chunk = Chunk {
            length: self.length.into(),
            owner: self.owner.into(),
            stripe_len: self.stripe_len.into(),
            flags: self.flags.bits().into(),
            io_align: self.io_align.into(),
            io_width: self.io_width.into(),
            sector_size: self.sector_size.into(),
            num_stripes: count.into(),
            sub_stripes: self.sub_stripes.into(),
        };
        let mut out = chunk.bytes().to_vec();
        for stripe in self.stripes.iter().take(count.into()) {
            let stripe = Stripe {
                devid: stripe.devid.into(),
                offset: stripe.offset.into(),
                dev_uuid: stripe.dev_uuid,
            };
            out.extend_from_slice(stripe.bytes());
        }
        out
    }
}
