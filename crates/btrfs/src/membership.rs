//! Adds devices to a file system, mounted or not, removes them, and shows what lies on each.
//!
//! # How it works
//! **Add**: one commit adds the item of the new device to the chunk tree and counts it. Within it,
//! before anything changes, the device gets superblocks of the last commit that name it. After a
//! power cut until then the file system opens without the device; adding it again continues. The
//! commit then writes its superblocks to the new device, too.
//!
//! **Remove**: each block group on the device moves to the others, in a transaction of its own
//! (module `relocate`). One more transaction removes the device's item. Its superblocks are erased
//! last. Until then a mount that also gets this device is refused (`ExtraDevices`); removing the
//! device once more completes the removal.

mod error;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use sapwood_block::{Device, signature};
use sapwood_btrfs_format::{BlockGroupFlags, DevItem, SUPER_OFFSETS, SUPER_SIZE, SuperBlock};
use sapwood_vfs::Timestamp;

use crate::Error;
use crate::balance::{gone_stays, is_on, next_chunk};
use crate::devices::superblock;
use crate::mount::Btrfs;
use crate::relocate::{self, Relocated, Relocation};
use crate::space::{Layout, Prefer, Replaced};
use crate::transaction::Store;
use error::LEAST_SIZE;
pub use error::MembershipError;

type Result<T> = std::result::Result<T, MembershipError>;

/// Most passes over the chunks of a device that is removed.
const MOST_ROUNDS: u32 = 10;
/// Time by which the wait between two passes grows.
const PAUSE: Duration = Duration::from_millis(20);

/// A device to remove.
#[derive(Clone, Debug)]
pub enum Removal {
    /// The device with this id.
    Devid(u64),
    /// This device. A removal that ended before it erased the superblocks is completed.
    Device(Arc<dyn Device>),
    /// The first device that is not there.
    Missing,
}

/// Parameters of an addition.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddOptions {
    /// Adds the device even if it has contents, which are lost.
    pub force: bool,
    /// Devices may be missing, as far as the profiles allow.
    pub degraded: bool,
    /// Time of the changes, for a reproducible result.
    pub time: Option<Timestamp>,
}

/// Parameters of a removal.
#[derive(Clone, Debug)]
pub struct RemoveOptions {
    /// The device.
    pub device: Removal,
    /// Devices may be missing, as far as the profiles allow.
    pub degraded: bool,
    /// Time of the changes, for a reproducible result.
    pub time: Option<Timestamp>,
}

/// Progress callback: used bytes that moved so far, and roughly the number of all bytes to move.
pub type OnRemoved<'p> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 'p;

/// Space of a device in one profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// `Data`, `Metadata`, `System`, or `Data+Metadata`.
    pub content: &'static str,
    /// Name of the profile.
    pub profile: &'static str,
    /// Bytes of the device in its chunks.
    pub bytes: u64,
}

/// The space of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Id.
    pub devid: u64,
    /// Name of the device; `None` if it is missing.
    pub name: Option<String>,
    /// Bytes that the file system may use.
    pub size: u64,
    /// Bytes of the device beyond `size`.
    pub slack: u64,
    /// Bytes in chunks, by content and profile.
    pub allocated: Vec<Allocated>,
    /// Bytes in no chunk.
    pub unallocated: u64,
}

fn content_name(flags: BlockGroupFlags) -> &'static str {
    use BlockGroupFlags as F;
    match flags.content() {
        F::SYSTEM => "System",
        F::METADATA => "Metadata",
        F::DATA => "Data",
        _ => "Data+Metadata",
    }
}

/// The space of each device.
///
/// # Errors
/// The errors of a mount.
pub fn usage(devices: &[Arc<dyn Device>], degraded: bool) -> Result<Vec<DeviceUsage>> {
    let fs = relocate::open_to_read(devices, degraded)?;
    let store: &Store = &fs.engine;
    let mut used: BTreeMap<(u64, &str, &str), u64> = BTreeMap::new();
    for placed in store.space.placed() {
        let (flags, _) = store.space.group_shape(placed.logical)?;
        let key = (placed.devid, content_name(flags), flags.profile_name());
        *used.entry(key).or_default() += placed.len;
    }
    let shown = store.space.devices().into_iter().map(|device| {
        let devid = device.devid;
        let mut members = store.volume.members();
        let member = members.find(|member| member.devid == devid);
        let own = used.iter().filter(|((of, ..), _)| *of == devid);
        let allocated: Vec<Allocated> = own
            .map(|((_, content, profile), bytes)| Allocated {
                content,
                profile,
                bytes: *bytes,
            })
            .collect();
        let taken: u64 = allocated.iter().map(|part| part.bytes).sum();
        DeviceUsage {
            devid,
            name: member.map(|member| member.device.name().to_owned()),
            size: device.total,
            slack: member.map_or(0, |m| m.device.size().saturating_sub(device.total)),
            allocated,
            unallocated: device.total.saturating_sub(taken),
        }
    });
    Ok(shown.collect())
}

