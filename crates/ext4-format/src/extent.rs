//! Extent tree nodes: the 60 bytes in the inode, and blocks.
//!
//! A node is a header, entries of 12 bytes, and (in blocks of file systems with metadata checksums)
//! a tail directly after the space for `max` entries. A node of depth 0 is a leaf with extents; all
//! others contain indexes. Source: kernel documentation, `filesystems/ext4/ifork.rst`.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;

mod edit;
mod error;

pub use edit::ExtentNodeMut;
pub use error::ExtentError;

/// Magic of an extent header.
pub const EXTENT_MAGIC: u16 = 0xf30a;
/// Deepest tree: the root has at most this depth.
pub const EXTENT_MAX_DEPTH: u16 = 5;
/// Blocks of the longest written extent. A larger length field means "unwritten" and counts from
/// here.
pub const EXTENT_MAX_LEN: u32 = 32768;
/// Blocks of the longest unwritten extent.
pub const EXTENT_MAX_UNWRITTEN_LEN: u32 = 32767;
/// Bytes of the root node in the inode.
pub const EXTENT_ROOT_SIZE: usize = 60;
/// Largest physical block that fits the 48-bit fields.
const PHYSICAL_MAX: u64 = (1 << 48) - 1;
const HEADER_SIZE: usize = size_of::<ExtentHeader>();
const ENTRY_SIZE: usize = 12;

/// Head of each node.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct ExtentHeader {
    /// [`EXTENT_MAGIC`].
    pub magic: U16,
    /// Entries in use.
    pub entries: U16,
    /// Entries for which there is room.
    pub max: U16,
    /// Levels below this node; 0 is a leaf.
    pub depth: U16,
    /// Not used by ext4.
    pub generation: U32,
}
const _: () = assert!(size_of::<ExtentHeader>() == 12);

/// Entry of an inner node as it is on disk.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct RawExtentIndex {
    /// First logical block that the child covers.
    pub block: U32,
    /// Low 32 bits of the child's block.
    pub leaf_lo: U32,
    /// High 16 bits of the child's block.
    pub leaf_hi: U16,
    /// Unused.
    pub unused: U16,
}
const _: () = assert!(size_of::<RawExtentIndex>() == ENTRY_SIZE);

/// Entry of a leaf as it is on disk.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct RawExtent {
    /// First logical block.
    pub block: U32,
    /// Length; above [`EXTENT_MAX_LEN`] the extent is unwritten.
    pub len: U16,
    /// High 16 bits of the physical block.
    pub start_hi: U16,
    /// Low 32 bits of the physical block.
    pub start_lo: U32,
}
const _: () = assert!(size_of::<RawExtent>() == ENTRY_SIZE);

/// A range of a file and its location, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    /// First logical block.
    pub logical: u32,
    /// Blocks, at most [`EXTENT_MAX_LEN`], one less if unwritten.
    pub len: u32,
    /// First physical block.
    pub physical: u64,
    /// Allocated but never written: reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// First logical block after it.
    pub fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.len)
    }

    fn decode(raw: &RawExtent) -> Self {
        let len = u32::from(raw.len.get());
        let unwritten = len > EXTENT_MAX_LEN;
        Extent {
            logical: raw.block.get(),
            len: if unwritten { len - EXTENT_MAX_LEN } else { len },
            physical: u64::from(raw.start_hi.get()) << 32 | u64::from(raw.start_lo.get()),
            unwritten,
        }
    }

    fn encode(&self) -> Result<[u8; ENTRY_SIZE], ExtentError> {
        let limit = if self.unwritten {
            EXTENT_MAX_UNWRITTEN_LEN
        } else {
            EXTENT_MAX_LEN
        };
        let bad = ExtentError::Unencodable {
            logical: self.logical,
            len: self.len,
            physical: self.physical,
        };
        if self.len == 0 || self.len > limit || self.physical > PHYSICAL_MAX {
            return Err(bad);
        }
        let field = if self.unwritten {
            self.len + EXTENT_MAX_LEN
        } else {
            self.len
        };
        let raw = RawExtent {
            block: self.logical.into(),
            len: u16::try_from(field).map_err(|_| bad)?.into(),
            start_hi: ((self.physical >> 32) as u16).into(),
            start_lo: (self.physical as u32).into(),
        };
        raw.as_bytes().try_into().map_err(|_| bad)
    }
}

/// A child of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExtentIndex {
    /// First logical block that the child covers.
    pub logical: u32,
    /// Block of the child node.
    pub child: u64,
}

impl ExtentIndex {
    fn decode(raw: &RawExtentIndex) -> Self {
        ExtentIndex {
            logical: raw.block.get(),
            child: u64::from(raw.leaf_hi.get()) << 32 | u64::from(raw.leaf_lo.get()),
        }
    }

