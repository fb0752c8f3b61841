//! Digests of blocks.

use std::fmt;
use std::str::FromStr;

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
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
    let wrong = || Error::Hex(text.to_owned());
    let digit = |byte: &u8| {
        char::from(*byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let digits: Option<Vec<u8>> = text.as_bytes().iter().map(digit).collect();
    let digits = digits
        .filter(|digits| digits.len() % 2 == 0)
        .ok_or_else(wrong)?;
    Ok(digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect())
}
