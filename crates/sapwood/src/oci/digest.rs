//! Digests of blobs.

use std::fmt;
use std::io::{self, Read};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256, Sha512};

use super::{OciError, Result};
use crate::shown;

/// A digest such as `sha256:5891b5b5...`: an algorithm and lower-case hexadecimal digits. It is
/// safe as a part of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Digest {
    algorithm: Algorithm,
    hex: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Sha256,
    Sha512,
}

impl Digest {
    /// Reads a digest, which `blob` names.
    ///
    /// # Errors
    /// [`OciError::NoDigest`].
    pub(super) fn parse(text: &str, blob: &str) -> Result<Self> {
        let parsed = || {
            let (algorithm, hex) = text.split_once(':')?;
            let (algorithm, length) = match algorithm {
                "sha256" => (Algorithm::Sha256, 64),
                "sha512" => (Algorithm::Sha512, 128),
                _ => return None,
            };
            let digits = hex
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            let hex = hex.to_owned();
            (digits && hex.len() == length).then_some(Self { algorithm, hex })
        };
        parsed().ok_or_else(|| OciError::NoDigest {
            blob: blob.to_owned(),
            text: shown::name(text.as_bytes()),
        })
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The digits.
    pub(super) fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm, self.hex)
    }
}

enum State {
    None,
    Sha256(Sha256),
    Sha512(Sha512),
}

/// A reader that computes the digest of its bytes.
pub(super) struct Hashing<R> {
    reader: R,
    state: State,
    count: u64,
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(reader: R, algorithm: Option<Algorithm>) -> Self {
        Self {
            reader,
            state: match algorithm {
                None => State::None,
                Some(Algorithm::Sha256) => State::Sha256(Sha256::new()),
                Some(Algorithm::Sha512) => State::Sha512(Sha512::new()),
            },
            count: 0,
        }
    }

    /// The digest of the read bytes; `None` without an algorithm.
    pub(super) fn digest(self) -> Option<Digest> {
        Some(match self.state {
            State::None => return None,
            State::Sha256(state) => Digest {
                algorithm: Algorithm::Sha256,
                hex: HEXLOWER.encode(&state.finalize()),
            },
            State::Sha512(state) => Digest {
                algorithm: Algorithm::Sha512,
                hex: HEXLOWER.encode(&state.finalize()),
            },
        })
    }

    /// Fails unless the read bytes have this digest and size.
    ///
    /// # Errors
    /// [`OciError::Size`], [`OciError::Digest`].
    pub(super) fn verify(self, blob: &str, expected: &Digest, size: u64) -> Result<()> {
        let blob = blob.to_owned();
        if self.count != size {
            return Err(OciError::Size {
                blob,
                expected: size,
                found: self.count,
            });
        }
        match self.digest() {
            Some(found) if found != *expected => Err(OciError::Digest {
                blob,
                found: found.to_string(),
            }),
            _ => Ok(()),
        }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buf)?;
        let read = buf.get(..count).unwrap_or_default();
        match &mut self.state {
            State::None => {}
            State::Sha256(state) => state.update(read),
            State::Sha512(state) => state.update(read),
        }
        self.count = self.count.saturating_add(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_hexadecimal_and_nothing_else() {
        let hex = "a".repeat(64);
        let parse = |text: &str| Digest::parse(text, "index.json");
        assert_eq!(parse(&format!("sha256:{hex}")).unwrap().hex(), hex);
        for bad in [
            "sha256:../../../../etc/passwd",
            &format!("sha256:{}", "A".repeat(64)),
            &format!("sha256:{}", "a".repeat(63)),
            &format!("../sha256:{hex}"),
            &format!("md5:{}", "a".repeat(32)),
            &hex,
            "",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_was_read_is_verified() {
        let hash = |content: &'static [u8]| {
            let mut hashing = Hashing::new(content, Some(Algorithm::Sha256));
            io::copy(&mut hashing, &mut io::sink()).unwrap();
            hashing
        };
        let expected = hash(b"hello\n").digest().unwrap();
        let known = "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(expected.to_string(), known);
        assert!(hash(b"hello\n").verify("b", &expected, 6).is_ok());
        let error = hash(b"hallo\n").verify("b", &expected, 6).unwrap_err();
        assert!(matches!(error, OciError::Digest { .. }));
        let error = hash(b"hello\n").verify("b", &expected, 7).unwrap_err();
        assert!(matches!(error, OciError::Size { found: 6, .. }));
    }
}
