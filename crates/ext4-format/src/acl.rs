//! POSIX ACLs: ext4's form on disk (version 1, without ids where the tag needs none), and the form
//! of `getxattr` and `setxattr` (version 2).

use thiserror::Error;

const DISK_VERSION: u32 = 1;
const WIRE_VERSION: u32 = 2;
/// Entries of the file's user and group, the mask, and others: no id.
const SHORT_TAGS: [u16; 4] = [0x01, 0x04, 0x10, 0x20];
/// Entries of named users and groups.
const LONG_TAGS: [u16; 2] = [0x02, 0x08];
/// The id of entries without one, in the wire form.
const NO_ID: u32 = u32::MAX;

/// An ACL that cannot be converted to the other form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AclFormatError {
    /// Unknown version.
    #[error("ACL of version {found}, expected {expected}")]
    Version {
        /// Found value.
        found: u32,
        /// The version of the form.
        expected: u32,
    },
    /// The bytes end within the head or an entry.
    #[error("ACL of {len} bytes is cut off at {offset}")]
    Cut {
        /// All bytes.
        len: usize,
        /// Offset of the incomplete part.
        offset: usize,
    },
    /// Unknown tag.
    #[error("ACL entry at {offset} with tag {tag:#x}")]
    Tag {
        /// Offset of the entry.
        offset: usize,
        /// Tag of the entry.
        tag: u16,
    },
}

/// Converts from the form on disk to the wire form.
pub fn acl_from_disk(disk: &[u8]) -> Result<Vec<u8>, AclFormatError> {
    check_version(disk, DISK_VERSION)?;
    let mut wire = WIRE_VERSION.to_le_bytes().to_vec();
    let mut offset = 4;
    while offset < disk.len() {
        let cut = AclFormatError::Cut {
            len: disk.len(),
            offset,
        };
        let rest = disk.get(offset..).ok_or(cut)?;
        let head = rest.first_chunk::<4>().ok_or(cut)?;
        let tag = u16::from_le_bytes([head[0], head[1]]);
        wire.extend_from_slice(head);
        if SHORT_TAGS.contains(&tag) {
            wire.extend_from_slice(&NO_ID.to_le_bytes());
            offset += 4;
        } else if LONG_TAGS.contains(&tag) {
            wire.extend_from_slice(rest.get(4..8).ok_or(cut)?);
            offset += 8;
        } else {
            return Err(AclFormatError::Tag { offset, tag });
        }
    }
    Ok(wire)
}

/// Converts from the wire form to the form on disk. Does not check that the entries make a valid
/// ACL.
pub fn acl_to_disk(wire: &[u8]) -> Result<Vec<u8>, AclFormatError> {
    check_version(wire, WIRE_VERSION)?;
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    let (entries, rest) = wire.get(4..).unwrap_or_default().as_chunks::<8>();
    if !rest.is_empty() {
        return Err(AclFormatError::Cut {
            len: wire.len(),
            offset: wire.len() - rest.len(),
        });
    }
    for (index, entry) in entries.iter().enumerate() {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if SHORT_TAGS.contains(&tag) {
            disk.extend_from_slice(&entry[..4]);
        } else if LONG_TAGS.contains(&tag) {
            disk.extend_from_slice(entry);
        } else {
            return Err(AclFormatError::Tag {
                offset: 4 + index * 8,
                tag,
            });
        }
    }
    Ok(disk)
}

fn check_version(bytes: &[u8], expected: u32) -> Result<(), AclFormatError> {
    let head = bytes.first_chunk::<4>().ok_or(AclFormatError::Cut {
        len: bytes.len(),
        offset: 0,
    })?;
    let found = u32::from_le_bytes(*head);
    if found == expected {
        Ok(())
    } else {
        Err(AclFormatError::Version { found, expected })
    }
}
