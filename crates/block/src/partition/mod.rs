//! Partition tables: GPT and MBR, for reading.
//!
//! # How it works
//!
//! - A table is read from the device for each request of a partition. The MBR in the first sector
//!   decides: an entry of type 0xEE announces a GPT.
//! - An error of one partition (it overlaps another, or reaches past the end) is stored with that
//!   partition. The others work.
//! - The crates for GPT panic or allocate without bound on a hostile header, so `gpt.rs` is our
//!   own. It allocates at most `MAX_TABLE` bytes. `mbr.rs` follows at most
//!   `MAX_LOGICAL` links.

mod gpt;
mod mbr;

use std::fmt;

use crate::{Device, Error};

/// The format of a partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// A GUID partition table.
    Gpt,
    /// A master boot record, with logical partitions.
    Mbr,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt => "GPT",
            Self::Mbr => "MBR",
        })
    }
}

/// Reasons why a partition is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The last byte is before the first, or it lies on the partition table.
    #[error("has no valid range: sectors {first} to {last}")]
    Range {
        /// First sector.
        first: u64,
        /// Last sector.
        last: u64,
    },
    /// It reaches past the end of the device.
    #[error("ends at {end}, past the end of the device at {size}")]
    Outside {
        /// End in bytes.
        end: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// It shares bytes with another one.
    #[error("overlaps partition {other}")]
    Overlap {
        /// Number of the other one.
        other: u32,
    },
    /// It only contains the logical partitions.
    #[error("is an extended partition, which only contains other partitions")]
    Extended,
}

/// A partition of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Number, from 1. Logical partitions of an MBR begin at 5.
    pub number: u32,
    /// GPT: its name. May hold any character, control characters included.
    pub label: Option<String>,
    /// Type: a GUID in GPT, two hexadecimal digits in MBR.
    pub kind: String,
    /// First byte on the device.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Reason why it is unusable.
    pub flaw: Option<Flaw>,
}

/// A partition table that was read and validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTable {
    /// Format of the table.
    pub scheme: Scheme,
    /// The partitions in the order of their numbers.
    pub partitions: Vec<Partition>,
    /// MBR: why further logical partitions may be missing.
    pub damage: Option<MbrDamage>,
}

/// Errors of a partition table, or of a requested partition.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    /// The device.
    #[error("{0}")]
    Device(#[from] Error),
    /// Neither a GPT nor an MBR.
    #[error("{device}: no partition table (neither GPT nor MBR)")]
    NoTable {
        /// Device name.
        device: String,
    },
    /// Neither of the two GPT headers can be used.
    #[error("{device}: damaged GPT: first header: {primary}; backup: {backup}")]
    Gpt {
        /// Device name.
        device: String,
        /// Damage of the first header.
        primary: gpt::Damage,
        /// Damage of the backup.
        backup: gpt::Damage,
    },
    /// The chain of logical partitions.
    #[error("{device}: no partition {wanted} before the damage of the MBR: {source}")]
    Mbr {
        /// Device name.
        device: String,
        /// The requested partition.
        wanted: String,
        /// The damage.
        source: mbr::Damage,
    },
    /// No partition of that number or label.
    #[error("{device}: no partition {wanted}; there are: {}", listed(there))]
    NoPartition {
        /// Device name.
        device: String,
        /// The requested partition.
        wanted: String,
        /// The partitions of the table.
        there: Vec<Partition>,
    },
    /// Several partitions have that label.
    #[error("{device}: partitions {numbers:?} all have the name {label}: choose one by its number")]
    Ambiguous {
        /// Device name.
        device: String,
        /// The label.
        label: String,
        /// Numbers of the existing partitions.
        numbers: Vec<u32>,
    },
    /// The partition cannot be used.
    #[error("{device}: partition {number} {flaw}")]
    Flawed {
        /// Device name.
        device: String,
        /// Number of the partition.
        number: u32,
        /// Why.
        flaw: Flaw,
    },
}

pub use gpt::{
    Damage as GptDamage, GptCopy, first_copy as first_gpt, header_checksum as gpt_checksum,
};
pub use mbr::Damage as MbrDamage;

/// The most partitions that a message lists.
const LISTED: usize = 16;

fn listed(partitions: &[Partition]) -> String {
    let mut all: Vec<String> = partitions
        .iter()
        .take(LISTED)
        .map(|part| match part.label.as_deref() {
            None | Some("") => part.number.to_string(),
            Some(label) => format!("{} ({})", part.number, label.escape_debug()),
        })
        .collect();
    match partitions.len().checked_sub(LISTED) {
        None | Some(0) if all.is_empty() => "none".to_owned(),
        None | Some(0) => all.join(", "),
        Some(more) => {
            all.push(format!("and {more} more"));
            all.join(", ")
        }
    }
}

