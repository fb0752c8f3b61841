//! Opens a file system for reading its trees.

use std::sync::Arc;

use sapwood_block::Device;

use super::{BlockCache, Roots};
use crate::Result;
use crate::volume::{SuperSet, Volume};

/// Everything needed to read trees.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Devices and chunk map.
    pub(crate) volume: Arc<Volume>,
    /// The newest superblock, for every device.
    pub(crate) super_block: SuperSet,
    /// Block cache.
    pub(crate) blocks: BlockCache,
    /// Trees.
    pub(crate) roots: Roots,
}

/// Reads the superblocks, the chunk tree, and the top blocks of the trees that are always needed.
/// Writes nothing.
///
/// # Errors
/// Those of [`Volume::open`] and [`Roots::open`].
pub(crate) fn open(
    devices: &[Arc<dyn Device>],
    read_only: bool,
    cache_bytes: usize,
) -> Result<Opened> {
    let (volume, mut super_block) = Volume::open(devices, read_only)?;
    let volume = Arc::new(volume);
    let blocks = BlockCache::new(volume.clone(), cache_bytes);
    let roots = Roots::open(&blocks, &super_block)?;
    // The chunk tree is newer than the superblock of a device that a power cut left behind.
    for item in volume.device_items() {
        let (total, used) = (item.total_bytes.get(), item.bytes_used.get());
        super_block.set_device(item.devid.get(), total, used);
    }
    Ok(Opened {
        volume,
        super_block,
        blocks,
        roots,
    })
}
