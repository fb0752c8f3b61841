//! Tree blocks, read-only: header, items of a leaf, pointers of a node, binary search.
//!
//! A leaf stores its item headers from the front and their data from the back. Data offsets count
//! from the end of the block's header.

use thiserror::Error;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use crate::layout::{disk_struct, offsets};
use crate::{DiskKey, Key};

/// Highest level that a block may have.
pub const MAX_LEVEL: u8 = 7;

/// Header flags.
pub mod header_flag {
    /// The block has been written to disk once.
    pub const WRITTEN: u64 = 1;
    /// The block belongs to a relocation tree.
    pub const RELOC: u64 = 2;
    /// Shift of the backref revision, in the top byte.
    pub const BACKREF_REV_SHIFT: u32 = 56;
    /// The revision of all images since 2009.
    pub const MIXED_BACKREF_REV: u64 = 1;
}

disk_struct! {
    /// Header of a tree block.
    pub struct Header = 101 {
        /// Checksum of the rest.
        pub csum: [u8; 32],
        /// fsid (or metadata uuid).
        pub fsid: [u8; 16],
        /// Logical address of the block itself.
        pub bytenr: U64,
        /// [`header_flag`]s, and the backref revision in the top byte.
        pub flags: U64,
        /// uuid of the chunk tree.
        pub chunk_tree_uuid: [u8; 16],
        /// Transid of its last write.
        pub generation: U64,
        /// Tree that it was created for.
        pub owner: U64,
        /// Number of items or pointers.
        pub nritems: U32,
        /// 0: leaf.
        pub level: u8,
    }

    /// Item header in a leaf.
    pub struct Item = 25 {
        /// Key.
        pub key: DiskKey,
        /// Start of the data, from the end of the block's header.
        pub offset: U32,
        /// Bytes of data.
        pub size: U32,
    }

    /// Pointer in a node.
    pub struct KeyPtr = 33 {
        /// First key of the child.
        pub key: DiskKey,
        /// Logical address of the child.
        pub blockptr: U64,
        /// Generation of the child.
        pub generation: U64,
    }
}
offsets!(Header { bytenr = 48, flags = 56, generation = 80, owner = 88, nritems = 96, level = 100 });
offsets!(KeyPtr { blockptr = 17, generation = 25 });

/// Bytes that item headers and data share in a leaf.
pub const fn leaf_data_size(nodesize: usize) -> usize {
    nodesize.saturating_sub(Header::SIZE)
}

/// Pointers that fit in a node.
pub const fn node_ptrs(nodesize: usize) -> usize {
    nodesize.saturating_sub(Header::SIZE) / KeyPtr::SIZE
}

/// Errors of an operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// Too short for a header.
    #[error("tree block of {len} bytes")]
    TooSmall {
        /// Length in bytes.
        len: usize,
    },
    /// More items than fit.
    #[error("block {bytenr}: {nritems} items do not fit")]
    TooManyItems {
        /// Address in the header.
        bytenr: u64,
        /// Number of items in the header.
        nritems: u32,
    },
    /// No such slot (or range of slots).
    #[error("block {bytenr}: slot {slot} of {nritems}")]
    Slot {
        /// Address in the header.
        bytenr: u64,
        /// Requested slot.
        slot: usize,
        /// Number of items.
        nritems: usize,
    },
    /// Item data outside the block.
    #[error("block {bytenr} slot {slot}: data at {offset}+{size} is outside the block")]
    ItemBounds {
        /// Address in the header.
        bytenr: u64,
        /// Slot.
        slot: usize,
        /// Offset in the item header.
        offset: u32,
        /// Size in the item header.
        size: u32,
    },
    /// A leaf operation on a node, or a node operation on a leaf.
    #[error("block {bytenr} has level {level}, wrong for this operation")]
    WrongLevel {
        /// Address in the header.
        bytenr: u64,
        /// Level in the header.
        level: u8,
    },
    /// No room for an insertion.
    #[error("block {bytenr}: {need} bytes needed, {free} free")]
    NoSpace {
        /// Address in the header.
        bytenr: u64,
        /// Bytes needed.
        need: usize,
        /// Bytes free.
        free: usize,
    },
}

/// A tree block, borrowed. The count of items is checked once, in [`Block::new`].
#[derive(Clone, Copy)]
pub struct Block<'a> {
    pub(crate) header: &'a Header,
    pub(crate) body: &'a [u8],
}

