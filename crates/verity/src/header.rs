//! The superblock of a hash device.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `verity\0\0` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | type of the tree: 1; 0 has another order of salt and data |
//! | 16 | 16 | UUID |
//! | 32 | 32 | name of the digest, ended by a zero |
//! | 64 | 4 | bytes of a data block |
//! | 68 | 4 | bytes of a hash block |
//! | 72 | 8 | data blocks |
//! | 80 | 2 | bytes of the salt |
//! | 88 | 256 | salt |
//!
//! Numbers are little-endian.

use sapwood_block::Device;

use crate::{Algorithm, Error, Result, digest};

/// Bytes of a superblock.
pub const HEADER_SIZE: usize = 512;
const MAGIC: &[u8; 8] = b"verity\0\0";
const SALT_MAX: usize = 256;
const SALT_AT: usize = 88;

/// Parameters of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// Digest.
    pub algorithm: Algorithm,
    /// Bytes of a data block.
    pub data_block: u32,
    /// Bytes of a hash block.
    pub hash_block: u32,
    /// Salt, digested before each block; at most 256 bytes.
    pub salt: Vec<u8>,
}

impl Default for Params {
    /// SHA-256 with blocks of 4096 bytes and without a salt.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Sha256,
            data_block: 4096,
            hash_block: 4096,
            salt: Vec::new(),
        }
    }
}

impl Params {
    /// Sets the salt from hexadecimal digits; `-` is none.
    ///
    /// # Errors
    /// [`Error::Hex`], [`Error::Salt`].
    pub fn set_salt(&mut self, text: &str) -> Result<()> {
        let salt = if text == "-" {
            Vec::new()
        } else {
            digest::bytes_of(text)?
        };
        if salt.len() > SALT_MAX {
            return Err(Error::Salt(salt.len()));
        }
        self.salt = salt;
        Ok(())
    }

    /// Refuses parameters that dm-verity does not support.
    pub(crate) fn check(&self) -> Result<()> {
        for size in [self.data_block, self.hash_block] {
            if !(512..=65536).contains(&size) || !size.is_power_of_two() {
                return Err(Error::BlockSize(size));
            }
        }
        if self.salt.len() > SALT_MAX {
            return Err(Error::Salt(self.salt.len()));
        }
        Ok(())
    }
}

/// A superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The parameters of the tree.
    pub params: Params,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// UUID of the hash device.
    pub uuid: [u8; 16],
}

impl Header {
    /// Reads the superblock at the start of a hash device.
    ///
    /// # Errors
    /// [`Error::NoHeader`]; [`Error::Field`] for a malformed field; [`Error::Algorithm`],
    /// [`Error::BlockSize`]; I/O errors of the device.
    pub fn read(device: &dyn Device) -> Result<Self> {
        let no_header = || Error::NoHeader {
            device: device.name().to_owned(),
        };
        if device.size() < HEADER_SIZE as u64 {
            return Err(no_header());
        }
        let mut bytes = [0; HEADER_SIZE];
        device.read_at(0, &mut bytes)?;
        if !bytes.starts_with(MAGIC) {
            return Err(no_header());
        }
        Self::parse(&bytes)
    }

    /// Parses a superblock that has the magic number.
    ///
    /// # Errors
    /// [`Error::Field`], [`Error::Algorithm`], [`Error::BlockSize`], [`Error::Salt`].
    pub fn parse(bytes: &[u8; HEADER_SIZE]) -> Result<Self> {
        let u32_at = |at: usize| u32::from_le_bytes(array(bytes, at));
        for (field, at) in [("the version", 8), ("the type of the tree", 12)] {
            let value = u32_at(at);
            if value != 1 {
                let value = value.into();
                return Err(Error::Field { field, value });
            }
        }
        let name: [u8; 32] = array(bytes, 32);
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let algorithm = String::from_utf8_lossy(name).parse()?;
        let salt_len = usize::from(u16::from_le_bytes(array(bytes, 80)));
        let salt = bytes.get(SALT_AT..SALT_AT + salt_len.min(SALT_MAX + 1));
        let params = Params {
            algorithm,
            data_block: u32_at(64),
            hash_block: u32_at(68),
            salt: salt.unwrap_or_default().to_vec(),
        };
        params.check()?;
        let data_blocks = u64::from_le_bytes(array(bytes, 72));
        let known = data_blocks.checked_mul(params.data_block.into());
        if data_blocks == 0 || known.is_none() {
            return Err(Error::Field {
                field: "the number of data blocks",
                value: data_blocks,
            });
        }
        Ok(Self {
            params,
            data_blocks,
            uuid: array(bytes, 16),
        })
    }

    /// The bytes of the superblock.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let salt_len = u16::try_from(self.params.salt.len()).unwrap_or(u16::MAX);
        let mut put = |at: usize, field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        };
        put(0, MAGIC);
        put(8, &1_u32.to_le_bytes());
        put(12, &1_u32.to_le_bytes());
        put(16, &self.uuid);
        put(32, self.params.algorithm.name().as_bytes());
        put(64, &self.params.data_block.to_le_bytes());
        put(68, &self.params.hash_block.to_le_bytes());
        put(72, &self.data_blocks.to_le_bytes());
        put(80, &salt_len.to_le_bytes());
        put(SALT_AT, &self.params.salt);
        bytes
    }
}

fn array<const N: usize>(bytes: &[u8; HEADER_SIZE], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            params: Params {
                salt: vec![7; 32],
                ..Params::default()
            },
            data_blocks: 1000,
            uuid: [3; 16],
        }
    }

    #[test]
    fn a_superblock_survives_its_bytes() {
        assert_eq!(Header::parse(&header().bytes()).unwrap(), header());
    }

    #[test]
    fn senseless_fields_are_refused() {
        for (at, byte) in [
            (8, 2),
            (12, 0),
            (32, b'x'),
            (64, 1),
            (70, 9),
            (72, 0),
            (79, 255),
            (81, 9),
        ] {
            let mut bytes = header().bytes();
            bytes[at] = byte;
            if at == 72 {
                bytes[72..80].fill(0);
            }
            assert!(Header::parse(&bytes).is_err(), "byte {at}");
        }
        let mut params = Params::default();
        params.set_salt("00ff").unwrap();
        assert_eq!(params.salt, [0, 255]);
        params.set_salt("-").unwrap();
        assert!(params.salt.is_empty());
        for wrong in ["0", "0g", &"00".repeat(257)] {
            assert!(params.set_salt(wrong).is_err(), "{wrong}");
        }
    }
}
