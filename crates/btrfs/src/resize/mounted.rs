//! Changes the size of a device of a mounted file system.
//!
//! # How it works
//! Growing makes the device longer first, if it is a file, and then records the new size in one
//! commit: the device item, the totals, and the superblocks of all devices. A power cut leaves the
//! old or the new size.
//!
//! Shrinking keeps new chunks below the new end, and moves every chunk that reaches past it, as a
//! balance does (`relocate`), in a commit of its own. Chunks are not split while the file system is
//! in use, so each needs a hole of its size. The last commit records the new size. If it is never
//! reached, the device keeps its old size, and chunks that moved stay where they are.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use sapwood_block::Device;
use sapwood_btrfs_format::{SUPER_OFFSETS, SUPER_SIZE};

use super::{ResizeError, Result, UNIT};
use crate::relocate::{Relocated, Relocation};
use crate::space::{Placed, Prefer};
use crate::transaction::Store;
use crate::{Btrfs, Error};

/// Smallest size of a device of a mounted file system: it has a superblock and room for chunks.
const LEAST: u64 = 16 << 20;
/// Most passes over the chunks that reach past the new end.
const PASSES: u32 = 10;

/// The size that a device of a mounted file system is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceSize {
    /// A number of bytes.
    Exactly(u64),
    /// More bytes than now.
    More(u64),
    /// Fewer bytes than now.
    Less(u64),
    /// All of the device, or the file as it is now.
    Max,
}

/// A device that was resized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceResized {
    /// Its id.
    pub devid: u64,
    /// Bytes that the file system used before.
    pub before: u64,
    /// Bytes that the file system uses now.
    pub after: u64,
}

/// Progress callback: bytes of chunks that moved so far, and bytes of all chunks to move.
pub type OnStep<'p> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 'p;

/// Gives a device of a mounted file system, which stays in use, another size, rounded down to whole
/// sectors. `devid`: the device; if there are several, the default is the one with id 1.
///
/// # Errors
/// - [`ResizeError::NoSuchDevice`], [`ResizeError::NotThere`], [`ResizeError::TooMuchLess`].
/// - Growing: [`ResizeError::PastEnd`] for a device that cannot become so large.
/// - Shrinking: [`ResizeError::TooSmall`], [`ResizeError::NoHole`], [`ResizeError::Interrupted`].
/// - [`ResizeError::Engine`] for errors of the devices and of the commit.
///
/// The device has its old size then.
pub fn resize_mounted(
    fs: &Btrfs,
    devid: Option<u64>,
    size: DeviceSize,
    step: &mut OnStep<'_>,
) -> Result<DeviceResized> {
    let store: &Arc<Store> = &fs.engine;
    let device = OpenDevice::find(store, devid)?;
    let before = device.total;
    let wanted = match size {
        DeviceSize::Exactly(bytes) => bytes,
        DeviceSize::More(bytes) => before.saturating_add(bytes),
        DeviceSize::Less(bytes) => before
            .checked_sub(bytes)
            .ok_or(ResizeError::TooMuchLess(before))?,
        DeviceSize::Max => device.member.renew_size().map_err(Error::from)?,
    };
    let after = wanted - wanted % UNIT;
    if after < before.min(LEAST) {
        return Err(ResizeError::TooSmall {
            wanted,
            least: LEAST,
        });
    }
    if after > before {
        device.grow(after)?;
    } else if after < before {
        device.shrink(after, step)?;
    }
    Ok(DeviceResized {
        devid: device.devid,
        before,
        after,
    })
}

/// A device of a file system that is in use.
struct OpenDevice<'s> {
    store: &'s Arc<Store>,
    devid: u64,
    member: Arc<dyn Device>,
    total: u64,
}

