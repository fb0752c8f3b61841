//! Repairs what can be derived from intact parts of the image.
//!
//! # How it works
//! A repair changes a device that the caller can throw away: an overlay in memory. It writes each
//! change at once, so an error leaves the image half repaired.
//! - A superblock that is damaged, stale or differs is replaced by the newest valid one. A log
//!   commit writes only the first superblock, so a log is lost with it.
//! - A bad copy of a tree block is replaced by the good copy.
//! - `bytes_used` of the superblock becomes the sum of the extents.
//! - Counts and sums get the value that the check has counted: links, bytes and sizes of inodes,
//!   `used` of block groups, bytes of devices, refs of extents.
//! - If items of extents, and with them back references, differ from the trees that use the extents,
//!   the extent tree and the free-space tree are written anew.
//! - A name is in three items; where two of them agree, the third one follows.
//! - A free-space tree with errors is marked invalid. Every writer then ignores it, and Linux
//!   rebuilds it at the next mount.
//!
//! Items of other trees are changed in place, in all copies of their leaf. Further damage is left.

mod edit;
mod extent_items;
mod extents;
mod fields;
mod log;
mod names;
mod rebuild;
mod uses;

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{
    Block, CompatRo, SUPER_OFFSETS, SUPER_SIZE, SuperBlock, validate_super,
};

use super::error::CheckError;
use super::finding::Finding;
use super::report::{CheckOptions, CheckReport, Progress};
use super::source::{CopyAt, Source};
use super::state::Check;
use super::{check, superblock};
use crate::devices::superblock::copy_at;
use edit::Editor;

/// Most rounds of check and repair.
const ROUNDS: usize = 8;

/// Result of a repair.
pub type Repaired = sapwood_base::finding::Repaired<CheckReport>;

