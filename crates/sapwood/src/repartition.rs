//! Changes an existing partition table: the end of a partition, and UUIDs.
//!
//! # How it works
//! A GPT has two copies. The backup is written first, at the end of the disk, which may be larger
//! than the table knows; then the first copy, entries before header. Each step is durable before
//! the next one begins, so one copy is valid at any time, with the old or the new end of the
//! partition. If the backup moved, its old header is wiped last. An entry of an MBR changes with
//! one write of its sector.

use sapwood_block::Device;
use sapwood_block::partition::{
    GptCopy, GptDamage, Partition, PartitionError, PartitionTable, Scheme, first_gpt, gpt_checksum,
};
use uuid::Uuid;

/// Bytes of a sector of an MBR.
const SECTOR: u64 = 512;

/// Why a partition keeps its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepartitionError {
    /// The disk.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// Its table, or the partition.
    #[error(transparent)]
    Table(#[from] PartitionError),
    /// Another partition or the end of the disk is in the way.
    #[error("{disk}: partition {number} can have at most {most} bytes, up to {}", up_to(*next))]
    NoRoom {
        /// Name of the disk.
        disk: String,
        /// Number of the partition.
        number: u32,
        /// Most bytes that it can have.
        most: u64,
        /// Number of the partition that follows.
        next: Option<u32>,
    },
    /// The first copy of a GPT is damaged.
    #[error("{disk}: the GPT is damaged ({damage}), so it is not changed")]
    Damaged {
        /// Name of the disk.
        disk: String,
        /// The damage.
        damage: GptDamage,
    },
    /// The backup of a GPT would overlap a partition.
    #[error("{disk}: no room for the backup of the GPT, so it is not changed")]
    NoBackup {
        /// Name of the disk.
        disk: String,
    },
    /// A logical partition of an MBR.
    #[error("{disk}: partition {number} is a logical one, whose end is not moved")]
    Logical {
        /// Name of the disk.
        disk: String,
        /// Number of the partition.
        number: u32,
    },
}

fn up_to(next: Option<u32>) -> String {
    next.map_or_else(
        || "the end of the disk".to_owned(),
        |next| format!("partition {next}"),
    )
}

type Result<T> = std::result::Result<T, RepartitionError>;

/// Makes a partition, named by its number or label, at least `len` bytes long.
///
/// # Errors
/// There is no room; the table is damaged; the partition is a logical one.
pub(crate) fn grow(disk: &dyn Device, wanted: &str, len: u64) -> Result<()> {
    let table = PartitionTable::read(disk)?;
    let part = table.find(disk.name(), wanted)?;
    if len <= part.len {
        return Ok(());
    }
    match table.scheme {
        Scheme::Gpt => grow_gpt(disk, &table.partitions, part, len),
        Scheme::Mbr => grow_mbr(disk, &table.partitions, part, len),
    }
}

/// The new end of a partition, in whole sectors, if no other partition begins before it, and `limit`
/// is not before it.
fn new_end(
    disk: &dyn Device,
    all: &[Partition],
    part: &Partition,
    len: u64,
    (sector, limit): (u64, u64),
) -> Result<u64> {
    let later = all.iter().filter(|other| other.start > part.start);
    let next = later.min_by_key(|other| other.start);
    let next = next.filter(|next| next.start < limit);
    let limit = next.map_or(limit, |next| next.start);
    let end = part.start.checked_add(len);
    let end = end.and_then(|end| end.checked_next_multiple_of(sector));
    end.filter(|end| *end <= limit)
        .ok_or_else(|| RepartitionError::NoRoom {
            disk: disk.name().to_owned(),
            number: part.number,
            most: limit.saturating_sub(part.start),
            next: next.map(|next| next.number),
        })
}

fn grow_mbr(disk: &dyn Device, all: &[Partition], part: &Partition, len: u64) -> Result<()> {
    let at = match part.number {
        number @ 1..=4 => 446 + (number as usize - 1) * 16 + 12,
        number => {
            let disk = disk.name().to_owned();
            return Err(RepartitionError::Logical { disk, number });
        }
    };
    let most = part.start.saturating_add(u64::from(u32::MAX) * SECTOR);
    let limit = disk.size().min(most) / SECTOR * SECTOR;
    let end = new_end(disk, all, part, len, (SECTOR, limit))?;
    let mut record = [0; SECTOR as usize];
    disk.read_at(0, &mut record)?;
    // At most the number that `limit` allows.
    let count = ((end - part.start) / SECTOR) as u32;
    put(&mut record, at, &count.to_le_bytes());
    disk.write_at(0, &record)?;
    Ok(disk.flush()?)
}

/// The header of a copy of a GPT: in sector `here`, with its entries at `table`.
fn header(gpt: &GptCopy, here: u64, other: u64, table: u64, last_usable: u64) -> Vec<u8> {
    let mut header = gpt.header.clone();
    for (at, number) in [(24, here), (32, other), (48, last_usable), (72, table)] {
        put(&mut header, at, &number.to_le_bytes());
    }
    put(
        &mut header,
        88,
        &crc32fast::hash(&gpt.entries).to_le_bytes(),
    );
    let sum = gpt_checksum(&header);
    put(&mut header, 16, &sum.to_le_bytes());
    let size = header.len().max(gpt.sector as usize);
    header.resize(size, 0);
    header
}

