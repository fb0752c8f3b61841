//! Superblocks: all copies on all devices, the newest of them, backup roots.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use sapwood_block::Device;
use sapwood_btrfs_format::{
    ChunkItem, CompatRo, Expect, Incompat, SUPER_OFFSETS, SUPER_SIZE, SuperBlock, SuperError,
    SuperFlags, validate_super,
};

use super::error::CheckError;
use super::finding::Finding;
use super::source::Disk;

/// Result of reading the superblocks.
pub(super) struct Opened<'d> {
    pub(super) sb: SuperBlock,
    pub(super) expect: Expect,
    pub(super) disks: Vec<Disk<'d>>,
    pub(super) sys_chunks: BTreeMap<u64, ChunkItem>,
}

/// Features that the check knows.
const KNOWN: Incompat = Incompat::SUPPORTED;

/// Reads the superblocks of all devices and compares them.
pub(super) fn open<'d>(
    devices: &[&'d dyn Device],
    findings: &mut Vec<Finding>,
) -> Result<Opened<'d>, CheckError> {
    let mut supers = Vec::new();
    for device in devices {
        supers.push((*device, newest(*device, findings)?));
    }
    // Devices may have different commits only after a crash between their writes.
    let Some((_, sb)) = supers.iter().max_by_key(|(_, sb)| sb.generation.get()) else {
        return Err(CheckError::NoDevice);
    };
    let sb = *sb;
    features(&sb)?;
    let mut disks = Vec::new();
    for (device, own) in supers {
        if own.fsid != sb.fsid {
            return Err(CheckError::ForeignDevice {
                device: device.name().to_owned(),
            });
        }
        let devid = own.dev_item.devid.get();
        if disks.iter().any(|disk: &Disk<'_>| disk.devid == devid) {
            let device = device.name().to_owned();
            return Err(CheckError::DuplicateDevice { device, devid });
        }
        disks.push(Disk { devid, device });
    }
    let (expected, found) = (sb.num_devices.get(), disks.len());
    match expected.cmp(&(found as u64)) {
        Ordering::Greater => return Err(CheckError::MissingDevices { expected, found }),
        Ordering::Less => return Err(CheckError::SurplusDevices { expected, found }),
        Ordering::Equal => {}
    }
    let Some(expect) = Expect::new(&sb, 0) else {
        return Err(CheckError::Features(format!(
            "checksum {}",
            sb.csum_type.get()
        )));
    };
    // Linux uses the sector size instead; `btrfs check` accepts no other value.
    let found = sb.stripesize.get();
    if found != 4096 && found != sb.sectorsize.get() {
        findings.push(Finding::SuperField {
            field: "stripesize",
            found: found.into(),
        });
    }
    backups(&sb, findings);
    let sys_chunks = sb.sys_chunks().filter_map(Result::ok).collect();
    Ok(Opened {
        sb,
        expect,
        disks,
        sys_chunks,
    })
}

fn features(sb: &SuperBlock) -> Result<(), CheckError> {
    let incompat = sb.incompat().difference(KNOWN);
    let compat_ro = sb.compat_ro().difference(CompatRo::SUPPORTED);
    if !incompat.is_empty() {
        return Err(CheckError::Features(incompat.to_string()));
    }
    if !compat_ro.is_empty() {
        return Err(CheckError::Features(compat_ro.to_string()));
    }
    Ok(())
}