/// Repairs the file system on `devices` (all of its devices, in any order), which the caller can
/// throw away after an error. Nothing else may use them meanwhile. With `drop_log` the log is
/// dropped, with the fsyncs since the last commit.
///
/// # Errors
/// [`CheckError`]: no superblock is valid; [`CheckError::MissingDevices`]: not all devices are
/// given; [`CheckError::StaleDevice`]: one of them missed commits.
pub fn repair(
    devices: &[Arc<dyn Device>],
    drop_log: bool,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Repaired, CheckError> {
    let devices: Vec<&dyn Device> = devices.iter().map(|device| &**device).collect();
    let mut done = Repaired::default();
    let opened = superblock::open(&devices, &mut Vec::new())?;
    let mut sb = opened.sb;
    same_generation(&devices, &sb)?;
    has_all_stripes(&devices)?;
    if !superblock::is_dump(&sb) {
        for device in &devices {
            restore_supers(*device, &mut done)?;
        }
    }
    if drop_log && sb.log_root.get() != 0 {
        sb.log_root = 0.into();
        sb.log_root_transid = 0.into();
        sb.log_root_level = 0;
        write_supers(&devices, &sb)?;
        done.add("LogDropped", "superblock: log dropped".to_owned());
    }
    let mut report = check(&devices, options, progress)?;
    let doubt = extents::doubtful(&report);
    for _ in 0..ROUNDS {
        let before = done.repairs.len();
        round(&devices, &report, doubt, &mut done)?;
        if done.repairs.len() == before {
            break;
        }
        report = check(&devices, options, progress)?;
    }
    done.report = report;
    Ok(done)
}

/// Whether a finding is about a copy of the superblock, at which offset.
fn bad_super(finding: &Finding) -> Option<u64> {
    match finding {
        Finding::SuperBad { offset, .. }
        | Finding::SuperStale { offset, .. }
        | Finding::SuperDiffers { offset, .. } => Some(*offset),
        _ => None,
    }
}

/// Refuses a device that missed commits: a repair would hide it.
fn same_generation(devices: &[&dyn Device], newest: &SuperBlock) -> Result<(), CheckError> {
    for device in devices {
        let sb = superblock::newest(*device, &mut Vec::new())?;
        if sb.generation != newest.generation {
            return Err(CheckError::StaleDevice {
                device: device.name().to_owned(),
                found: sb.generation.get(),
                newest: newest.generation.get(),
            });
        }
    }
    Ok(())
}

/// Refuses a set of devices without one on which a chunk is.
fn has_all_stripes(devices: &[&dyn Device]) -> Result<(), CheckError> {
    let (options, mut ignored) = (CheckOptions::default(), |_| {});
    let source = Check::open(devices, &options, &mut ignored)?.source;
    for (&chunk, item) in &source.chunks {
        for stripe in &item.stripes {
            let devid = stripe.devid;
            if !source.disks.iter().any(|disk| disk.devid == devid) {
                return Err(CheckError::ChunkWithoutDevice { chunk, devid });
            }
        }
    }
    Ok(())
}

/// Writes the newest superblock of a device over its invalid ones.
fn restore_supers(device: &dyn Device, done: &mut Repaired) -> Result<(), CheckError> {
    let mut findings = Vec::new();
    let sb = superblock::newest(device, &mut findings)?;
    for finding in &findings {
        let Some(offset) = bad_super(finding) else {
            continue;
        };
        // The last copy may lie past the end of the file system, on a larger device.
        let end = offset.saturating_add(SUPER_SIZE as u64);
        if end > device.size().min(sb.dev_item.total_bytes.get()) {
            continue;
        }
        write_super(device, offset, &sb)?;
        let from = sb.bytenr.get();
        let text = format!("{finding}: restored from the superblock at {from}");
        done.add(finding.code(), text);
    }
    Ok(())
}

/// Writes a superblock to one of its places.
fn write_super(device: &dyn Device, offset: u64, sb: &SuperBlock) -> Result<(), CheckError> {
    let mut own = *sb;
    if offset != SUPER_OFFSETS[0] {
        own.log_root = 0.into();
        own.log_root_transid = 0.into();
        own.log_root_level = 0;
    }
    let bytes = copy_at(&own, offset);
    let bytes = bytes.map_err(|error| CheckError::Features(error.to_string()))?;
    Ok(device.write_at(offset, &bytes)?)
}

/// Writes a superblock to all places that have a valid one. Each device keeps its own device item,
/// except the one that the superblock is from.
fn write_supers(devices: &[&dyn Device], sb: &SuperBlock) -> Result<(), CheckError> {
    for device in devices {
        for offset in SUPER_OFFSETS {
            if offset.saturating_add(SUPER_SIZE as u64) > device.size() {
                continue;
            }
            let mut bytes = vec![0; SUPER_SIZE];
            device.read_at(offset, &mut bytes)?;
            let Ok(found) = validate_super(&bytes, offset) else {
                continue;
            };
            let mut own = *sb;
            if found.dev_item.devid != sb.dev_item.devid {
                own.dev_item = found.dev_item;
            }
            write_super(*device, offset, &own)?;
        }
    }
    Ok(())
}

/// Repairs the findings of one check.
fn round(
    devices: &[&dyn Device],
    report: &CheckReport,
    doubt: bool,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let options = CheckOptions::default();
    let mut ignored = |_| {};
    let mut opened = Check::open(devices, &options, &mut ignored)?;
    opened.root_tree();
    let before = done.repairs.len();
    let editor = Editor::new(&opened);
    names::repair(&editor, report, done)?;
    if done.repairs.len() > before {
        // Counts follow from names.
        return Ok(());
    }
    drop(editor);
    if extents::repair(&mut opened, report, doubt, done)? {
        // Sums follow from extents.
        return Ok(());
    }
    let editor = Editor::new(&opened);
    fields::repair(&opened, &editor, report, done)?;
    drop(editor);
    let (mut sb, source) = (opened.sb, opened.source);
    let valid = CompatRo::FREE_SPACE_TREE_VALID;
    let intact = !report.findings.iter().any(hides_extents);
    let mut changed = false;
    for finding in &report.findings {
        match finding {
            Finding::BlockCopy { .. } if copy_block(&source, &sb, finding, report)? => {
                let text = format!("{finding}: replaced by the good copy");
                done.add(finding.code(), text);
            }
            Finding::SuperBytesUsed { expected, .. } if intact => {
                sb.bytes_used = (*expected).into();
                changed = true;
                done.add(finding.code(), format!("{finding}: corrected"));
            }
            Finding::SuperTotalBytes { expected, .. } => {
                sb.total_bytes = (*expected).into();
                changed = true;
                done.add(finding.code(), format!("{finding}: corrected"));
            }
            Finding::DeviceItem {
                devid,
                field: "bytes used",
                expected,
                ..
            } if *devid == sb.dev_item.devid.get() => {
                sb.dev_item.bytes_used = (*expected).into();
                changed = true;
                done.add(finding.code(), format!("{finding}: corrected"));
            }
            Finding::FreeSpaceInfoMissing { .. }
            | Finding::FreeSpaceForm { .. }
            | Finding::FreeSpaceMissing { .. }
            | Finding::FreeSpaceUsed { .. }
            | Finding::FreeSpaceOutside { .. }
                if sb.compat_ro().contains(valid) =>
            {
                let flags = sb.compat_ro() - valid;
                sb.compat_ro_flags = flags.bits().into();
                changed = true;
                let text = format!(
                    "{finding}: free-space tree marked invalid, the next mount of Linux rebuilds it"
                );
                done.add("FreeSpaceTreeInvalid", text);
            }
            _ => {}
        }
    }
    if changed {
        write_supers(devices, &sb)?;
    }
    Ok(())
}

/// Whether extents may be missing because of the damage.
fn hides_extents(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::BlockBad { .. } | Finding::TreeMissing { .. }
    )
}

