//! A btrfs that grows while it is filled, so that archives need not be counted first.

use std::path::Path;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs::resize;

use super::Need;
use crate::fs::FileSystem;
use crate::image::{Mounted, OpenError};
use crate::mkfs::btrfs_room;
use crate::options::largest_chunk;

/// The room of an image on a device that can grow.
pub(crate) struct Growth {
    device: Arc<dyn Device>,
    /// The files that the image has room for.
    need: Need,
}

impl Growth {
    pub(crate) fn new(device: Arc<dyn Device>, need: Need) -> Self {
        Self { device, need }
    }

    /// Makes room for `more` files in the image, whose errors name `path`.
    ///
    /// # Errors
    /// The host has no files of that size; an error of the engine.
    pub(super) fn add(
        &mut self,
        more: Need,
        fs: &FileSystem,
        path: &Path,
    ) -> Result<(), crate::Error> {
        self.need.add(more);
        let Need { entries, bytes } = self.need;
        let Mounted::Btrfs(btrfs) = fs.engine() else {
            return Ok(());
        };
        if btrfs_room(bytes, entries) <= self.device.size() {
            return Ok(());
        }
        let size = btrfs_room(bytes.saturating_mul(2), entries.saturating_mul(2));
        self.device.grow(size).map_err(OpenError::from)?;
        let grown = resize::grow_open(btrfs, size, largest_chunk(bytes));
        let failed = |source| OpenError::Btrfs {
            path: path.to_owned(),
            source: Box::new(source),
        };
        Ok(grown.map_err(failed)?)
    }
}