/// The newest valid superblock of a device; the others are compared with it.
pub(super) fn newest(
    device: &dyn Device,
    findings: &mut Vec<Finding>,
) -> Result<SuperBlock, CheckError> {
    let name = || device.name().to_owned();
    let mut valid: Vec<(u64, SuperBlock)> = Vec::new();
    let mut first_error = None;
    for offset in SUPER_OFFSETS {
        // A device may be larger than the file system on it.
        let own = valid.first().map(|(_, sb)| sb.dev_item.total_bytes.get());
        let end = device.size().min(own.unwrap_or(u64::MAX));
        if offset.saturating_add(SUPER_SIZE as u64) > end {
            continue;
        }
        let mut bytes = vec![0; SUPER_SIZE];
        if let Err(error) = device.read_at(offset, &mut bytes) {
            let error = error.to_string();
            findings.push(Finding::SuperUnreadable {
                device: name(),
                offset,
                error,
            });
            continue;
        }
        match validate_super(&bytes, offset) {
            Ok(sb) => valid.push((offset, sb)),
            Err(error) => {
                first_error.get_or_insert_with(|| error.clone());
                findings.push(Finding::SuperBad {
                    device: name(),
                    offset,
                    error,
                });
            }
        }
    }
    // The first of the newest: `max_by_key` returns the last.
    let best = valid.iter().rev().max_by_key(|(_, sb)| sb.generation.get());
    let Some((at, best)) = best.copied() else {
        let device = name();
        return Err(match first_error {
            None | Some(SuperError::Magic { .. }) => CheckError::NotBtrfs { device },
            Some(source) => CheckError::NoSuperblock { device, source },
        });
    };
    if is_dump(&best) {
        let found = findings.drain(..).map(|finding| match finding {
            Finding::SuperBad {
                device,
                offset,
                error: SuperError::Magic { .. },
            } => Finding::SuperOfDump { device, offset },
            other => other,
        });
        *findings = found.collect();
    }
    for (offset, sb) in valid {
        compare(device, (at, &best), (offset, &sb), findings);
    }
    Ok(best)
}

/// Whether an image was restored from a dump by `btrfs-image`, which has metadata without the data,
/// and only the first superblock.
pub(super) fn is_dump(sb: &SuperBlock) -> bool {
    let dump = SuperFlags::METADUMP | SuperFlags::METADUMP_V2;
    sb.super_flags().intersects(dump)
}

fn compare(
    device: &dyn Device,
    (at, best): (u64, &SuperBlock),
    (offset, sb): (u64, &SuperBlock),
    findings: &mut Vec<Finding>,
) {
    let (found, newest) = (sb.generation.get(), best.generation.get());
    if offset == at {
        return;
    }
    let device = device.name().to_owned();
    if found != newest {
        return findings.push(Finding::SuperStale {
            device,
            offset,
            found,
            newest,
        });
    }
    // A log commit writes only the first copy.
    let same = SuperBlock {
        csum: best.csum,
        bytenr: best.bytenr,
        log_root: best.log_root,
        log_root_transid: best.log_root_transid,
        log_root_level: best.log_root_level,
        ..*sb
    };
    let differs = same
        .bytes()
        .iter()
        .zip(best.bytes())
        .position(|(a, b)| a != b);
    if let Some(at) = differs {
        findings.push(Finding::SuperDiffers { device, offset, at });
    }
}

/// Compares the backup of the superblock's own commit with the superblock. Linux stores backups
/// when the next transaction may already have new roots, so there can be two of this generation, or
/// none.
fn backups(sb: &SuperBlock, findings: &mut Vec<Finding>) {
    let generation = sb.generation.get();
    let own = || {
        let backups = sb.super_roots.iter();
        backups.filter(|b| b.tree_root_gen.get() == generation)
    };
    let same = own().find(|b| b.tree_root == sb.root);
    let Some(backup) = same.or_else(|| own().next()) else {
        return findings.push(Finding::BackupMissing { generation });
    };
    for (field, found, expected) in [
        ("root tree", backup.tree_root.get(), sb.root.get()),
        (
            "level of the root tree",
            backup.tree_root_level.into(),
            sb.root_level.into(),
        ),
        ("chunk tree", backup.chunk_root.get(), sb.chunk_root.get()),
        (
            "chunk tree generation",
            backup.chunk_root_gen.get(),
            sb.chunk_root_generation.get(),
        ),
        (
            "level of the chunk tree",
            backup.chunk_root_level.into(),
            sb.chunk_root_level.into(),
        ),
        (
            "total bytes",
            backup.total_bytes.get(),
            sb.total_bytes.get(),
        ),
        ("bytes used", backup.bytes_used.get(), sb.bytes_used.get()),
        (
            "number of devices",
            backup.num_devices.get(),
            sb.num_devices.get(),
        ),
    ] {
        if found != expected {
            findings.push(Finding::BackupRoot {
                field,
                found,
                expected,
            });
        }
    }
}
