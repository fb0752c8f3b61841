//! Replaces a device of a file system that is not mounted by another one. The new device gets the id
//! and the UUID of the old one. No tree changes.
//!
//! # How it works
//! **A device that is there**: its block groups are copied to the same offsets of the new device,
//! but not the places of superblocks, so an unfinished copy is no device of the file system. A flush
//! follows, then the new device gets the superblocks of the old one, and the old one's are erased
//! last. After a power cut between the two steps both are the same device, and a mount of both is
//! refused (`DuplicateDevice`). The same replacement once more only erases the old superblocks if
//! both still are the same, and copies again if the old device changed since.
//!
//! **A device that is missing or stale**: the new device gets superblocks that are two generations
//! old. It is then a stale device, and a scrub brings it up to date from the other devices. An
//! interrupted scrub leaves it stale, and another one continues.
//!
//! **Bytes that cannot be read**: a new device with such bytes is stale, too, and a scrub copies them
//! from the other devices. The old device keeps its superblocks until every byte has a good copy. If
//! one has none, only force makes the new device current.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, signature};
use sapwood_btrfs_format::{BlockGroupFlags, DevItem, SUPER_OFFSETS, SUPER_SIZE, SuperBlock};
use sapwood_vfs::Timestamp;

use crate::devices::{stripe, superblock};
use crate::membership::{MembershipError, Removal, SECTOR, erase_supers};
use crate::mount::Btrfs;
use crate::relocate::Relocation;
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
    /// Overwrites the contents of the new device, and makes it current even if bytes have no good
    /// copy.
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
    /// The new device has its place. Otherwise it stays stale, and the old one is as it was.
    pub complete: bool,
    /// The superblocks of the old device could not be erased.
    pub old_is_left: bool,
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
/// [`MembershipError::Parity`], [`MembershipError::Unmirrored`]. Later
/// [`MembershipError::Unreadable`], after which the old device is as it was, and
/// [`MembershipError::Engine`].
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
    if Arc::ptr_eq(&source, new) {
        let (device, devid) = (new.name().to_owned(), sb.dev_item.devid.get());
        return Err(MembershipError::Member { device, devid });
    }
    let replacement = Replacement {
        all,
        source,
        new,
        options,
    };
    if is_stale(&replacement.all, &sb)? {
        return replacement.rebuild(&sb, step);
    }
    replacement.copy(&sb, step)
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

