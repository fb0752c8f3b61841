//! Headers of LUKS2: two copies, each of them a binary part and the metadata.

use sapwood_block::Device;
use zerocopy::{FromBytes, IntoBytes};

use crate::cipher::SectorCipher;
use crate::derive::Hash;
use crate::device::Place;
use crate::error::{detached, field};
use crate::key::{Key, Secret};
use crate::layout::{Header2, MAGIC, MAGIC_2ND, text};
use crate::metadata::{KeySlot, Metadata, bytes_of, slot_number, slot_of};
use crate::slot::{SlotDescription, read_slot};
use crate::{Error, Result, split};

/// Sizes of a header that the specification allows; the second copy is as far from the start.
const SIZES: [u64; 9] = [
    0x4000, 0x8000, 0x10000, 0x20000, 0x40000, 0x80000, 0x10_0000, 0x20_0000, 0x40_0000,
];
/// Bytes of the binary part.
pub(crate) const BINARY: usize = size_of::<Header2>();

/// A header whose checksum is right.
#[derive(Debug)]
pub(crate) struct Luks2 {
    pub(crate) binary: Header2,
    pub(crate) metadata: Metadata,
}

impl Luks2 {
    /// The newer of the two copies that are intact.
    ///
    /// # Errors
    /// [`Error::Damaged`]; [`Error::Metadata`]; I/O errors of the device.
    pub(crate) fn read(device: &dyn Device) -> Result<Self> {
        let first = copy(device, 0, MAGIC)?;
        let mut best = first;
        for offset in SIZES {
            let Some(second) = copy(device, offset, MAGIC_2ND)? else {
                continue;
            };
            let newer =
                |(binary, _): &(Header2, Vec<u8>)| binary.sequence.get() < second.0.sequence.get();
            if best.as_ref().is_none_or(newer) {
                best = Some(second);
            }
            break;
        }
        let (binary, json) = best.ok_or_else(|| Error::Damaged {
            device: device.name().to_owned(),
        })?;
        let end = json.iter().position(|byte| *byte == 0);
        let json = json.get(..end.unwrap_or(json.len())).unwrap_or_default();
        let metadata: Metadata = serde_json::from_slice(json)?;
        metadata.check()?;
        Ok(Self { binary, metadata })
    }

    /// The volume key, and the place of the volume.
    ///
    /// # Errors
    /// [`Error::WrongKey`]; [`Error::Unsupported`] and [`Error::Field`] for the metadata; I/O
    /// errors of the device.
    pub(crate) fn unlock(&self, device: &dyn Device, key: &Key) -> Result<(Secret, Place)> {
        let (name, segment) = self.metadata.segment()?;
        if segment.offset == 0 {
            return Err(detached());
        }
        let digest = self.metadata.digest_of(name)?;
        let hash = Hash::named(&digest.hash)?;
        let salt = bytes_of("salt of the digest", &digest.salt)?;
        let expected = bytes_of("digest", &digest.digest)?;
        let slots = self.metadata.slots_of(digest)?;
        let count = slots.len();
        for (_, slot) in slots {
            let volume_key = open_slot(device, key, &slot)?;
            let len = expected.len().clamp(1, 64);
            let found = hash.pbkdf2(&volume_key, &salt, digest.iterations, len)?;
            if *found == expected {
                let size = match segment.size.as_str() {
                    "dynamic" => None,
                    size => Some(
                        size.parse()
                            .map_err(|_| field("size of the segment", size))?,
                    ),
                };
                let place = Place {
                    cipher: segment.encryption,
                    offset: segment.offset,
                    size,
                    sector: segment.sector_size,
                    first_iv: segment.iv_tweak,
                };
                return Ok((volume_key, place));
            }
        }
        Err(Error::WrongKey {
            device: device.name().to_owned(),
            slots: count,
        })
    }

    /// Its key slots.
    ///
    /// # Errors
    /// [`Error::Unsupported`] and [`Error::Field`] for the metadata.
    pub(crate) fn slots(&self) -> Result<Vec<SlotDescription>> {
        let mut slots = Vec::new();
        for (name, value) in &self.metadata.keyslots {
            let number = slot_number(name)?;
            let slot = slot_of(value)?;
            let derivation = slot.map(|slot| -> Result<_> {
                slot.split_bytes()?;
                Ok(slot.derivation()?.0)
            });
            slots.push(SlotDescription {
                number,
                derivation: derivation.transpose()?,
            });
        }
        slots.sort_by_key(|slot| slot.number);
        Ok(slots)
    }
}

/// A copy of the header at `offset`, with its metadata; `None` if there is none, or a damaged one.
fn copy(device: &dyn Device, offset: u64, magic: [u8; 6]) -> Result<Option<(Header2, Vec<u8>)>> {
    if device.size() < offset + BINARY as u64 {
        return Ok(None);
    }
    let mut bytes = vec![0; BINARY];
    device.read_at(offset, &mut bytes)?;
    let Ok(mut binary) = Header2::read_from_bytes(&bytes) else {
        return Ok(None);
    };
    let size = binary.size.get();
    let fits = SIZES.contains(&size) && device.size() >= offset + size;
    let is_header = binary.magic == magic
        && binary.version.get() == 2
        && binary.offset.get() == offset
        && (offset == 0 || offset == size);
    if !is_header || !fits {
        return Ok(None);
    }
    let mut json = vec![0; size as usize - BINARY];
    device.read_at(offset + BINARY as u64, &mut json)?;
    let found = std::mem::replace(&mut binary.checksum, [0; 64]);
    let Ok(hash) = Hash::named(&text(&binary.checksum_name)) else {
        return Ok(None);
    };
    let expected = hash.of(binary.as_bytes(), &json);
    let right = found.starts_with(&expected);
    Ok(right.then_some((binary, json)))
}

/// The key in a key slot, if `key` is right for the slot. Only the digest can verify that.
fn open_slot(device: &dyn Device, key: &Key, slot: &KeySlot) -> Result<Secret> {
    let split_bytes = slot.split_bytes()?;
    let (derivation, hash, salt) = slot.derivation()?;
    let len = usize::try_from(slot.area.key_size).unwrap_or_default();
    if len == 0 || len > 64 {
        return Err(field("key size of a key slot area", slot.area.key_size));
    }
    let derived = derivation.run(hash, key.bytes(), &salt, len)?;
    let cipher = SectorCipher::new(&slot.area.encryption, &derived)?;
    let pieces = read_slot(device, &cipher, slot.area.offset, split_bytes)?;
    let (hash, len) = (Hash::named(&slot.af.hash)?, slot.key_size as usize);
    let pieces = pieces.get(..len * slot.af.stripes as usize);
    Ok(split::merge(hash, pieces.unwrap_or_default(), len))
}
