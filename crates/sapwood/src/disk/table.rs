//! Partition tables, and the types of partitions.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use gpt::mbr::ProtectiveMBR;
use gpt::partition_types::{OperatingSystem, Type};
use gpt::{GptConfig, partition};
use sapwood_block::partition::Scheme;
use uuid::Uuid;

use super::{BuiltDisk, DiskBuilder, DiskError, NewPartition, PartitionContent, Result, SECTOR};

/// Attribute of a GPT entry: firmware of a BIOS boots from it.
const BOOT: u64 = 1 << 2;
/// Type of FAT32 in an MBR, with addresses of sectors.
const MBR_FAT: u8 = 0x0c;

/// The types of partitions that have a name here, with their numbers in an MBR.
const TYPES: &[(&str, &str, Option<u8>)] = &[
    ("linux", "0fc63daf-8483-4772-8e79-3d69d8477de4", Some(0x83)),
    ("esp", "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", Some(0xef)),
    (
        "xbootldr",
        "bc13c2ff-59e6-4262-a352-b275fd6f7172",
        Some(0xea),
    ),
    ("bios", "21686148-6449-6e6f-744e-656564454649", None),
    ("swap", "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", Some(0x82)),
    ("home", "933ac7e1-2eb4-4f13-b844-0e14e2aef915", Some(0x83)),
    ("srv", "3b8f8425-20e0-4f3b-907f-1a25a76f98e8", Some(0x83)),
    ("var", "4d21b016-b534-45c2-a9fb-5c16e091fd2d", Some(0x83)),
    ("tmp", "7ec6f557-3bc5-4aca-b293-16ef5df639d1", Some(0x83)),
    (
        "root-x86",
        "44479540-f297-41b2-9af7-d131d5f0458a",
        Some(0x83),
    ),
    (
        "root-x86-64",
        "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
        Some(0x83),
    ),
    (
        "root-arm",
        "69dad710-2ce4-4e3c-b16c-21a1d49abed3",
        Some(0x83),
    ),
    (
        "root-arm64",
        "b921b045-1df0-41c3-af44-4c6f280d3fae",
        Some(0x83),
    ),
    (
        "root-riscv64",
        "72ec70a6-cf74-40e6-bd49-4bda08e8f224",
        Some(0x83),
    ),
    (
        "usr-x86",
        "75250d76-8cc6-458e-bd66-bd47cc81a812",
        Some(0x83),
    ),
    (
        "usr-x86-64",
        "8484680c-9521-48c6-9c11-b0720656f69e",
        Some(0x83),
    ),
    (
        "usr-arm",
        "7d0359a3-02b3-4f0a-865c-654403e70625",
        Some(0x83),
    ),
    (
        "usr-arm64",
        "b0e01050-ee5f-4390-949a-9101b17104e9",
        Some(0x83),
    ),
    (
        "usr-riscv64",
        "beaec34b-8442-439b-a40b-984381ed097d",
        Some(0x83),
    ),
    (
        "root-x86-verity",
        "d13c5d3b-b5d1-422a-b29f-9454fdc89d76",
        None,
    ),
    (
        "root-x86-64-verity",
        "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5",
        None,
    ),
    (
        "root-arm-verity",
        "7386cdf2-203c-47a9-a498-f2ecce45a2d6",
        None,
    ),
    (
        "root-arm64-verity",
        "df3300ce-d69f-4c92-978c-9bfb0f38d820",
        None,
    ),
    (
        "root-riscv64-verity",
        "b6ed5582-440b-4209-b8da-5ff7c419ea3d",
        None,
    ),
    (
        "usr-x86-verity",
        "8f461b0d-14ee-4e81-9aa9-049b6fb97abd",
        None,
    ),
    (
        "usr-x86-64-verity",
        "77ff5f63-e7b6-4633-acf4-1565b864c0e6",
        None,
    ),
    (
        "usr-arm-verity",
        "c215d751-7bcd-4649-be90-6627490a4c05",
        None,
    ),
    (
        "usr-arm64-verity",
        "6e11a4e7-fbca-4ded-b9e9-e1a512bb664e",
        None,
    ),
    (
        "usr-riscv64-verity",
        "8f1056be-9b05-47c4-81d6-be53128e5b54",
        None,
    ),
    (
        "root-x86-verity-sig",
        "5996fc05-109c-48de-808b-23fa0830b676",
        None,
    ),
    (
        "root-x86-64-verity-sig",
        "41092b05-9fc8-4523-994f-2def0408b176",
        None,
    ),
    (
        "root-arm-verity-sig",
        "42b0455f-eb11-491d-98d3-56145ba9d037",
        None,
    ),
    (
        "root-arm64-verity-sig",
        "6db69de6-29f4-4758-a7a5-962190f00ce3",
        None,
    ),
    (
        "root-riscv64-verity-sig",
        "efe0f087-ea8d-4469-821a-4c2a96a8386a",
        None,
    ),
    (
        "usr-x86-verity-sig",
        "974a71c0-de41-43c3-be5d-5c5ccd1ad2c0",
        None,
    ),
    (
        "usr-x86-64-verity-sig",
        "e7bb33fb-06cf-4e81-8273-e543b413e2e2",
        None,
    ),
    (
        "usr-arm-verity-sig",
        "d7ff812f-37d1-4902-a810-d76ba57b975a",
        None,
    ),
    (
        "usr-arm64-verity-sig",
        "c23ce4ff-44bd-4b00-b2d4-b41b3419e02a",
        None,
    ),
    (
        "usr-riscv64-verity-sig",
        "d2f9000a-7a18-453f-b5cd-4d32f77a7b32",
        None,
    ),
    ("lvm", "e6d6d379-f507-44c2-a23c-238f2a3df928", Some(0x8e)),
    ("raid", "a19d880f-05fc-4d3b-a006-743f0f84911e", Some(0xfd)),
    ("luks", "ca7d7ccb-63ed-4c53-861c-1742536059cc", Some(0x83)),
    ("basic", "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7", Some(0x07)),
];

