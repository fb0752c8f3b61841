//! Hashes of entries and blocks, and the block's checksum.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{XattrError, XattrHeader};
use crate::checksum::crc32c;

/// Whether the bytes of a name count as signed or unsigned numbers. Unsigned is written. Older
/// systems with a signed `char` wrote the other, which differs for names with bytes of 128 and
/// above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSigns {
    /// The form that is written.
    Unsigned,
    /// The form of older systems.
    Signed,
}

const CHECKSUM_AT: usize = core::mem::offset_of!(XattrHeader, checksum);

/// Hash of an entry: of its name and its value's words (padded with zeros). For a value in a
/// separate inode, the only word is the CRC-32C of the value from the file system's seed, passed as
/// its 4 bytes.
pub fn xattr_entry_hash(name: &[u8], value: &[u8], signs: XattrSigns) -> u32 {
    let hash = name.iter().fold(0_u32, |hash, &byte| {
        let number = match signs {
            XattrSigns::Unsigned => u32::from(byte),
            XattrSigns::Signed => i32::from(byte as i8) as u32,
        };
        hash.rotate_left(5) ^ number
    });
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// Hash of a block from the hashes of its entries, in their order; 0 (cannot be shared) if one of
/// them is 0.
pub fn xattr_block_hash(hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut sum = 0_u32;
    for hash in hashes {
        if hash == 0 {
            return 0;
        }
        sum = sum.rotate_left(16) ^ hash;
    }
    sum
}

fn checksum(block: &[u8], seed: u32, number: u64) -> Result<u32, XattrError> {
    if block.len() < size_of::<XattrHeader>() {
        return Err(XattrError::Short { found: block.len() });
    }
    let sum = crc32c(seed, &number.to_le_bytes());
    let sum = crc32c(sum, &block[..CHECKSUM_AT]);
    Ok(crc32c(crc32c(sum, &[0; 4]), &block[CHECKSUM_AT + 4..]))
}

/// Checks the checksum of a block. `seed` is the file system's, `number` the physical block.
pub fn xattr_block_verify(block: &[u8], seed: u32, number: u64) -> Result<(), XattrError> {
    let expected = checksum(block, seed, number)?;
    let found = U32::read_from_prefix(&block[CHECKSUM_AT..]).map_or(0, |(sum, _)| sum.get());
    if found == expected {
        Ok(())
    } else {
        Err(XattrError::Checksum { found, expected })
    }
}

/// Writes the checksum of a block. `seed` is the file system's, `number` the physical block.
pub fn xattr_block_seal(block: &mut [u8], seed: u32, number: u64) -> Result<(), XattrError> {
    let sum = checksum(block, seed, number)?;
    block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}