/// Writes a good copy of a tree block over a bad one: a copy that no finding is about.
fn copy_block(
    source: &Source<'_>,
    sb: &SuperBlock,
    finding: &Finding,
    report: &CheckReport,
) -> Result<bool, CheckError> {
    let Finding::BlockCopy { logical, .. } = *finding else {
        return Ok(false);
    };
    let nodesize = u64::from(sb.nodesize.get());
    let copies = source.copies(logical, nodesize);
    let is_at = |at: &CopyAt, finding: &Finding| match finding {
        Finding::BlockCopy {
            logical: of,
            device,
            physical,
            ..
        } => *of == logical && *physical == at.physical && *device == source.device_name(at),
        _ => false,
    };
    let Some(bad) = copies.iter().find(|at| is_at(at, finding)) else {
        return Ok(false);
    };
    let mut best: Option<(u64, Vec<u8>)> = None;
    for at in &copies {
        let mut findings = report.findings.iter();
        if findings.any(|finding| is_at(at, finding)) {
            continue;
        }
        let mut bytes = vec![0; sb.nodesize.get() as usize];
        if source.read(at, &mut bytes).is_err() {
            continue;
        }
        let generation = intact(sb, logical, &bytes);
        if let Some(generation) = generation
            && best.as_ref().is_none_or(|(of, _)| generation > *of)
        {
            best = Some((generation, bytes));
        }
    }
    let disk = bad.disk.and_then(|number| source.disks.get(number));
    let (Some(disk), Some((_, bytes))) = (disk, best) else {
        return Ok(false);
    };
    disk.device.write_at(bad.physical, &bytes)?;
    Ok(true)
}

/// The generation of a block whose checksum and address are right.
fn intact(sb: &SuperBlock, logical: u64, bytes: &[u8]) -> Option<u64> {
    let mut sealed = bytes.to_vec();
    sb.checksum_kind()?.seal_block(&mut sealed);
    let block = Block::new(bytes).ok()?;
    (sealed == bytes && block.bytenr() == logical).then(|| block.generation())
}