impl PartitionTable {
    /// Reads the partition table of a device.
    ///
    /// # Errors
    /// [`PartitionError`]: there is none, or it is damaged, or the device cannot be read.
    pub fn read(device: &dyn Device) -> Result<Self, PartitionError> {
        let mbr = mbr::read(device)?;
        let (scheme, mut partitions, damage) = match mbr {
            mbr::Found::Partitions(found, damage) => (Scheme::Mbr, found, damage),
            mbr::Found::Protective => (Scheme::Gpt, gpt::read(device)?, None),
            mbr::Found::Nothing if gpt::has_header(device)? => {
                (Scheme::Gpt, gpt::read(device)?, None)
            }
            mbr::Found::Nothing => {
                return Err(PartitionError::NoTable {
                    device: device.name().to_owned(),
                });
            }
        };
        find_flaws(&mut partitions, device.size());
        Ok(Self {
            scheme,
            partitions,
            damage,
        })
    }

    /// The partition with this number, or else with this label (GPT). `device` is the name for
    /// messages.
    ///
    /// # Errors
    /// [`PartitionError::NoPartition`], [`PartitionError::Ambiguous`], [`PartitionError::Flawed`].
    pub fn find(&self, device: &str, wanted: &str) -> Result<&Partition, PartitionError> {
        let number: Option<u32> = wanted.parse().ok();
        let by_number = self
            .partitions
            .iter()
            .find(|part| Some(part.number) == number);
        let mut by_label = self
            .partitions
            .iter()
            .filter(|part| !wanted.is_empty() && part.label.as_deref() == Some(wanted));
        let found = by_number.or_else(|| by_label.next());
        if let (None, Some(damage)) = (found, &self.damage) {
            return Err(PartitionError::Mbr {
                device: device.to_owned(),
                wanted: wanted.escape_debug().to_string(),
                source: damage.clone(),
            });
        }
        let Some(part) = found else {
            return Err(PartitionError::NoPartition {
                device: device.to_owned(),
                wanted: wanted.escape_debug().to_string(),
                there: self.partitions.clone(),
            });
        };
        let others: Vec<u32> = match by_number {
            Some(_) => Vec::new(),
            None => by_label.map(|part| part.number).collect(),
        };
        if !others.is_empty() {
            return Err(PartitionError::Ambiguous {
                device: device.to_owned(),
                label: wanted.escape_debug().to_string(),
                numbers: std::iter::once(part.number).chain(others).collect(),
            });
        }
        match &part.flaw {
            Some(flaw) => Err(PartitionError::Flawed {
                device: device.to_owned(),
                number: part.number,
                flaw: flaw.clone(),
            }),
            None => Ok(part),
        }
    }
}

/// Marks partitions that reach past the end or overlap another one.
fn find_flaws(partitions: &mut [Partition], size: u64) {
    for part in partitions.iter_mut().filter(|part| part.flaw.is_none()) {
        let end = part.start.saturating_add(part.len);
        if end > size {
            part.flaw = Some(Flaw::Outside { end, size });
        }
    }
    let mut order: Vec<usize> = (0..partitions.len())
        .filter(|at| {
            !matches!(
                partitions[*at].flaw,
                Some(Flaw::Extended | Flaw::Range { .. })
            )
        })
        .collect();
    order.sort_by_key(|at| partitions[*at].start);
    // The earlier partition that reaches furthest.
    let mut furthest: Option<usize> = None;
    for at in order {
        let end = |at: usize| partitions[at].start.saturating_add(partitions[at].len);
        if let Some(before) = furthest
            && end(before) > partitions[at].start
        {
            let (one, other) = (partitions[before].number, partitions[at].number);
            partitions[at]
                .flaw
                .get_or_insert(Flaw::Overlap { other: one });
            partitions[before]
                .flaw
                .get_or_insert(Flaw::Overlap { other });
        }
        let end = |at: usize| partitions[at].start.saturating_add(partitions[at].len);
        if furthest.is_none_or(|before| end(before) < end(at)) {
            furthest = Some(at);
        }
    }
}

/// Little-endian number of four bytes at `at`; zero past the end, which no caller reaches.
fn le32(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, u32::from_le_bytes)
}

/// Reads eight bytes at `at` as a little-endian number.
fn le64(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes
        .get(at..at + 8)
        .and_then(|eight| eight.try_into().ok());
    eight.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
