//! Parses xattr lists.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{
    ALIGN, END_MARK, XATTR_ENTRY_SIZE, XATTR_IBODY_HEAD, XATTR_MAGIC, XATTR_REFCOUNT_MAX,
    XATTR_VALUE_MAX, Xattr, XattrEntry, XattrError, XattrHeader, XattrPart, XattrSet, XattrSigns,
    XattrValue, xattr_entry_hash, xattr_index,
};

/// An entry in place.
struct Slot<'a> {
    offset: usize,
    entry: &'a XattrEntry,
    name: &'a [u8],
}

impl XattrSet {
    /// Parses head and attributes of a block. `inodes` is the file system's inode count.
    /// [`xattr_block_verify`](super::xattr_block_verify) checks the checksum.
    pub fn parse_block(block: &[u8], inodes: u32) -> Result<(XattrHeader, Self), XattrError> {
        let short = XattrError::Short { found: block.len() };
        let (header, _) = XattrHeader::read_from_prefix(block).map_err(|_| short)?;
        if header.magic.get() != XATTR_MAGIC {
            return Err(XattrError::Magic {
                found: header.magic.get(),
            });
        }
        let (blocks, refcount) = (header.blocks.get(), header.refcount.get());
        if blocks != 1 || refcount == 0 || refcount > XATTR_REFCOUNT_MAX {
            return Err(XattrError::Header { blocks, refcount });
        }
        Ok((header, parse(block, size_of::<XattrHeader>(), 0, inodes)?))
    }

    /// Parses the attributes in an inode. `region` is the inode from the end of its extra fields to
    /// its end. Without the magic there are none.
    pub fn parse_ibody(region: &[u8], inodes: u32) -> Result<Self, XattrError> {
        if has_ibody(region) {
            parse(region, XATTR_IBODY_HEAD, XATTR_IBODY_HEAD, inodes)
        } else {
            Ok(XattrSet::default())
        }
    }
}

/// References of a block's entries to inodes of values: the offset of each number in the block, and
/// the number. Names and values are not validated.
pub fn xattr_block_inodes(block: &[u8]) -> Result<Vec<(usize, u32)>, XattrError> {
    inodes(block, size_of::<XattrHeader>())
}

/// [`xattr_block_inodes`] of the attributes in an inode. `region` is as for
/// [`XattrSet::parse_ibody`].
pub fn xattr_ibody_inodes(region: &[u8]) -> Result<Vec<(usize, u32)>, XattrError> {
    if has_ibody(region) {
        inodes(region, XATTR_IBODY_HEAD)
    } else {
        Ok(Vec::new())
    }
}

/// Range of the value of an attribute in such a region; `None` if the region lacks it.
pub fn xattr_ibody_value(
    region: &[u8],
    index: u8,
    name: &[u8],
) -> Result<Option<std::ops::Range<usize>>, XattrError> {
    if !has_ibody(region) {
        return Ok(None);
    }
    let (slots, end) = slots(region, XATTR_IBODY_HEAD)?;
    let mut slots = slots.iter();
    let slot = slots.find(|slot| slot.entry.name_index == index && slot.name == name);
    let Some(slot) = slot.filter(|slot| slot.entry.value_inum.get() == 0) else {
        return Ok(None);
    };
    let (at, value) = value(region, XATTR_IBODY_HEAD, end, slot)?;
    Ok(Some(at..at + value.len()))
}

fn has_ibody(region: &[u8]) -> bool {
    U32::read_from_prefix(region).is_ok_and(|(magic, _)| magic.get() == XATTR_MAGIC)
}

fn inodes(bytes: &[u8], first: usize) -> Result<Vec<(usize, u32)>, XattrError> {
    let (slots, _) = slots(bytes, first)?;
    let numbers = slots.iter().filter_map(|slot| {
        let number = slot.entry.value_inum.get();
        let at = slot.offset + std::mem::offset_of!(XattrEntry, value_inum);
        (number != 0).then_some((at, number))
    });
    Ok(numbers.collect())
}

