//! Master boot records with logical partitions.
//!
//! Sectors count 512 bytes. An extended partition holds a chain of records: each describes one
//! logical partition, and names the next record.

use super::{Flaw, Partition, PartitionError, le32};
use crate::{Device, Error};

/// The most logical partitions that are followed.
pub(super) const MAX_LOGICAL: u32 = 256;

const SECTOR: u64 = 512;
/// First of the four entries in a record, and the bytes of each.
const ENTRIES: usize = 446;
const ENTRY: usize = 16;
const PROTECTIVE: u8 = 0xee;
/// Types of an extended partition.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;

/// What is wrong with the chain of logical partitions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A record lies outside of the extended partition.
    #[error(
        "the record of logical partition {number} is at {at}, outside of the extended partition"
    )]
    Outside {
        /// The partition.
        number: u32,
        /// Byte offset of the record.
        at: u64,
    },
    /// Not the magic bytes of a record.
    #[error("no record of logical partition {number} at {at}")]
    Signature {
        /// The partition.
        number: u32,
        /// Byte offset of the record.
        at: u64,
    },
    /// The chain leads back, or it is longer than any real one.
    #[error("the chain of logical partitions does not end")]
    Endless,
}

/// What the first sector holds.
pub(super) enum Found {
    /// No record.
    Nothing,
    /// A record that stands for a GPT.
    Protective,
    /// Partitions.
    Partitions(Vec<Partition>, Option<Damage>),
}

/// An entry of a record, in sectors.
#[derive(Clone, Copy)]
struct MbrEntry {
    status: u8,
    kind: u8,
    start: u64,
    count: u64,
}

impl MbrEntry {
    fn is_used(self) -> bool {
        self.kind != 0 && self.count != 0
    }

    fn is_extended(self) -> bool {
        self.is_used() && EXTENDED.contains(&self.kind)
    }

    fn partition(self, number: u32, base: u64) -> Partition {
        // Two 32-bit numbers of sectors: nothing here can overflow.
        Partition {
            number,
            label: None,
            kind: format!("{:02x}", self.kind),
            start: (base + self.start) * SECTOR,
            len: self.count * SECTOR,
            flaw: None,
        }
    }
}

fn entries(record: &[u8; SECTOR as usize]) -> Option<[MbrEntry; 4]> {
    (record[510..] == [0x55, 0xaa]).then(|| {
        std::array::from_fn(|n| {
            let at = ENTRIES + n * ENTRY;
            MbrEntry {
                status: record[at],
                kind: record[at + 4],
                start: le32(record, at + 8).into(),
                count: le32(record, at + 12).into(),
            }
        })
    })
}

fn record(device: &dyn Device, sector: u64) -> Result<Option<[MbrEntry; 4]>, Error> {
    let mut bytes = [0; SECTOR as usize];
    device.read_at(sector * SECTOR, &mut bytes)?;
    Ok(entries(&bytes))
}

/// Reads the record in the first sector, and the chain that it leads to.
pub(super) fn read(device: &dyn Device) -> Result<Found, PartitionError> {
    if device.size() < SECTOR {
        return Ok(Found::Nothing);
    }
    // The boot sector of a file system has the same magic bytes, but code in place of entries.
    let real = |entries: &[MbrEntry; 4]| entries.iter().all(|entry| entry.status & 0x7f == 0);
    let Some(entries) = record(device, 0)?.filter(real) else {
        return Ok(Found::Nothing);
    };
    if entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        return Ok(Found::Protective);
    }
    let mut found = Vec::new();
    for (entry, number) in entries.into_iter().zip(1..) {
        if !entry.is_used() {
            continue;
        }
        let mut partition = entry.partition(number, 0);
        if entry.start == 0 {
            let (first, last) = (entry.start, entry.start + entry.count - 1);
            partition.flaw = Some(Flaw::Range { first, last });
        } else if entry.is_extended() {
            partition.flaw = Some(Flaw::Extended);
        }
        found.push(partition);
    }
    let mut damage = None;
    if let Some(extended) = entries.into_iter().find(|entry| entry.is_extended()) {
        damage = logical(device, extended, &mut found)?.err();
    }
    Ok(Found::Partitions(found, damage))
}

/// Follows the chain of records in an extended partition. What lies before a damage is found.
fn logical(
    device: &dyn Device,
    extended: MbrEntry,
    found: &mut Vec<Partition>,
) -> Result<Result<(), Damage>, Error> {
    let mut number = FIRST_LOGICAL;
    let mut seen = Vec::new();
    let mut next = 0;
    loop {
        let place = extended.start + next;
        let at = place * SECTOR;
        if next >= extended.count || at + SECTOR > device.size() {
            return Ok(Err(Damage::Outside { number, at }));
        }
        if seen.contains(&next) || seen.len() as u32 >= MAX_LOGICAL {
            return Ok(Err(Damage::Endless));
        }
        seen.push(next);
        let Some([first, link, ..]) = record(device, place)? else {
            return Ok(Err(Damage::Signature { number, at }));
        };
        if first.is_used() && !first.is_extended() {
            let mut partition = first.partition(number, place);
            let (begin, end) = (next + first.start, next + first.start + first.count);
            if first.start == 0 || end > extended.count {
                partition.flaw = Some(Flaw::Range {
                    first: extended.start + begin,
                    last: extended.start + end - 1,
                });
            }
            found.push(partition);
            number += 1;
        }
        if !link.is_extended() {
            return Ok(Ok(()));
        }
        next = link.start;
    }
}