/// Adds the device `new` to the file system on `devices`. Returns its id.
///
/// # Errors
/// [`MembershipError::TooSmall`], [`MembershipError::Member`], [`MembershipError::Occupied`];
/// [`MembershipError::Engine`].
pub fn add(
    devices: &[Arc<dyn Device>],
    new: &Arc<dyn Device>,
    options: &AddOptions,
) -> Result<u64> {
    let size = usable_size(&**new)?;
    let fs = relocate::open(devices, options.time, options.degraded)?;
    let added = join(&fs, new, size, options.force);
    let closed = fs.close();
    let devid = added?;
    closed?;
    Ok(devid)
}

/// Adds the device `new` to a mounted file system, which stays in use. Returns its id.
///
/// # Errors
/// The errors of [`add`].
pub fn add_mounted(fs: &Btrfs, new: &Arc<dyn Device>, force: bool) -> Result<u64> {
    join(fs, new, usable_size(&**new)?, force)
}

/// Bytes of a device that a file system uses.
fn usable_size(new: &dyn Device) -> Result<u64> {
    let size = new.size() - new.size() % u64::from(SECTOR);
    if size < LEAST_SIZE {
        let device = new.name().to_owned();
        return Err(MembershipError::TooSmall { device, size });
    }
    Ok(size)
}

/// Bytes of the units in which a device is accessed.
pub(crate) const SECTOR: u32 = 4096;

/// Refuses a member of the file system, and a device with other contents unless forced.
fn check_new(store: &Store, new: &dyn Device, force: bool) -> Result<()> {
    let own = superblock::read_newest(new).ok();
    let own = own.filter(|sb| sb.fsid == store.fsid);
    // A device that an interrupted addition left is no member.
    let left_over = own.is_some();
    if let Some(sb) = own {
        let devices = store.space.devices();
        let member = devices.iter().find(|d| d.uuid == sb.dev_item.uuid);
        if let Some(member) = member {
            return Err(MembershipError::Member {
                device: new.name().to_owned(),
                devid: member.devid,
            });
        }
    }
    let found = signature::find(new).map_err(Error::from)?;
    match found.filter(|_| !force && !left_over) {
        Some(what) => Err(MembershipError::Occupied {
            device: new.name().to_owned(),
            what,
        }),
        None => Ok(()),
    }
}

fn join(fs: &Btrfs, new: &Arc<dyn Device>, size: u64, force: bool) -> Result<u64> {
    let store: &Arc<Store> = &fs.engine;
    check_new(store, &**new, force)?;
    // The first commit of a degraded file system is followed by further ones. This one must be the
    // only one.
    Relocation::new(store).renew_supers()?;
    let devices = store.space.devices();
    let highest = devices.iter().map(|device| device.devid).max();
    let devid = highest.unwrap_or(0).saturating_add(1);
    let item = DevItem {
        devid: devid.into(),
        total_bytes: size.into(),
        io_align: SECTOR.into(),
        io_width: SECTOR.into(),
        sector_size: store.sectorsize.into(),
        uuid: store.ambient.uuid(),
        fsid: store.fsid,
        ..DevItem::default()
    };
    erase_supers(&**new)?;
    signature::wipe(&**new).map_err(Error::from)?;
    let (device, refused) = (Arc::clone(new), Arc::new(Mutex::new(None)));
    let why = Arc::clone(&refused);
    store.change_in_commit(move |h| {
        let store = h.store().clone();
        let sb = SuperBlock {
            dev_item: item,
            ..**store.super_block.lock()
        };
        let named = superblock::write_all(&*device, &sb);
        if let Err(error) = named.and_then(|()| Ok(device.flush()?)) {
            *why.lock() = Some(error);
            return Ok(());
        }
        store.space.add_device(h, &item)?;
        store.volume.add_device(&item, device);
        store.super_block.lock().add_device(item);
        Ok(())
    })?;
    let refused = refused.lock().take();
    match refused {
        Some(error) => Err(error.into()),
        None => Ok(devid),
    }
}