fn grow_gpt(disk: &dyn Device, all: &[Partition], part: &Partition, len: u64) -> Result<()> {
    let mut gpt = undamaged_gpt(disk)?;
    let sector = gpt.sector;
    let last = disk.size() / sector - 1;
    let (backup, last_usable) = places(disk, &gpt, last)?;
    let limit = (last_usable + 1).saturating_mul(sector);
    let ends = all
        .iter()
        .map(|other| other.start.saturating_add(other.len));
    if ends.max().is_some_and(|end| end > limit) {
        let disk = disk.name().to_owned();
        return Err(RepartitionError::NoBackup { disk });
    }
    let end = new_end(disk, all, part, len, (sector, limit))?;
    let entry = entry_at(&gpt, part.number);
    put(
        &mut gpt.entries,
        entry + 40,
        &(end / sector - 1).to_le_bytes(),
    );
    write_both(disk, &gpt, last, (backup, last_usable))?;
    if gpt.alternate != last {
        forget_old_end(disk, sector, gpt.alternate, last)?;
    }
    Ok(())
}

/// Gives partitions of a GPT, by their numbers, other UUIDs. `grown`: the backup also moves to the end
/// of the disk.
///
/// # Errors
/// The table is damaged; there is no room for its backup; the disk cannot be written.
pub(crate) fn set_uuids(disk: &dyn Device, uuids: &[(u32, [u8; 16])], grown: bool) -> Result<()> {
    let mut gpt = undamaged_gpt(disk)?;
    // A disk that became larger has the backup at its new end.
    let last = (disk.size() / gpt.sector).saturating_sub(1);
    let before = gpt.entries.clone();
    for (number, uuid) in uuids {
        let entry = entry_at(&gpt, *number);
        let uuid = Uuid::from_bytes(*uuid).to_bytes_le();
        put(&mut gpt.entries, entry + 16, &uuid);
    }
    let moves = grown && gpt.alternate != last;
    if gpt.entries == before && !moves {
        return Ok(());
    }
    let last = if moves { last } else { gpt.alternate };
    let places = places(disk, &gpt, last)?;
    write_both(disk, &gpt, last, places)?;
    if moves {
        forget_old_end(disk, gpt.sector, gpt.alternate, last)?;
    }
    Ok(())
}

/// The first copy of a GPT.
///
/// # Errors
/// It is damaged, or cannot be read.
pub(crate) fn undamaged_gpt(disk: &dyn Device) -> Result<GptCopy> {
    first_gpt(disk)?.map_err(|damage| RepartitionError::Damaged {
        disk: disk.name().to_owned(),
        damage,
    })
}

/// The UUID of the partition with this number.
pub(crate) fn uuid_of(gpt: &GptCopy, number: u32) -> Option<[u8; 16]> {
    uuid_at(&gpt.entries, entry_at(gpt, number) + 16)
}

/// The UUID of the disk.
pub(crate) fn disk_uuid(gpt: &GptCopy) -> Option<[u8; 16]> {
    uuid_at(&gpt.header, 56)
}

fn uuid_at(bytes: &[u8], at: usize) -> Option<[u8; 16]> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(Uuid::from_bytes_le(*bytes).into_bytes())
}

/// Offset of the entry of a partition in the table.
fn entry_at(gpt: &GptCopy, number: u32) -> usize {
    (number as usize)
        .saturating_sub(1)
        .saturating_mul(gpt.entry_size)
}

/// The place of the backup's entries, if its header is in sector `last`, and the last sector that a
/// partition may have.
fn places(disk: &dyn Device, gpt: &GptCopy, last: u64) -> Result<(u64, u64)> {
    let no_backup = || RepartitionError::NoBackup {
        disk: disk.name().to_owned(),
    };
    if last >= disk.size() / gpt.sector {
        return Err(no_backup());
    }
    let sectors = (gpt.entries.len() as u64).div_ceil(gpt.sector);
    let backup = last.checked_sub(sectors).ok_or_else(no_backup)?;
    let last_usable = if gpt.alternate == last {
        gpt.last_usable
    } else {
        backup.saturating_sub(1)
    };
    if last_usable >= backup {
        return Err(no_backup());
    }
    Ok((backup, last_usable))
}

/// Writes the backup, whose header is in sector `last`, and then the first copy. Each step is
/// durable before the next one begins.
fn write_both(
    disk: &dyn Device,
    gpt: &GptCopy,
    last: u64,
    (backup, last_usable): (u64, u64),
) -> Result<()> {
    let sector = gpt.sector;
    disk.write_at(backup.saturating_mul(sector), &gpt.entries)?;
    disk.flush()?;
    let copy = header(gpt, last, 1, backup, last_usable);
    disk.write_at(last.saturating_mul(sector), &copy)?;
    disk.flush()?;
    disk.write_at(gpt.table * sector, &gpt.entries)?;
    disk.flush()?;
    disk.write_at(sector, &header(gpt, 1, last, gpt.table, last_usable))?;
    Ok(disk.flush()?)
}

