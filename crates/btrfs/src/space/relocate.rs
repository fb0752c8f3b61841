//! New places for an existing chunk, and the devices of the file system.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, DevItem, Key, StripeItem, kind, objectid};

use super::device_errors;
use super::devices::{DeviceSpace, FIRST_CHUNK_OFFSET, Layout, STRIPE_LEN, stripes};
use super::state::Space;
use super::write::SpaceWrite;
use crate::devices::stripe;
use crate::error::{Error, Result};

/// The devices that a chunk moves to first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefer {
    /// Devices that have a copy of it: fewer bytes are copied.
    Present,
    /// Devices with the most unallocated space.
    Room,
}

/// A request for places of a chunk.
pub(crate) struct NewPlace<'n> {
    /// Content and profile.
    pub(crate) flags: BlockGroupFlags,
    /// Bytes.
    pub(crate) length: u64,
    /// Whether a device may have a stripe.
    pub(crate) allowed: &'n dyn Fn(u64) -> bool,
    /// The devices to take first.
    pub(crate) prefer: Prefer,
}

/// A device that can have stripes of a chunk.
struct Candidate {
    devid: u64,
    uuid: [u8; 16],
    /// Offsets, as many as the profile has stripes on a device.
    offsets: Vec<u64>,
    /// Bytes to copy to it.
    copied: u64,
    /// Unallocated bytes, if the chunk were not there.
    room: u64,
}

impl Space {
    /// A chunk for the first bytes of `old` in other places, on as many devices as the profile
    /// takes. `None` if too few have room.
    pub(crate) fn new_place(&self, old: &ChunkItem, wanted: &NewPlace<'_>) -> Option<ChunkItem> {
        let layout = Layout::of(wanted.flags);
        let devices = self.devices.lock();
        let allowed = |device: &&DeviceSpace| {
            (wanted.allowed)(device.devid) && self.volume.is_written(device.devid)
        };
        let devices: Vec<&DeviceSpace> = devices.by_id.values().filter(allowed).collect();
        let most = layout.count(devices.len())?;
        (layout.least..=most).rev().find_map(|count| {
            let parts = layout.parts(count);
            let fits = layout.count(count) == Some(count)
                && (parts == 1 || wanted.length.is_multiple_of(parts * STRIPE_LEN));
            let len = wanted.length / parts.max(1);
            let may_stay = parts == 1 && stripe::is_whole(old);
            // With `Prefer::Room`, a stripe also moves into a lower hole: free space becomes
            // contiguous.
            let keeps = |offset: u64, holes: &[(u64, u64)]| {
                let lower = holes.first().is_some_and(|(from, _)| *from < offset);
                may_stay && !(wanted.prefer == Prefer::Room && lower)
            };
            let on_device = layout.on_device as usize;
            let candidates = devices.iter().filter(|_| fits);
            let found = candidates.filter_map(|d| candidate(d, old, keeps, on_device, len));
            let mut found: Vec<Candidate> = found.collect();
            found.sort_by_key(|c| match wanted.prefer {
                Prefer::Present => (c.copied, Reverse(c.room), c.devid),
                Prefer::Room => (0, Reverse(c.room), c.devid),
            });
            found.truncate(count);
            (found.len() == count).then(|| moved(old, wanted, &found))
        })
    }

