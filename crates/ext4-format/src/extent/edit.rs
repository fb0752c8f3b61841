//! In-place changes of an extent node.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    ENTRY_SIZE, EXTENT_MAGIC, Extent, ExtentError, ExtentHeader, ExtentIndex, ExtentNode,
    HEADER_SIZE, extent_block_max,
};

/// A node to change. Each change keeps header and entries consistent. The caller ensures order and
/// bounds, and may validate the result with [`ExtentNode::parse`]. The kernel requires that the
/// first entry of a node below the root begins exactly where the parent's index does.
#[derive(Debug)]
pub struct ExtentNodeMut<'a> {
    bytes: &'a mut [u8],
}

impl<'a> ExtentNodeMut<'a> {
    /// Initializes an empty node: zeroes all bytes, and writes a header with as many entries as
    /// fit.
    pub fn init(bytes: &'a mut [u8], depth: u16) -> Result<Self, ExtentError> {
        bytes.fill(0);
        let header = ExtentHeader {
            magic: EXTENT_MAGIC.into(),
            entries: U16::ZERO,
            max: extent_block_max(bytes.len()).into(),
            depth: depth.into(),
            generation: U32::ZERO,
        };
        let found = bytes.len();
        header
            .write_to_prefix(bytes)
            .map_err(|_| ExtentError::Short { found })?;
        Self::open(bytes)
    }

    /// Opens a node. Validates only its header.
    pub fn open(bytes: &'a mut [u8]) -> Result<Self, ExtentError> {
        ExtentNode::parse_header(bytes)?;
        Ok(ExtentNodeMut { bytes })
    }

    /// The node as it is now.
    pub fn view(&self) -> Result<ExtentNode<'_>, ExtentError> {
        ExtentNode::parse_header(self.bytes)
    }

    fn header(&mut self) -> Result<&mut ExtentHeader, ExtentError> {
        let found = self.bytes.len();
        let (header, _) =
            ExtentHeader::mut_from_prefix(self.bytes).map_err(|_| ExtentError::Short { found })?;
        Ok(header)
    }

    /// Fails unless the node is a leaf, or is none, as the caller needs.
    fn require(&self, leaf: bool) -> Result<(), ExtentError> {
        let node = self.view()?;
        if node.is_leaf() == leaf {
            Ok(())
        } else {
            Err(ExtentError::Kind {
                depth: node.depth(),
            })
        }
    }

    fn put(&mut self, index: usize, entry: &[u8; ENTRY_SIZE]) -> Result<(), ExtentError> {
        let entries = self.view()?.len();
        if index >= entries {
            return Err(ExtentError::NoEntry { index, entries });
        }
        let at = HEADER_SIZE + index * ENTRY_SIZE;
        self.bytes[at..at + ENTRY_SIZE].copy_from_slice(entry);
        Ok(())
    }

    fn insert(&mut self, index: usize, entry: &[u8; ENTRY_SIZE]) -> Result<(), ExtentError> {
        let node = self.view()?;
        let (entries, max) = (node.len(), node.max());
        if index > entries {
            return Err(ExtentError::NoEntry { index, entries });
        }
        if node.is_full() {
            return Err(ExtentError::Full { max });
        }
        let (at, end) = (
            HEADER_SIZE + index * ENTRY_SIZE,
            HEADER_SIZE + entries * ENTRY_SIZE,
        );
        self.bytes.copy_within(at..end, at + ENTRY_SIZE);
        self.header()?.entries = (entries as u16 + 1).into();
        self.put(index, entry)
    }

    /// Inserts an extent before entry `index`, or at the end if `index` is the number of entries.
    pub fn insert_extent(&mut self, index: usize, extent: &Extent) -> Result<(), ExtentError> {
        self.require(true)?;
        self.insert(index, &extent.encode()?)
    }

    /// Inserts a child before entry `index`, or at the end if `index` is the number of entries.
    pub fn insert_index(&mut self, index: usize, entry: &ExtentIndex) -> Result<(), ExtentError> {
        self.require(false)?;
        self.insert(index, &entry.encode()?)
    }

    /// Appends extents.
    pub fn push_extents<'e>(
        &mut self,
        extents: impl IntoIterator<Item = &'e Extent>,
    ) -> Result<(), ExtentError> {
        for extent in extents {
            let end = self.view()?.len();
            self.insert_extent(end, extent)?;
        }
        Ok(())
    }

    /// Appends children.
    pub fn push_indexes<'e>(
        &mut self,
        entries: impl IntoIterator<Item = &'e ExtentIndex>,
    ) -> Result<(), ExtentError> {
        for entry in entries {
            let end = self.view()?.len();
            self.insert_index(end, entry)?;
        }
        Ok(())
    }

    /// Replaces an extent.
    pub fn set_extent(&mut self, index: usize, extent: &Extent) -> Result<(), ExtentError> {
        self.require(true)?;
        self.put(index, &extent.encode()?)
    }

    /// Replaces a child.
    pub fn set_index(&mut self, index: usize, entry: &ExtentIndex) -> Result<(), ExtentError> {
        self.require(false)?;
        self.put(index, &entry.encode()?)
    }

    /// Removes `count` entries from `index` on, and zeroes the bytes that become free.
    pub fn remove(&mut self, index: usize, count: usize) -> Result<(), ExtentError> {
        let entries = self.view()?.len();
        let next = index.checked_add(count).filter(|&next| next <= entries);
        let next = next.ok_or(ExtentError::NoEntry {
            index: index.saturating_add(count),
            entries,
        })?;
        let left = entries - count;
        let end = HEADER_SIZE + entries * ENTRY_SIZE;
        self.bytes.copy_within(
            HEADER_SIZE + next * ENTRY_SIZE..end,
            HEADER_SIZE + index * ENTRY_SIZE,
        );
        self.bytes[HEADER_SIZE + left * ENTRY_SIZE..end].fill(0);
        self.header()?.entries = (left as u16).into();
        Ok(())
    }

    /// Sets the depth of a root that grows or shrinks by a level.
    pub fn set_depth(&mut self, depth: u16) -> Result<(), ExtentError> {
        self.header()?.depth = depth.into();
        Ok(())
    }
}
