//! Bitmaps of blocks and inodes: bit `n` is bit `n % 8`, counted from the lowest, of byte `n / 8`.
//!
//! All functions work on the bytes of a bitmap block on disk. A bit outside the bytes reads as set
//! and cannot be changed, so a search never goes past the end.

use crate::checksum::crc32c;
use crate::{BitmapKind, FormatError, Geometry, GroupDesc};

/// The eight bytes at `index * 8` as a word; bytes beyond the end read as ones.
fn word(bitmap: &[u8], index: usize) -> u64 {
    let start = index * 8;
    if let Some(Ok(bytes)) = bitmap.get(start..start + 8).map(<[u8; 8]>::try_from) {
        return u64::from_le_bytes(bytes);
    }
    let mut bytes = [0xff; 8];
    if let Some(rest) = bitmap.get(start..) {
        bytes[..rest.len()].copy_from_slice(rest);
    }
    u64::from_le_bytes(bytes)
}

/// Whether the bit is set. A bit outside the bitmap counts as set.
pub fn test_bit(bitmap: &[u8], bit: u32) -> bool {
    bitmap
        .get((bit / 8) as usize)
        .is_none_or(|byte| byte & (1 << (bit % 8)) != 0)
}

/// Sets the bit. Returns whether it was set before; true for a bit outside the bitmap.
pub fn set_bit(bitmap: &mut [u8], bit: u32) -> bool {
    let Some(byte) = bitmap.get_mut((bit / 8) as usize) else {
        return true;
    };
    let was = *byte & (1 << (bit % 8)) != 0;
    *byte |= 1 << (bit % 8);
    was
}

/// Clears the bit. Returns whether it was set before; false for a bit outside the bitmap.
pub fn clear_bit(bitmap: &mut [u8], bit: u32) -> bool {
    let Some(byte) = bitmap.get_mut((bit / 8) as usize) else {
        return false;
    };
    let was = *byte & (1 << (bit % 8)) != 0;
    *byte &= !(1 << (bit % 8));
    was
}

/// First bit from `start` on, below `end`, whose word has it set after `invert`.
fn find(bitmap: &[u8], start: u32, end: u32, invert: u64) -> Option<u32> {
    let end = u64::from(end).min(bitmap.len() as u64 * 8) as u32;
    if start >= end {
        return None;
    }
    let mut index = start / 64;
    let mut bits = (word(bitmap, index as usize) ^ invert) & (!0 << (start % 64));
    while bits == 0 {
        index += 1;
        if index >= end.div_ceil(64) {
            return None;
        }
        bits = word(bitmap, index as usize) ^ invert;
    }
    let bit = index * 64 + bits.trailing_zeros();
    (bit < end).then_some(bit)
}

/// First clear bit from `start` on, below `end`.
pub fn find_next_zero(bitmap: &[u8], start: u32, end: u32) -> Option<u32> {
    find(bitmap, start, end, !0)
}

/// First set bit from `start` on, below `end`.
pub fn find_next_set(bitmap: &[u8], start: u32, end: u32) -> Option<u32> {
    find(bitmap, start, end, 0)
}

/// Number of set bits from `start` on, below `end`.
pub fn count_set(bitmap: &[u8], start: u32, end: u32) -> u32 {
    let end = u64::from(end).min(bitmap.len() as u64 * 8) as u32;
    let mut count = 0;
    let mut at = start;
    while at < end {
        let next = (at / 64 + 1).saturating_mul(64).min(end);
        let mut bits = word(bitmap, (at / 64) as usize) & (!0 << (at % 64));
        if !next.is_multiple_of(64) {
            bits &= (1 << (next % 64)) - 1;
        }
        count += bits.count_ones();
        at = next;
    }
    count
}

/// Number of clear bits from `start` on, below `end`.
pub fn count_zero(bitmap: &[u8], start: u32, end: u32) -> u32 {
    let end = u64::from(end).min(bitmap.len() as u64 * 8) as u32;
    end.saturating_sub(start) - count_set(bitmap, start, end)
}

/// Sets or clears all bits from `start` on, below `end`.
fn fill(bitmap: &mut [u8], start: u32, end: u32, ones: bool) {
    let end = u64::from(end).min(bitmap.len() as u64 * 8) as u32;
    let mut at = start;
    while at < end {
        let byte = (at / 8) as usize;
        let next = (at / 8 + 1).saturating_mul(8).min(end);
        if next - at == 8 {
            let last = (end / 8) as usize;
            bitmap[byte..last].fill(if ones { 0xff } else { 0 });
            at = end / 8 * 8;
            continue;
        }
        let mask = (((1u16 << (next - at)) - 1) << (at % 8)) as u8;
        if ones {
            bitmap[byte] |= mask;
        } else {
            bitmap[byte] &= !mask;
        }
        at = next;
    }
}

/// Sets all bits from `start` on, below `end`. Bits outside the bitmap are ignored.
pub fn set_range(bitmap: &mut [u8], start: u32, end: u32) {
    fill(bitmap, start, end, true);
}

/// Clears all bits from `start` on, below `end`. Bits outside the bitmap are ignored.
pub fn clear_range(bitmap: &mut [u8], start: u32, end: u32) {
    fill(bitmap, start, end, false);
}