/// The names of [`partition_type`].
pub fn type_names() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|(name, ..)| *name)
}

/// The type of a partition by its name (`esp`, `root-x86-64`, ...) or GUID.
#[must_use]
pub fn partition_type(text: &str) -> Option<[u8; 16]> {
    let named = TYPES.iter().find(|(name, ..)| *name == text);
    let guid = named.map_or(text, |(_, guid, _)| *guid);
    Some(Uuid::parse_str(guid).ok()?.into_bytes())
}

/// The type that two hexadecimal digits of an MBR mean; Linux data if none does.
pub(super) fn type_of_mbr(digits: &str) -> [u8; 16] {
    let number = u8::from_str_radix(digits, 16).ok();
    let mut types = TYPES.iter();
    let found = types.find(|(_, _, known)| known.is_some() && *known == number);
    let name = found.map_or("linux", |(name, ..)| *name);
    partition_type(name).unwrap_or_default()
}

/// The type of the partition with the hash tree of one with this type.
pub(super) fn verity_type(kind: [u8; 16]) -> Option<[u8; 16]> {
    type_beside(kind, "verity")
}

/// The type of the partition with the signature of the root hash of one with this type.
pub(super) fn signature_type(kind: [u8; 16]) -> Option<[u8; 16]> {
    type_beside(kind, "verity-sig")
}

/// The type whose name is the name of another type with a suffix.
fn type_beside(kind: [u8; 16], suffix: &str) -> Option<[u8; 16]> {
    let mut types = type_names();
    let name = types.find(|name| partition_type(name) == Some(kind))?;
    partition_type(&format!("{name}-{suffix}"))
}

/// The type of a root or `/usr` file system of the machines that this program runs on.
pub(super) fn native_type(name: &str) -> Option<[u8; 16]> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "x86-64",
        "aarch64" => "arm64",
        other => other,
    };
    partition_type(&format!("{name}-{machine}"))
}

impl NewPartition {
    /// The type in a GPT.
    pub(super) fn gpt_type(&self) -> [u8; 16] {
        let own = match self.content {
            PartitionContent::Fat(_) => "basic",
            PartitionContent::Swap(_) => "swap",
            _ => "linux",
        };
        self.kind
            .or_else(|| partition_type(own))
            .unwrap_or_default()
    }

