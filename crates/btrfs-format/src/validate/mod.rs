//! The block validator: the rules that a tree block must satisfy before its content is used, and
//! again before it is written.
//!
//! # How it works
//! Three steps, each of which relies on the previous ones:
//!
//! 1. The header matches the caller's expectations: address, fsid, checksum, level, owner,
//!    generation.
//! 2. The block's structure is valid: counts, ascending keys, data packed without holes.
//! 3. Each item is valid for its kind, by itself and after the previous item. An item of an unknown
//!    kind is accepted: unknown *features* are refused at mount.
//!
//! Trouble cases, each planted by a test in `tests/suite/validate.rs`: every error variant of
//! [`BlockError`]; random and mutated blocks.

mod extent;
mod file;
mod item;
mod space;
mod superblock;

use thiserror::Error;

use crate::block::{Block, Header, Item, KeyPtr, MAX_LEVEL, header_flag};
use crate::{Checksum, ChecksumKind, Key, SuperBlock, objectid};

pub use item::ItemProblem;
pub use superblock::{SuperError, validate_super};

/// The caller's expectations of a block.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// Logical address that it was read from.
    pub logical: u64,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// fsid that tree blocks carry.
    pub fsid: [u8; 16],
    /// Checksum algorithm.
    pub checksum: ChecksumKind,
    /// Level, from the parent or root item.
    pub level: Option<u8>,
    /// Tree that is being read. A block of a subvolume may have been created for another one.
    pub owner: Option<u64>,
    /// Smallest generation allowed; equal to `max_generation` if the parent has it.
    pub min_generation: Option<u64>,
    /// Largest generation allowed.
    pub max_generation: Option<u64>,
    /// First key, from the parent.
    pub first_key: Option<Key>,
}

impl Expect {
    /// The expectations that follow from the superblock alone, for the block at `logical`. `None`
    /// if its checksum kind is unknown.
    pub fn new(sb: &SuperBlock, logical: u64) -> Option<Self> {
        Some(Self {
            logical,
            nodesize: sb.nodesize.get(),
            sectorsize: sb.sectorsize.get(),
            fsid: sb.tree_fsid(),
            checksum: sb.checksum_kind()?,
            level: None,
            owner: None,
            min_generation: None,
            max_generation: None,
            first_key: None,
        })
    }

    /// Also expects this generation.
    pub fn with_generation(self, generation: u64) -> Self {
        Self {
            min_generation: Some(generation),
            max_generation: Some(generation),
            ..self
        }
    }

    /// Also expects this level.
    pub fn with_level(self, level: u8) -> Self {
        Self {
            level: Some(level),
            ..self
        }
    }

    /// Also expects this owner.
    pub fn with_owner(self, owner: u64) -> Self {
        Self {
            owner: Some(owner),
            ..self
        }
    }

    /// Also expects this first key.
    pub fn with_first_key(self, key: Key) -> Self {
        Self {
            first_key: Some(key),
            ..self
        }
    }
}