impl<'s> OpenDevice<'s> {
    fn find(store: &'s Arc<Store>, devid: Option<u64>) -> Result<Self> {
        let devices = store.space.devices();
        let devid = match (devid, &*devices) {
            (Some(devid), _) => devid,
            (None, [only]) => only.devid,
            (None, _) => 1,
        };
        let found = devices.iter().find(|device| device.devid == devid);
        let total = found.ok_or(ResizeError::NoSuchDevice(devid))?.total;
        let mut members = store.volume.members();
        let member = members.find(|member| member.devid == devid && !member.has_failed());
        let member = member.ok_or(ResizeError::NotThere(devid))?;
        Ok(Self {
            store,
            devid,
            member: Arc::clone(&member.device),
            total,
        })
    }

    fn grow(&self, size: u64) -> Result<()> {
        let grown = self.member.grow(size);
        grown.map_err(|error| match error {
            sapwood_block::Error::OutOfRange {
                device, size: has, ..
            } => ResizeError::PastEnd {
                device,
                size: has,
                wanted: size,
            },
            error => Error::from(error).into(),
        })?;
        // The length must not be lost while a superblock counts it.
        self.member.flush().map_err(Error::from)?;
        self.record(size)
    }

    fn shrink(&self, size: u64, step: &mut OnStep<'_>) -> Result<()> {
        let space = &self.store.space;
        space.limit_device(self.devid, size);
        let shrunk = self.empty(size, step).and_then(|()| self.record(size));
        space.open_device(self.devid);
        shrunk?;
        // A stale copy of the superblock would be found once something else is there.
        for copy in SUPER_OFFSETS {
            let end = copy + SUPER_SIZE as u64;
            if copy >= size && end <= self.total {
                let erased = self.member.write_at(copy, &[0; SUPER_SIZE]);
                erased.map_err(Error::from)?;
            }
        }
        self.member.flush().map_err(Error::from)?;
        Ok(())
    }

    /// The stripes on this device that end past `size`.
    fn past(&self, size: u64) -> Vec<Placed> {
        let mut placed = self.store.space.placed();
        placed.retain(|placed| placed.devid == self.devid && placed.end() > size);
        placed
    }

    /// Moves every chunk that reaches past `size`.
    fn empty(&self, size: u64, step: &mut OnStep<'_>) -> Result<()> {
        self.store.commit_and_unpin(None)?;
        let relocation = Relocation::mounted(self.store);
        let mut done = 0;
        for _ in 0..PASSES {
            let past = self.past(size);
            if past.is_empty() {
                return Ok(());
            }
            let total = done + past.iter().map(|placed| placed.len).sum::<u64>();
            for placed in past.iter().rev() {
                if step(done, total).is_break() {
                    return Err(ResizeError::Interrupted);
                }
                let Ok((flags, _)) = self.store.space.group_shape(placed.logical) else {
                    continue;
                };
                let anywhere = &|_| true;
                match relocation.relocate(placed.logical, flags, Prefer::Present, anywhere) {
                    // Its group was removed meanwhile.
                    Err(Error::Unmapped { .. }) => {}
                    Ok(Relocated::NoRoom) => {
                        return Err(ResizeError::NoHole {
                            wanted: size,
                            len: placed.len,
                        });
                    }
                    moved => drop(moved?),
                }
                done += placed.len;
            }
            // The places of groups that were removed meanwhile are free now.
            self.store.commit_and_unpin(None)?;
        }
        Err(ResizeError::InUse(self.devid))
    }

    /// Records the size of the device in one commit.
    fn record(&self, size: u64) -> Result<()> {
        let devid = self.devid;
        let refused = Arc::new(Mutex::new(None));
        let why = Arc::clone(&refused);
        self.store.change_in_commit(move |h| {
            let space = &h.store().clone().space;
            let ends = space.placed().into_iter().filter(|p| p.devid == devid);
            if ends.into_iter().any(|placed| placed.end() > size) {
                *why.lock() = Some(ResizeError::InUse(devid));
                return Ok(());
            }
            space.set_device_size(h, devid, size)
        })?;
        let refused = refused.lock().take();
        refused.map_or(Ok(()), Err)
    }
}
