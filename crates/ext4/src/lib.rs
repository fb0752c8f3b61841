//! The ext4 engine: volume, journal, allocators, mapping, data, operations.

mod background;
mod block_alloc;
pub mod check;
mod commit_reason;
mod counters;
mod data;
mod dir;
mod engine;
mod error;
mod fast_commit;
mod flags;
mod group;
mod host;
mod inode;
mod inode_alloc;
pub mod inspect;
mod lock;
mod map;
pub mod mkfs;
mod mount;
mod on_demand;
mod ops;
mod options;
#[cfg(test)]
mod oracles;
mod orphan;
mod table;
mod xattr;

use std::sync::Arc;

use sapwood_block::Device;

use background::Background;
use engine::Engine;
pub use error::{Error, Result};
#[cfg(feature = "ablation")]
pub use options::AllocPolicy;
pub use options::{DataMode, FastCommits, Options};

/// A mounted ext2, ext3 or ext4 file system.
pub struct Ext4 {
    pub(crate) engine: Arc<Engine>,
    background: Background,
}

impl Ext4 {
    /// Mounts the file system on this device.
    ///
    /// # Errors
    /// What is wrong with the device or the image, see [`Error`].
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let engine = mount::open(device, options)?;
        if !engine.read_only() {
            engine.writeback.start(&engine);
        }
        let background = Background::start(&engine);
        Ok(Self { engine, background })
    }

    /// Makes everything durable and ends the background threads. Later changes fail.
    ///
    /// # Errors
    /// What kept something from becoming durable.
    pub fn close(&self) -> Result<()> {
        self.background.stop(&self.engine);
        let result = mount::close(&self.engine);
        self.engine.writeback.stop();
        self.engine.health.close();
        result
    }

    /// What the mount counted so far, by name.
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.engine.counters.all(&self.engine)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        self.background.stop(&self.engine);
    }
}