/// Wipes the header of a backup that moved, and stores the new size in the protective MBR.
fn forget_old_end(disk: &dyn Device, sector: u64, old_backup: u64, last: u64) -> Result<()> {
    let at = old_backup.saturating_mul(sector);
    let mut magic = [0; 8];
    if old_backup > 1 && old_backup < last {
        disk.read_at(at, &mut magic)?;
    }
    if magic == *b"EFI PART" {
        disk.write_at(at, &vec![0; sector as usize])?;
    }
    let mut record = [0; SECTOR as usize];
    disk.read_at(0, &mut record)?;
    let size = u32::try_from(last).unwrap_or(u32::MAX);
    if let Some(entry) = (0..4).find(|entry| record.get(446 + entry * 16 + 4) == Some(&0xee)) {
        put(&mut record, 446 + entry * 16 + 12, &size.to_le_bytes());
        disk.write_at(0, &record)?;
    }
    Ok(disk.flush()?)
}

/// Writes a field at its place.
fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use sapwood_block::MemoryDevice;
    use sapwood_testing::device::{Fault, FaultDevice, FaultRule, RequestKinds};

    use super::*;
    use crate::{DiskBuilder, NewPartition, PartitionSize};

    const MIB: u64 = 1 << 20;

    /// A disk with two partitions of 1 MiB and room after the second one.
    fn disk(scheme: Scheme) -> MemoryDevice {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mut builder = DiskBuilder::new().scheme(scheme).size(8 * MIB);
        for name in ["one", "two"] {
            builder = builder.partition(NewPartition {
                name: name.to_owned(),
                size: PartitionSize::Bytes(MIB),
                ..NewPartition::default()
            });
        }
        builder.write_to(&path).unwrap();
        MemoryDevice::load(path).unwrap()
    }

    fn len(device: &dyn Device, number: usize) -> u64 {
        let table = PartitionTable::read(device).unwrap();
        assert_eq!(table.partitions.len(), 2);
        assert!(table.partitions.iter().all(|part| part.flaw.is_none()));
        table.partitions[number - 1].len
    }

    #[test]
    fn every_cut_leaves_the_old_or_the_new_end() {
        for scheme in [Scheme::Gpt, Scheme::Mbr] {
            let old = disk(scheme);
            for (disk, wanted) in [(old.snapshot(), 5 * MIB), (old.resized(12 * MIB), 9 * MIB)] {
                let mut cuts = 0;
                loop {
                    let device = FaultDevice::new(disk.snapshot());
                    let rule = FaultRule::new(RequestKinds::ANY_CHANGE, cuts + 1, Fault::Fail);
                    device.arm(rule.from_then_on());
                    let done = grow(&device, "2", wanted);
                    let found = len(device.inner(), 2);
                    assert_eq!(len(device.inner(), 1), MIB);
                    if done.is_ok() {
                        assert_eq!(found, wanted);
                        break;
                    }
                    assert!([MIB, wanted].contains(&found), "{scheme} {cuts}: {found}");
                    cuts += 1;
                }
                assert!(cuts >= 2, "{scheme}: {cuts}");
            }
        }
    }

    #[test]
    fn both_copies_of_a_gpt_are_new_at_the_end_of_a_grown_disk() {
        let device = disk(Scheme::Gpt).resized(12 * MIB);
        grow(&device, "two", 9 * MIB).unwrap();
        let mut first = [0; 92];
        device.read_at(512, &mut first).unwrap();
        let last = 12 * MIB / 512 - 1;
        assert_eq!(first[32..40], last.to_le_bytes());
        device.write_at(512, &[0; 512]).unwrap();
        assert_eq!(len(&device, 2), 9 * MIB);
        let mut old = [0; 8];
        device.read_at(8 * MIB - 512, &mut old).unwrap();
        assert_eq!(old, [0; 8]);
    }

    #[test]
    fn an_end_without_room_stays() {
        for scheme in [Scheme::Gpt, Scheme::Mbr] {
            let device = disk(scheme);
            let before = device.snapshot();
            let message = grow(&device, "1", 2 * MIB).unwrap_err().to_string();
            assert!(
                message.ends_with("1048576 bytes, up to partition 2"),
                "{message}"
            );
            let message = grow(&device, "2", 8 * MIB).unwrap_err().to_string();
            assert!(message.ends_with("up to the end of the disk"), "{message}");
            assert_eq!(device.first_difference(&before), None);
        }
        let device = disk(Scheme::Gpt);
        device.write_at(520, &[7]).unwrap();
        let refused = grow(&device, "2", 2 * MIB);
        assert!(matches!(refused, Err(RepartitionError::Damaged { .. })));
    }
}