/// Removes a device from the file system on `devices`: everything on it moves to the others.
/// Returns false if the callback stopped it.
///
/// # Errors
/// [`MembershipError::NoSuchDevice`], [`MembershipError::NoneMissing`],
/// [`MembershipError::OnlyDevice`], [`MembershipError::TooFewDevices`] before any change. Later
/// [`MembershipError::NoRoom`] or [`MembershipError::Engine`]; block groups that moved stay where
/// they are.
pub fn remove(
    devices: &[Arc<dyn Device>],
    options: &RemoveOptions,
    step: &mut OnRemoved<'_>,
) -> Result<bool> {
    let (mut degraded, mut all) = (options.degraded, devices.to_vec());
    let removal = match &options.device {
        Removal::Devid(devid) => Chosen::Devid(*devid),
        Removal::Missing => {
            degraded = true;
            Chosen::Missing
        }
        Removal::Device(device) => {
            if was_removed(devices, &**device, options)? {
                erase_supers(&**device)?;
                return Ok(true);
            }
            let sb = superblock::read_newest(&**device)?;
            all.push(Arc::clone(device));
            Chosen::Devid(sb.dev_item.devid.get())
        }
    };
    let fs = relocate::open(&all, options.time, degraded)?;
    let removed = leave(&fs, removal, false, step);
    let closed = fs.close();
    let removed = removed?;
    closed?;
    Ok(removed)
}

/// Removes a device of a mounted file system, which stays in use. Returns false if the callback
/// stopped it.
///
/// # Errors
/// The errors of [`remove`].
pub fn remove_mounted(
    fs: &Btrfs,
    device: MountedDevice<'_>,
    step: &mut OnRemoved<'_>,
) -> Result<bool> {
    let removal = match device {
        MountedDevice::Devid(devid) => Chosen::Devid(devid),
        MountedDevice::Missing => Chosen::Missing,
        MountedDevice::Name(name) => {
            let mut members = fs.engine.volume.members();
            let named = members.find(|member| !member.has_failed() && member.device.name() == name);
            let named = named.ok_or_else(|| MembershipError::NoDeviceNamed(name.to_owned()))?;
            Chosen::Devid(named.devid)
        }
    };
    leave(fs, removal, true, step)
}

/// A device of a mounted file system.
#[derive(Clone, Copy, Debug)]
pub enum MountedDevice<'d> {
    /// The device with this id.
    Devid(u64),
    /// The device with this name.
    Name(&'d str),
    /// The first device that is not there.
    Missing,
}

/// A device to remove, of an open file system.
#[derive(Clone, Copy, Debug)]
enum Chosen {
    Devid(u64),
    Missing,
}

/// Whether the others are a complete file system that does not have the device any more.
fn was_removed(
    others: &[Arc<dyn Device>],
    device: &dyn Device,
    options: &RemoveOptions,
) -> Result<bool> {
    let sb = superblock::read_newest(device)?;
    let Ok(fs) = relocate::open(others, options.time, options.degraded) else {
        return Ok(false);
    };
    let store: &Store = &fs.engine;
    let members = store.space.devices();
    let member = members.iter().any(|d| d.uuid == sb.dev_item.uuid);
    let removed = store.fsid == sb.fsid && !member;
    fs.close()?;
    Ok(removed)
}

fn leave(fs: &Btrfs, removal: Chosen, mounted: bool, step: &mut OnRemoved<'_>) -> Result<bool> {
    if !mounted {
        fs.finish_cleaning();
    }
    let store: &Arc<Store> = &fs.engine;
    store.commit_and_unpin(None)?;
    let devid = chosen(store, removal)?;
    check_profiles(store, devid)?;
    let relocation = if mounted {
        Relocation::mounted(store)
    } else {
        Relocation::new(store)
    };
    // No chunk that a transaction allocates meanwhile lies on it.
    store.space.close_device(devid);
    let emptied = emptied(store, &relocation, devid, step);
    if !matches!(emptied, Ok(Some(_))) {
        store.space.open_device(devid);
    }
    let Some(total) = emptied? else {
        return Ok(false);
    };
    let mut members = store.volume.members();
    let member = members.find(|member| member.devid == devid);
    // The last commit does not name it any more.
    store.volume.retire(devid);
    if let Some(member) = member {
        erase_supers(&*member.device)?;
        if mounted && let Err(error) = member.device.release_lock() {
            log::warn!("{error}");
        }
    }
    let _ = step(total, total);
    Ok(true)
}

