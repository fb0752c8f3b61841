//! Replaces a device of a file system, mounted or not, by another one. The new device gets the id
//! and the UUID of the old one. No tree changes.
//!
//! # How it works
//! The replacement of an unmounted file system opens it; the rest is the same. From the beginning
//! every write to the old device also goes to the new one (see `devices::replacing`). Then the
//! block groups on the old device are verified, and copied to the same offsets of the new one. Each
//! byte comes from any device that returns it, so the old device may be missing, stale or
//! unreadable. The places of superblocks are not copied: an unfinished copy is no device of the
//! file system.
//!
//! A commit then gives the new device its superblocks, and the ones of the old device are erased
//! last. After a power cut between the two steps both are the same device, and a mount of both is
//! refused (`DuplicateDevice`). The same replacement once more only erases the old superblocks if
//! both still are the same, and copies again if the old device changed since.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, signature};
use sapwood_btrfs_format::{BlockGroupFlags, DevItem, SUPER_OFFSETS, SuperBlock};
use sapwood_vfs::Timestamp;

use crate::balance::is_on;
use crate::devices::{stripe, superblock};
use crate::membership::{MembershipError, MountedDevice, Removal, SECTOR, erase_supers};
use crate::mount::Btrfs;
use crate::relocate::Relocation;
use crate::scrub::verify_group;
use crate::transaction::Store;
use crate::{Error, relocate};

/// Bytes that are copied at a time. Writes of other threads wait meanwhile.
const PIECE: u64 = 256 << 10;

type Result<T> = std::result::Result<T, MembershipError>;

/// Parameters of a replacement.
#[derive(Clone, Debug)]
pub struct ReplaceOptions {
    /// The device that is replaced.
    pub source: Removal,
    /// Overwrites the contents of the new device, and uses it even if bytes have no good copy.
    pub force: bool,
    /// Further devices may be missing, as far as the profiles allow.
    pub degraded: bool,
    /// Time of the changes, for a reproducible result.
    pub time: Option<Timestamp>,
}

/// The result of a replacement.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaceReport {
    /// Id of the device.
    pub devid: u64,
    /// Bytes that no device returned, which are zeros now.
    pub unreadable: u64,
    /// The callback ended it: the old device is as it was.
    pub interrupted: bool,
    /// The superblocks of the old device could not be erased.
    pub old_is_left: bool,
}

/// Progress callback: bytes that are done so far, and about the number of all bytes.
pub type OnReplaced<'p> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 'p;

/// Replaces a device of the file system on `devices`, which nothing else uses, by `new`.
///
/// # Errors
/// Before any change: [`MembershipError::NoSuchDevice`], [`MembershipError::NoneMissing`],
/// [`MembershipError::Smaller`], [`MembershipError::Occupied`], [`MembershipError::Member`],
/// [`MembershipError::Parity`], [`MembershipError::Unmirrored`]. Later
/// [`MembershipError::Unreadable`], [`MembershipError::Refused`], after which the old device is as
/// it was, and [`MembershipError::Engine`].
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
    let source = source_of(&all, &options.source)?;
    let mut stale = None;
    let devid = match source {
        Some((source, sb)) => {
            let devid = sb.dev_item.devid.get();
            if Arc::ptr_eq(&source, new) {
                let device = new.name().to_owned();
                return Err(MembershipError::Member { device, devid });
            }
            if is_replaced(&**new, &sb) {
                erase_supers(&*source)?;
                return Ok(ReplaceReport {
                    devid,
                    ..ReplaceReport::default()
                });
            }
            if is_stale(&all, &sb)? {
                all.retain(|device| !Arc::ptr_eq(device, &source));
                missing(&all, &Removal::Devid(devid), options.degraded)?;
                stale = Some(source);
            }
            devid
        }
        None => missing(&all, &options.source, options.degraded)?,
    };
    let there = stale.is_none() && source_of(&all, &Removal::Devid(devid))?.is_some();
    let fs = relocate::open(&all, options.time, options.degraded || !there)?;
    let replaced = swap(&fs, devid, new, options.force, step);
    let closed = fs.close();
    let mut report = replaced?;
    closed?;
    if let Some(stale) = stale.filter(|_| !report.interrupted) {
        report.old_is_left |= !is_erased(&*stale);
    }
    Ok(report)
}