/// `first`: offset of the first entry; `base`: start of value offsets.
fn parse(bytes: &[u8], first: usize, base: usize, inodes: u32) -> Result<XattrSet, XattrError> {
    let (slots, end) = slots(bytes, first)?;
    let mut set = XattrSet::default();
    let mut taken = Vec::new();
    for slot in slots {
        check_name(&slot)?;
        if set.get(slot.entry.name_index, slot.name).is_some() {
            return Err(XattrError::Duplicate {
                offset: slot.offset,
            });
        }
        let (inode, size) = (slot.entry.value_inum.get(), slot.entry.value_size.get());
        let value = if inode == 0 {
            let (at, value) = value(bytes, base, end, &slot)?;
            if !value.is_empty() {
                taken.push((at, at + value.len().next_multiple_of(ALIGN), slot.offset));
            }
            check_hash(&slot, value)?;
            XattrValue::Bytes(value.to_vec())
        } else {
            if inode > inodes {
                return Err(XattrError::Inode {
                    offset: slot.offset,
                    inode,
                    inodes,
                });
            }
            if size > XATTR_VALUE_MAX {
                return Err(XattrError::Bounds {
                    offset: slot.offset,
                    part: XattrPart::Value,
                });
            }
            XattrValue::Inode {
                inode,
                size,
                hash: slot.entry.hash.get(),
            }
        };
        set.entries.push(Xattr {
            index: slot.entry.name_index,
            name: slot.name.to_vec(),
            value,
        });
    }
    taken.sort_unstable();
    for pair in taken.windows(2) {
        if pair[1].0 < pair[0].1 {
            return Err(XattrError::Overlap {
                offset: pair[1].2,
                with: XattrPart::Value,
            });
        }
    }
    Ok(set)
}

/// All entries, and the end of the end mark after them.
fn slots(bytes: &[u8], first: usize) -> Result<(Vec<Slot<'_>>, usize), XattrError> {
    let (mut slots, mut offset) = (Vec::new(), first);
    loop {
        let bounds = XattrError::Bounds {
            offset,
            part: XattrPart::Entry,
        };
        let rest = bytes.get(offset..).ok_or(bounds)?;
        let mark = rest.first_chunk::<END_MARK>().ok_or(bounds)?;
        if *mark == [0; END_MARK] {
            return Ok((slots, offset + END_MARK));
        }
        let (entry, body) = XattrEntry::ref_from_prefix(rest).map_err(|_| bounds)?;
        let name = body.get(..usize::from(entry.name_len)).ok_or(bounds)?;
        slots.push(Slot {
            offset,
            entry,
            name,
        });
        offset += (XATTR_ENTRY_SIZE + name.len()).next_multiple_of(ALIGN);
    }
}

/// A value in the list, and its offset.
fn value<'a>(
    bytes: &'a [u8],
    base: usize,
    end: usize,
    slot: &Slot<'_>,
) -> Result<(usize, &'a [u8]), XattrError> {
    let bounds = XattrError::Bounds {
        offset: slot.offset,
        part: XattrPart::Value,
    };
    let size = usize::try_from(slot.entry.value_size.get()).map_err(|_| bounds)?;
    let at = base + usize::from(slot.entry.value_offs.get());
    if size == 0 {
        return Ok((at, &[]));
    }
    let behind = at
        .checked_add(size)
        .and_then(|end| end.checked_next_multiple_of(ALIGN))
        .ok_or(bounds)?;
    if behind > bytes.len() || !at.is_multiple_of(ALIGN) {
        return Err(bounds);
    }
    if at < end {
        return Err(XattrError::Overlap {
            offset: slot.offset,
            with: XattrPart::Entry,
        });
    }
    Ok((at, bytes.get(at..at + size).ok_or(bounds)?))
}

fn check_name(slot: &Slot<'_>) -> Result<(), XattrError> {
    let bad = XattrError::Name {
        offset: slot.offset,
        index: slot.entry.name_index,
    };
    // Without index and name an entry could look like the end mark.
    let nameless = slot.entry.name_index == xattr_index::NONE && slot.name.is_empty();
    if nameless || slot.name.contains(&0) {
        Err(bad)
    } else {
        Ok(())
    }
}

/// The hash of an entry, where there is one.
fn check_hash(slot: &Slot<'_>, value: &[u8]) -> Result<(), XattrError> {
    let found = slot.entry.hash.get();
    let expected = xattr_entry_hash(slot.name, value, XattrSigns::Unsigned);
    if found == 0
        || found == expected
        || found == xattr_entry_hash(slot.name, value, XattrSigns::Signed)
    {
        return Ok(());
    }
    Err(XattrError::EntryHash {
        offset: slot.offset,
        found,
        expected,
    })
}
