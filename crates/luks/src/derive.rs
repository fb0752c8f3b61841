//! Keys that are derived from a passphrase. A header may ask for any amount of time and memory, so
//! both have a limit.

use std::fmt;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use hmac::Hmac;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use zeroize::Zeroize;

use crate::error::field;
use crate::key::{Secret, zeros};
use crate::{Error, Result};

/// Most iterations of PBKDF2: a few minutes.
const ITERATIONS: u64 = 1 << 28;
/// Most memory of Argon2, in KiB. It is the limit of cryptsetup.
const KIB: u64 = 4 << 20;
/// Most work of Argon2: passes times KiB. A few minutes.
const WORK: u64 = 1 << 28;
/// Most lanes of Argon2.
const LANES: u64 = 4;

/// A digest that headers name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hash {
    /// SHA-1, in old headers.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// The digest of this name.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub(crate) fn named(name: &str) -> Result<Self> {
        match name {
            "sha1" => Ok(Self::Sha1),
            "sha256" => Ok(Self::Sha256),
            "sha512" => Ok(Self::Sha512),
            name => Err(Error::Unsupported(format!("hash {name}"))),
        }
    }

    /// Digest of two pieces of data, one after the other.
    pub(crate) fn of(self, first: &[u8], second: &[u8]) -> Secret {
        fn digest<D: Digest>(first: &[u8], second: &[u8]) -> Secret {
            let digest = D::new().chain_update(first).chain_update(second);
            Secret::new(digest.finalize().to_vec())
        }
        match self {
            Self::Sha1 => digest::<Sha1>(first, second),
            Self::Sha256 => digest::<Sha256>(first, second),
            Self::Sha512 => digest::<Sha512>(first, second),
        }
    }

    /// Bytes of a digest.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// `len` bytes of PBKDF2.
    ///
    /// # Errors
    /// [`Error::Cost`]; no iterations.
    pub(crate) fn pbkdf2(
        self,
        key: &[u8],
        salt: &[u8],
        iterations: u64,
        len: usize,
    ) -> Result<Secret> {
        let limit = limited("iterations", iterations, ITERATIONS)?;
        let mut out = zeros(len);
        match self {
            Self::Sha1 => pbkdf2::pbkdf2::<Hmac<Sha1>>(key, salt, limit, &mut out),
            Self::Sha256 => pbkdf2::pbkdf2::<Hmac<Sha256>>(key, salt, limit, &mut out),
            Self::Sha512 => pbkdf2::pbkdf2::<Hmac<Sha512>>(key, salt, limit, &mut out),
        }
        .map_err(|_| field("length of a derived key", len))?;
        Ok(out)
    }
}

/// A value of a header from 1 to `limit`.
fn limited(what: &'static str, value: u64, limit: u64) -> Result<u32> {
    if value == 0 {
        return Err(field(what, value));
    }
    let fits = u32::try_from(value).ok().filter(|_| value <= limit);
    fits.ok_or(Error::Cost { what, value, limit })
}

/// How a key slot derives a key from a passphrase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Derivation {
    /// Argon2i, in older volumes.
    Argon2i {
        /// Passes over the memory.
        passes: u64,
        /// Memory in KiB.
        kib: u64,
        /// Lanes.
        lanes: u64,
    },
    /// Argon2id.
    Argon2id {
        /// Passes over the memory.
        passes: u64,
        /// Memory in KiB.
        kib: u64,
        /// Lanes.
        lanes: u64,
    },
    /// PBKDF2; of a new volume with SHA-256.
    Pbkdf2 {
        /// Iterations.
        iterations: u64,
    },
}

impl fmt::Display for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argon2i { passes, kib, lanes } => {
                write!(f, "argon2i, {passes} passes, {kib} KiB, {lanes} lanes")
            }
            Self::Argon2id { passes, kib, lanes } => {
                write!(f, "argon2id, {passes} passes, {kib} KiB, {lanes} lanes")
            }
            Self::Pbkdf2 { iterations } => write!(f, "pbkdf2, {iterations} iterations"),
        }
    }
}

impl Default for Derivation {
    /// The second recommendation of RFC 9106: it opens on small machines, too.
    fn default() -> Self {
        Self::Argon2id {
            passes: 3,
            kib: 64 << 10,
            lanes: 4,
        }
    }
}

impl Derivation {
    /// `len` bytes that are derived from `key`; `hash` is for PBKDF2.
    ///
    /// # Errors
    /// [`Error::Cost`], [`Error::NoMemory`]; parameters that make no sense.
    pub(crate) fn run(self, hash: Hash, key: &[u8], salt: &[u8], len: usize) -> Result<Secret> {
        match self {
            Self::Pbkdf2 { iterations } => hash.pbkdf2(key, salt, iterations, len),
            Self::Argon2i { passes, kib, lanes } => {
                argon2(Algorithm::Argon2i, (passes, kib, lanes), key, salt, len)
            }
            Self::Argon2id { passes, kib, lanes } => {
                argon2(Algorithm::Argon2id, (passes, kib, lanes), key, salt, len)
            }
        }
    }
}

fn argon2(
    algorithm: Algorithm,
    (passes, kib, lanes): (u64, u64, u64),
    key: &[u8],
    salt: &[u8],
    len: usize,
) -> Result<Secret> {
    let memory = limited("KiB of Argon2", kib, KIB)?;
    let lanes = limited("lanes of Argon2", lanes, LANES)?;
    let passes = limited("passes of Argon2", passes, WORK / kib)?;
    let params = Params::new(memory, passes, lanes, Some(len))
        .map_err(|error| field("derivation with Argon2", error))?;
    let mut blocks: Vec<Block> = Vec::new();
    let count = params.block_count();
    blocks
        .try_reserve_exact(count)
        .map_err(|_| Error::NoMemory(kib))?;
    blocks.resize(count, Block::default());
    let mut out = zeros(len);
    let derived = Argon2::new(algorithm, Version::V0x13, params).hash_password_into_with_memory(
        key,
        salt,
        &mut out,
        &mut blocks,
    );
    blocks.iter_mut().for_each(Zeroize::zeroize);
    derived.map_err(|error| field("derivation with Argon2", error))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6070, test 2, and RFC 7914, section 11.
    #[test]
    fn vectors_of_pbkdf2() {
        let sha1 = Hash::Sha1.pbkdf2(b"password", b"salt", 2, 20).unwrap();
        assert_eq!(sha1[..4], [0xea, 0x6c, 0x01, 0x4d]);
        let sha256 = Hash::Sha256.pbkdf2(b"passwd", b"salt", 1, 64).unwrap();
        assert_eq!(sha256[..4], [0x55, 0xac, 0x04, 0x6e]);
    }

    #[test]
    fn costs_of_hours_are_refused() {
        let argon2 = |passes, kib, lanes| Derivation::Argon2id { passes, kib, lanes };
        for costly in [
            Derivation::Pbkdf2 {
                iterations: u64::MAX,
            },
            Derivation::Pbkdf2 { iterations: 0 },
            argon2(1 << 20, 1 << 20, 1),
            argon2(1, 1 << 40, 1),
            argon2(1, 1024, 1 << 30),
            argon2(1, 0, 1),
        ] {
            assert!(costly.run(Hash::Sha256, b"key", &[0; 32], 32).is_err());
        }
    }
}
