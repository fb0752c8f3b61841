//! Digests of blocks.

use std::fmt;
use std::str::FromStr;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use sha2::{Digest, Sha256, Sha512};

use crate::{Error, Result};

/// The function that a tree uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// Its name, as a superblock has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Its number in fs-verity (`FS_VERITY_HASH_ALG_*` of the kernel documentation).
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }

    /// The function with this number in fs-verity.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Sha256, Self::Sha512]
            .into_iter()
            .find(|one| one.number() == number)
    }

    /// Bytes of a digest, a power of two.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// The digest of a block after a salt.
    pub(crate) fn digest(self, salt: &[u8], block: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::new()
                .chain_update(salt)
                .chain_update(block)
                .finalize()
                .to_vec(),
            Self::Sha512 => Sha512::new()
                .chain_update(salt)
                .chain_update(block)
                .finalize()
                .to_vec(),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Sha256, Self::Sha512]
            .into_iter()
            .find(|one| one.name() == text)
            .ok_or_else(|| Error::Algorithm(text.to_owned()))
    }
}

/// The digest at the top of a tree, which is trusted.
#[derive(Clone, PartialEq, Eq)]
pub struct RootHash(pub Vec<u8>);

impl fmt::Display for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootHash({self})")
    }
}

impl FromStr for RootHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        bytes_of(text).map(Self)
    }
}

/// The bytes that hexadecimal digits give.
pub(crate) fn bytes_of(text: &str) -> Result<Vec<u8>> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
    bytes.map_err(|_| Error::Hex(text.to_owned()))
}