    fn encode(&self) -> Result<[u8; ENTRY_SIZE], ExtentError> {
        let bad = ExtentError::Unencodable {
            logical: self.logical,
            len: 0,
            physical: self.child,
        };
        if self.child > PHYSICAL_MAX {
            return Err(bad);
        }
        let raw = RawExtentIndex {
            block: self.logical.into(),
            leaf_lo: (self.child as u32).into(),
            leaf_hi: ((self.child >> 32) as u16).into(),
            unused: U16::ZERO,
        };
        raw.as_bytes().try_into().map_err(|_| bad)
    }
}

/// Constraints of a node that are known before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentBounds {
    /// Depth according to the parent; `None` for a root.
    pub depth: Option<u16>,
    /// First logical block of the node's range, according to the parent.
    pub first: u32,
    /// End of that range.
    pub limit: u64,
    /// First physical block that an extent may use (the superblock's first data block).
    pub first_block: u64,
    /// Blocks of the file system.
    pub blocks: u64,
}

impl ExtentBounds {
    /// Bounds of a root.
    pub fn root(first_block: u64, blocks: u64) -> Self {
        ExtentBounds {
            depth: None,
            first: 0,
            limit: 1 << 32,
            first_block,
            blocks,
        }
    }
}

/// A validated node, for reading.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    header: &'a ExtentHeader,
    body: &'a [u8],
}

impl<'a> ExtentNode<'a> {
    /// Validates a node. `bytes` is the 60-byte root or a whole block.
    pub fn parse(bytes: &'a [u8], bounds: &ExtentBounds) -> Result<Self, ExtentError> {
        let node = Self::parse_header(bytes)?;
        let depth = node.depth();
        match bounds.depth {
            Some(expected) if expected != depth => {
                return Err(ExtentError::Depth {
                    found: depth,
                    expected,
                });
            }
            None if depth > EXTENT_MAX_DEPTH => {
                return Err(ExtentError::Depth {
                    found: depth,
                    expected: EXTENT_MAX_DEPTH,
                });
            }
            _ => {}
        }
        if node.is_empty() && depth > 0 {
            return Err(ExtentError::Entries {
                entries: 0,
                max: node.max(),
                depth,
            });
        }
        if depth == 0 {
            node.check_extents(bounds)?
        } else {
            node.check_indexes(bounds)?
        }
        Ok(node)
    }

    /// Validates only the header: for nodes that were validated when they were read. Later reads
    /// stay within the bytes for any content of the entries.
    pub fn parse_header(bytes: &'a [u8]) -> Result<Self, ExtentError> {
        let short = ExtentError::Short { found: bytes.len() };
        let (header, body) = ExtentHeader::ref_from_prefix(bytes).map_err(|_| short)?;
        check_header(header, body.len())?;
        Ok(ExtentNode { header, body })
    }

    /// The header.
    pub fn header(&self) -> &'a ExtentHeader {
        self.header
    }

    /// Levels below.
    pub fn depth(&self) -> u16 {
        self.header.depth.get()
    }

    /// Depth 0.
    pub fn is_leaf(&self) -> bool {
        self.depth() == 0
    }

    /// Entries in use.
    pub fn len(&self) -> usize {
        usize::from(self.header.entries.get())
    }

    /// No entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries for which there is room.
    pub fn max(&self) -> u16 {
        self.header.max.get()
    }

    /// No room for one more entry.
    pub fn is_full(&self) -> bool {
        self.header.entries.get() >= self.header.max.get()
    }

    fn raw<T: FromBytes + Immutable + KnownLayout + Unaligned>(
        &self,
        index: usize,
    ) -> Option<&'a T> {
        if index >= self.len() {
            return None;
        }
        let at = index.checked_mul(ENTRY_SIZE)?;
        T::ref_from_bytes(self.body.get(at..at + ENTRY_SIZE)?).ok()
    }

    /// Entry of a leaf; `None` after the last one and in an inner node.
    pub fn extent(&self, index: usize) -> Option<Extent> {
        if !self.is_leaf() {
            return None;
        }
        self.raw(index).map(Extent::decode)
    }

    /// Entry of an inner node; `None` after the last one and in a leaf.
    pub fn index(&self, index: usize) -> Option<ExtentIndex> {
        if self.is_leaf() {
            return None;
        }
        self.raw(index).map(ExtentIndex::decode)
    }

    /// First logical block of an entry of either kind.
    pub fn logical(&self, index: usize) -> Option<u32> {
        self.raw::<RawExtent>(index).map(|raw| raw.block.get())
    }

    /// All extents of a leaf.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + use<'a> {
        let node = *self;
        (0..node.len()).map_while(move |index| node.extent(index))
    }

    /// All children of an inner node.
    pub fn indexes(&self) -> impl Iterator<Item = ExtentIndex> + use<'a> {
        let node = *self;
        (0..node.len()).map_while(move |index| node.index(index))
    }

    /// The last entry that begins at or before `logical`; `None` if all begin after it.
    pub fn search(&self, logical: u32) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.logical(middle) {
                Some(begin) if begin <= logical => low = middle + 1,
                _ => high = middle,
            }
        }
        low.checked_sub(1)
    }

    /// Bounds for the child of entry `index`, from this node's own bounds.
    pub fn child_bounds(&self, index: usize, bounds: &ExtentBounds) -> Option<ExtentBounds> {
        let entry = self.index(index)?;
        let limit = self.logical(index + 1).map_or(bounds.limit, u64::from);
        Some(ExtentBounds {
            depth: self.depth().checked_sub(1),
            first: entry.logical,
            limit,
            ..*bounds
        })
    }

    fn check_extents(&self, bounds: &ExtentBounds) -> Result<(), ExtentError> {
        let mut after = 0;
        for (index, extent) in self.extents().enumerate() {
            let Extent {
                logical,
                len,
                physical,
                ..
            } = extent;
            if len == 0 {
                return Err(ExtentError::Empty { index, logical });
            }
            check_range(index, logical, extent.end(), after, bounds)?;
            check_physical(index, physical, len, bounds)?;
            after = extent.end();
        }
        Ok(())
    }

    fn check_indexes(&self, bounds: &ExtentBounds) -> Result<(), ExtentError> {
        let mut after = 0;
        for (index, entry) in self.indexes().enumerate() {
            let end = u64::from(entry.logical) + 1;
            check_range(index, entry.logical, end, after, bounds)?;
            check_physical(index, entry.child, 1, bounds)?;
            after = end;
        }
        Ok(())
    }
}