/// Bytes of the bitmap block that its checksum covers.
pub const fn bitmap_bytes(kind: BitmapKind, geometry: &Geometry) -> u32 {
    match kind {
        BitmapKind::Block => geometry.clusters_per_group() / 8,
        BitmapKind::Inode => geometry.inodes_per_group() / 8,
    }
}

/// Checksum of a bitmap block, of 32 bits.
///
/// # Errors
/// `Short` if it has fewer bytes than the group has bits.
pub(crate) fn bitmap_checksum(
    kind: BitmapKind,
    bitmap: &[u8],
    geometry: &Geometry,
) -> Result<u32, FormatError> {
    let need = bitmap_bytes(kind, geometry) as usize;
    let bytes = bitmap.get(..need).ok_or(FormatError::Short {
        what: "bitmap",
        need,
        found: bitmap.len(),
    })?;
    Ok(crc32c(geometry.csum_seed(), bytes))
}

/// Compares a bitmap block with the checksum in its descriptor, if the image has metadata_csum. A
/// bitmap that was never written, by its descriptor, has none.
pub fn verify_bitmap(
    kind: BitmapKind,
    bitmap: &[u8],
    group: u32,
    desc: &GroupDesc,
    geometry: &Geometry,
) -> Result<(), FormatError> {
    if !geometry.metadata_csum() {
        return Ok(());
    }
    let stored = match kind {
        BitmapKind::Block => desc.block_bitmap_csum(),
        BitmapKind::Inode => desc.inode_bitmap_csum(),
    };
    let mut computed = bitmap_checksum(kind, bitmap, geometry)?;
    if !desc.wide_bitmap_csum() {
        computed &= 0xffff;
    }
    if stored != computed {
        return Err(FormatError::BitmapChecksum {
            group,
            kind,
            stored,
            computed,
        });
    }
    Ok(())
}

/// Stores a bitmap's checksum in its descriptor, if the image has metadata_csum. The descriptor's
/// own checksum must be updated afterwards.
///
/// # Errors
/// `Short`.
pub fn set_bitmap_checksum(
    kind: BitmapKind,
    bitmap: &[u8],
    desc: &mut GroupDesc,
    geometry: &Geometry,
) -> Result<(), FormatError> {
    if !geometry.metadata_csum() {
        return Ok(());
    }
    let sum = bitmap_checksum(kind, bitmap, geometry)?;
    match kind {
        BitmapKind::Block => desc.set_block_bitmap_csum(sum),
        BitmapKind::Inode => desc.set_inode_bitmap_csum(sum),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(bytes: &[u8]) -> Vec<bool> {
        let bits = bytes
            .iter()
            .flat_map(|b| (0..8).map(move |i| b >> i & 1 == 1));
        bits.collect()
    }

    /// Bytes with long runs of ones and zeros, whose lengths are not whole words.
    fn runs() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![4 => Just(0u8), 4 => Just(0xff), 1 => any::<u8>()];
        prop::collection::vec(byte, 0..40)
    }

    proptest! {
        #[test]
        fn searches_and_counts_are_those_of_single_bits(
            bytes in runs(), start in 0u32..340, end in 0u32..340,
        ) {
            let all = bits(&bytes);
            let range = start as usize..(end as usize).min(all.len());
            let slice = all.get(range).unwrap_or(&[]);
            let at = |want| slice.iter().position(|b| *b == want).map(|i| start + i as u32);
            prop_assert_eq!(find_next_set(&bytes, start, end), at(true));
            prop_assert_eq!(find_next_zero(&bytes, start, end), at(false));
            let set = slice.iter().filter(|b| **b).count() as u32;
            prop_assert_eq!(count_set(&bytes, start, end), set);
            prop_assert_eq!(count_zero(&bytes, start, end), slice.len() as u32 - set);
        }

        #[test]
        fn ranges_change_what_they_name_and_no_more(
            mut bytes in runs(), start in 0u32..340, end in 0u32..340, ones: bool,
        ) {
            let mut expected = bits(&bytes);
            let range = start as usize..(end as usize).min(expected.len());
            if let Some(slice) = expected.get_mut(range) {
                slice.fill(ones);
            }
            if ones {
                set_range(&mut bytes, start, end);
            } else {
                clear_range(&mut bytes, start, end);
            }
            prop_assert_eq!(bits(&bytes), expected);
        }

        #[test]
        fn single_bits(mut bytes in runs(), bit in 0u32..340) {
            let inside = (bit as usize) < bytes.len() * 8;
            let was = test_bit(&bytes, bit);
            prop_assert_eq!(set_bit(&mut bytes, bit), was);
            prop_assert!(test_bit(&bytes, bit));
            prop_assert_eq!(clear_bit(&mut bytes, bit), inside);
            prop_assert_eq!(test_bit(&bytes, bit), !inside);
        }
    }

    #[test]
    fn the_largest_numbers_are_outside() {
        let bytes = [0; 4];
        assert_eq!(find_next_zero(&bytes, u32::MAX, u32::MAX), None);
        assert_eq!(find_next_zero(&bytes, 31, u32::MAX), Some(31));
        assert_eq!(find_next_set(&bytes, 0, u32::MAX), None);
        assert_eq!(count_zero(&bytes, u32::MAX, u32::MAX), 0);
        assert_eq!(count_zero(&bytes, 1, u32::MAX), 31);
    }
}
