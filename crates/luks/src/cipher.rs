//! The cipher of sectors: AES in XTS mode, whose tweak is the number of the sector (`plain64`).

use aes::cipher::KeyInit;
use aes::{Aes128, Aes256};
use xts_mode::{Xts128, get_tweak_default};

use crate::{Error, Result};

/// Name of the cipher in headers.
pub(crate) const NAME: &str = "aes-xts-plain64";
/// Unit of the numbers of sectors, whatever the size of a sector of the volume is, in bytes.
pub(crate) const IV_UNIT: u64 = 512;

/// Encrypts and decrypts whole sectors.
pub(crate) enum SectorCipher {
    /// A key of 256 bits, half of it for the tweak.
    Aes128(Box<Xts128<Aes128>>),
    /// A key of 512 bits, half of it for the tweak.
    Aes256(Box<Xts128<Aes256>>),
}

impl SectorCipher {
    /// The cipher `name` with a key of 32 or 64 bytes.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: another cipher, or another size of the key.
    pub(crate) fn new(name: &str, key: &[u8]) -> Result<Self> {
        if name != NAME {
            return Err(Error::Unsupported(format!("cipher {name}")));
        }
        let unsupported =
            || Error::Unsupported(format!("{name} with a key of {} bytes", key.len()));
        let (data, tweak) = key.split_at(key.len() / 2);
        match key.len() {
            32 => {
                let halves = (Aes128::new_from_slice(data), Aes128::new_from_slice(tweak));
                let (Ok(data), Ok(tweak)) = halves else {
                    return Err(unsupported());
                };
                Ok(Self::Aes128(Box::new(Xts128::new(data, tweak))))
            }
            64 => {
                let halves = (Aes256::new_from_slice(data), Aes256::new_from_slice(tweak));
                let (Ok(data), Ok(tweak)) = halves else {
                    return Err(unsupported());
                };
                Ok(Self::Aes256(Box::new(Xts128::new(data, tweak))))
            }
            _ => Err(unsupported()),
        }
    }

    /// Encrypts sectors of `sector` bytes in place. `first` is the number of the first one, in
    /// units of [`IV_UNIT`].
    pub(crate) fn encrypt(&self, sectors: &mut [u8], sector: usize, first: u64) {
        let tweak = tweaks(sector, first);
        match self {
            Self::Aes128(xts) => xts.encrypt_area(sectors, sector, 0, tweak),
            Self::Aes256(xts) => xts.encrypt_area(sectors, sector, 0, tweak),
        }
    }

    /// Decrypts what [`encrypt`](Self::encrypt) encrypted.
    pub(crate) fn decrypt(&self, sectors: &mut [u8], sector: usize, first: u64) {
        let tweak = tweaks(sector, first);
        match self {
            Self::Aes128(xts) => xts.decrypt_area(sectors, sector, 0, tweak),
            Self::Aes256(xts) => xts.decrypt_area(sectors, sector, 0, tweak),
        }
    }
}

/// The tweak of each sector from `first` on. Numbers of sectors have 64 bits, and wrap.
fn tweaks(sector: usize, first: u64) -> impl Fn(u128) -> [u8; 16] {
    let step = sector as u64 / IV_UNIT;
    move |nth| {
        let number = first.wrapping_add((nth as u64).wrapping_mul(step));
        get_tweak_default(u128::from(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IEEE 1619-2007, XTS-AES-128 test vector 2: tweak 0x3333333333 in little-endian order.
    #[test]
    fn a_vector_of_the_standard() {
        let key = [[0x11; 16], [0x22; 16]].concat();
        let cipher = SectorCipher::new(NAME, &key).unwrap();
        let expected: [u8; 32] = [
            0xc4, 0x54, 0x18, 0x5e, 0x6a, 0x16, 0x93, 0x6e, 0x39, 0x33, 0x40, 0x38, 0xac, 0xef,
            0x83, 0x8b, 0xfb, 0x18, 0x6f, 0xff, 0x74, 0x80, 0xad, 0xc4, 0x28, 0x93, 0x82, 0xec,
            0xd6, 0xd3, 0x94, 0xf0,
        ];
        let mut text = [0x44; 32];
        cipher.encrypt(&mut text, 32, 0x33_3333_3333);
        assert_eq!(text, expected);
        cipher.decrypt(&mut text, 32, 0x33_3333_3333);
        assert_eq!(text, [0x44; 32]);
    }

    #[test]
    fn other_ciphers_are_refused() {
        for (name, len) in [("aes-cbc-essiv:sha256", 32), (NAME, 48), (NAME, 0)] {
            let key = vec![1; len];
            assert!(matches!(
                SectorCipher::new(name, &key),
                Err(Error::Unsupported(_))
            ));
        }
    }
}
