//! Key slots, as both versions of LUKS have them.

use sapwood_block::Device;

use crate::Result;
use crate::cipher::{IV_UNIT, SectorCipher};
use crate::derive::Derivation;
use crate::key::{Secret, zeros};

/// A key slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotDescription {
    /// Its number.
    pub number: u32,
    /// The derivation of its key from a passphrase; `None` for a key slot that no passphrase opens.
    pub derivation: Option<Derivation>,
}

/// Reads and decrypts the area of a key slot.
///
/// # Errors
/// I/O errors of the device.
pub(crate) fn read_slot(
    device: &dyn Device,
    cipher: &SectorCipher,
    offset: u64,
    len: usize,
) -> Result<Secret> {
    let mut pieces = zeros(len);
    device.read_at(offset, &mut pieces)?;
    cipher.decrypt(&mut pieces, IV_UNIT as usize, 0);
    Ok(pieces)
}
