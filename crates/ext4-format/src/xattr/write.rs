//! Writes xattr lists: entries from the start, values from the end, without gaps.

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::{
    END_MARK, XATTR_ENTRY_SIZE, XATTR_IBODY_HEAD, XATTR_MAGIC, Xattr, XattrEntry, XattrError,
    XattrHeader, XattrSet, XattrSigns, XattrValue, xattr_block_hash, xattr_entry_hash, xattr_index,
};

/// Differences between the two places.
#[derive(Clone, Copy)]
struct XattrArea {
    /// Offset of the first entry.
    first: usize,
    /// Start of value offsets.
    base: usize,
    /// Entries carry the hash of values that are with them.
    hashed: bool,
}

impl XattrSet {
    /// Writes a whole block that `refcount` inodes share: sorted, with hashes.
    /// [`xattr_block_seal`](super::xattr_block_seal) writes the checksum.
    pub fn write_block(&self, block: &mut [u8], refcount: u32) -> Result<(), XattrError> {
        let mut sorted: Vec<&Xattr> = self.entries.iter().collect();
        sorted.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        let (need, room) = (self.block_size_needed(), block.len());
        if need > room {
            return Err(XattrError::Full { need, room });
        }
        block.fill(0);
        let hashes = write(
            block,
            &sorted,
            XattrArea {
                first: size_of::<XattrHeader>(),
                base: 0,
                hashed: true,
            },
        )?;
        let header = XattrHeader {
            magic: XATTR_MAGIC.into(),
            refcount: refcount.into(),
            blocks: U32::new(1),
            hash: xattr_block_hash(hashes).into(),
            checksum: U32::ZERO,
            reserved: [U32::ZERO; 3],
        };
        header
            .write_to_prefix(block)
            .map_err(|_| XattrError::Short { found: room })
    }

    /// Writes the list of an inode: `region` is the inode from the end of its extra fields to its
    /// end. An empty set leaves zeros.
    pub fn write_ibody(&self, region: &mut [u8]) -> Result<(), XattrError> {
        let (need, room) = (self.ibody_size_needed(), region.len());
        if need > room {
            return Err(XattrError::Full { need, room });
        }
        region.fill(0);
        if self.entries.is_empty() {
            return Ok(());
        }
        let entries: Vec<&Xattr> = self.entries.iter().collect();
        write(
            region,
            &entries,
            XattrArea {
                first: XATTR_IBODY_HEAD,
                base: XATTR_IBODY_HEAD,
                hashed: false,
            },
        )?;
        region[..XATTR_IBODY_HEAD].copy_from_slice(&XATTR_MAGIC.to_le_bytes());
        Ok(())
    }
}

/// Writes entries and values into zeroed bytes. Returns the hashes of the entries.
fn write(bytes: &mut [u8], entries: &[&Xattr], place: XattrArea) -> Result<Vec<u32>, XattrError> {
    let (mut at, mut values) = (place.first, bytes.len() & !3);
    let mut hashes = Vec::with_capacity(entries.len());
    for xattr in entries {
        let full = XattrError::Full {
            need: bytes.len() + 1,
            room: bytes.len(),
        };
        values = values.checked_sub(xattr.value_size()).ok_or(full)?;
        if at + xattr.entry_size() + END_MARK > values {
            return Err(full);
        }
        if xattr.index == xattr_index::NONE && xattr.name.is_empty() {
            return Err(XattrError::Name {
                offset: at,
                index: xattr.index,
            });
        }
        let entry = entry(xattr, values, place)?;
        bytes[at..at + XATTR_ENTRY_SIZE].copy_from_slice(entry.as_bytes());
        let name = at + XATTR_ENTRY_SIZE;
        bytes[name..name + xattr.name.len()].copy_from_slice(&xattr.name);
        if let XattrValue::Bytes(value) = &xattr.value {
            bytes[values..values + value.len()].copy_from_slice(value);
        }
        hashes.push(entry.hash.get());
        at += xattr.entry_size();
    }
    Ok(hashes)
}

fn entry(xattr: &Xattr, at: usize, place: XattrArea) -> Result<XattrEntry, XattrError> {
    let value_len = match &xattr.value {
        XattrValue::Bytes(value) => value.len(),
        XattrValue::Inode { size, .. } => usize::try_from(*size).unwrap_or(usize::MAX),
    };
    let large = XattrError::TooLarge {
        name: xattr.name.len(),
        value: value_len,
    };
    let (value_offs, value_inum, hash) = match &xattr.value {
        XattrValue::Bytes(value) => {
            let hash = if place.hashed {
                xattr_entry_hash(&xattr.name, value, XattrSigns::Unsigned)
            } else {
                0
            };
            let offset = if value.is_empty() { 0 } else { at - place.base };
            (u16::try_from(offset).map_err(|_| large)?, 0, hash)
        }
        XattrValue::Inode { inode, hash, .. } => (0, *inode, *hash),
    };
    Ok(XattrEntry {
        name_len: u8::try_from(xattr.name.len()).map_err(|_| large)?,
        name_index: xattr.index,
        value_offs: value_offs.into(),
        value_inum: value_inum.into(),
        value_size: u32::try_from(value_len).map_err(|_| large)?.into(),
        hash: hash.into(),
    })
}
