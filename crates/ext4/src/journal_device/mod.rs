//! A journal on a device of its own (feature `journal_dev` on that device).
//!
//! The device has a superblock of ext4 with its size, its UUID and the feature. The block after it
//! has the superblock of the journal, which lists the file systems that use it; block numbers of
//! the log are the ones of the device. The superblock of the file system has the UUID of the
//! journal instead of an inode.
//!
//! Source: kernel documentation, `filesystems/ext4/journal.rst`; `mke2fs(8)`.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use sapwood_block::{Device, OverlayDevice, PatientDevice};
use sapwood_ext4_format::{Compat, Geometry, Incompat, SUPER_OFFSET, SUPER_SIZE, SuperBlock};
use sapwood_jbd2::Log;

use crate::error::JournalMismatch;
use crate::{Error, Result};

/// The device with the journal of a file system.
#[derive(Clone, Debug)]
pub struct JournalDevice(Arc<dyn Device>);

impl JournalDevice {
    /// The journal on a device.
    #[must_use]
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self(device)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }

    /// The same journal, whose changes stay in memory.
    pub(crate) fn in_memory(&self) -> Self {
        Self(Arc::new(OverlayDevice::new(Arc::clone(&self.0))))
    }

    /// The same journal, whose writes wait for space on the host.
    pub(crate) fn patient(&self, patience: Duration) -> Self {
        Self(Arc::new(PatientDevice::new(Arc::clone(&self.0), patience)))
    }

    fn error(&self, why: JournalMismatch) -> Error {
        Error::JournalDevice {
            device: self.0.name().to_owned(),
            why,
        }
    }

    /// The superblock of the device.
    ///
    /// # Errors
    /// [`Error::JournalDevice`]: it has no journal; errors of the device.
    pub(crate) fn super_block(&self) -> Result<SuperBlock> {
        let none = || self.error(JournalMismatch::NoJournal);
        if self.0.size() < SUPER_OFFSET + SUPER_SIZE as u64 {
            return Err(none());
        }
        let mut bytes = vec![0; SUPER_SIZE];
        self.0.read_at(SUPER_OFFSET, &mut bytes)?;
        let sb = SuperBlock::parse(&bytes).map_err(|_| none())?;
        if !sb.features().has_incompat(Incompat::JOURNAL_DEV) {
            return Err(none());
        }
        Ok(sb)
    }

    /// The log, for a file system that will use it.
    ///
    /// # Errors
    /// [`Error::JournalDevice`]: no journal, or blocks of another size; errors of the device.
    pub(crate) fn open_unused(&self, block_size: u32) -> Result<Log> {
        let own = self.super_block()?;
        self.log_of(&own, &self.0, block_size)
    }

    fn log_of(&self, own: &SuperBlock, home: &Arc<dyn Device>, wanted: u32) -> Result<Log> {
        let bits = own.log_block_size.get();
        let found = (bits <= 6).then(|| 1024 << bits);
        if found != Some(wanted) {
            return Err(self.error(JournalMismatch::BlockSize { found, wanted }));
        }
        let at = superblock_block(wanted);
        let (device, home) = (Arc::clone(&self.0), Arc::clone(home));
        Ok(Log::load_external(
            device,
            home,
            wanted,
            own.blocks_count(),
            at,
        )?)
    }

    /// The log of the file system on `home`.
    ///
    /// # Errors
    /// [`Error::JournalDevice`]: no journal, or another one's; errors of the device and of the
    /// journal.
    pub(crate) fn open_log(
        &self,
        home: &Arc<dyn Device>,
        sb: &SuperBlock,
        geometry: &Geometry,
    ) -> Result<Log> {
        let own = self.super_block()?;
        if own.uuid != sb.journal_uuid {
            return Err(self.error(JournalMismatch::Other {
                found: uuid::Uuid::from_bytes(own.uuid),
                wanted: uuid::Uuid::from_bytes(sb.journal_uuid),
            }));
        }
        let log = self.log_of(&own, home, geometry.block_size())?;
        let users = log.users();
        if users != 1 {
            return Err(self.error(JournalMismatch::Users(users)));
        }
        if log.user_ids() != [sb.uuid] {
            return Err(self.error(JournalMismatch::Foreign));
        }
        Ok(log)
    }
}

/// Options compare equal if they name the same device.
impl PartialEq for JournalDevice {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for JournalDevice {}

/// The block after the superblock.
pub(crate) fn superblock_block(block_size: u32) -> u64 {
    SUPER_OFFSET / u64::from(block_size) + 1
}

/// Whether the journal of a file system is on another device.
pub(crate) fn is_external(sb: &SuperBlock) -> bool {
    sb.features().has_compat(Compat::HAS_JOURNAL) && sb.journal_inum.get() == 0
}