/// Reasons to refuse a block.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The buffer is not one node.
    #[error("block {logical}: {found} bytes, node size is {expected}")]
    Length {
        /// Address.
        logical: u64,
        /// Node size.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// Checksum mismatch.
    #[error("block {logical}: checksum {found}, expected {expected}")]
    Checksum {
        /// Address.
        logical: u64,
        /// Computed.
        expected: Checksum,
        /// Stored.
        found: Checksum,
    },
    /// The header has another address.
    #[error("block {logical}: address {found} in the header")]
    Bytenr {
        /// Address.
        logical: u64,
        /// Address in the header.
        found: u64,
    },
    /// Another file system's block.
    #[error("block {logical}: fsid {found:02x?}, expected {expected:02x?}")]
    Fsid {
        /// Address.
        logical: u64,
        /// Fsid of this file system.
        expected: [u8; 16],
        /// Fsid in the header.
        found: [u8; 16],
    },
    /// WRITTEN not set or an unknown backref revision.
    #[error("block {logical}: bad header flags {flags:#x}")]
    HeaderFlags {
        /// Address.
        logical: u64,
        /// Flags in the header.
        flags: u64,
    },
    /// Not the level in the parent, or above 7.
    #[error("block {logical}: level {found}, expected {expected:?}")]
    Level {
        /// Address.
        logical: u64,
        /// Expected, if known.
        expected: Option<u8>,
        /// Level in the header.
        found: u8,
    },
    /// Not the generation in the parent.
    #[error("block {logical}: generation {found}, expected {min}..={max}")]
    Generation {
        /// Address.
        logical: u64,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
        /// Generation in the header.
        found: u64,
    },
    /// Another tree's block.
    #[error("block {logical}: owner {found}, expected {expected}")]
    Owner {
        /// Address.
        logical: u64,
        /// Tree being read.
        expected: u64,
        /// Owner in the header.
        found: u64,
    },
    /// Not the first key in the parent.
    #[error("block {logical}: first key {found:?}, expected {expected}")]
    FirstKey {
        /// Address.
        logical: u64,
        /// First key in the parent.
        expected: Key,
        /// First key in the block.
        found: Option<Key>,
    },
    /// More items than fit, or none where there must be one.
    #[error("block {logical}: {nritems} items at level {level} of tree {owner}")]
    Nritems {
        /// Address.
        logical: u64,
        /// Number of items in the header.
        nritems: u32,
        /// Level in the header.
        level: u8,
        /// Owner in the header.
        owner: u64,
    },
    /// Keys are not ascending.
    #[error("block {logical} slot {slot}: key {key} does not follow {previous}")]
    KeyOrder {
        /// Address.
        logical: u64,
        /// Slot.
        slot: usize,
        /// Key of the item.
        key: Key,
        /// Key before it.
        previous: Key,
    },
    /// Item data outside the block or over the item headers.
    #[error("block {logical} slot {slot} key {key}: data {offset}+{size} out of bounds")]
    ItemBounds {
        /// Address.
        logical: u64,
        /// Slot.
        slot: usize,
        /// Key of the item.
        key: Key,
        /// Data offset.
        offset: u32,
        /// Data size.
        size: u32,
    },
    /// Item data does not end where the data of the previous item begins: hole or overlap.
    #[error("block {logical} slot {slot} key {key}: data ends at {found}, expected {expected}")]
    ItemPlace {
        /// Address.
        logical: u64,
        /// Slot.
        slot: usize,
        /// Key of the item.
        key: Key,
        /// Required end.
        expected: usize,
        /// Actual end.
        found: usize,
    },
    /// A child's address is zero or not aligned.
    #[error("block {logical} slot {slot}: child address {blockptr}")]
    ChildAddress {
        /// Address.
        logical: u64,
        /// Slot.
        slot: usize,
        /// Address of the child.
        blockptr: u64,
    },
    /// A child that is newer than its parent.
    #[error("block {logical} slot {slot}: child generation {child} in a block of {own}")]
    ChildGeneration {
        /// Address.
        logical: u64,
        /// Slot.
        slot: usize,
        /// Generation of the child.
        child: u64,
        /// Generation of this block.
        own: u64,
    },
    /// An item that is invalid for its kind.
    #[error("block {logical} slot {slot} key {key}: {problem}")]
    Item {
        /// Address.
        logical: u64,
        /// Slot.
        slot: usize,
        /// Key of the item.
        key: Key,
        /// The problem.
        problem: ItemProblem,
    },
}

/// Validates a whole block, including its checksum.
///
/// # Errors
/// The first problem found.
pub fn validate_block(bytes: &[u8], expect: &Expect) -> Result<(), BlockError> {
    let logical = expect.logical;
    check_length(bytes, expect)?;
    if let Err(bad) = expect.checksum.verify_block(bytes) {
        return Err(BlockError::Checksum {
            logical,
            expected: bad.expected,
            found: bad.found,
        });
    }
    validate_content(bytes, expect)
}

/// Validates a whole block except its checksum: for blocks about to be sealed and written.
///
/// # Errors
/// The first problem found.
pub fn validate_content(bytes: &[u8], expect: &Expect) -> Result<(), BlockError> {
    check_length(bytes, expect)?;
    let logical = expect.logical;
    let Ok((header, _)) = Header::split(bytes) else {
        return Err(BlockError::Length {
            logical,
            expected: Header::SIZE,
            found: bytes.len(),
        });
    };
    check_header(header, expect)?;
    let (nritems, level) = (header.nritems.get(), header.level);
    let owner = header.owner.get();
    let count = BlockError::Nritems {
        logical,
        nritems,
        level,
        owner,
    };
    let block = Block::new(bytes).map_err(|_| count.clone())?;
    if nritems == 0 && (level > 0 || never_empty(owner)) {
        return Err(count);
    }
    if let Some(expected) = expect.first_key
        && block.first_key() != Some(expected)
    {
        return Err(BlockError::FirstKey {
            logical,
            expected,
            found: block.first_key(),
        });
    }
    if level == 0 {
        check_leaf(&block, expect)
    } else {
        check_node(&block, expect)
    }
}

fn check_length(bytes: &[u8], expect: &Expect) -> Result<(), BlockError> {
    let expected = expect.nodesize as usize;
    if bytes.len() == expected {
        return Ok(());
    }
    Err(BlockError::Length {
        logical: expect.logical,
        expected,
        found: bytes.len(),
    })
}

