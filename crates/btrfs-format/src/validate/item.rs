//! Problems of items, and the checks of each kind.

use thiserror::Error;

use super::Expect;
use crate::block::Header;
use crate::{ItemError, Key, kind, objectid};

/// Reasons to refuse an item.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ItemProblem {
    /// Malformed bytes.
    #[error(transparent)]
    Parse(#[from] ItemError),
    /// A size that the kind does not have.
    #[error("item of {found} bytes, expected {expected}")]
    Size {
        /// Expected.
        expected: usize,
        /// Found.
        found: usize,
    },
    /// The size must be a multiple of the unit, and not zero.
    #[error("item of {found} bytes, expected a multiple of {unit}")]
    SizeUnit {
        /// Unit.
        unit: usize,
        /// Found.
        found: usize,
    },
    /// Key objectid that the kind cannot have.
    #[error("key objectid {found} is not possible")]
    KeyObjectid {
        /// Found.
        found: u64,
    },
    /// Key offset that the kind cannot have.
    #[error("key offset {found} is not possible")]
    KeyOffset {
        /// Found.
        found: u64,
    },
    /// Not aligned.
    #[error("{field} {value} is not a multiple of {unit}")]
    Misaligned {
        /// Field.
        field: &'static str,
        /// Value.
        value: u64,
        /// Unit.
        unit: u64,
    },
    /// A value that the field cannot have.
    #[error("{field} {value} is not possible")]
    Field {
        /// Field.
        field: &'static str,
        /// Value.
        value: u64,
    },
    /// A value above the limit that other fields set.
    #[error("{field} {value} is above {max}")]
    TooLarge {
        /// Field.
        field: &'static str,
        /// Value.
        value: u64,
        /// Limit.
        max: u64,
    },
    /// Start and length do not fit in 64 bits.
    #[error("{field} {start}+{length} overflows")]
    Overflow {
        /// Field.
        field: &'static str,
        /// Begin.
        start: u64,
        /// Length.
        length: u64,
    },
    /// Unknown flag bits, or a combination that has no meaning.
    #[error("{field} {flags:#x} are not possible")]
    Flags {
        /// Field.
        field: &'static str,
        /// All flags.
        flags: u64,
    },
    /// Newer than the block that contains it.
    #[error("{field} {found} in a block of generation {block}")]
    Generation {
        /// Field.
        field: &'static str,
        /// Found.
        found: u64,
        /// Generation of the block.
        block: u64,
    },
    /// A mode without a file type or with unknown bits.
    #[error("mode {mode:#o} is not possible")]
    Mode {
        /// Mode.
        mode: u32,
    },
    /// Name too short, too long, or with invalid bytes.
    #[error("name of {len} bytes is not possible")]
    Name {
        /// Length.
        len: usize,
    },
    /// The key's hash differs from the hash of the name.
    #[error("name hash {found:#x} in the key, expected {expected:#x}")]
    NameHash {
        /// Hash of the name.
        expected: u64,
        /// In the key.
        found: u64,
    },
    /// A file type that the kind of entry cannot have.
    #[error("file type {found} is not possible")]
    FileType {
        /// Found.
        found: u8,
    },
    /// An entry that points at neither an inode nor a tree.
    #[error("location {location} is not possible")]
    Location {
        /// Location.
        location: Key,
    },
    /// An item of an inode that follows an item of another one.
    #[error("no item of the same inode before it")]
    NoInode,
    /// Starts before the end of the previous item.
    #[error("begins at {start}, the one before ends at {end}")]
    Overlap {
        /// Begin.
        start: u64,
        /// End of the previous item.
        end: u64,
    },
    /// Inline refs out of order.
    #[error("inline refs out of order")]
    RefOrder,
    /// More inline refs than the item counts.
    #[error("{inline} refs inline, the item counts {refs}")]
    RefCount {
        /// Inline.
        inline: u64,
        /// In the item.
        refs: u64,
    },
    /// A ref that does not fit the extent.
    #[error("ref kind {kind} does not fit the extent")]
    RefKind {
        /// Kind.
        kind: u8,
    },
    /// A number of stripes that the profile does not have.
    #[error("{stripes} stripes, sub stripes {sub_stripes} with flags {flags:#x}")]
    Stripes {
        /// Stripes.
        stripes: usize,
        /// Sub stripes.
        sub_stripes: u16,
        /// Flags.
        flags: u64,
    },
}

pub(super) type Checked = Result<(), ItemProblem>;

/// Whether `value` is a multiple of `unit` (a zero unit aligns nothing).
pub(super) fn aligned(value: u64, unit: u64) -> bool {
    value.checked_rem(unit) == Some(0)
}

/// One item to check.
pub(super) struct Check<'a> {
    pub(super) expect: &'a Expect,
    pub(super) header: &'a Header,
    pub(super) key: Key,
    pub(super) data: &'a [u8],
    /// The previous item in the leaf, already checked.
    pub(super) previous: Option<(Key, &'a [u8])>,
}

