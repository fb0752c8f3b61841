//! Replaces a device of a file system that is not mounted by another one, which gets its id and its
//! UUID, so that no tree changes.
//!
//! # How it works
//! **A device that is there**: all its block groups are copied to the same offsets of the new
//! device. A flush follows, then the new device gets the superblocks of the old one, and the old
//! one's are erased last. A power cut before the superblocks leaves the old device as it was. After
//! one between the two steps both are the same device, and a mount of both is refused
//! (`DuplicateDevice`); the same replacement once more only erases the old superblocks, or copies
//! again if the old device changed since.
//!
//! **A device that is missing**: the new device gets superblocks that are two generations old. It
//! is then a stale device, and a scrub brings it up to date from the other devices. An interrupted
//! scrub leaves it stale, and another one continues. A scrub also follows where the old device
//! could not be read.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, signature};
use sapwood_btrfs_format::{BlockGroupFlags, DevItem, SuperBlock};
use sapwood_vfs::Timestamp;

use crate::devices::superblock;
use crate::membership::{MembershipError, Removal, SECTOR, erase_supers};
use crate::mount::Btrfs;
use crate::scrub::{ScrubOptions, ScrubReport, scrub};
use crate::transaction::Store;
use crate::{Error, Options, SubvolumeChoice, relocate};

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;
/// Bytes of one read where a larger one fails.
const LEAST: u64 = 4096;

type Result<T> = std::result::Result<T, MembershipError>;

/// Parameters of a replacement.
#[derive(Clone, Debug)]
pub struct ReplaceOptions {
    /// The device that is replaced.
    pub source: Removal,
    /// Overwrites the contents of the new device.
    pub force: bool,
    /// Further devices may be missing, as far as the profiles allow.
    pub degraded: bool,
    /// Time of the changes, for a reproducible result.
    pub time: Option<Timestamp>,
}

/// The result of a replacement.
#[derive(Clone, Debug, Default)]
pub struct ReplaceReport {
    /// Id of the device.
    pub devid: u64,
    /// Bytes that the old device did not return.
    pub unreadable: u64,
    /// The scrub that rebuilt the device, or what could not be read.
    pub scrub: Option<ScrubReport>,
    /// It ended early.
    pub interrupted: bool,
}

/// Progress callback: bytes that are done so far, and all bytes.
pub type OnReplaced<'p> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 'p;

/// The ranges of a device that belong to block groups: offsets and bytes.
type Ranges = Vec<(u64, u64)>;

/// Replaces a device of the file system on `devices` by `new`.
///
/// # Errors
/// Before any change: [`MembershipError::NoSuchDevice`], [`MembershipError::NoneMissing`],
/// [`MembershipError::Smaller`], [`MembershipError::Occupied`], [`MembershipError::Member`],
/// [`MembershipError::Parity`]. Later [`MembershipError::Engine`].
pub fn replace(
    devices: &[Arc<dyn Device>],
    new: &Arc<dyn Device>,
    options: &ReplaceOptions,
    step: &mut OnReplaced<'_>,
) -> Result<ReplaceReport> {
    let mut all = devices.to_vec();
    if let Removal::Device(source) = &options.source {
        let known = |device: &Arc<dyn Device>| Arc::ptr_eq(device, source);
        if !all.iter().any(known) {
            all.push(Arc::clone(source));
        }
    }
    let Some((source, sb)) = source_of(&all, &options.source)? else {
        return rebuild(&all, &options.source, new, options, step);
    };
    if !is_stale(&all, &sb)? {
        return copy(&all, &source, &sb, new, options, step);
    }
    // It lacks changes, so the other devices are the source.
    all.retain(|device| !Arc::ptr_eq(device, &source));
    let devid = Removal::Devid(sb.dev_item.devid.get());
    let report = rebuild(&all, &devid, new, options, step)?;
    if !report.interrupted {
        erase_supers(&*source)?;
    }
    Ok(report)
}

/// Whether a device missed commits of the others.
fn is_stale(all: &[Arc<dyn Device>], sb: &SuperBlock) -> Result<bool> {
    let mut newest = 0;
    for device in all {
        newest = newest.max(superblock::read_newest(&**device)?.generation.get());
    }
    Ok(sb.generation.get().saturating_add(1) < newest)
}