/// Trees that have an item from their creation on.
fn never_empty(owner: u64) -> bool {
    matches!(
        owner,
        objectid::ROOT_TREE
            | objectid::EXTENT_TREE
            | objectid::CHUNK_TREE
            | objectid::DEV_TREE
            | objectid::FS_TREE
            | objectid::DATA_RELOC_TREE
    )
}

fn check_header(header: &Header, expect: &Expect) -> Result<(), BlockError> {
    let logical = expect.logical;
    if header.bytenr.get() != logical {
        return Err(BlockError::Bytenr {
            logical,
            found: header.bytenr.get(),
        });
    }
    if header.fsid != expect.fsid {
        return Err(BlockError::Fsid {
            logical,
            expected: expect.fsid,
            found: header.fsid,
        });
    }
    let flags = header.flags.get();
    let rev = flags >> header_flag::BACKREF_REV_SHIFT;
    if flags & header_flag::WRITTEN == 0 || rev != header_flag::MIXED_BACKREF_REV {
        return Err(BlockError::HeaderFlags { logical, flags });
    }
    let found = header.level;
    if found > MAX_LEVEL || expect.level.is_some_and(|level| level != found) {
        return Err(BlockError::Level {
            logical,
            expected: expect.level,
            found,
        });
    }
    let min = expect.min_generation.unwrap_or(0);
    let max = expect.max_generation.unwrap_or(u64::MAX);
    let found = header.generation.get();
    if found < min || found > max {
        return Err(BlockError::Generation {
            logical,
            min,
            max,
            found,
        });
    }
    match expect.owner {
        Some(expected) if !owner_fits(expected, header) => Err(BlockError::Owner {
            logical,
            expected,
            found: header.owner.get(),
        }),
        _ => Ok(()),
    }
}

/// Whether a block may be in tree `expected`. Snapshots share blocks that were created for another
/// subvolume, and relocation may put its own blocks into any tree.
fn owner_fits(expected: u64, header: &Header) -> bool {
    let owner = header.owner.get();
    let reloc = expected == objectid::TREE_RELOC
        || header.flags.get() & header_flag::RELOC != 0
        || owner == objectid::TREE_RELOC;
    owner == expected || reloc || (objectid::is_fs_tree(expected) && objectid::is_fs_tree(owner))
}

fn check_node(block: &Block<'_>, expect: &Expect) -> Result<(), BlockError> {
    let logical = expect.logical;
    let own = block.generation();
    let mut previous: Option<Key> = None;
    for (
        slot,
        KeyPtr {
            key,
            blockptr,
            generation,
        },
    ) in block.ptrs().iter().enumerate()
    {
        let (key, blockptr, child) = (key.get(), blockptr.get(), generation.get());
        if let Some(previous) = previous.filter(|p| *p >= key) {
            return Err(BlockError::KeyOrder {
                logical,
                slot,
                key,
                previous,
            });
        }
        if blockptr == 0 || !item::aligned(blockptr, expect.sectorsize.into()) {
            return Err(BlockError::ChildAddress {
                logical,
                slot,
                blockptr,
            });
        }
        if child > own {
            return Err(BlockError::ChildGeneration {
                logical,
                slot,
                child,
                own,
            });
        }
        previous = Some(key);
    }
    Ok(())
}

fn check_leaf(block: &Block<'_>, expect: &Expect) -> Result<(), BlockError> {
    let logical = expect.logical;
    let front = block.nritems() * Item::SIZE;
    let mut end = block.nodesize() - Header::SIZE;
    let mut previous: Option<(Key, &[u8])> = None;
    for (slot, raw) in block.items().iter().enumerate() {
        let (key, offset, size) = (raw.key.get(), raw.offset.get(), raw.size.get());
        if let Some((previous, _)) = previous.filter(|(p, _)| *p >= key) {
            return Err(BlockError::KeyOrder {
                logical,
                slot,
                key,
                previous,
            });
        }
        let bounds = BlockError::ItemBounds {
            logical,
            slot,
            key,
            offset,
            size,
        };
        let Ok(data) = block.item_data(slot) else {
            return Err(bounds);
        };
        if (offset as usize) < front {
            return Err(bounds);
        }
        let found = offset as usize + data.len();
        if found != end {
            return Err(BlockError::ItemPlace {
                logical,
                slot,
                key,
                expected: end,
                found,
            });
        }
        end = offset as usize;
        let check = item::Check {
            expect,
            header: block.header(),
            key,
            data,
            previous,
        };
        check.run().map_err(|problem| BlockError::Item {
            logical,
            slot,
            key,
            problem,
        })?;
        previous = Some((key, data));
    }
    Ok(())
}