impl<'a> Block<'a> {
    /// Checks that there is a header and that `nritems` fits, and nothing else.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let len = bytes.len();
        let (header, body) = Header::ref_from_prefix(bytes).map_err(|_| Error::TooSmall { len })?;
        let entry = if header.level == 0 {
            Item::SIZE
        } else {
            KeyPtr::SIZE
        };
        let nritems = header.nritems.get();
        if nritems as usize > body.len() / entry {
            return Err(Error::TooManyItems {
                bytenr: header.bytenr.get(),
                nritems,
            });
        }
        Ok(Self { header, body })
    }

    /// Bytes of the whole block.
    pub fn nodesize(&self) -> usize {
        Header::SIZE + self.body.len()
    }

    /// The header.
    pub fn header(&self) -> &'a Header {
        self.header
    }

    /// Logical address in the header.
    pub fn bytenr(&self) -> u64 {
        self.header.bytenr.get()
    }

    /// Generation in the header.
    pub fn generation(&self) -> u64 {
        self.header.generation.get()
    }

    /// Owner in the header.
    pub fn owner(&self) -> u64 {
        self.header.owner.get()
    }

    /// Level, 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.header.level
    }

    /// Whether it is a leaf.
    pub fn is_leaf(&self) -> bool {
        self.header.level == 0
    }

    /// Number of items or pointers.
    pub fn nritems(&self) -> usize {
        self.header.nritems.get() as usize
    }

    /// Item headers; empty for a node.
    pub fn items(&self) -> &'a [Item] {
        let len = if self.is_leaf() {
            self.nritems() * Item::SIZE
        } else {
            0
        };
        <[Item]>::ref_from_bytes(self.body.get(..len).unwrap_or_default()).unwrap_or_default()
    }

    /// Pointers; empty for a leaf.
    pub fn ptrs(&self) -> &'a [KeyPtr] {
        let len = if self.is_leaf() {
            0
        } else {
            self.nritems() * KeyPtr::SIZE
        };
        <[KeyPtr]>::ref_from_bytes(self.body.get(..len).unwrap_or_default()).unwrap_or_default()
    }

    fn bad_slot(&self, slot: usize) -> Error {
        Error::Slot {
            bytenr: self.bytenr(),
            slot,
            nritems: self.nritems(),
        }
    }

    /// Item header of a leaf's slot.
    pub fn item(&self, slot: usize) -> Result<&'a Item, Error> {
        self.items().get(slot).ok_or_else(|| self.bad_slot(slot))
    }

    /// Key of a leaf's slot.
    pub fn item_key(&self, slot: usize) -> Result<Key, Error> {
        Ok(self.item(slot)?.key.get())
    }

    /// Offset of a leaf item's data from the end of the block's header.
    pub fn item_offset(&self, slot: usize) -> Result<usize, Error> {
        Ok(self.item(slot)?.offset.get() as usize)
    }

    /// Bytes of a leaf item's data.
    pub fn item_size(&self, slot: usize) -> Result<usize, Error> {
        Ok(self.item(slot)?.size.get() as usize)
    }

    /// Data of a leaf's slot.
    pub fn item_data(&self, slot: usize) -> Result<&'a [u8], Error> {
        let item = self.item(slot)?;
        let (offset, size) = (item.offset.get(), item.size.get());
        let bounds = Error::ItemBounds {
            bytenr: self.bytenr(),
            slot,
            offset,
            size,
        };
        let end = (offset as usize).checked_add(size as usize).ok_or(bounds)?;
        self.body.get(offset as usize..end).ok_or(bounds)
    }

    /// Key and data of a leaf's slot.
    pub fn entry(&self, slot: usize) -> Result<(Key, &'a [u8]), Error> {
        Ok((self.item_key(slot)?, self.item_data(slot)?))
    }

    /// Pointer of a node's slot.
    pub fn child(&self, slot: usize) -> Result<&'a KeyPtr, Error> {
        self.ptrs().get(slot).ok_or_else(|| self.bad_slot(slot))
    }

    /// Key of a slot, of a leaf or a node.
    pub fn key(&self, slot: usize) -> Result<Key, Error> {
        if self.is_leaf() {
            self.item_key(slot)
        } else {
            Ok(self.child(slot)?.key.get())
        }
    }

    /// First key, `None` if the block is empty.
    pub fn first_key(&self) -> Option<Key> {
        self.key(0).ok()
    }

    /// Last key, `None` if the block is empty.
    pub fn last_key(&self) -> Option<Key> {
        self.key(self.nritems().checked_sub(1)?).ok()
    }

    /// Finds a key, in a leaf or node: `Ok(slot)` if it is there, else `Err(slot)` with its
    /// position.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        if self.is_leaf() {
            self.items()
                .binary_search_by(|item| item.key.get().cmp(key))
        } else {
            self.ptrs().binary_search_by(|ptr| ptr.key.get().cmp(key))
        }
    }

    /// Slot of the child that contains a key: the last child whose key is not larger, or slot 0 if
    /// the key is before the first. `None` for an empty block.
    pub fn child_slot(&self, key: &Key) -> Option<usize> {
        let last = self.nritems().checked_sub(1)?;
        Some(match self.search(key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1).min(last),
        })
    }

    /// Offset at which the data of item `slot - 1` begins, which is where the data of `slot` ends
    /// in a packed leaf.
    pub(crate) fn data_end(&self, slot: usize) -> usize {
        match slot.checked_sub(1).and_then(|prev| self.items().get(prev)) {
            Some(item) => item.offset.get() as usize,
            None => self.body.len(),
        }
    }

    /// Free bytes: in a leaf for item headers and data, in a node for pointers.
    pub fn free_space(&self) -> usize {
        if self.is_leaf() {
            let front = self.nritems() * Item::SIZE;
            self.data_end(self.nritems()).saturating_sub(front)
        } else {
            (node_ptrs(self.nodesize()).saturating_sub(self.nritems())) * KeyPtr::SIZE
        }
    }

    /// Bytes used by items with their headers, or by pointers.
    pub fn used_space(&self) -> usize {
        if self.is_leaf() {
            self.body.len().saturating_sub(self.free_space())
        } else {
            self.nritems() * KeyPtr::SIZE
        }
    }
}

impl std::fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block")
            .field("bytenr", &self.bytenr())
            .field("owner", &self.owner())
            .field("generation", &self.generation())
            .field("level", &self.level())
            .field("nritems", &self.nritems())
            .finish()
    }
}