/// Moves everything on a device to the others, and removes its item. Returns how many bytes that
/// were; `None` if the callback stopped it.
fn emptied(
    store: &Arc<Store>,
    relocation: &Relocation<'_>,
    devid: u64,
    step: &mut OnRemoved<'_>,
) -> Result<Option<u64>> {
    let total = empty(store, relocation, devid, step)?;
    if total.is_some() {
        relocation.step(|h| {
            store.space.remove_device(h, devid)?;
            Ok(Replaced::default())
        })?;
    }
    Ok(total)
}

/// Moves everything on a device to the others. Returns how many bytes that were; `None` if the
/// callback stopped it.
fn empty(
    store: &Arc<Store>,
    relocation: &Relocation<'_>,
    devid: u64,
    step: &mut OnRemoved<'_>,
) -> Result<Option<u64>> {
    let mut total = 0;
    for group in relocation.groups()? {
        total += if is_on(store, group.start, devid) {
            group.used()
        } else {
            0
        };
    }
    let mut done = 0;
    for round in 0..MOST_ROUNDS {
        if !empty_once(store, relocation, devid, (&mut done, total), step)? {
            return Ok(None);
        }
        // A chunk that was allocated last has its items now, and a removed one is gone.
        store.commit_and_unpin(None)?;
        let chunks = store.volume.chunks();
        if !chunks.iter().any(|(start, _)| is_on(store, *start, devid)) {
            return Ok(Some(total));
        }
        thread::sleep(PAUSE * round);
    }
    Err(MembershipError::InUse(devid))
}

/// Moves the chunks that are on a device now. False if the callback stopped it.
fn empty_once(
    store: &Arc<Store>,
    relocation: &Relocation<'_>,
    devid: u64,
    (done, total): (&mut u64, u64),
    step: &mut OnRemoved<'_>,
) -> Result<bool> {
    let mut at = 0;
    while let Some((start, len)) = next_chunk(store, at, u64::MAX) {
        at = start.saturating_add(len);
        let Ok((flags, _)) = store.space.group_shape(start) else {
            continue;
        };
        if !is_on(store, start, devid) {
            continue;
        }
        if step(*done, total).is_break() {
            return Ok(false);
        }
        let to = &|other| other != devid;
        match gone_stays(relocation.relocate(start, flags, Prefer::Present, to))? {
            Relocated::Moved(bytes) => *done += bytes,
            Relocated::Stays => {}
            Relocated::Split => at = start,
            Relocated::NoRoom => {
                return Err(MembershipError::NoRoom {
                    group: start,
                    profile: flags.profile_name(),
                    len,
                });
            }
        }
    }
    Ok(true)
}

/// The id of the device to remove.
fn chosen(store: &Store, removal: Chosen) -> Result<u64> {
    let devices = store.space.devices();
    let there = |devid| store.volume.members().any(|m| m.devid == devid);
    let devid = match removal {
        Chosen::Devid(devid) => {
            let known = devices.iter().any(|device| device.devid == devid);
            known
                .then_some(devid)
                .ok_or(MembershipError::NoSuchDevice(devid))?
        }
        Chosen::Missing => {
            let missing = devices.iter().find(|device| !there(device.devid));
            missing.ok_or(MembershipError::NoneMissing)?.devid
        }
    };
    if devices.len() == 1 {
        return Err(MembershipError::OnlyDevice(devid));
    }
    Ok(devid)
}

/// Refuses a removal after which a profile in use lacks devices.
fn check_profiles(store: &Store, devid: u64) -> Result<()> {
    let left = store.volume.written_ids();
    let left = left.into_iter().filter(|other| *other != devid).count();
    for (_, chunk) in store.volume.chunks() {
        let needed = Layout::of(chunk.flags).least;
        let lies_on_it = chunk.stripes.iter().any(|stripe| stripe.devid == devid);
        if lies_on_it && left < needed {
            return Err(MembershipError::TooFewDevices {
                profile: chunk.flags.profile_name(),
                needed,
                left,
            });
        }
    }
    Ok(())
}

/// Erases all copies of the superblock, durably. The first copy, which alone names the log, is
/// erased last: a device that has any copy has that one.
pub(crate) fn erase_supers(device: &dyn Device) -> Result<()> {
    let [first, further @ ..] = SUPER_OFFSETS;
    for copies in [&further[..], &[first]] {
        for at in copies
            .iter()
            .filter(|at| **at + SUPER_SIZE as u64 <= device.size())
        {
            device
                .write_at(*at, &[0; SUPER_SIZE])
                .map_err(Error::from)?;
        }
        device.flush().map_err(Error::from)?;
    }
    Ok(())
}
