//! Tables made by hand. `tests/suite/partitions.rs` compares with the tables of `sfdisk` and the
//! kernel.

use super::*;
use crate::MemoryDevice;

const SIZE: u64 = 1 << 20;

/// A GPT with these partitions (first sector, last sector, name), for sectors of this size.
fn gpt(sector: u64, partitions: &[(u64, u64, &str)]) -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    let mut mbr = vec![0; 512];
    mbr[450] = 0xee;
    mbr[454] = 1;
    mbr[458] = 0xff;
    mbr[510..].copy_from_slice(&[0x55, 0xaa]);
    device.write_at(0, &mbr).unwrap();
    let last = SIZE / sector - 1;
    let table_sectors = 128 * 128 / sector;
    let mut table = vec![0; 128 * 128];
    for ((first, last, name), entry) in partitions.iter().zip(table.chunks_mut(128)) {
        entry[..32].fill(0x11);
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        for (unit, at) in name.encode_utf16().zip((56..).step_by(2)) {
            entry[at..at + 2].copy_from_slice(&unit.to_le_bytes());
        }
    }
    for (here, other, start) in [(1, last, 2), (last, 1, last - table_sectors)] {
        let mut header = vec![0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x1_0000_u32.to_le_bytes());
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&here.to_le_bytes());
        header[32..40].copy_from_slice(&other.to_le_bytes());
        header[40..48].copy_from_slice(&(2 + table_sectors).to_le_bytes());
        header[48..56].copy_from_slice(&(last - table_sectors - 1).to_le_bytes());
        header[72..80].copy_from_slice(&start.to_le_bytes());
        header[80..84].copy_from_slice(&128_u32.to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(&table).to_le_bytes());
        seal(&mut header);
        device.write_at(here * sector, &header).unwrap();
        device.write_at(start * sector, &table).unwrap();
    }
    device
}