/// The device to replace, if it is there, with its superblock.
fn source_of(
    all: &[Arc<dyn Device>],
    removal: &Removal,
) -> Result<Option<(Arc<dyn Device>, SuperBlock)>> {
    for device in all {
        let sb = superblock::read_newest(&**device)?;
        let wanted = match removal {
            Removal::Devid(devid) => sb.dev_item.devid.get() == *devid,
            Removal::Device(source) => Arc::ptr_eq(device, source),
            Removal::Missing => false,
        };
        if wanted {
            return Ok(Some((Arc::clone(device), sb)));
        }
    }
    Ok(None)
}

/// Refuses a device that is too small for `item`, a member of the file system, or has contents. An
/// older copy of the replaced device is none of these.
fn check_new(new: &dyn Device, item: &DevItem, fsid: [u8; 16], force: bool) -> Result<()> {
    let device = || new.name().to_owned();
    let needed = item.total_bytes.get();
    if new.size() < needed {
        let (device, size) = (device(), new.size());
        return Err(MembershipError::Smaller {
            device,
            size,
            needed,
        });
    }
    let own = superblock::read_newest(new).ok();
    if let Some(own) = own.filter(|own| own.fsid == fsid) {
        if own.dev_item.uuid == item.uuid {
            return Ok(());
        }
        let (device, devid) = (device(), own.dev_item.devid.get());
        return Err(MembershipError::Member { device, devid });
    }
    let found = signature::find(new).map_err(Error::from)?;
    match found.filter(|_| !force) {
        Some(what) => {
            let device = device();
            Err(MembershipError::Occupied { device, what })
        }
        None => Ok(()),
    }
}

fn wipe(new: &dyn Device) -> Result<()> {
    erase_supers(new)?;
    Ok(signature::wipe(new).map_err(Error::from)?)
}

/// Replaces a device that is there.
fn copy(
    all: &[Arc<dyn Device>],
    source: &Arc<dyn Device>,
    sb: &SuperBlock,
    new: &Arc<dyn Device>,
    options: &ReplaceOptions,
    step: &mut OnReplaced<'_>,
) -> Result<ReplaceReport> {
    let mut report = ReplaceReport {
        devid: sb.dev_item.devid.get(),
        ..ReplaceReport::default()
    };
    if is_replaced(new, sb) {
        erase_supers(&**source)?;
        return Ok(report);
    }
    check_new(&**new, &sb.dev_item, sb.fsid, options.force)?;
    let fs = relocate::open(all, options.time, options.degraded)?;
    let ranges = ranges(&fs, report.devid);
    fs.close()?;
    drop(fs);
    wipe(&**new)?;
    let total = ranges.iter().map(|(_, len)| len).sum();
    let mut done = 0;
    for (start, len) in ranges {
        let end = start.saturating_add(len);
        let mut at = start;
        while at < end {
            let len = PIECE.min(end - at);
            report.unreadable += copy_piece(&**source, &**new, at, len)?;
            at += len;
            done += len;
            if step(done, total).is_break() {
                report.interrupted = true;
                return Ok(report);
            }
        }
    }
    new.flush().map_err(Error::from)?;
    let sb = superblock::read_newest(&**source)?;
    superblock::write_all(&**new, &sb)?;
    new.flush().map_err(Error::from)?;
    erase_supers(&**source)?;
    if report.unreadable > 0 {
        let others = all.iter().filter(|device| !Arc::ptr_eq(device, source));
        let mut now: Vec<_> = others.cloned().collect();
        now.push(Arc::clone(new));
        scrub_into(&mut report, &now, options, step)?;
    }
    Ok(report)
}

/// Whether an earlier replacement ended before it erased the superblocks of the old device.
fn is_replaced(new: &Arc<dyn Device>, old: &SuperBlock) -> bool {
    let own = superblock::read_newest(&**new).ok();
    own.is_some_and(|own| {
        own.fsid == old.fsid
            && own.dev_item.uuid == old.dev_item.uuid
            && own.generation.get() >= old.generation.get()
    })
}

/// The ranges of a device that belong to block groups.
fn ranges(fs: &Btrfs, devid: u64) -> Ranges {
    let store: &Store = &fs.engine;
    let placed = store.space.placed().into_iter();
    let own = placed.filter(|placed| placed.devid == devid);
    own.map(|placed| (placed.offset, placed.len)).collect()
}