impl Check<'_> {
    pub(super) fn run(&self) -> Checked {
        match self.key.kind {
            kind::INODE_ITEM => self.inode_item(),
            kind::INODE_REF => self.inode_ref(),
            kind::INODE_EXTREF => self.inode_extref(),
            kind::XATTR_ITEM | kind::DIR_ITEM | kind::DIR_INDEX => self.dir_item(),
            kind::ORPHAN_ITEM => self.orphan_item(),
            kind::DIR_LOG_ITEM | kind::DIR_LOG_INDEX => self.dir_log(),
            kind::EXTENT_DATA => self.extent_data(),
            kind::EXTENT_CSUM => self.csum_item(),
            kind::ROOT_ITEM => self.root_item(),
            kind::ROOT_REF | kind::ROOT_BACKREF => self.root_ref(),
            kind::EXTENT_ITEM | kind::METADATA_ITEM => self.extent_item(),
            kind::TREE_BLOCK_REF
            | kind::SHARED_BLOCK_REF
            | kind::EXTENT_DATA_REF
            | kind::SHARED_DATA_REF => self.keyed_ref(),
            kind::EXTENT_OWNER_REF => Err(ItemProblem::RefKind {
                kind: self.key.kind,
            }),
            kind::BLOCK_GROUP_ITEM => self.block_group(),
            kind::FREE_SPACE_INFO => self.free_space_info(),
            kind::FREE_SPACE_EXTENT | kind::FREE_SPACE_BITMAP => self.free_space(),
            kind::DEV_EXTENT => self.dev_extent(),
            kind::DEV_ITEM => self.dev_item(),
            kind::CHUNK_ITEM => self.chunk_item(),
            _ => self.small_item(),
        }
    }

    /// Kinds for which only the size is checked.
    fn small_item(&self) -> Checked {
        const BALANCE_ITEM_SIZE: usize = 448;
        match self.key.kind {
            kind::RAID_STRIPE => self.size_unit(16),
            kind::QGROUP_STATUS if self.data.len() == 40 => Ok(()),
            kind::QGROUP_STATUS => self.size(crate::QgroupStatus::SIZE),
            kind::QGROUP_INFO => self.size(crate::QgroupInfo::SIZE),
            kind::QGROUP_LIMIT => self.size(crate::QgroupLimit::SIZE),
            kind::QGROUP_RELATION => self.size(0),
            kind::TEMPORARY_ITEM if self.key.objectid == objectid::BALANCE => {
                self.size(BALANCE_ITEM_SIZE)
            }
            // Older and newer kernels may store fewer or more counters.
            kind::PERSISTENT_ITEM if self.key.objectid == objectid::DEV_STATS => self.size_unit(8),
            kind::DEV_REPLACE => self.size_unit(8),
            kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL => self.size_unit(8),
            0 if self.key.objectid == objectid::FREE_SPACE => {
                self.size(crate::FreeSpaceHeader::SIZE)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn size(&self, expected: usize) -> Checked {
        let found = self.data.len();
        if found == expected {
            Ok(())
        } else {
            Err(ItemProblem::Size { expected, found })
        }
    }

    pub(super) fn size_unit(&self, unit: usize) -> Checked {
        let found = self.data.len();
        if found != 0 && found.checked_rem(unit) == Some(0) {
            return Ok(());
        }
        Err(ItemProblem::SizeUnit { unit, found })
    }

    pub(super) fn objectid(&self, expected: u64) -> Checked {
        let found = self.key.objectid;
        if found == expected {
            Ok(())
        } else {
            Err(ItemProblem::KeyObjectid { found })
        }
    }

    pub(super) fn sector_aligned(&self, field: &'static str, value: u64) -> Checked {
        let unit = self.expect.sectorsize.into();
        if aligned(value, unit) {
            return Ok(());
        }
        Err(ItemProblem::Misaligned { field, value, unit })
    }

    /// Checks a range of space: aligned, not empty, and its end fits in 64 bits. Returns the end.
    pub(super) fn range(
        &self,
        field: &'static str,
        start: u64,
        length: u64,
    ) -> Result<u64, ItemProblem> {
        self.sector_aligned(field, start)?;
        self.sector_aligned(field, length)?;
        if length == 0 {
            return Err(ItemProblem::Field { field, value: 0 });
        }
        start.checked_add(length).ok_or(ItemProblem::Overflow {
            field,
            start,
            length,
        })
    }

    /// Refuses a start before the end of the previous item.
    pub(super) fn after(&self, start: u64, end: u64) -> Checked {
        if end <= start {
            Ok(())
        } else {
            Err(ItemProblem::Overlap { start, end })
        }
    }

    /// Refuses a generation that is newer than the block. One more than the block's is allowed,
    /// because a log is written in a transaction after the block's own.
    pub(super) fn generation(&self, field: &'static str, found: u64) -> Checked {
        let block = self.header.generation.get();
        if found <= block.saturating_add(1) {
            return Ok(());
        }
        Err(ItemProblem::Generation {
            field,
            found,
            block,
        })
    }
}

pub(super) fn at_most(field: &'static str, value: u64, max: u64) -> Checked {
    if value <= max {
        Ok(())
    } else {
        Err(ItemProblem::TooLarge { field, value, max })
    }
}
