//! Opening a file system as far as reading its trees goes.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::SuperBlock;

use super::{BlockCache, Roots};
use crate::Result;
use crate::volume::Volume;

/// Everything that reading trees needs.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Devices and chunk map.
    pub(crate) volume: Arc<Volume>,
    /// The newest superblock.
    pub(crate) super_block: SuperBlock,
    /// Block cache.
    pub(crate) blocks: BlockCache,
    /// Trees.
    pub(crate) roots: Roots,
}

/// Reads superblock, chunk tree, and the tops of the trees that are always needed. Writes
/// nothing.
///
/// # Errors
/// Those of [`Volume::open`] and [`Roots::open`].
pub(crate) fn open(
    devices: Vec<Arc<dyn Device>>,
    read_only: bool,
    cache_bytes: usize,
) -> Result<Opened> {
    let (volume, super_block) = Volume::open(devices, read_only)?;
    let volume = Arc::new(volume);
    let blocks = BlockCache::new(volume.clone(), cache_bytes);
    let roots = Roots::open(&blocks, &super_block)?;
    Ok(Opened {
        volume,
        super_block,
        blocks,
        roots,
    })
}