/// Sets the checksum of a header.
fn seal(header: &mut [u8]) {
    header[16..20].fill(0);
    let sum = crc32fast::hash(&header[..92]);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// Changes both headers of a GPT with sectors of 512 bytes, with a right checksum again.
fn change_headers(device: &MemoryDevice, change: impl Fn(&mut [u8])) {
    for sector in [1, SIZE / 512 - 1] {
        let mut header = vec![0; 92];
        device.read_at(sector * 512, &mut header).unwrap();
        change(&mut header);
        seal(&mut header);
        device.write_at(sector * 512, &header).unwrap();
    }
}

fn find(device: &MemoryDevice, wanted: &str) -> Result<(u64, u64), PartitionError> {
    let table = PartitionTable::read(device)?;
    let found = table.find("disk", wanted)?;
    Ok((found.start, found.len))
}

fn message(device: &MemoryDevice, wanted: &str) -> String {
    find(device, wanted).unwrap_err().to_string()
}

#[test]
fn gpt_partitions_are_found_by_number_and_name() {
    for sector in [512, 4096] {
        let device = gpt(
            sector,
            &[(40, 47, "esp"), (48, 48, "wurzel ä"), (50, 59, "7")],
        );
        assert_eq!(find(&device, "1").unwrap(), (40 * sector, 8 * sector));
        assert_eq!(find(&device, "esp").unwrap(), (40 * sector, 8 * sector));
        assert_eq!(find(&device, "wurzel ä").unwrap(), (48 * sector, sector));
        assert_eq!(find(&device, "7").unwrap(), (50 * sector, 10 * sector));
        let there = "memory: no partition x; there are: 1 (esp), 2 (wurzel ä), 3 (7)";
        let table = PartitionTable::read(&device).unwrap();
        assert_eq!(table.scheme, Scheme::Gpt);
        assert_eq!(table.find("memory", "x").unwrap_err().to_string(), there);
    }
}

#[test]
fn the_backup_is_used_where_the_first_header_is_damaged() {
    let device = gpt(512, &[(40, 47, "esp")]);
    device.write_at(512 + 60, &[9]).unwrap();
    assert_eq!(find(&device, "esp").unwrap(), (40 * 512, 8 * 512));
    device.write_at(SIZE - 512 + 60, &[9]).unwrap();
    let why = message(&device, "esp");
    let wanted = "first header: wrong checksum of the header; backup: wrong checksum of the header";
    assert!(why.contains(wanted), "{why}");
}

#[test]
fn every_damaged_field_of_a_gpt_is_found() {
    let number = |at: usize, value: u64, bytes: usize| {
        move |header: &mut [u8]| {
            header[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    };
    let cases: [(&str, usize, u64, usize); 13] = [
        ("unknown revision", 8, 0x2_0000, 4),
        ("header of 91 bytes", 12, 91, 4),
        ("header of 4294967295 bytes", 12, 0xffff_ffff, 4),
        ("says that it is at sector 9", 24, 9, 8),
        ("partitions from sector", 48, u64::MAX, 8),
        ("partitions from sector", 40, 2047, 8),
        ("which is outside", 72, u64::MAX - 1, 8),
        ("which is outside", 72, 1 << 60, 8),
        ("which is outside", 72, 40, 8),
        ("table of 4294967295 entries", 80, 0xffff_ffff, 4),
        ("table of 0 entries", 80, 0, 4),
        ("entries of 127 bytes", 84, 127, 4),
        ("wrong checksum of the table", 88, 0, 4),
    ];
    for (wanted, at, value, bytes) in cases {
        let device = gpt(512, &[(40, 47, "esp")]);
        change_headers(&device, number(at, value, bytes));
        let why = message(&device, "1");
        assert!(why.contains(wanted), "{at}: {why}");
    }
}

#[test]
fn a_flaw_of_one_partition_leaves_the_others_usable() {
    let parts = [
        (40, 60, "a"),
        (60, 70, "b"),
        (72, 71, "c"),
        (3, 9, "d"),
        (80, 90, "e"),
    ];
    let device = gpt(512, &parts);
    assert!(message(&device, "1").ends_with("disk: partition 1 overlaps partition 2"));
    assert!(message(&device, "b").ends_with("partition 2 overlaps partition 1"));
    assert!(message(&device, "c").contains("no valid range"));
    assert!(message(&device, "d").contains("no valid range"));
    assert_eq!(find(&device, "e").unwrap(), (80 * 512, 11 * 512));
}

#[test]
fn a_partition_within_another_is_seen_past_a_third() {
    let device = gpt(
        512,
        &[(40, 99, "a"), (41, 50, "b"), (90, 95, "c"), (100, 101, "d")],
    );
    assert!(message(&device, "c").ends_with("overlaps partition 1"));
    assert!(find(&device, "d").is_ok());
}

#[test]
fn a_name_of_several_partitions_is_ambiguous() {
    let device = gpt(512, &[(40, 47, "x"), (48, 49, "x")]);
    assert!(message(&device, "x").contains("partitions [1, 2] all have the name x"));
}

#[test]
fn control_characters_of_a_name_are_escaped() {
    let device = gpt(512, &[(40, 47, "\x1b[2J")]);
    let why = message(&device, "9");
    assert!(why.contains("\\u{1b}[2J") && !why.contains('\x1b'), "{why}");
}

/// A record: type, start, sectors of each entry.
fn record(device: &MemoryDevice, sector: u64, entries: &[(u8, u32, u32)]) {
    let mut bytes = vec![0; 512];
    for ((kind, start, count), entry) in entries.iter().zip(bytes[446..510].chunks_mut(16)) {
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&count.to_le_bytes());
    }
    bytes[510..].copy_from_slice(&[0x55, 0xaa]);
    device.write_at(sector * 512, &bytes).unwrap();
}

fn mbr() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    record(
        &device,
        0,
        &[
            (0x83, 8, 8),
            (0, 0, 0),
            (0x05, 100, 1000),
            (0x83, 2000, 100),
        ],
    );
    record(&device, 100, &[(0x83, 1, 9), (0x05, 500, 100)]);
    record(&device, 600, &[(0x82, 2, 10)]);
    device
}

#[test]
fn primary_and_logical_partitions_are_found() {
    let device = mbr();
    let table = PartitionTable::read(&device).unwrap();
    assert_eq!(table.scheme, Scheme::Mbr);
    assert_eq!(find(&device, "1").unwrap(), (8 * 512, 8 * 512));
    assert_eq!(find(&device, "5").unwrap(), (101 * 512, 9 * 512));
    assert_eq!(find(&device, "6").unwrap(), (602 * 512, 10 * 512));
    assert!(message(&device, "3").contains("extended"));
    assert!(
        message(&device, "4")
            .ends_with("partition 4 ends at 1075200, past the end of the device at 1048576")
    );
    assert!(message(&device, "2").ends_with("disk: no partition 2; there are: 1, 3, 4, 5, 6"));
}

#[test]
fn a_damaged_chain_of_logical_partitions_ends() {
    let device = mbr();
    record(&device, 600, &[(0x83, 2, 10), (0x05, 500, 10)]);
    assert!(message(&device, "9").contains("does not end"));
    record(&device, 600, &[(0x83, 2, 10), (0x05, 1000, 10)]);
    assert!(message(&device, "9").contains("outside of the extended partition"));
    record(&device, 600, &[(0x83, 2, 10), (0x05, 700, 10)]);
    assert!(message(&device, "9").contains("no record of logical partition 7"));
    // Partitions before the damage work.
    assert!(find(&device, "1").is_ok() && find(&device, "6").is_ok());
    record(&device, 600, &[(0x83, 2, 990)]);
    assert!(message(&device, "6").contains("no valid range"));
}

#[test]
fn a_device_without_a_table_has_none() {
    for size in [0, 511, 512, 4096, SIZE] {
        let none = PartitionTable::read(&MemoryDevice::new(size));
        assert!(
            matches!(none, Err(PartitionError::NoTable { .. })),
            "{none:?}"
        );
    }
    // The boot sector of a FAT file system.
    let device = MemoryDevice::new(SIZE);
    let mut boot = vec![0x6f; 512];
    boot[510..].copy_from_slice(&[0x55, 0xaa]);
    device.write_at(0, &boot).unwrap();
    assert!(matches!(
        PartitionTable::read(&device),
        Err(PartitionError::NoTable { .. })
    ));
}

#[test]
fn random_bytes_in_a_table_never_panic() {
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..4000 {
        let device = match round % 2 {
            0 => gpt(512, &[(40, 47, "esp"), (48, 1900, "root")]),
            _ => mbr(),
        };
        for _ in 0..random.usize(1..6) {
            let at = match round % 2 {
                0 => random.u64(..2048),
                _ => [0, 100 * 512, 600 * 512][random.usize(..3)] + random.u64(440..512),
            };
            device.write_at(at, &[random.u8(..)]).unwrap();
        }
        if round % 4 == 0 {
            // Bytes that a checksum confirms.
            let at = random.usize(20..92);
            let byte = random.u8(..);
            change_headers(&device, |header| header[at] = byte);
        }
        if let Ok(table) = PartitionTable::read(&device) {
            for part in table.partitions.iter().filter(|part| part.flaw.is_none()) {
                assert!(
                    part.start + part.len <= SIZE && part.start >= 512,
                    "round {round}"
                );
            }
        }
    }
}
