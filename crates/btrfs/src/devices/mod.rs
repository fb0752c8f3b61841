//! Volumes: from logical addresses to bytes on devices.
//!
//! # How it works
//! All other modules use logical addresses. The [chunk map](ChunkMap) finds the chunk of an
//! address, [`stripe`] computes the devices and offsets of a chunk's bytes, and [`copies`] does the
//! I/O: it reads one copy, writes all, and repairs a bad one. [`tree_block`] reads tree blocks and
//! validates them. [`DeviceSet`] holds the devices, [`superblock`] their superblocks.
//!
//! The order of writes is the same for any number of devices: all of them are flushed before the
//! superblock of the first is written.
//!
//! All profiles are read, and all without parity are written. [`degraded`] describes missing
//! devices and devices that fail.

mod copies;
mod degraded;
mod device_set;
pub(crate) mod errors;
mod map;
mod moving;
mod parity;
mod replacing;
pub(crate) mod stripe;
pub(crate) mod superblock;
#[cfg(test)]
mod tests;
mod tree_block;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sapwood_block::{Device, PATIENCE};
use sapwood_btrfs_format::{ChecksumKind, ChunkItem, DevItem};

use crate::lock::{Rank, RankedMutex, RankedRwLock};
use crate::{Error, Options, Result};
use degraded::Losses;
pub(crate) use device_set::{DeviceSet, Member};
pub(crate) use map::ChunkMap;
use moving::Moving;
use replacing::Replacing;
pub(crate) use stripe::Piece;
pub(crate) use superblock::SuperSet;
#[cfg(test)]
pub(crate) use superblock::write_all as write_supers_to;
pub(crate) use tree_block::BlockExpect;

/// Sizes and identities that never change while a file system is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Bytes of a tree block.
    pub(crate) nodesize: u32,
    /// Bytes of a sector.
    pub(crate) sectorsize: u32,
    /// Checksum algorithm.
    pub(crate) checksum: ChecksumKind,
    /// fsid that tree blocks carry.
    pub(crate) fsid: [u8; 16],
}

/// Options for opening the devices of a file system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access {
    /// Changes nothing.
    pub(crate) read_only: bool,
    /// Devices may be missing, as far as the profiles allow.
    pub(crate) degraded: bool,
    /// Stale devices are accepted, to be made current.
    pub(crate) resync: bool,
}

impl Options {
    /// The way in which a mount opens its devices.
    pub(crate) fn access(&self, read_only: bool) -> Access {
        Access {
            read_only,
            degraded: self.degraded,
            resync: self.resync,
        }
    }
}

/// Devices and chunk map of a file system.
#[derive(Debug)]
pub(crate) struct Volume {
    devices: DeviceSet,
    /// Device items of the chunk tree, by device id.
    items: OnceLock<BTreeMap<u64, DevItem>>,
    chunks: RankedRwLock<ChunkMap>,
    geometry: Geometry,
    read_only: bool,
    /// Tree blocks with a bad copy, until repairs begin.
    bad: RankedMutex<Option<Vec<(u64, BlockExpect)>>>,
    repaired: AtomicU64,
    chunk_tree_uuid: OnceLock<[u8; 16]>,
    /// Time that writes of metadata wait for space on the host.
    patience: OnceLock<Duration>,
    losses: RankedMutex<Losses>,
    /// Shared by writes, repairs and discards; exclusive while bytes are copied.
    writes: RankedRwLock<()>,
    /// Shared by reads of logical ranges; exclusive to wait for them.
    reads: RankedRwLock<()>,
    /// The chunk that moves.
    moving: RankedMutex<Option<Arc<Moving>>>,
    /// The device that replaces another one.
    replacing: RankedMutex<Option<Arc<Replacing>>>,
    /// Superblock generation from which on commits and logs may be acknowledged.
    acknowledged_from: AtomicU64,
}

impl Volume {
    /// Assembles the devices, refuses unsupported ones, and maps the system chunks. The other
    /// chunks are added when the chunk tree is read.
    ///
    /// # Errors
    /// The errors of [`DeviceSet::assemble`], [`superblock::check_features`], and of
    /// [`add_chunk`](Self::add_chunk) for the system chunks; [`Error::Superblock`] if they are
    /// malformed.
    pub(crate) fn open(devices: &[Arc<dyn Device>], access: Access) -> Result<(Self, SuperSet)> {
        let read_only = access.read_only;
        let (devices, supers) = DeviceSet::assemble(devices, access)?;
        superblock::check_features(&supers, read_only)?;
        let first = devices.members().next().ok_or(Error::NoDevice)?;
        let bad = |reason: String| Error::Superblock {
            device: first.device.name().to_owned(),
            reason,
        };
        let checksum = supers.checksum_kind();
        let checksum = checksum.ok_or_else(|| bad("unknown checksum algorithm".to_owned()))?;
        let chunks = supers.sys_chunks().collect::<Result<Vec<_>, _>>();
        let chunks = chunks.map_err(|e| bad(e.to_string()))?;
        let volume = Self {
            geometry: Geometry {
                nodesize: supers.nodesize.get(),
                sectorsize: supers.sectorsize.get(),
                checksum,
                fsid: supers.tree_fsid(),
            },
            chunks: RankedRwLock::new(Rank::ChunkMap, ChunkMap::default()),
            items: OnceLock::new(),
            read_only: read_only || devices.read_only(),
            devices,
            bad: RankedMutex::new(Rank::Leaf, Some(Vec::new())),
            repaired: AtomicU64::new(0),
            chunk_tree_uuid: OnceLock::new(),
            patience: OnceLock::new(),
            losses: RankedMutex::new(Rank::Leaf, Losses::new(supers.generation.get())),
            writes: RankedRwLock::new(Rank::DeviceWrites, ()),
            reads: RankedRwLock::new(Rank::DeviceReads, ()),
            moving: RankedMutex::new(Rank::DeviceMove, None),
            replacing: RankedMutex::new(Rank::DeviceReplacement, None),
            acknowledged_from: AtomicU64::new(0),
        };
        for (logical, chunk) in chunks {
            volume.add_chunk(logical, chunk)?;
        }
        Ok((volume, supers))
    }