/// Refuses a device that is too small for the one of the superblock, a member of the file system, or
/// has contents. An older copy of the replaced device is accepted.
fn check_new(new: &dyn Device, sb: &SuperBlock, force: bool) -> Result<()> {
    let item = &sb.dev_item;
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
    if let Some(own) = own.filter(|own| own.fsid == sb.fsid) {
        let same = own.dev_item.uuid == item.uuid;
        if same && (force || own.generation.get() <= sb.generation.get()) {
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

/// The replacement of a device that is there.
struct Replacement<'r> {
    /// All devices, with the old one.
    all: Vec<Arc<dyn Device>>,
    source: Arc<dyn Device>,
    new: &'r Arc<dyn Device>,
    options: &'r ReplaceOptions,
}

impl Replacement<'_> {
    fn others(&self) -> Vec<Arc<dyn Device>> {
        let others = self.all.iter();
        let others = others.filter(|device| !Arc::ptr_eq(device, &self.source));
        others.cloned().collect()
    }

    /// Copies a device whose superblock is `sb`.
    fn copy(&self, sb: &SuperBlock, step: &mut OnReplaced<'_>) -> Result<ReplaceReport> {
        let (source, new, options) = (&*self.source, &**self.new, self.options);
        let mut report = ReplaceReport {
            devid: sb.dev_item.devid.get(),
            ..ReplaceReport::default()
        };
        if is_replaced(new, sb) {
            erase_supers(source)?;
            report.complete = true;
            return Ok(report);
        }
        check_new(new, sb, options.force)?;
        let fs = relocate::open(&self.all, options.time, options.degraded)?;
        fs.close()?;
        let ranges = ranges(&fs, report.devid);
        drop(fs);
        // It may have failed meanwhile.
        let sb = superblock::read_newest(source)?;
        if is_stale(&self.all, &sb)? {
            return self.rebuild(&sb, step);
        }
        wipe(new)?;
        let total = ranges.iter().map(|(_, len)| len).sum();
        let mut done = 0;
        for (start, len) in ranges {
            let end = start.saturating_add(len);
            let mut at = start;
            while at < end {
                let len = PIECE.min(end - at);
                report.unreadable += copy_piece(source, new, at, len)?;
                at += len;
                done += len;
                if step(done, total).is_break() {
                    report.interrupted = true;
                    return Ok(report);
                }
            }
        }
        new.flush().map_err(Error::from)?;
        if report.unreadable > 0 {
            self.complete(&sb, &mut report, step)?;
        } else {
            superblock::write_all(new, &sb)?;
            new.flush().map_err(Error::from)?;
            report.complete = true;
        }
        self.erase_old(&mut report);
        Ok(report)
    }

    /// Completes a new device that lacks bytes of the old one.
    fn complete(
        &self,
        sb: &SuperBlock,
        report: &mut ReplaceReport,
        step: &mut OnReplaced<'_>,
    ) -> Result<()> {
        let (others, force) = (self.others(), self.options.force);
        if !others.is_empty() {
            write_outdated(&**self.new, sb)?;
            scrub_into(report, (&others, self.new), self.options, step)?;
        } else if force {
            superblock::write_all(&**self.new, sb)?;
            self.new.flush().map_err(Error::from)?;
            report.complete = true;
        }
        if report.complete || report.interrupted {
            return Ok(());
        }
        erase_supers(&**self.new)?;
        Err(MembershipError::Unreadable {
            device: self.source.name().to_owned(),
            bytes: report.unreadable,
        })
    }

    /// Replaces a stale device, whose changes the others have.
    fn rebuild(&self, sb: &SuperBlock, step: &mut OnReplaced<'_>) -> Result<ReplaceReport> {
        let devid = Removal::Devid(sb.dev_item.devid.get());
        let mut report = rebuild(&self.others(), &devid, self.new, self.options, step)?;
        self.erase_old(&mut report);
        Ok(report)
    }

    /// Erases the superblocks of the old device, if the new one is complete.
    fn erase_old(&self, report: &mut ReplaceReport) {
        if !report.complete {
            return;
        }
        if let Err(error) = erase_supers(&*self.source) {
            log::warn!("the superblocks of the old device stay: {error}");
            report.old_is_left = true;
        }
    }
}

/// Whether the new device is in the state of the old one: an earlier replacement ended before it
/// erased the superblocks of the old device.
fn is_replaced(new: &dyn Device, old: &SuperBlock) -> bool {
    let own = superblock::read_newest(new).ok();
    own.is_some_and(|own| {
        own.bytenr.get() == SUPER_OFFSETS[0]
            && (own.fsid, own.dev_item.uuid) == (old.fsid, old.dev_item.uuid)
            && own.generation == old.generation
            && (own.root, own.chunk_root) == (old.root, old.chunk_root)
            && (own.log_root, own.log_root_level) == (old.log_root, old.log_root_level)
    })
}

/// Gives the new device superblocks with which it is stale.
fn write_outdated(new: &dyn Device, sb: &SuperBlock) -> Result<()> {
    let generation = sb.generation.get().saturating_sub(2).max(1);
    let stale = SuperBlock {
        generation: generation.into(),
        chunk_root_generation: sb.chunk_root_generation.get().min(generation).into(),
        log_root: 0.into(),
        log_root_level: 0,
        ..*sb
    };
    superblock::write_all(new, &stale)?;
    Ok(new.flush().map_err(Error::from)?)
}

/// The ranges of a device that belong to block groups.
fn ranges(fs: &Btrfs, devid: u64) -> Ranges {
    let store: &Store = &fs.engine;
    let placed = store.space.placed().into_iter();
    let own = placed.filter(|placed| placed.devid == devid);
    own.map(|placed| (placed.offset, placed.len)).collect()
}

/// Copies bytes, but no superblocks. Returns how many bytes could not be read, and are zeros in the
/// copy.
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
    for place in SUPER_OFFSETS {
        let from = place.max(at);
        let end = place.saturating_add(SUPER_SIZE as u64).min(at + len);
        let copied = from.saturating_sub(at) as usize..end.saturating_sub(at) as usize;
        if let Some(copied) = bytes.get_mut(copied).filter(|_| from < end) {
            copied.fill(0);
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
    let mut sb = missing(all, source)?;
    // So that two generations less are a generation.
    if sb.generation.get() < 3 {
        let fs = relocate::open(all, options.time, true)?;
        for _ in sb.generation.get()..3 {
            Relocation::new(&fs.engine).renew_supers()?;
        }
        fs.close()?;
        drop(fs);
        sb = missing(all, source)?;
    }
    let mut report = ReplaceReport {
        devid: sb.dev_item.devid.get(),
        ..ReplaceReport::default()
    };
    check_new(&**new, &sb, options.force)?;
    wipe(&**new)?;
    write_outdated(&**new, &sb)?;
    scrub_into(&mut report, (all, new), options, step)?;
    Ok(report)
}

/// The newest superblock, with the item of a missing device.
fn missing(all: &[Arc<dyn Device>], removal: &Removal) -> Result<SuperBlock> {
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
    let there = |devid| store.volume.members().any(|m| m.devid == devid);
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
        if !stripes.any(|stripe| stripe.devid == device.devid) {
            continue;
        }
        let (profile, devid) = (chunk.flags.profile_name(), device.devid);
        if chunk.flags.intersects(parity) {
            return Err(MembershipError::Parity { profile, devid });
        }
        if !stripe::tolerates_a_loss(&chunk) {
            return Err(MembershipError::Unmirrored { profile, devid });
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
    Ok(SuperBlock {
        dev_item: item,
        ..sb
    })
}

/// Scrubs the other devices and the stale new one. Afterwards the new one is current if every byte
/// has a good copy, or by force.
fn scrub_into(
    report: &mut ReplaceReport,
    (others, new): (&[Arc<dyn Device>], &Arc<dyn Device>),
    options: &ReplaceOptions,
    step: &mut OnReplaced<'_>,
) -> Result<()> {
    let mut all = others.to_vec();
    all.push(Arc::clone(new));
    let scrubbing = ScrubOptions {
        degraded: options.degraded,
        time: options.time,
        ..ScrubOptions::default()
    };
    let scrubbed = scrub(&all, &scrubbing, &mut |at| step(at.done, at.total))?;
    report.interrupted = scrubbed.interrupted;
    let own = superblock::read_newest(&**new)?;
    report.complete = !report.interrupted && !is_stale(&all, &own)?;
    if !report.complete && !report.interrupted && options.force {
        let mut newest = own;
        for device in others {
            let sb = superblock::read_newest(&**device)?;
            if sb.generation.get() > newest.generation.get() {
                newest = sb;
            }
        }
        let current = SuperBlock {
            dev_item: own.dev_item,
            ..newest
        };
        superblock::write_all(&**new, &current)?;
        new.flush().map_err(Error::from)?;
        report.complete = true;
    }
    report.scrub = Some(scrubbed);
    Ok(())
}
