//! A device that is replaced while the file system is in use.
//!
//! # How it works
//! The new device gets the id and the UUID of the old one, so no tree changes.
//! 1. [`begin_replacement`](Volume::begin_replacement): from now on each write to the old device
//!    also goes to the new one, at the same offset. Writes that began before have ended. The old
//!    device may be missing, or fail meanwhile.
//! 2. [`copy_to_replacement`](Volume::copy_to_replacement) copies the bytes that were written
//!    before, a step at a time, from any copy. No write comes between the read and the write of a
//!    step, so a copied byte never replaces a newer one.
//! 3. [`name_replacement`](Volume::name_replacement), in a commit: its superblocks also go to the
//!    new device, after a flush and after the old device has them. Both are complete then.
//! 4. [`switch_replacement`](Volume::switch_replacement): the superblocks of the old device are
//!    erased, and the new one takes its place. No write and no superblock comes between.
//!
//! The old device is complete until its superblocks are erased. After a power cut before that, the
//! file system opens with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sapwood_block::{Device, PatientDevice, patiently};
use sapwood_btrfs_format::{DevItem, SUPER_OFFSETS, SUPER_SIZE};

use super::device_set::Member;
use super::{Volume, stripe};
use crate::lock::{Rank, RankedMutex};
use crate::{Error, Result};

/// Bytes of one read where a larger one fails.
const LEAST: u64 = 4096;

/// A device that replaces another one.
#[derive(Debug)]
pub(super) struct Replacing {
    /// Id of both.
    devid: u64,
    device: Arc<dyn Device>,
    /// Superblocks go to it.
    named: AtomicBool,
    /// It refused a request, so it does not take the place.
    failed: AtomicBool,
    why: RankedMutex<Option<sapwood_block::Error>>,
}

impl Replacing {
    /// Sends a request to the new device, unless it has refused one.
    pub(super) fn send(&self, request: impl FnOnce(&dyn Device) -> sapwood_block::Result<()>) {
        if self.has_failed() {
            return;
        }
        if let Err(error) = request(&*self.device) {
            log::warn!("device {} is not replaced: {error}", self.devid);
            self.failed.store(true, Ordering::Release);
            self.why.lock().get_or_insert(error);
        }
    }