    /// The type in an MBR.
    pub(super) fn mbr_type(&self) -> Result<u8> {
        let fat = matches!(self.content, PartitionContent::Fat(_));
        if fat && self.kind.is_none() {
            return Ok(self.mbr_kind.unwrap_or(MBR_FAT));
        }
        let kind = self.gpt_type();
        let mut types = TYPES.iter();
        let found = types.find(|(name, ..)| partition_type(name) == Some(kind));
        let number = self.mbr_kind.or(found.and_then(|(.., number)| *number));
        number.ok_or_else(|| DiskError::NoMbrType(self.name.clone()))
    }
}

impl DiskBuilder {
    /// Writes the partition table of a disk of its size.
    pub(super) fn write_table(&self, file: &File, path: &Path, made: &BuiltDisk) -> Result<()> {
        match self.scheme {
            Scheme::Gpt => write_gpt(file, path, made, &self.partitions),
            Scheme::Mbr => self.write_mbr(file, path, made),
        }
    }

    /// Writes an MBR, whose number is the start of the UUID of the disk.
    fn write_mbr(&self, file: &File, path: &Path, made: &BuiltDisk) -> Result<()> {
        // A start or end that cannot be expressed in cylinders, heads and sectors.
        const BEYOND: [u8; 3] = [0xfe, 0xff, 0xff];
        let mut sector = [0; SECTOR as usize];
        sector[440..444].copy_from_slice(&made.uuid[..4]);
        let entries = sector[446..510].chunks_exact_mut(16);
        for (entry, (partition, place)) in entries.zip(self.partitions.iter().zip(&made.partitions))
        {
            let number = |bytes: u64| {
                let end = place.start.saturating_add(place.len);
                u32::try_from(bytes / SECTOR).map_err(|_| DiskError::TooLargeForMbr(end))
            };
            entry[0] = if partition.boot { 0x80 } else { 0 };
            entry[1..4].copy_from_slice(&BEYOND);
            entry[4] = partition.mbr_type()?;
            entry[5..8].copy_from_slice(&BEYOND);
            entry[8..12].copy_from_slice(&number(place.start)?.to_le_bytes());
            entry[12..].copy_from_slice(&number(place.len)?.to_le_bytes());
        }
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        file.write_all_at(&sector, 0)
            .map_err(|source| DiskError::File {
                path: path.to_owned(),
                source,
            })
    }
}

/// Writes a GPT with its backup.
fn write_gpt(
    file: &File,
    path: &Path,
    made: &BuiltDisk,
    partitions: &[NewPartition],
) -> Result<()> {
    let failed = |source: gpt::GptError| DiskError::Table {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let host = |source| DiskError::File {
        path: path.to_owned(),
        source,
    };
    let mut device = file.try_clone().map_err(host)?;
    let sectors = file.metadata().map_err(host)?.len() / SECTOR;
    let protected = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
    let mbr = ProtectiveMBR::with_lb_size(protected);
    let written = mbr.overwrite_lba0(&mut device);
    written.map_err(|source| DiskError::Mbr {
        path: path.to_owned(),
        source,
    })?;
    let mut entries = BTreeMap::new();
    for (number, (partition, made)) in (1..).zip(partitions.iter().zip(&made.partitions)) {
        let entry = partition::Partition {
            part_type_guid: Type {
                guid: Uuid::from_bytes(made.kind),
                os: OperatingSystem::None,
            },
            part_guid: Uuid::from_bytes(made.uuid),
            first_lba: made.start / SECTOR,
            last_lba: (made.start + made.len) / SECTOR - 1,
            flags: if partition.boot { BOOT } else { 0 },
            name: made.name.clone(),
        };
        entries.insert(number, entry);
    }
    let config = GptConfig::new().writable(true);
    let disk = config.create_from_device(device, Some(Uuid::from_bytes(made.uuid)));
    let mut disk = disk.map_err(failed)?;
    disk.update_partitions(entries).map_err(failed)?;
    disk.write().map_err(failed)?;
    Ok(())
}
