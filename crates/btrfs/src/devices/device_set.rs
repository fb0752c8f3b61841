//! The devices of one file system.
//!
//! Each device has superblocks of its own, which name the file system (fsid), the device (devid,
//! uuid) and its size. [`DeviceSet::assemble`] reads them from devices given in any order, and
//! refuses devices that do not belong together. A power cut between the superblocks of two devices
//! leaves them one generation apart: the newer one counts, because everything that it refers to was
//! flushed on all devices before. Two superblocks of one generation can name different logs. Then
//! the device with the lowest devid counts: the blocks of both logs are intact, and the operations
//! that only the newer log contains were not acknowledged.
//!
//! The chunk tree lists the existing devices. [`DeviceSet::check_items`] compares the two once that
//! tree can be read, and names a device that was not given.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use sapwood_block::Device;
use sapwood_btrfs_format::{DevItem, SUPER_OFFSETS, SuperBlock};

use super::Access;
use super::errors::ErrorCounts;
use super::superblock::{self, SuperSet};
use crate::{Error, Result};

/// Largest distance of generations that a power cut leaves between the devices of a file system.
const MOST_BEHIND: u64 = 1;

/// One device of a file system.
#[derive(Debug)]
pub(crate) struct Member {
    /// Device id.
    pub(crate) devid: u64,
    /// Device uuid.
    pub(crate) uuid: [u8; 16],
    /// The device.
    pub(crate) device: Arc<dyn Device>,
    /// Errors since the file system was made.
    pub(crate) errors: ErrorCounts,
    /// It missed a write, so it is neither written nor read any more.
    failed: AtomicBool,
    /// It missed commits of earlier mounts. A scrub writes it until it is current; its mirrored
    /// bytes are not read.
    stale: AtomicBool,
    /// It was removed from the file system while that was open.
    removed: AtomicBool,
}

impl Member {
    /// Whether it missed a write.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Whether a scrub makes it current.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// Records that it is current.
    pub(super) fn set_current(&self) {
        self.stale.store(false, Ordering::Release);
    }

    /// A device that is added to an open file system.
    pub(super) fn added(item: &DevItem, device: Arc<dyn Device>) -> Self {
        Self {
            devid: item.devid.get(),
            uuid: item.uuid,
            device,
            errors: ErrorCounts::default(),
            failed: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        }
    }

    /// Records that it is no part of the file system any more.
    pub(super) fn set_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Records that it missed a write. Returns false if that was known.
    pub(super) fn set_failed(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }
}

/// The devices of a file system that are there, in order of their ids; at least one.
#[derive(Debug)]
pub(crate) struct DeviceSet {
    members: Vec<Member>,
    added: Added,
    degraded: bool,
}

/// Devices that were added since the file system was opened, as a list that only grows.
#[derive(Debug, Default)]
struct Added(OnceLock<Box<(Member, Added)>>);

