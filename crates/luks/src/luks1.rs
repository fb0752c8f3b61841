//! Headers of LUKS1.

use sapwood_block::Device;
use zerocopy::FromBytes;

use crate::cipher::SectorCipher;
use crate::derive::{Derivation, Hash};
use crate::device::Place;
use crate::error::{detached, field};
use crate::key::{Key, Secret};
use crate::layout::{Header1, Slot1, text};
use crate::metadata::split_bytes;
use crate::slot::{SlotDescription, read_slot};
use crate::{Error, Result, split};

/// Value of `active` of a key slot that is in use.
const ACTIVE: u32 = 0x00AC_71F3;
/// Unit of offsets, in bytes.
const SECTOR: u64 = 512;

/// A header.
#[derive(Debug)]
pub(crate) struct Luks1 {
    pub(crate) header: Header1,
}

impl Luks1 {
    /// Reads the header of a device that has its magic number.
    ///
    /// # Errors
    /// [`Error::TooSmall`]; I/O errors of the device.
    pub(crate) fn read(device: &dyn Device) -> Result<Self> {
        let mut bytes = [0; size_of::<Header1>()];
        let too_small = || Error::TooSmall {
            device: device.name().to_owned(),
            size: device.size(),
            needed: size_of::<Header1>() as u64,
        };
        if device.size() < bytes.len() as u64 {
            return Err(too_small());
        }
        device.read_at(0, &mut bytes)?;
        let header = Header1::read_from_bytes(&bytes).map_err(|_| too_small())?;
        Ok(Self { header })
    }

    /// Name of the cipher with its mode.
    pub(crate) fn cipher(&self) -> String {
        format!("{}-{}", text(&self.header.cipher), text(&self.header.mode))
    }

    fn active(&self) -> impl Iterator<Item = (u32, &Slot1)> {
        let slots = (0..).zip(&self.header.slots);
        slots.filter(|(_, slot)| slot.active.get() == ACTIVE)
    }

    /// The volume key, and the place of the volume.
    ///
    /// # Errors
    /// [`Error::WrongKey`]; [`Error::Unsupported`]; [`Error::Field`] for a malformed field; I/O
    /// errors of the device.
    pub(crate) fn unlock(&self, device: &dyn Device, key: &Key) -> Result<(Secret, Place)> {
        if self.header.payload.get() == 0 {
            return Err(detached());
        }
        let hash = Hash::named(&text(&self.header.hash))?;
        let iterations = u64::from(self.header.digest_iterations.get());
        let mut slots = 0;
        for (_, slot) in self.active() {
            slots += 1;
            let volume_key = self.open_slot(device, hash, key, slot)?;
            let salt = &self.header.digest_salt;
            let digest = hash.pbkdf2(&volume_key, salt, iterations, self.header.digest.len())?;
            if **digest == self.header.digest {
                let place = Place {
                    cipher: self.cipher(),
                    offset: u64::from(self.header.payload.get()) * SECTOR,
                    size: None,
                    sector: SECTOR,
                    first_iv: 0,
                };
                return Ok((volume_key, place));
            }
        }
        Err(Error::WrongKey {
            device: device.name().to_owned(),
            slots,
        })
    }

    fn open_slot(
        &self,
        device: &dyn Device,
        hash: Hash,
        key: &Key,
        slot: &Slot1,
    ) -> Result<Secret> {
        let (len, stripes) = (self.header.key_bytes.get(), slot.stripes.get());
        let offset = u64::from(slot.offset.get()) * SECTOR;
        let split_bytes = split_bytes(u64::from(len), u64::from(stripes), offset)
            .ok_or_else(|| field("stripes of a key slot", stripes))?;
        let (len, iterations) = (len as usize, u64::from(slot.iterations.get()));
        let derived = hash.pbkdf2(key.bytes(), &slot.salt, iterations, len)?;
        let cipher = SectorCipher::new(&self.cipher(), &derived)?;
        let pieces = read_slot(device, &cipher, offset, split_bytes)?;
        let pieces = pieces.get(..len * stripes as usize);
        Ok(split::merge(hash, pieces.unwrap_or_default(), len))
    }

    /// Its key slots.
    pub(crate) fn slots(&self) -> Vec<SlotDescription> {
        let slots = self.active().map(|(number, slot)| SlotDescription {
            number,
            derivation: Some(Derivation::Pbkdf2 {
                iterations: u64::from(slot.iterations.get()),
            }),
        });
        slots.collect()
    }
}