/// Copies bytes; returns how many of them could not be read, and are zeros in the copy.
fn copy_piece(from: &dyn Device, to: &dyn Device, at: u64, len: u64) -> Result<u64> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    let mut unreadable = 0;
    if from.read_at(at, &mut bytes).is_err() {
        for (nth, part) in (0_u64..).zip(bytes.chunks_mut(LEAST as usize)) {
            if from.read_at(at + nth * LEAST, part).is_err() {
                part.fill(0);
                unreadable += part.len() as u64;
            }
        }
    }
    to.write_at(at, &bytes).map_err(Error::from)?;
    Ok(unreadable)
}

/// Replaces a device that is missing.
fn rebuild(
    all: &[Arc<dyn Device>],
    source: &Removal,
    new: &Arc<dyn Device>,
    options: &ReplaceOptions,
    step: &mut OnReplaced<'_>,
) -> Result<ReplaceReport> {
    let (item, sb) = missing(all, source)?;
    let mut report = ReplaceReport {
        devid: item.devid.get(),
        ..ReplaceReport::default()
    };
    check_new(&**new, &item, sb.fsid, options.force)?;
    wipe(&**new)?;
    let generation = sb.generation.get().saturating_sub(2).max(1);
    let stale = SuperBlock {
        dev_item: item,
        generation: generation.into(),
        chunk_root_generation: sb.chunk_root_generation.get().min(generation).into(),
        log_root: 0.into(),
        log_root_level: 0,
        ..sb
    };
    superblock::write_all(&**new, &stale)?;
    new.flush().map_err(Error::from)?;
    let mut now = all.to_vec();
    now.push(Arc::clone(new));
    scrub_into(&mut report, &now, options, step)?;
    Ok(report)
}

/// The item of a missing device, and the newest superblock.
fn missing(all: &[Arc<dyn Device>], removal: &Removal) -> Result<(DevItem, SuperBlock)> {
    let options = Options {
        subvolume: SubvolumeChoice::Id(0),
        background: false,
        read_only: true,
        no_log_replay: true,
        degraded: true,
        ..Options::default()
    };
    let fs = Btrfs::open(all.to_vec(), options)?;
    let store: &Store = &fs.engine;
    let there = |devid| store.volume.members().iter().any(|m| m.devid == devid);
    let wanted = |devid| match removal {
        Removal::Devid(wanted) => *wanted == devid,
        Removal::Missing | Removal::Device(_) => !there(devid),
    };
    let mut devices = store.space.devices().into_iter();
    let device = devices.find(|device| wanted(device.devid));
    let device = device.ok_or(match removal {
        Removal::Devid(devid) => MembershipError::NoSuchDevice(*devid),
        Removal::Missing | Removal::Device(_) => MembershipError::NoneMissing,
    })?;
    let parity = BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6;
    for (_, chunk) in store.volume.chunks() {
        let mut stripes = chunk.stripes.iter();
        if chunk.flags.intersects(parity) && stripes.any(|stripe| stripe.devid == device.devid) {
            return Err(MembershipError::Parity {
                profile: chunk.flags.profile_name(),
                devid: device.devid,
            });
        }
    }
    let sb: SuperBlock = **store.super_block.lock();
    let item = DevItem {
        devid: device.devid.into(),
        total_bytes: device.total.into(),
        bytes_used: device.used.into(),
        io_align: SECTOR.into(),
        io_width: SECTOR.into(),
        sector_size: store.sectorsize.into(),
        uuid: device.uuid,
        fsid: store.fsid,
        ..DevItem::default()
    };
    Ok((item, sb))
}

/// Scrubs the devices after the replacement.
fn scrub_into(
    report: &mut ReplaceReport,
    devices: &[Arc<dyn Device>],
    options: &ReplaceOptions,
    step: &mut OnReplaced<'_>,
) -> Result<()> {
    let scrubbing = ScrubOptions {
        degraded: options.degraded,
        time: options.time,
        ..ScrubOptions::default()
    };
    let scrubbed = scrub(devices, &scrubbing, &mut |at| step(at.done, at.total))?;
    report.interrupted = scrubbed.interrupted;
    report.scrub = Some(scrubbed);
    Ok(())
}