    /// Sizes and identities.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Takes the device items of the chunk tree, once that is read.
    ///
    /// # Errors
    /// The errors of [`DeviceSet::check_items`].
    pub(crate) fn set_device_items(&self, items: &[DevItem], num_devices: u64) -> Result<()> {
        self.devices.check_items(items, num_devices)?;
        if items.len() > self.devices.members().count() {
            self.begin_degraded();
        }
        let by_id = items.iter().map(|item| (item.devid.get(), *item));
        let _ = self.items.set(by_id.collect());
        Ok(())
    }

    /// The device items that the chunk tree had when it was read, in order of their ids.
    pub(crate) fn device_items(&self) -> impl Iterator<Item = &DevItem> {
        self.items.get().into_iter().flat_map(BTreeMap::values)
    }

    /// Adds a device to the file system, which its superblocks name already.
    pub(crate) fn add_device(&self, item: &DevItem, device: Arc<dyn Device>) {
        self.devices.add(Member::added(item, device));
    }

    /// Adds a chunk to the map.
    ///
    /// # Errors
    /// The errors of [`ChunkMap::add`]; [`Error::MissingDevice`]; [`Error::BadChunk`] if it reaches
    /// past the end of a device; [`Error::TooFewDevices`]; [`Error::ReadOnlyFeature`] with the name
    /// of a profile that cannot be written, unless the volume is read-only.
    pub(crate) fn add_chunk(&self, logical: u64, chunk: ChunkItem) -> Result<()> {
        map::check(logical, &chunk)?;
        for extent in stripe::extents(&chunk) {
            let devid = extent.devid;
            if self.devices.may_be_degraded() && self.devices.get(devid).is_none() {
                continue;
            }
            let member = self.devices.named(devid, extent.dev_uuid)?;
            let end = extent.physical.checked_add(extent.len);
            if end.is_none_or(|end| end > member.device.size()) {
                let reason = format!("reaches past the end of device {devid}");
                return Err(Error::BadChunk { logical, reason });
            }
        }
        self.check_survives(logical, &chunk)?;
        let writable = self.read_only || stripe::is_writable(&chunk);
        let profile = chunk.flags.profile_name();
        self.chunks.write().add(logical, chunk)?;
        if writable {
            Ok(())
        } else {
            Err(Error::ReadOnlyFeature(profile.to_owned()))
        }
    }

    /// Removes a chunk from the map.
    pub(crate) fn remove_chunk(&self, logical: u64) -> Option<Arc<ChunkItem>> {
        self.chunks.write().remove(logical)
    }

    /// Replaces the chunk at `logical` by parts of it, or by the same chunk in other places on the
    /// devices. The new places already hold all bytes that are in use.
    pub(crate) fn replace_chunk(&self, logical: u64, chunks: Vec<(u64, ChunkItem)>) {
        self.chunks.write().replace(logical, chunks);
    }

    /// Number of devices that are there.
    pub(crate) fn device_count(&self) -> usize {
        self.devices.members().count()
    }

    /// The chunk that holds a logical address, with the chunk's own address.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(crate) fn chunk_at(&self, logical: u64) -> Result<(u64, Arc<ChunkItem>)> {
        let found = self.chunks.read().find(logical);
        found.ok_or(Error::Unmapped { logical, len: 1 })
    }

    /// All chunks in order of their logical addresses.
    pub(crate) fn chunks(&self) -> Vec<(u64, Arc<ChunkItem>)> {
        self.chunks.read().all()
    }

    /// Sets how long writes of metadata wait for space on the host; only the first call counts.
    pub(crate) fn set_patience(&self, patience: Duration) {
        let _ = self.patience.set(patience);
    }

    fn patience(&self) -> Duration {
        self.patience.get().copied().unwrap_or(PATIENCE)
    }

    fn device(&self, devid: u64) -> Result<&dyn Device> {
        let found = self.devices.get(devid);
        let uuid = [0; 16];
        let found = found.ok_or(Error::MissingDevice { devid, uuid })?;
        Ok(&*found.device)
    }
}
