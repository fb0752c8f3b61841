//! [`Staging`]: many changes that become durable together.
//!
//! # How it works
//! A mount with [`Options::keep_opened`](crate::Options::keep_opened) runs over a [`StagedDevice`]
//! that keeps the superblocks in memory. All other writes pass: copy-on-write places them in space
//! that the commit on the device does not use. So that commit stays intact, however often the mount
//! commits. [`Staging::apply`] flushes, and overwrites the superblock.
//!
//! After a power cut the superblock leads to all changes or to none, for the kernel too. A torn
//! superblock has a wrong checksum, and its copies are used.
//!
//! On several devices a power cut could leave superblocks that are more than one generation apart,
//! which looks like a device that was missing from a mount. So there must be only one.

use std::sync::Arc;

use sapwood_block::{Device, StagedDevice};
use sapwood_btrfs_format::{SUPER_OFFSETS, SUPER_SIZE};

use crate::devices::{Access, DeviceSet};
use crate::{Btrfs, Error, Options, Result};

/// Bytes of all superblocks.
const LIMIT: u64 = (SUPER_OFFSETS.len() * SUPER_SIZE) as u64;

/// Errors of a staging; the file system on the device is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] Error),
    /// More than one device.
    #[error("a transaction needs a file system on one device, and this one has {0}")]
    Devices(u64),
}

impl From<sapwood_block::Error> for StagingError {
    fn from(error: sapwood_block::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// Changes of a file system that become durable together. It keeps the superblocks.
#[derive(Debug)]
pub struct Staging {
    staged: Arc<StagedDevice>,
}

impl Staging {
    /// Begins to stage changes of the file system on a device, which is not mounted. Replays its
    /// log first if it has one.
    ///
    /// # Errors
    /// The refusals of a mount for writing; [`StagingError::Devices`].
    pub fn begin(device: &Arc<dyn Device>) -> Result<Self, StagingError> {
        let devices = [Arc::clone(device)];
        let (_, supers) = DeviceSet::assemble(&devices, Access::default())?;
        let count = supers.num_devices.get();
        if count != 1 {
            return Err(StagingError::Devices(count));
        }
        if supers.log_root.get() != 0 {
            let options = Options {
                background: false,
                ..Options::default()
            };
            let fs = Btrfs::open(devices.to_vec(), options)?;
            fs.close()?;
        }
        let passes = Box::new(|offset: u64| !SUPER_OFFSETS.contains(&offset));
        let staged = StagedDevice::new(Arc::clone(device), LIMIT, passes);
        Ok(Self {
            staged: Arc::new(staged),
        })
    }

    /// The device to mount.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.staged) as Arc<dyn Device>
    }

    /// Makes the changes of a mount that was closed durable: all of them, or after an error or a
    /// power cut none.
    ///
    /// # Errors
    /// Errors of the device. If it fails after the first superblock, the changes are durable.
    pub fn apply(self) -> Result<(), StagingError> {
        let below = self.staged.below();
        below.flush()?;
        for (nth, offset) in self.staged.kept().into_iter().enumerate() {
            let mut bytes = [0; SUPER_SIZE];
            self.staged.read_at(offset, &mut bytes)?;
            if nth == 0 {
                below.write_fua(offset, &bytes)?;
            } else {
                below.write_at(offset, &bytes)?;
            }
        }
        Ok(below.flush()?)
    }
}
