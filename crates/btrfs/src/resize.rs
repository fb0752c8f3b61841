//! Changes the size of a file system that is not mounted; `mounted` changes one that is.
//!
//! # How it works
//! Growing records the new size, in one transaction. Shrinking is a series of transactions, each of
//! which leaves a complete file system of the old size; the last one records the new size:
//!
//! 1. Deleted subvolumes are dropped, and empty block groups are removed.
//! 2. While the topmost device extent reaches past the new end, its chunk moves into a hole below
//!    (`Space::move_stripe`). If no hole is large enough, unused space is cut out of the chunk, or
//!    it is split so that its end fits the largest hole.
//! 3. The new size is recorded.
//!
//! [`shrink_to_fit`] first cuts the unused space out of every chunk, and then moves the topmost
//! chunk as long as it can. The metadata keeps the free space that the next mount needs for changes
//! (`relocate::parts`).
//!
//! The caller shortens a file after that, and lengthens it before.

mod mounted;

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{SUPER_OFFSETS, SUPER_SIZE};
use sapwood_vfs::{FileSystem, Timestamp, TrimRange};

use crate::devices::superblock;
use crate::relocate::{self, Relocation, STEP_ITEMS, STRIPE_LEN, parts};
use crate::space::{Placed, Replaced};
use crate::transaction::Store;
use crate::{Btrfs, Error};
pub use mounted::{DeviceResized, DeviceSize, OnStep, resize_mounted};

/// Sizes are multiples of this.
const UNIT: u64 = 4096;
/// Smallest part of a chunk that is split off to fill a hole, unless a size must be reached.
const LEAST_PART: u64 = 1 << 20;

/// Errors of a resize; the file system keeps its size.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The file system has several devices.
    #[error("the file system has {0} devices; only one of one device is resized")]
    Devices(usize),
    /// The device is smaller.
    #[error("{device}: has {size} bytes, fewer than {wanted}")]
    PastEnd {
        /// Device name.
        device: String,
        /// Size in bytes.
        size: u64,
        /// The requested size.
        wanted: u64,
    },
    /// No device has this id.
    #[error("the file system has no device {0}")]
    NoSuchDevice(u64),
    /// The device with this id is missing, or a write to it failed.
    #[error("device {0} is missing or has failed: replace it first")]
    NotThere(u64),
    /// The change is larger than the device, whose size this is.
    #[error("the device has only {0} bytes")]
    TooMuchLess(u64),
    /// A device of a mounted file system cannot be so small.
    #[error("a device in use has at least {least} bytes, and not {wanted}")]
    TooSmall {
        /// The requested size.
        wanted: u64,
        /// The smallest size in bytes.
        least: u64,
    },
    /// A chunk of a mounted file system reaches past the new end, and fits into no hole.
    #[error(
        "the used space does not fit into {wanted} bytes: a block group takes {len} bytes, and no \
         free range before that is so long; a balance with usage filters makes free ranges"
    )]
    NoHole {
        /// The requested size.
        wanted: u64,
        /// Bytes of the chunk on the device.
        len: u64,
    },
    /// Programs kept allocating space past the new end.
    #[error("device {0} was in use past the new end: try again")]
    InUse(u64),
    /// The callback stopped it.
    #[error("interrupted; the device keeps its size")]
    Interrupted,
    /// The used space does not fit.
    #[error("the used space does not fit into {wanted} bytes; it reaches to {end}")]
    NoRoom {
        /// The requested size.
        wanted: u64,
        /// First byte after the last chunk, which cannot be moved.
        end: u64,
    },
}

type Result<T> = std::result::Result<T, ResizeError>;

/// Callback with the number of bytes moved so far.
pub type OnMoved<'p> = dyn FnMut(u64) + Send + 'p;

/// Bytes of the file system on a device.
///
/// # Errors
/// There is no valid superblock.
pub fn size(device: &dyn Device) -> std::result::Result<u64, Error> {
    Ok(superblock::read_newest(device)?.total_bytes.get())
}

/// Gives the file system on `device` this size, rounded down to whole sectors. Returns that size.
/// With a `time` the result is [reproducible](crate::Options::set_reproducible).
///
/// # Errors
/// [`ResizeError::Devices`], [`ResizeError::PastEnd`], [`ResizeError::NoRoom`],
/// [`ResizeError::Engine`]. The file system is consistent and has its old size then.
pub fn resize(
    device: &Arc<dyn Device>,
    size: u64,
    time: Option<Timestamp>,
    moved: &mut OnMoved<'_>,
) -> Result<u64> {
    let size = size - size % UNIT;
    if size > device.size() {
        return Err(ResizeError::PastEnd {
            device: device.name().to_owned(),
            size: device.size(),
            wanted: size,
        });
    }
    run(device, time, moved, |resize| {
        let old = resize.store().space.total_bytes();
        if size < old {
            resize.store().space.limit_chunks(size);
            resize.drop_unused()?;
            resize.pack(Some(size))?;
        }
        resize.finish(size)
    })
}

/// Grows an open file system to `size` bytes of its first device, which has at least that size. New
/// chunks have at most `largest_chunk` bytes from now on. The next commit makes the size durable.
///
/// # Errors
/// `ENOSPC` if the transaction has no room; unreadable blocks.
pub fn grow_open(
    fs: &Btrfs,
    size: u64,
    largest_chunk: u64,
) -> std::result::Result<(), crate::Error> {
    let store: &Arc<Store> = &fs.engine;
    let space = &store.space;
    space.set_largest_chunk(largest_chunk);
    let devid = space.placed().first().map_or(1, |placed| placed.devid);
    let mut h = store.start_urgent(STEP_ITEMS)?;
    let worked = space.set_device_size(&mut h, devid, size - size % UNIT);
    h.finish(worked)
}

