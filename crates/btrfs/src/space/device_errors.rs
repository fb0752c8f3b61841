//! The error counters of each device in the device tree.

use sapwood_btrfs_format::{DevStats, Key, kind, objectid};

use super::state::Space;
use super::write::SpaceWrite;
use crate::error::{Error, Result};

impl Space {
    /// Reads the counters of all devices.
    ///
    /// # Errors
    /// Unreadable blocks, malformed items.
    pub(super) fn read_device_errors(&self) -> Result<()> {
        let tree = &self.trees.device;
        for member in self.volume.members() {
            let key = key(member.devid);
            if let Some(found) = tree.get(self, &key)? {
                let root = tree.id();
                let item = DevStats::read(&found);
                let item = item.map_err(|source| Error::BadItem { root, key, source })?;
                member.errors.load(&item);
            }
        }
        Ok(())
    }

    /// Writes the counters that changed.
    ///
    /// # Errors
    /// No space, unreadable blocks.
    pub(crate) fn write_device_errors(&self, h: &mut dyn SpaceWrite) -> Result<()> {
        let tree = &self.trees.device;
        for member in self.volume.members() {
            if !self.devices.lock().by_id.contains_key(&member.devid) {
                continue;
            }
            let Some(item) = member.errors.changed() else {
                continue;
            };
            tree.put(h, &key(member.devid), item.bytes())?;
        }
        Ok(())
    }
}

/// Key of a device's counters.
pub(super) fn key(devid: u64) -> Key {
    Key::new(objectid::DEV_STATS, kind::DEV_STATS, devid)
}
