//! GUID partition tables (UEFI specification, chapter 5).

use super::{Flaw, Partition, PartitionError, le32, le64};
use crate::{Device, Error};

/// The most bytes of a table that are read: 8192 entries of the usual size.
pub(super) const MAX_TABLE: u64 = 1 << 20;

const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Bytes of a header that the specification defines.
const HEADER: u32 = 92;
/// Bytes of an entry that the specification defines.
const ENTRY: u32 = 128;
/// Sector sizes for which a header is looked for.
const SECTORS: [u64; 2] = [512, 4096];

/// Damage of a header or its table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The place of the header lies outside of the device.
    #[error("outside of the device, at sector {0}")]
    Outside(u64),
    /// Not the magic bytes of a header.
    #[error("no signature")]
    Signature,
    /// Not a version that we know.
    #[error("unknown revision {0:#x}")]
    Revision(u32),
    /// The size of the header is impossible.
    #[error("header of {0} bytes")]
    HeaderSize(u32),
    /// The checksum of the header.
    #[error("wrong checksum of the header")]
    HeaderChecksum,
    /// The header contains another position than its own.
    #[error("says that it is at sector {0}")]
    Place(u64),
    /// The sizes of the table.
    #[error("table of {count} entries of {size} bytes")]
    TableSize {
        /// Entries.
        count: u32,
        /// Bytes of each.
        size: u32,
    },
    /// The table reaches past the end of the device, or overlaps the partitions.
    #[error("table at sector {0}, which is outside of the device or among the partitions")]
    TablePlace(u64),
    /// The checksum of the table.
    #[error("wrong checksum of the table")]
    TableChecksum,
    /// The range for partitions is impossible.
    #[error("partitions from sector {first} to {last}")]
    Usable {
        /// First usable sector.
        first: u64,
        /// Last usable sector.
        last: u64,
    },
}

/// A valid header with its table. Places are numbers of sectors.
#[derive(Debug, Clone)]
pub struct GptCopy {
    /// Bytes of a sector.
    pub sector: u64,
    /// Place of the other header.
    pub alternate: u64,
    /// First sector that a partition may have.
    pub first_usable: u64,
    /// Last sector that a partition may have.
    pub last_usable: u64,
    /// Place of the table.
    pub table: u64,
    /// Bytes of an entry.
    pub entry_size: usize,
    /// The table.
    pub entries: Vec<u8>,
    /// The header, as many bytes as its checksum covers.
    pub header: Vec<u8>,
}

/// The first copy of a GPT, or the damage because of which it is not used.
///
/// # Errors
/// The device cannot be read.
pub fn first_copy(device: &dyn Device) -> Result<Result<GptCopy, Damage>, Error> {
    let mut damage = Damage::Signature;
    for sector in SECTORS {
        match table(device, sector, 1)? {
            Ok(copy) => return Ok(Ok(copy)),
            // The reason for an existing header takes precedence.
            Err(why) if why != Damage::Signature => damage = why,
            Err(_) => {}
        }
    }
    Ok(Err(damage))
}

/// The checksum of a header, which is taken while its own field is zero.
pub fn header_checksum(header: &[u8]) -> u32 {
    let (before, after) = header.split_at(header.len().min(16));
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(before);
    hasher.update(&[0; 4]);
    hasher.update(after.get(4..).unwrap_or_default());
    hasher.finalize()
}

