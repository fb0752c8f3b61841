//! The four checksum algorithms, sealing of blocks, and the hashes in keys.

use std::fmt;

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use sha2::Sha256;

/// Bytes that every block reserves for its checksum.
pub(crate) const CSUM_SIZE: usize = 32;

/// Algorithm of a file system, chosen by mkfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    /// CRC-32C, 4 bytes.
    Crc32c,
    /// xxHash64 with seed 0, 8 bytes.
    XxHash64,
    /// SHA-256, 32 bytes.
    Sha256,
    /// BLAKE2b with 256 bits, 32 bytes.
    Blake2b,
}

impl ChecksumKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::XxHash64, Self::Sha256, Self::Blake2b];

    /// The kind with that number in the superblock.
    pub(crate) const fn from_u16(raw: u16) -> Option<Self> {
        match raw {
            0 => Some(Self::Crc32c),
            1 => Some(Self::XxHash64),
            2 => Some(Self::Sha256),
            3 => Some(Self::Blake2b),
            _ => None,
        }
    }

    /// Number in the superblock.
    pub const fn to_u16(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::XxHash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// Bytes of one checksum.
    pub const fn size(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::XxHash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// Name as `mkfs.btrfs --csum` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::XxHash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2b",
        }
    }

    /// The kind of that name (also the short forms `xxhash` and `blake2`).
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "crc32c" | "crc32" => Some(Self::Crc32c),
            "xxhash64" | "xxhash" => Some(Self::XxHash64),
            "sha256" => Some(Self::Sha256),
            "blake2b" | "blake2" => Some(Self::Blake2b),
            _ => None,
        }
    }

    /// Checksum of `data`.
    pub fn compute(self, data: &[u8]) -> Checksum {
        let mut bytes = [0; CSUM_SIZE];
        match self {
            Self::Crc32c => bytes[..4].copy_from_slice(&crc32c::crc32c(data).to_le_bytes()),
            Self::XxHash64 => {
                bytes[..8].copy_from_slice(&xxhash_rust::xxh64::xxh64(data, 0).to_le_bytes());
            }
            Self::Sha256 => bytes.copy_from_slice(&Sha256::digest(data)),
            Self::Blake2b => bytes.copy_from_slice(&Blake2b::<U32>::digest(data)),
        }
        Checksum {
            bytes,
            len: self.size() as u8,
        }
    }

    /// A checksum as found on disk: the first [`size`](Self::size) bytes, or `None` if too few.
    pub fn read(self, bytes: &[u8]) -> Option<Checksum> {
        let found = bytes.get(..self.size())?;
        let mut bytes = [0; CSUM_SIZE];
        bytes[..found.len()].copy_from_slice(found);
        Some(Checksum {
            bytes,
            len: self.size() as u8,
        })
    }

    /// Compares the checksum in bytes 0..32 of a tree block or superblock with the checksum of the
    /// rest.
    ///
    /// # Errors
    /// Both checksums if they differ; a block of fewer than 32 bytes differs.
    pub(crate) fn verify_block(self, block: &[u8]) -> Result<(), Mismatch> {
        let expected = self.compute(block.get(CSUM_SIZE..).unwrap_or_default());
        let head = block.get(..CSUM_SIZE).and_then(|head| self.read(head));
        let found = head.unwrap_or(Checksum {
            bytes: [0; CSUM_SIZE],
            len: 0,
        });
        if found == expected {
            Ok(())
        } else {
            Err(Mismatch { expected, found })
        }
    }

    /// Writes the checksum of bytes 32.. into bytes 0..32, and zeroes the unused rest of them. Does
    /// nothing to a block of fewer than 32 bytes.
    pub fn seal_block(self, block: &mut [u8]) {
        if let Some((head, body)) = block.split_at_mut_checked(CSUM_SIZE) {
            head.copy_from_slice(&self.compute(body).bytes);
        }
    }
}

impl fmt::Display for ChecksumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One checksum, up to 32 bytes; the bytes past its length are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum {
    bytes: [u8; CSUM_SIZE],
    len: u8,
}

impl Checksum {
    /// The bytes as on disk.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Display for Checksum {
    /// Hexadecimal, in the order of the bytes on disk.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x")?;
        self.as_bytes()
            .iter()
            .try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Two checksums that should be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checksum {found}, expected {expected}")]
pub struct Mismatch {
    /// Computed from the data.
    pub expected: Checksum,
    /// Stored.
    pub found: Checksum,
}

/// CRC-32C continued from a raw state, without the usual inversions.
fn crc32c_raw(state: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!state, data)
}

/// Hash of a name in keys of dir items and xattr items.
pub fn name_hash(name: &[u8]) -> u32 {
    crc32c_raw(!1, name)
}

/// Hash of a parent inode and a name in keys of extended inode refs.
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    // Only the low half of the parent's number is used, as the CRC's start state.
    u64::from(crc32c_raw(parent as u32, name))
}

/// Hash in keys of keyed data refs, and the order of inline ones.
pub fn extent_data_ref_hash(root: u64, objectid: u64, offset: u64) -> u64 {
    let high = crc32c_raw(!0, &root.to_le_bytes());
    let low = crc32c_raw(
        crc32c_raw(!0, &objectid.to_le_bytes()),
        &offset.to_le_bytes(),
    );
    (u64::from(high) << 31) ^ u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_hash_of_default_has_its_known_value() {
        // The root tree of every image has this key: (ROOT_TREE_DIR DIR_ITEM 2378154706).
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }

    #[test]
    fn seal_then_verify_then_flip() {
        for kind in ChecksumKind::ALL {
            let mut block = vec![7u8; 4096];
            kind.seal_block(&mut block);
            assert_eq!(kind.verify_block(&block), Ok(()));
            assert!(block[kind.size()..32].iter().all(|b| *b == 0));
            block[4095] ^= 1;
            let err = kind.verify_block(&block).unwrap_err();
            assert_ne!(err.expected, err.found);
            assert!(kind.verify_block(&[0; 5]).is_err());
        }
    }

    #[test]
    fn known_digests() {
        let hex = |k: ChecksumKind| k.compute(b"123456789").to_string();
        assert_eq!(hex(ChecksumKind::Crc32c), "0x839206e3");
        assert_eq!(hex(ChecksumKind::XxHash64), "0x83aee640db41b88c");
        assert_eq!(&hex(ChecksumKind::Sha256)[..18], "0x15e2b0d3c33891eb");
    }
}