    /// Adds a device to the file system. The transaction gives it no chunk.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn add_device(&self, h: &mut dyn SpaceWrite, item: &DevItem) -> Result<()> {
        let key = device_key(item.devid.get());
        self.trees.chunk.insert(h, &key, item.bytes())?;
        let mut devices = self.devices.lock();
        let device = DeviceSpace::new(item);
        let total = device.total;
        devices.by_id.insert(device.devid, device);
        self.total_bytes.fetch_add(total, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a device without chunks from the file system.
    ///
    /// # Errors
    /// [`Error::BadDeviceItem`] if it has chunks; unreadable blocks, no space.
    pub(crate) fn remove_device(&self, h: &mut dyn SpaceWrite, devid: u64) -> Result<()> {
        let busy = self.placed().into_iter().find(|p| p.devid == devid);
        if let Some(placed) = busy {
            let reason = format!("the chunk at {} lies on it", placed.logical);
            return Err(Error::BadDeviceItem { devid, reason });
        }
        let key = device_key(devid);
        if !self.trees.chunk.delete(h, &key)? {
            let root = objectid::CHUNK_TREE;
            return Err(Error::ItemNotFound { root, key });
        }
        self.trees.device.delete(h, &device_errors::key(devid))?;
        let removed = self.devices.lock().by_id.remove(&devid);
        let total = removed.map_or(0, |device| device.total);
        self.total_bytes.fetch_sub(total, Ordering::Relaxed);
        Ok(())
    }

    /// Excludes a device from the places of further chunks.
    pub(crate) fn close_device(&self, devid: u64) {
        if let Some(device) = self.devices.lock().by_id.get_mut(&devid) {
            device.limit = FIRST_CHUNK_OFFSET;
        }
    }

    /// Makes further chunks on a device end before `limit`.
    pub(crate) fn limit_device(&self, devid: u64, limit: u64) {
        if let Some(device) = self.devices.lock().by_id.get_mut(&devid) {
            device.limit = limit;
        }
    }

    /// Ends [`close_device`](Self::close_device) and [`limit_device`](Self::limit_device).
    pub(crate) fn open_device(&self, devid: u64) {
        if let Some(device) = self.devices.lock().by_id.get_mut(&devid) {
            device.limit = u64::MAX;
        }
    }

    /// All devices.
    pub(crate) fn devices(&self) -> Vec<DeviceSpace> {
        self.devices.lock().by_id.values().cloned().collect()
    }
}

fn device_key(devid: u64) -> Key {
    Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, devid)
}

/// Places on a device for `count` stripes of `len` bytes: the ones that the chunk may keep there,
/// and free ones.
fn candidate(
    device: &DeviceSpace,
    old: &ChunkItem,
    keeps: impl Fn(u64, &[(u64, u64)]) -> bool,
    count: usize,
    len: u64,
) -> Option<Candidate> {
    let own: Vec<(u64, u64)> = stripes(old)
        .filter(|(devid, ..)| *devid == device.devid)
        .map(|(_, offset, len)| (offset, len))
        .collect();
    let aligned = len.next_multiple_of(STRIPE_LEN);
    let mut holes = device.clear_holes(device.limit);
    holes.retain(|(from, to)| to - from >= len);
    let inside = own.iter().filter(|(at, own)| at + own <= device.limit);
    let kept = inside.map(|(offset, _)| *offset);
    let kept = kept.filter(|offset| keeps(*offset, &holes)).take(count);
    let mut offsets: Vec<u64> = kept.collect();
    let copied = (count - offsets.len()) as u64 * len;
    for (from, to) in holes {
        let mut at = from;
        while offsets.len() < count && at + len <= to {
            offsets.push(at);
            at += aligned;
        }
    }
    let own_bytes: u64 = own.iter().map(|(_, len)| len).sum();
    (offsets.len() == count).then(|| Candidate {
        devid: device.devid,
        uuid: device.uuid,
        offsets,
        copied,
        room: device.unallocated() + own_bytes,
    })
}

fn moved(old: &ChunkItem, wanted: &NewPlace<'_>, found: &[Candidate]) -> ChunkItem {
    let stripes = found.iter().flat_map(|candidate| {
        candidate.offsets.iter().map(|offset| StripeItem {
            devid: candidate.devid,
            offset: *offset,
            dev_uuid: candidate.uuid,
        })
    });
    ChunkItem {
        length: wanted.length,
        flags: wanted.flags,
        stripe_len: STRIPE_LEN,
        sub_stripes: Layout::sub_stripes(wanted.flags),
        stripes: stripes.collect(),
        ..old.clone()
    }
}