    /// Writes a superblock to the new device, unless that has refused a request.
    ///
    /// # Errors
    /// Errors that are not the device's.
    pub(super) fn send_super(
        &self,
        patience: Duration,
        write: impl FnOnce(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let patient = PatientDevice::new(Arc::clone(&self.device), patience);
        let mut other = Ok(());
        self.send(|_| match write(&patient) {
            Err(Error::Device(error)) => Err(error),
            written => {
                other = written;
                Ok(())
            }
        });
        other
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Sends a request that goes to device `devid` also to the new device, if it replaces that one.
    pub(super) fn send_for(
        &self,
        devid: u64,
        request: impl FnOnce(&dyn Device) -> sapwood_block::Result<()>,
    ) {
        if self.devid == devid {
            self.send(request);
        }
    }

    /// Whether superblocks go to it.
    pub(super) fn is_named(&self) -> bool {
        self.named.load(Ordering::Acquire)
    }

    pub(super) fn devid(&self) -> u64 {
        self.devid
    }
}

impl Volume {
    /// The device that replaces another one now.
    pub(super) fn replacing(&self) -> Option<Arc<Replacing>> {
        self.replacing.lock().clone()
    }

    /// Sends each further write of device `devid` also to `device`. False if another device is
    /// replaced, or a chunk moves.
    pub(crate) fn begin_replacement(&self, devid: u64, device: Arc<dyn Device>) -> bool {
        // No chunk begins to move meanwhile.
        let moving = self.moving.lock();
        let mut current = self.replacing.lock();
        if moving.is_some() || current.is_some() {
            return false;
        }
        *current = Some(Arc::new(Replacing {
            devid,
            device,
            named: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            why: RankedMutex::new(Rank::Leaf, None),
        }));
        drop(current);
        drop(moving);
        // Waits for writes that go to the old device only.
        drop(self.writes.write());
        true
    }

    /// Copies the parts of a range within a chunk that lie on the replaced device to the new one.
    /// Returns how many bytes no device returns, which are zeros in the copy. False if the new
    /// device has refused a write.
    ///
    /// # Errors
    /// [`Error::Unmapped`]; [`Error::TooFewDevices`].
    pub(crate) fn copy_to_replacement(&self, logical: u64, len: u64) -> Result<(u64, bool)> {
        let unmapped = || Error::Unmapped { logical, len };
        let replacing = self.replacing().ok_or_else(unmapped)?;
        let mut unreadable = 0;
        let _alone = self.writes.write();
        let (start, chunk) = self.chunk_at(logical)?;
        for copy in 0..stripe::copies(&chunk) {
            let mut done = 0;
            while done < len {
                let (at, rest) = (logical + done, len - done);
                let piece = stripe::piece(&chunk, at - start, rest, copy).ok_or_else(unmapped)?;
                if piece.devid == replacing.devid {
                    let mut bytes = vec![0; piece.len as usize];
                    unreadable += self.read_what_is_left(at, &mut bytes)?;
                    clear_supers(piece.physical, &mut bytes);
                    replacing.send(|device| {
                        patiently(self.patience(), || device.write_at(piece.physical, &bytes))
                    });
                }
                done += piece.len;
            }
        }
        Ok((unreadable, !replacing.has_failed()))
    }

    /// Reads a range from the first copy that its device returns, or in parts. Returns how many
    /// bytes no device returns.
    fn read_what_is_left(&self, logical: u64, buf: &mut [u8]) -> Result<u64> {
        match self.read_any(logical, buf) {
            Ok(()) => return Ok(0),
            Err(Error::Device(_)) => {}
            Err(error) => return Err(error),
        }
        let mut unreadable = 0;
        for (at, part) in (logical..)
            .step_by(LEAST as usize)
            .zip(buf.chunks_mut(LEAST as usize))
        {
            match self.read_any(at, part) {
                Ok(()) => {}
                Err(Error::Device(_)) => {
                    part.fill(0);
                    unreadable += part.len() as u64;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(unreadable)
    }

    /// Makes the bytes on the new device durable.
    pub(crate) fn flush_replacement(&self) {
        if let Some(replacing) = self.replacing() {
            replacing.send(|device| device.flush());
        }
    }

    /// Sends the further superblocks also to the new device. In a commit, whose flush makes the
    /// copy durable.
    pub(crate) fn name_replacement(&self) {
        if let Some(replacing) = self.replacing() {
            replacing.named.store(true, Ordering::Release);
        }
    }

    /// Gives the new device, whose item is `item`, the place of the old one. `erase` erases the
    /// superblocks of the old device, if that is there. The caller keeps superblocks from being
    /// written. False if the new device has refused a request; then nothing is erased.
    pub(crate) fn switch_replacement(
        &self,
        item: &DevItem,
        erase: &mut dyn FnMut(&dyn Device),
    ) -> bool {
        let alone = self.writes.write();
        let Some(replacing) = self.replacing().filter(|new| !new.has_failed()) else {
            return false;
        };
        if let Some(old) = self.devices.get(replacing.devid) {
            erase(&*old.device);
        }
        let new = Member::added(item, Arc::clone(&replacing.device));
        new.errors.count_as_changed();
        self.devices.replace(new);
        *self.replacing.lock() = None;
        drop(alone);
        // Waits for reads of the old device.
        drop(self.reads.write());
        true
    }

    /// Ends a replacement: the old device stays. Returns the error of the new one. Nothing is
    /// written to the new device afterwards.
    pub(crate) fn end_replacement(&self) -> Option<sapwood_block::Error> {
        let replacing = self.replacing.lock().take();
        drop(self.writes.write());
        replacing.and_then(|replacing| replacing.why.lock().take())
    }
}

/// Clears the bytes of a copy that begins at `at` of a device where a superblock lies.
fn clear_supers(at: u64, bytes: &mut [u8]) {
    let to = at.saturating_add(bytes.len() as u64);
    for place in SUPER_OFFSETS {
        let end = place.saturating_add(SUPER_SIZE as u64);
        let (from, end) = (place.max(at), end.min(to));
        let copied = from.saturating_sub(at) as usize..end.saturating_sub(at) as usize;
        if let Some(copied) = bytes.get_mut(copied).filter(|_| from < end) {
            copied.fill(0);
        }
    }
}