impl Added {
    fn push(&self, member: Member) {
        let mut rest = Box::new((member, Self::default()));
        let mut at = self;
        loop {
            match at.0.set(rest) {
                Ok(()) => return,
                Err(refused) => rest = refused,
            }
            match at.0.get() {
                Some(next) => at = &next.1,
                None => return,
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Member> + Clone {
        let first = self.0.get().map(|node| &**node);
        let nodes = iter::successors(first, |node| node.1.0.get().map(|node| &**node));
        nodes.map(|node| &node.0)
    }
}

impl DeviceSet {
    /// Reads the superblocks of `devices`, given in any order, and groups them into one file
    /// system. Missing devices are found later. If `access` permits missing devices, a stale device
    /// counts as missing.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; the errors of [`superblock::read_newest`]; [`Error::ForeignDevice`],
    /// [`Error::DuplicateDevice`], [`Error::StaleDevice`], [`Error::ExtraDevices`];
    /// [`Error::Superblock`] for a device id 0 or a device smaller than in its superblock.
    pub(crate) fn assemble(
        devices: &[Arc<dyn Device>],
        access: Access,
    ) -> Result<(Self, SuperSet)> {
        let mut found: BTreeMap<u64, (Arc<dyn Device>, SuperBlock)> = BTreeMap::new();
        let mut first: Option<SuperBlock> = None;
        for device in devices {
            let sb = superblock::read_newest(&**device)?;
            let first = *first.get_or_insert(sb);
            check_own(&**device, &sb, &first)?;
            let devid = sb.dev_item.devid.get();
            if let Some((other, _)) = found.insert(devid, (Arc::clone(device), sb)) {
                return Err(Error::DuplicateDevice {
                    devid,
                    first: other.name().to_owned(),
                    second: device.name().to_owned(),
                });
            }
        }
        let newest = found.values().max_by_key(|(_, sb)| rank(sb));
        let (_, newest) = newest.ok_or(Error::NoDevice)?;
        let (given, expected) = (found.len() as u64, newest.num_devices.get());
        if given > expected {
            return Err(Error::ExtraDevices { given, expected });
        }
        let newest = *newest;
        let (mut members, mut items) = (Vec::new(), BTreeMap::new());
        for (devid, (device, sb)) in found {
            let mut stale = access.resync && sb.generation < newest.generation;
            match check_generation(&*device, &sb, newest.generation.get()) {
                Err(_) if access.resync => stale = true,
                Err(why) if access.degraded => {
                    log::warn!("{why}; it is neither read nor written");
                    continue;
                }
                checked => checked?,
            }
            items.insert(devid, sb.dev_item);
            members.push(Member {
                devid,
                uuid: sb.dev_item.uuid,
                device,
                errors: ErrorCounts::default(),
                failed: AtomicBool::new(false),
                stale: AtomicBool::new(stale),
                removed: AtomicBool::new(false),
            });
        }
        let degraded = access.degraded;
        let set = Self {
            members,
            added: Added::default(),
            degraded,
        };
        Ok((set, SuperSet::new(newest, items)))
    }

    /// Whether devices may be missing.
    pub(crate) fn may_be_degraded(&self) -> bool {
        self.degraded
    }

    /// The devices, in order of their ids except for those that were added.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> + Clone {
        let all = self.members.iter().chain(self.added.iter());
        all.filter(|member| !member.removed.load(Ordering::Acquire))
    }

    /// Adds a device. No other one has its id.
    pub(super) fn add(&self, member: Member) {
        self.added.push(member);
    }

    /// Adds a device in place of the one with the same id, if that is there.
    pub(super) fn replace(&self, member: Member) {
        let old = self.get(member.devid);
        self.added.push(member);
        if let Some(old) = old {
            old.set_removed();
        }
    }

    /// Whether a device refuses to be written.
    pub(crate) fn read_only(&self) -> bool {
        self.members.iter().any(|member| member.device.read_only())
    }

    /// A device by its id.
    pub(crate) fn get(&self, devid: u64) -> Option<&Member> {
        let at = self.members.binary_search_by_key(&devid, |m| m.devid);
        let opened = at.ok().and_then(|at| self.members.get(at));
        // An added device may have the id of one that was removed or replaced.
        let mut all = opened.into_iter().chain(self.added.iter());
        all.find(|member| member.devid == devid && !member.removed.load(Ordering::Acquire))
    }

    /// A device by id and uuid.
    ///
    /// # Errors
    /// [`Error::MissingDevice`].
    pub(crate) fn named(&self, devid: u64, uuid: [u8; 16]) -> Result<&Member> {
        let found = self.get(devid).filter(|member| member.uuid == uuid);
        found.ok_or(Error::MissingDevice { devid, uuid })
    }

    /// Compares the set with the device items of the chunk tree and with the number of devices in
    /// the superblock.
    ///
    /// # Errors
    /// [`Error::MissingDevice`] for the first device that has an item and is not in the set, unless
    /// devices may be missing;
    /// [`Error::BadDeviceItem`] for items that contradict the devices or the superblock.
    pub(crate) fn check_items(&self, items: &[DevItem], num_devices: u64) -> Result<()> {
        for item in items {
            let devid = item.devid.get();
            if self.degraded && self.get(devid).is_none() {
                continue;
            }
            let member = self.named(devid, item.uuid)?;
            let (need, have) = (item.total_bytes.get(), member.device.size());
            if need > have {
                let reason = format!("{need} bytes on a device of {have}");
                return Err(Error::BadDeviceItem { devid, reason });
            }
        }
        let count = |devid| items.iter().filter(|i| i.devid.get() == devid).count();
        if let Some(member) = self.members.iter().find(|m| count(m.devid) != 1) {
            let devid = member.devid;
            let reason = format!("{} items in the chunk tree", count(devid));
            return Err(Error::BadDeviceItem { devid, reason });
        }
        if items.len() as u64 != num_devices {
            let expected = num_devices;
            let given = items.len() as u64;
            return Err(Error::ExtraDevices { given, expected });
        }
        Ok(())
    }
}

/// Orders superblocks by their age, the newest last. Only the first copy of a device names its log.
fn rank(sb: &SuperBlock) -> (u64, bool, Reverse<u64>) {
    let is_first = sb.bytenr.get() == SUPER_OFFSETS[0];
    let devid = Reverse(sb.dev_item.devid.get());
    (sb.generation.get(), is_first, devid)
}

/// Checks a superblock's fields about its own device.
fn check_own(device: &dyn Device, sb: &SuperBlock, first: &SuperBlock) -> Result<()> {
    if (sb.fsid, sb.tree_fsid()) != (first.fsid, first.tree_fsid()) {
        return Err(Error::ForeignDevice {
            device: device.name().to_owned(),
            fsid: sb.fsid,
            expected: first.fsid,
        });
    }
    let bad = |reason: String| Error::Superblock {
        device: device.name().to_owned(),
        reason,
    };
    if sb.dev_item.devid.get() == 0 {
        return Err(bad("device id 0".to_owned()));
    }
    let (need, have) = (sb.dev_item.total_bytes.get(), device.size());
    if need > have {
        let reason = format!("file system of {need} bytes on a device of {have}");
        return Err(bad(reason));
    }
    Ok(())
}

fn check_generation(device: &dyn Device, sb: &SuperBlock, newest: u64) -> Result<()> {
    let generation = sb.generation.get();
    if newest.saturating_sub(generation) > MOST_BEHIND {
        return Err(Error::StaleDevice {
            device: device.name().to_owned(),
            devid: sb.dev_item.devid.get(),
            generation,
            newest,
        });
    }
    if generation < newest {
        let name = device.name();
        log::warn!("{name}: superblock of generation {generation}, newest is {newest}");
    }
    Ok(())
}
