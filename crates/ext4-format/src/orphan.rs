//! Blocks of the orphan file: inode numbers, and a tail.
//! Source: kernel documentation, `filesystems/ext4/orphan.rst`.

use thiserror::Error;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;

/// Magic of an orphan block's tail.
pub const ORPHAN_MAGIC: u32 = 0x0b10_ca04;

/// Tail of an orphan block.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct OrphanTail {
    /// [`ORPHAN_MAGIC`].
    pub magic: U32,
    /// CRC-32C from the orphan file's inode seed: the physical block number (8 bytes), then the
    /// slots.
    pub checksum: U32,
}
const _: () = assert!(size_of::<OrphanTail>() == 8);

/// An invalid block of the orphan file. The caller reports the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OrphanError {
    /// Too short, or no whole number of slots.
    #[error("orphan block of {found} bytes")]
    Size {
        /// Length in bytes.
        found: usize,
    },
    /// The tail's magic is wrong.
    #[error("orphan block with magic {found:#010x}")]
    Magic {
        /// Found value.
        found: u32,
    },
    /// The checksum is wrong.
    #[error("orphan block checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Value in the tail.
        found: u32,
        /// Computed value.
        expected: u32,
    },
    /// A slot has an inode number outside the file system.
    #[error("orphan slot {slot} names inode {inode} of {inodes}")]
    Inode {
        /// Number of the slot.
        slot: usize,
        /// Inode it names.
        inode: u32,
        /// Highest inode.
        inodes: u32,
    },
}

/// Slots of an orphan block of `block_size` bytes.
pub fn orphan_slots(block_size: usize) -> usize {
    block_size.saturating_sub(size_of::<OrphanTail>()) / 4
}

/// Initializes a block without orphans; [`orphan_seal`] sets its checksum.
pub fn orphan_init(block: &mut [u8]) -> Result<(), OrphanError> {
    block.fill(0);
    let tail = OrphanTail {
        magic: ORPHAN_MAGIC.into(),
        checksum: U32::ZERO,
    };
    let found = block.len();
    tail.write_to_suffix(block)
        .map_err(|_| OrphanError::Size { found })
}

/// Validates a block: size, magic, and that each slot is 0 or an inode of the file system. Returns
/// the slots.
pub fn orphan_check(block: &[u8], inodes: u32) -> Result<&[U32], OrphanError> {
    let (slots, tail) = parts(block)?;
    if tail.magic.get() != ORPHAN_MAGIC {
        return Err(OrphanError::Magic {
            found: tail.magic.get(),
        });
    }
    match slots.iter().position(|inode| inode.get() > inodes) {
        Some(slot) => Err(OrphanError::Inode {
            slot,
            inode: slots[slot].get(),
            inodes,
        }),
        None => Ok(slots),
    }
}

/// Slots of a block to change; `None` if the block is too short.
pub fn orphan_slots_mut(block: &mut [u8]) -> Option<&mut [U32]> {
    let len = block.len().checked_sub(size_of::<OrphanTail>())?;
    <[U32]>::mut_from_bytes(block.get_mut(..len)?).ok()
}

/// Checks the checksum. `seed` is the orphan file's inode seed, `number` the physical block.
pub fn orphan_verify(block: &[u8], seed: u32, number: u64) -> Result<(), OrphanError> {
    let (slots, tail) = parts(block)?;
    let (found, expected) = (tail.checksum.get(), checksum(slots, seed, number));
    if found == expected {
        Ok(())
    } else {
        Err(OrphanError::Checksum { found, expected })
    }
}

/// Writes the checksum. `seed` is the orphan file's inode seed, `number` the physical block.
pub fn orphan_seal(block: &mut [u8], seed: u32, number: u64) -> Result<(), OrphanError> {
    let (slots, tail) = parts(block)?;
    let tail = OrphanTail {
        checksum: checksum(slots, seed, number).into(),
        ..*tail
    };
    let found = block.len();
    tail.write_to_suffix(block)
        .map_err(|_| OrphanError::Size { found })
}

fn checksum(slots: &[U32], seed: u32, number: u64) -> u32 {
    crc32c(crc32c(seed, &number.to_le_bytes()), slots.as_bytes())
}

fn parts(block: &[u8]) -> Result<(&[U32], &OrphanTail), OrphanError> {
    let size = OrphanError::Size { found: block.len() };
    let (slots, tail) = OrphanTail::ref_from_suffix(block).map_err(|_| size)?;
    Ok((<[U32]>::ref_from_bytes(slots).map_err(|_| size)?, tail))
}