/// Replaces a device of a mounted file system, which stays in use, by `new`. `force`: overwrites the
/// contents of the new device, and uses it even if bytes have no good copy.
///
/// # Errors
/// The errors of [`replace`]; [`MembershipError::NoDeviceNamed`].
pub fn replace_mounted(
    fs: &Btrfs,
    device: MountedDevice<'_>,
    new: &Arc<dyn Device>,
    force: bool,
    step: &mut OnReplaced<'_>,
) -> Result<ReplaceReport> {
    let store: &Store = &fs.engine;
    let devices = store.space.devices();
    let devid = match device {
        MountedDevice::Devid(devid) => {
            let known = devices.iter().any(|device| device.devid == devid);
            known
                .then_some(devid)
                .ok_or(MembershipError::NoSuchDevice(devid))?
        }
        MountedDevice::Name(name) => {
            let mut members = store.volume.members();
            let named = members.find(|member| member.device.name() == name);
            let unknown = || MembershipError::NoDeviceNamed(name.to_owned());
            named.ok_or_else(unknown)?.devid
        }
        MountedDevice::Missing => {
            let lost = |devid| !store.volume.is_written(devid);
            let missing = devices.iter().find(|device| lost(device.devid));
            missing.ok_or(MembershipError::NoneMissing)?.devid
        }
    };
    let old = store.volume.members().find(|m| m.devid == devid);
    let old = old.map(|member| Arc::clone(&member.device));
    if old.as_ref().is_some_and(|old| Arc::ptr_eq(old, new)) {
        let device = new.name().to_owned();
        return Err(MembershipError::Member { device, devid });
    }
    let report = swap(fs, devid, new, force, step)?;
    if let Some(old) = old.filter(|_| !report.interrupted)
        && let Err(error) = old.release_lock()
    {
        log::warn!("{error}");
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

/// The id of a missing device. Every byte that it held has another copy. Other devices may be
/// missing if the file system may be `degraded`.
fn missing(all: &[Arc<dyn Device>], removal: &Removal, degraded: bool) -> Result<u64> {
    let fs = relocate::open_to_read(all, true)?;
    let store: &Store = &fs.engine;
    let there = |devid| store.volume.members().any(|m| m.devid == devid);
    let wanted = |devid| match removal {
        Removal::Devid(wanted) => *wanted == devid,
        Removal::Missing | Removal::Device(_) => !there(devid),
    };
    let devices = store.space.devices();
    let device = devices.iter().find(|device| wanted(device.devid));
    let device = device.ok_or(match removal {
        Removal::Devid(devid) => MembershipError::NoSuchDevice(*devid),
        Removal::Missing | Removal::Device(_) => MembershipError::NoneMissing,
    })?;
    let mut others = devices.iter().filter(|other| other.devid != device.devid);
    if let Some(other) = others.find(|other| !degraded && !there(other.devid)) {
        let (devid, uuid) = (other.devid, other.uuid);
        return Err(Error::MissingDevice { devid, uuid }.into());
    }
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
    Ok(device.devid)
}

/// Refuses a device that is too small for the one of the item, a member of the file system, or has
/// contents. An older copy of the replaced device is accepted.
fn check_new(store: &Store, new: &dyn Device, item: &DevItem, force: bool) -> Result<()> {
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
    if let Some(own) = own.filter(|own| own.fsid == store.fsid) {
        let same = own.dev_item.uuid == item.uuid;
        if same && (force || own.generation.get() <= store.last_committed()) {
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

/// The item of a device.
fn item_of(store: &Store, devid: u64) -> Result<DevItem> {
    let mut devices = store.space.devices().into_iter();
    let device = devices.find(|device| device.devid == devid);
    let device = device.ok_or(MembershipError::NoSuchDevice(devid))?;
    Ok(DevItem {
        devid: devid.into(),
        total_bytes: device.total.into(),
        bytes_used: device.used.into(),
        io_align: SECTOR.into(),
        io_width: SECTOR.into(),
        sector_size: store.sectorsize.into(),
        uuid: device.uuid,
        fsid: store.fsid,
        ..DevItem::default()
    })
}

/// Erases the superblocks of an old device. False if that fails.
fn is_erased(old: &dyn Device) -> bool {
    let erased = erase_supers(old);
    if let Err(error) = &erased {
        log::warn!("the superblocks of the old device stay: {error}");
    }
    erased.is_ok()
}

/// Replaces a device of an open file system.
fn swap(
    fs: &Btrfs,
    devid: u64,
    new: &Arc<dyn Device>,
    force: bool,
    step: &mut OnReplaced<'_>,
) -> Result<ReplaceReport> {
    let store: &Arc<Store> = &fs.engine;
    store.commit_and_unpin(None)?;
    let item = item_of(store, devid)?;
    check_new(store, &**new, &item, force)?;
    let refused = |error| match error {
        MembershipError::Engine(Error::Device(source)) => {
            let device = new.name().to_owned();
            MembershipError::Refused { device, source }
        }
        other => other,
    };
    erase_supers(&**new).map_err(refused)?;
    signature::wipe(&**new).map_err(|error| refused(Error::from(error).into()))?;
    if !store.volume.begin_replacement(devid, Arc::clone(new)) {
        return Err(MembershipError::InUse(devid));
    }
    let mut report = ReplaceReport {
        devid,
        ..ReplaceReport::default()
    };
    match replaced(store, &item, force, &mut report, step) {
        Ok(true) => {
            // The new device has no errors yet, and an old one that stays becomes stale.
            let commits = if report.old_is_left { 2 } else { 1 };
            for _ in 0..commits {
                Relocation::new(store).renew_supers()?;
            }
            Ok(report)
        }
        other => {
            // No superblock is written to the new device meanwhile.
            let order = store.transactions.superblock_order.lock();
            let why = store.volume.end_replacement();
            if let Err(error) = erase_supers(&**new) {
                log::warn!("{}: {error}", new.name());
            }
            drop(order);
            other?;
            match why {
                Some(why) => Err(refused(Error::from(why).into())),
                None => Ok(report),
            }
        }
    }
}

/// Copies everything, and gives the new device its place. False if the callback ended it, or the
/// new device refused a request; the old device is as it was then.
fn replaced(
    store: &Arc<Store>,
    item: &DevItem,
    force: bool,
    report: &mut ReplaceReport,
    step: &mut OnReplaced<'_>,
) -> Result<bool> {
    // Chunks without items have them now. What is written to later ones goes to both devices.
    store.commit_and_unpin(None)?;
    if !copy_groups(store, report, step)? {
        return Ok(false);
    }
    if report.unreadable > 0 && !force {
        return Err(MembershipError::Unreadable {
            devid: report.devid,
            bytes: report.unreadable,
        });
    }
    // The commit has less to flush then.
    store.volume.flush_replacement();
    let (volume, named) = (&store.volume, *item);
    store.change_in_commit(move |h| {
        let store = h.store();
        let mut supers = store.super_block.lock();
        if supers.of(named.devid.get()).is_none() {
            supers.add_device(named);
        }
        drop(supers);
        store.volume.name_replacement();
        Ok(())
    })?;
    let order = store.transactions.superblock_order.lock();
    let done = volume.switch_replacement(item, &mut |old| report.old_is_left = !is_erased(old));
    drop(order);
    Ok(done)
}

/// Copies the block groups on a device to the new one. False if the callback ended it, or the new
/// device refused a write.
fn copy_groups(
    store: &Arc<Store>,
    report: &mut ReplaceReport,
    step: &mut OnReplaced<'_>,
) -> Result<bool> {
    let mut groups = store.space.all_groups();
    groups.retain(|group| is_on(store, group.start, report.devid));
    let each = groups.iter().map(|group| group.lock().used);
    let total = each.sum();
    let mut before = 0;
    for group in groups {
        let used = group.lock().used;
        let moving = match store.space.begin_move(group.start) {
            Ok(moving) => moving,
            Err(Error::Unmapped { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        // A group that is being removed has nothing.
        let Some(moving) = moving else {
            continue;
        };
        verify_group(store, group.start)?;
        let mut copied = 0;
        for (from, to) in moving.ranges() {
            let mut at = from;
            while at < to {
                let len = PIECE.min(to - at);
                let (unreadable, goes_on) = store.volume.copy_to_replacement(at, len)?;
                report.unreadable += unreadable;
                at += len;
                copied += len;
                if !goes_on {
                    return Ok(false);
                }
                if step(before + used.min(copied), total).is_break() {
                    report.interrupted = true;
                    return Ok(false);
                }
            }
        }
        before += used;
    }
    if step(total, total).is_break() {
        report.interrupted = true;
        return Ok(false);
    }
    Ok(true)
}