/// Whether the first header's place holds a signature, for one of the sector sizes.
pub(super) fn has_header(device: &dyn Device) -> Result<bool, Error> {
    for sector in SECTORS {
        let mut magic = [0; 8];
        if device.size() >= 2 * sector {
            device.read_at(sector, &mut magic)?;
            if magic == *SIGNATURE {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The partitions of the first header, or of the backup if the first one is damaged.
pub(super) fn read(device: &dyn Device) -> Result<Vec<Partition>, PartitionError> {
    let primary = match first_copy(device)? {
        Ok(copy) => {
            compare_with_backup(device, &copy)?;
            return Ok(partitions(&copy));
        }
        Err(damage) => damage,
    };
    let mut damage = None;
    for sector in SECTORS {
        let last = (device.size() / sector).saturating_sub(1);
        match table(device, sector, last)? {
            Ok(table) => {
                log::warn!(
                    "{}: the first GPT header is damaged ({primary}); the backup is used",
                    device.name()
                );
                return Ok(partitions(&table));
            }
            Err(why) if damage.is_none() || why != Damage::Signature => damage = Some(why),
            Err(_) => {}
        }
    }
    Err(PartitionError::Gpt {
        device: device.name().to_owned(),
        primary,
        backup: damage.unwrap_or(Damage::Signature),
    })
}

/// Warns if the backup is unusable or differs.
fn compare_with_backup(device: &dyn Device, primary: &GptCopy) -> Result<(), Error> {
    let name = device.name();
    match table(device, primary.sector, primary.alternate)? {
        Err(why) => log::warn!("{name}: the backup of the GPT is damaged: {why}"),
        Ok(backup) if backup.entries != primary.entries => {
            log::warn!("{name}: the backup of the GPT differs; the first table is used");
        }
        Ok(_) => {}
    }
    Ok(())
}

/// Reads and validates the header in sector `lba`, and its table.
fn table(device: &dyn Device, sector: u64, lba: u64) -> Result<Result<GptCopy, Damage>, Error> {
    let sectors = device.size() / sector;
    if lba == 0 || lba >= sectors {
        return Ok(Err(Damage::Outside(lba)));
    }
    let mut header = vec![0; sector as usize];
    device.read_at(lba * sector, &mut header)?;
    let header_size = le32(&header, 12);
    if let Err(damage) = check_header(&header, header_size, lba) {
        return Ok(Err(damage));
    }
    let (first_usable, last_usable) = (le64(&header, 40), le64(&header, 48));
    if first_usable > last_usable || last_usable >= sectors {
        return Ok(Err(Damage::Usable {
            first: first_usable,
            last: last_usable,
        }));
    }
    let (count, size) = (le32(&header, 80), le32(&header, 84));
    let bytes = u64::from(count) * u64::from(size);
    let is_size = size >= ENTRY && size.is_power_of_two();
    if !is_size || bytes > MAX_TABLE || bytes == 0 {
        return Ok(Err(Damage::TableSize { count, size }));
    }
    let start = le64(&header, 72);
    let end = start.checked_add(bytes.div_ceil(sector));
    let apart = end.is_some_and(|end| end <= first_usable || start > last_usable);
    if start < 2 || end.is_none_or(|end| end > sectors) || !apart {
        return Ok(Err(Damage::TablePlace(start)));
    }
    let mut entries = vec![0; bytes as usize];
    device.read_at(start * sector, &mut entries)?;
    if crc32fast::hash(&entries) != le32(&header, 88) {
        return Ok(Err(Damage::TableChecksum));
    }
    header.truncate(header_size as usize);
    Ok(Ok(GptCopy {
        sector,
        alternate: le64(&header, 32),
        first_usable,
        last_usable,
        table: start,
        entry_size: size as usize,
        entries,
        header,
    }))
}

fn check_header(header: &[u8], size: u32, lba: u64) -> Result<(), Damage> {
    if !header.starts_with(SIGNATURE) {
        return Err(Damage::Signature);
    }
    let revision = le32(header, 8);
    if revision >> 16 != 1 {
        return Err(Damage::Revision(revision));
    }
    let Some(checked) = header.get(..size as usize).filter(|_| size >= HEADER) else {
        return Err(Damage::HeaderSize(size));
    };
    if header_checksum(checked) != le32(header, 16) {
        return Err(Damage::HeaderChecksum);
    }
    match le64(header, 24) {
        place if place == lba => Ok(()),
        place => Err(Damage::Place(place)),
    }
}

fn partitions(table: &GptCopy) -> Vec<Partition> {
    let entries = table.entries.chunks_exact(table.entry_size).zip(1..);
    entries
        .filter(|(entry, _)| entry[..16] != [0; 16])
        .map(|(entry, number)| partition(table, entry, number))
        .collect()
}

fn partition(table: &GptCopy, entry: &[u8], number: u32) -> Partition {
    let (first, last) = (le64(entry, 32), le64(entry, 40));
    let valid = first >= table.first_usable && first <= last && last <= table.last_usable;
    let sector = table.sector;
    // The usable sectors lie on the device, so a valid range cannot overflow.
    let (start, len) = if valid {
        (first * sector, (last - first + 1) * sector)
    } else {
        (0, 0)
    };
    let units: Vec<u16> = entry[56..ENTRY as usize]
        .chunks_exact(2)
        .map(|two| u16::from_le_bytes([two[0], two[1]]))
        .take_while(|unit| *unit != 0)
        .collect();
    Partition {
        number,
        label: Some(String::from_utf16_lossy(&units)),
        kind: guid(&entry[..16]),
        start,
        len,
        flaw: (!valid).then_some(Flaw::Range { first, last }),
    }
}

/// A GUID as text: its first three fields are little-endian.
fn guid(bytes: &[u8]) -> String {
    let bytes = bytes.first_chunk().copied().unwrap_or_default();
    uuid::Uuid::from_bytes_le(bytes).to_string()
}