/// Makes the file system on `device` as small as it can be made without moving single extents, and
/// discards its free space. Returns its new size. With a `time` the result is
/// [reproducible](crate::Options::set_reproducible).
///
/// # Errors
/// [`ResizeError::Devices`], [`ResizeError::Engine`]. The file system is consistent and has its old
/// size then.
pub fn shrink_to_fit(
    device: &Arc<dyn Device>,
    time: Option<Timestamp>,
    moved: &mut OnMoved<'_>,
) -> Result<u64> {
    run(device, time, moved, |resize| {
        resize.drop_unused()?;
        resize.cut_all()?;
        resize.pack(None)?;
        let end = resize.store().space.placed().last().map_or(0, Placed::end);
        let size = end.next_multiple_of(UNIT);
        let size = resize.finish(size.min(resize.store().space.total_bytes()))?;
        // Chunks that moved, and blocks that were copied, leave stale bytes behind.
        let range = TrimRange::default();
        resize.fs.trim(&range).map_err(Error::from)?;
        Ok(size)
    })
}

fn run(
    device: &Arc<dyn Device>,
    time: Option<Timestamp>,
    moved: &mut OnMoved<'_>,
    work: impl FnOnce(&mut Resize<'_, '_>) -> Result<u64>,
) -> Result<u64> {
    let fs = relocate::open(std::slice::from_ref(device), time, false)?;
    let devices = fs.engine.volume.device_count();
    if devices != 1 {
        fs.close()?;
        return Err(ResizeError::Devices(devices));
    }
    let mut resize = Resize {
        fs: &fs,
        device,
        moved,
        bytes: 0,
    };
    let result = work(&mut resize);
    let closed = fs.close();
    let size = result?;
    closed?;
    Ok(size)
}

struct Resize<'f, 'p> {
    fs: &'f Btrfs,
    device: &'f Arc<dyn Device>,
    moved: &'f mut OnMoved<'p>,
    bytes: u64,
}

impl Resize<'_, '_> {
    fn store(&self) -> &Arc<Store> {
        &self.fs.engine
    }

    fn relocation(&self) -> Relocation<'_> {
        Relocation::new(self.store())
    }

    /// Drops deleted subvolumes and empty groups.
    fn drop_unused(&self) -> Result<()> {
        self.fs.finish_cleaning();
        Ok(self.store().commit_and_unpin(None)?)
    }

    /// Cuts the unused space out of every chunk.
    fn cut_all(&self) -> Result<()> {
        let relocation = self.relocation();
        for group in &relocation.groups()? {
            relocation.cut(group, parts::LEAST_GAP)?;
        }
        Ok(())
    }

    /// Moves the topmost chunk down, until it ends before `limit`, or, without one, as long as it
    /// can move.
    fn pack(&mut self, limit: Option<u64>) -> Result<()> {
        loop {
            let placed = self.store().space.placed();
            let Some(top) = placed.last().copied() else {
                return Ok(());
            };
            if limit.is_some_and(|limit| top.end() <= limit) {
                return Ok(());
            }
            if self.lower(&top, limit)? {
                continue;
            }
            return match limit {
                None => Ok(()),
                Some(wanted) => Err(ResizeError::NoRoom {
                    wanted,
                    end: top.end(),
                }),
            };
        }
    }

    /// Makes one step towards moving the topmost chunk down. False if nothing more can be done.
    fn lower(&mut self, top: &Placed, limit: Option<u64>) -> Result<bool> {
        let space = &self.store().space;
        let below = limit.unwrap_or(u64::MAX).min(top.offset);
        let holes = space.clear_holes(top.devid, below);
        if let Some((to, _)) = holes.iter().find(|(from, to)| to - from >= top.len) {
            self.relocation().step(|h| space.move_stripe(h, top, *to))?;
            self.bytes += top.len;
            (self.moved)(self.bytes);
            return Ok(true);
        }
        let relocation = self.relocation();
        let group = relocation.group(top.logical)?;
        if limit.is_some() && relocation.cut(&group, parts::LEAST_GAP)? {
            return Ok(true);
        }
        let largest = holes.iter().map(|(from, to)| to - from).max().unwrap_or(0);
        let least = if limit.is_some() {
            STRIPE_LEN
        } else {
            LEAST_PART
        };
        let single = group.flags.profile().is_empty();
        if !group.is_data() || !single || largest < least {
            return Ok(false);
        }
        match parts::split(&group, largest) {
            Some(parts) => {
                relocation.split(&group, &parts)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Records the new size. Copies of the superblock past the end are erased: they would be found
    /// once something else is there.
    fn finish(&self, size: u64) -> Result<u64> {
        let old = self.store().space.total_bytes();
        let devid = self.store().space.placed().first().map_or(1, |p| p.devid);
        if size != old {
            let space = &self.store().space;
            self.relocation().step(|h| {
                space.set_device_size(h, devid, size)?;
                Ok(Replaced::default())
            })?;
        }
        for copy in SUPER_OFFSETS {
            let end = copy + SUPER_SIZE as u64;
            if copy >= size && end <= old.min(self.device.size()) {
                let erased = self.device.write_at(copy, &[0; SUPER_SIZE]);
                erased.map_err(Error::from)?;
            }
        }
        self.device.flush().map_err(Error::from)?;
        Ok(size)
    }
}