fn check_header(header: &ExtentHeader, body: usize) -> Result<(), ExtentError> {
    let (magic, max, entries) = (header.magic.get(), header.max.get(), header.entries.get());
    if magic != EXTENT_MAGIC {
        return Err(ExtentError::Magic { found: magic });
    }
    let room = body / ENTRY_SIZE;
    if max == 0 || usize::from(max) > room {
        return Err(ExtentError::Max { max, room });
    }
    if entries > max {
        return Err(ExtentError::Entries {
            entries,
            max,
            depth: header.depth.get(),
        });
    }
    Ok(())
}

fn check_range(
    index: usize,
    logical: u32,
    end: u64,
    after: u64,
    bounds: &ExtentBounds,
) -> Result<(), ExtentError> {
    if u64::from(logical) < after {
        return Err(ExtentError::Order {
            index,
            logical,
            after,
        });
    }
    if logical < bounds.first || end > bounds.limit {
        return Err(ExtentError::Range {
            index,
            logical,
            end,
            first: bounds.first,
            limit: bounds.limit,
        });
    }
    Ok(())
}

fn check_physical(
    index: usize,
    physical: u64,
    len: u32,
    bounds: &ExtentBounds,
) -> Result<(), ExtentError> {
    let end = physical.checked_add(u64::from(len));
    if physical == 0 || physical < bounds.first_block || end.is_none_or(|end| end > bounds.blocks) {
        let (first, limit) = (bounds.first_block, bounds.blocks);
        return Err(ExtentError::Physical {
            index,
            physical,
            len,
            first,
            limit,
        });
    }
    Ok(())
}

/// Number of entries that fit in a block of `block_size` bytes. The rest always has room for the
/// tail.
pub fn extent_block_max(block_size: usize) -> u16 {
    u16::try_from(block_size.saturating_sub(HEADER_SIZE) / ENTRY_SIZE).unwrap_or(u16::MAX)
}

/// Entries for which the root in the inode has room.
pub const EXTENT_ROOT_MAX: u16 = ((EXTENT_ROOT_SIZE - HEADER_SIZE) / ENTRY_SIZE) as u16;

/// Position of a block's tail: after the room for `max` entries.
fn tail_offset(block: &[u8]) -> Result<usize, ExtentError> {
    let max = usize::from(ExtentNode::parse_header(block)?.max());
    let at = HEADER_SIZE + max * ENTRY_SIZE;
    if at + size_of::<U32>() > block.len() {
        return Err(ExtentError::Max {
            max: max as u16,
            room: block.len().saturating_sub(HEADER_SIZE + 4) / ENTRY_SIZE,
        });
    }
    Ok(at)
}

/// Checks the tail of a block. `seed` is the inode's checksum seed. Roots have no tail.
pub fn extent_block_verify(block: &[u8], seed: u32) -> Result<(), ExtentError> {
    let at = tail_offset(block)?;
    let expected = crc32c(seed, &block[..at]);
    let found = U32::ref_from_prefix(&block[at..]).map_or(0, |(field, _)| field.get());
    if found == expected {
        Ok(())
    } else {
        Err(ExtentError::Checksum { found, expected })
    }
}

/// Writes the tail of a block. `seed` is the inode's checksum seed.
pub fn extent_block_seal(block: &mut [u8], seed: u32) -> Result<(), ExtentError> {
    let at = tail_offset(block)?;
    let sum = crc32c(seed, &block[..at]);
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}
