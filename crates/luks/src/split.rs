//! The anti-forensic splitter turns a secret into many stripes. All stripes are needed to restore
//! it, so wiping a part of a key slot destroys the secret.

use crate::Result;
use crate::derive::Hash;
use crate::key::{Secret, random, zeros};

/// Stripes of a key slot.
pub(crate) const STRIPES: u32 = 4000;

/// Splits a secret into `stripes` pieces of its size.
///
/// # Errors
/// No random numbers.
pub(crate) fn split(hash: Hash, secret: &[u8], stripes: u32) -> Result<Secret> {
    let len = secret.len();
    let mut pieces = random(len * stripes as usize)?;
    let (before, last) = pieces.split_at_mut(len * (stripes as usize - 1));
    let mut mixed = zeros(len);
    for piece in before.chunks_exact(len) {
        mix(hash, &mut mixed, piece);
    }
    xor(&mut mixed, secret);
    last.copy_from_slice(&mixed);
    Ok(pieces)
}

/// The secret of `len` bytes that was split into these pieces.
pub(crate) fn merge(hash: Hash, pieces: &[u8], len: usize) -> Secret {
    let mut secret = zeros(len);
    let last = pieces.len().saturating_sub(len);
    let (before, last) = pieces.split_at(last);
    for piece in before.chunks_exact(len) {
        mix(hash, &mut secret, piece);
    }
    xor(&mut secret, last);
    secret
}

/// One step: a piece is added, and the sum diffused.
fn mix(hash: Hash, sum: &mut [u8], piece: &[u8]) {
    xor(sum, piece);
    for (number, part) in (0_u32..).zip(sum.chunks_mut(hash.size())) {
        let digest = hash.of(&number.to_be_bytes(), part);
        part.copy_from_slice(&digest[..part.len()]);
    }
}

fn xor(sum: &mut [u8], piece: &[u8]) {
    for (byte, other) in sum.iter_mut().zip(piece) {
        *byte ^= other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_secret_is_merged() {
        for hash in [Hash::Sha1, Hash::Sha256, Hash::Sha512] {
            for len in [16, 32, 64] {
                let secret = random(len).unwrap();
                let mut pieces = split(hash, &secret, 7).unwrap();
                assert_eq!(pieces.len(), 7 * len);
                assert_eq!(*merge(hash, &pieces, len), *secret);
                pieces[len + 3] ^= 1;
                assert_ne!(*merge(hash, &pieces, len), *secret);
            }
        }
    }
}
