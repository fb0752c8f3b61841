//! File extent items: where a range of a file has its data.

use zerocopy::little_endian::{U16, U64};

use crate::ItemError;
use crate::layout::{disk_struct, offsets};

disk_struct! {
    /// Head of every file extent item; data or [`FileExtentRegular`] follows.
    pub struct FileExtentHeader = 21 {
        /// Transid in which it was made.
        pub generation: U64,
        /// Bytes of the (whole) extent in memory, uncompressed.
        pub ram_bytes: U64,
        /// [`compression`](crate::compression).
        pub compression: u8,
        /// Zero.
        pub encryption: u8,
        /// Zero.
        pub other_encoding: U16,
        /// [`extent_type`].
        pub kind: u8,
    }

    /// Tail of a regular or preallocated extent.
    pub struct FileExtentRegular = 32 {
        /// Logical address of the extent, 0 for a hole.
        pub disk_bytenr: U64,
        /// Bytes of the extent on disk.
        pub disk_num_bytes: U64,
        /// Start of the file's range in the (uncompressed) extent.
        pub offset: U64,
        /// Bytes of the file's range.
        pub num_bytes: U64,
    }
}
offsets!(FileExtentHeader { compression = 16, kind = 20 });

/// Types of a file extent.
pub mod extent_type {
    /// Data within the item.
    pub const INLINE: u8 = 0;
    /// Data in an extent.
    pub const REGULAR: u8 = 1;
    /// Extent that reads as zeros.
    pub const PREALLOC: u8 = 2;
}

/// A regular or preallocated extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegularExtent {
    /// Transid in which it was made.
    pub generation: u64,
    /// Uncompressed bytes of the whole extent.
    pub ram_bytes: u64,
    /// [`compression`](crate::compression).
    pub compression: u8,
    /// Logical address, 0 for a hole.
    pub disk_bytenr: u64,
    /// Bytes on disk.
    pub disk_num_bytes: u64,
    /// Start of the range in the uncompressed extent.
    pub offset: u64,
    /// Bytes of the range.
    pub num_bytes: u64,
}

impl RegularExtent {
    /// An explicit hole.
    pub fn is_hole(&self) -> bool {
        self.disk_bytenr == 0
    }
}

/// A parsed file extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileExtent<'a> {
    /// Data within the item.
    Inline {
        /// Transid in which it was made.
        generation: u64,
        /// Bytes once uncompressed.
        ram_bytes: u64,
        /// [`compression`](crate::compression).
        compression: u8,
        /// Data as stored.
        data: &'a [u8],
    },
    /// Data in an extent, or a hole.
    Regular(RegularExtent),
    /// Preallocated: reads as zeros.
    Prealloc(RegularExtent),
}

impl<'a> FileExtent<'a> {
    /// Parses an EXTENT_DATA item.
    ///
    /// # Errors
    /// Too few or too many bytes, unknown type. Values are for the validator.
    pub fn parse(item: &'a [u8]) -> Result<Self, ItemError> {
        let (head, rest) = FileExtentHeader::split(item)?;
        let kind = head.kind;
        if kind == extent_type::INLINE {
            return Ok(Self::Inline {
                generation: head.generation.get(),
                ram_bytes: head.ram_bytes.get(),
                compression: head.compression,
                data: rest,
            });
        }
        if kind > extent_type::PREALLOC {
            return Err(ItemError::Value {
                what: "file extent",
                field: "type",
                value: kind.into(),
            });
        }
        let expected = FileExtentHeader::SIZE + FileExtentRegular::SIZE;
        if item.len() != expected {
            return Err(ItemError::Size {
                what: "file extent",
                expected,
                found: item.len(),
            });
        }
        let tail = FileExtentRegular::read(rest)?;
        let extent = RegularExtent {
            generation: head.generation.get(),
            ram_bytes: head.ram_bytes.get(),
            compression: head.compression,
            disk_bytenr: tail.disk_bytenr.get(),
            disk_num_bytes: tail.disk_num_bytes.get(),
            offset: tail.offset.get(),
            num_bytes: tail.num_bytes.get(),
        };
        Ok(if kind == extent_type::REGULAR {
            Self::Regular(extent)
        } else {
            Self::Prealloc(extent)
        })
    }

    /// The item's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let head = |generation: u64, ram_bytes: u64, compression, kind| FileExtentHeader {
            generation: generation.into(),
            ram_bytes: ram_bytes.into(),
            compression,
            kind,
            ..FileExtentHeader::default()
        };
        let (extent, kind) = match *self {
            Self::Inline {
                generation,
                ram_bytes,
                compression,
                data,
            } => {
                let head = head(generation, ram_bytes, compression, extent_type::INLINE);
                return [head.bytes(), data].concat();
            }
            Self::Regular(extent) => (extent, extent_type::REGULAR),
            Self::Prealloc(extent) => (extent, extent_type::PREALLOC),
        };
        let head = head(
            extent.generation,
            extent.ram_bytes,
            extent.compression,
            kind,
        );
        let tail = FileExtentRegular {
            disk_bytenr: extent.disk_bytenr.into(),
            disk_num_bytes: extent.disk_num_bytes.into(),
            offset: extent.offset.into(),
            num_bytes: extent.num_bytes.into(),
        };
        [head.bytes(), tail.bytes()].concat()
    }

    /// Bytes of the file that the item covers.
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline { ram_bytes, .. } => *ram_bytes,
            Self::Regular(extent) | Self::Prealloc(extent) => extent.num_bytes,
        }
    }

    /// Whether it covers nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Transid in which it was made.
    pub fn generation(&self) -> u64 {
        match self {
            Self::Inline { generation, .. } => *generation,
            Self::Regular(extent) | Self::Prealloc(extent) => extent.generation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let inline = FileExtent::Inline {
            generation: 7,
            ram_bytes: 5,
            compression: 0,
            data: b"hello",
        };
        let regular = RegularExtent {
            generation: 8,
            ram_bytes: 8192,
            compression: 3,
            disk_bytenr: 1 << 20,
            disk_num_bytes: 4096,
            offset: 4096,
            num_bytes: 4096,
        };
        for extent in [
            inline,
            FileExtent::Regular(regular),
            FileExtent::Prealloc(regular),
        ] {
            assert_eq!(FileExtent::parse(&extent.encode()), Ok(extent));
        }
        let mut bytes = FileExtent::Regular(regular).encode();
        bytes.push(0);
        assert!(matches!(
            FileExtent::parse(&bytes),
            Err(ItemError::Size { .. })
        ));
        bytes[20] = 3;
        assert!(matches!(
            FileExtent::parse(&bytes),
            Err(ItemError::Value { .. })
        ));
    }
}
