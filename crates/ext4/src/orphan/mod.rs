//! Inodes that are to be deleted, or cut, whatever happens: the list through the inodes, and the orphan file.

use std::sync::Arc;

use sapwood_jbd2::Handle;

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result};

/// The orphans of a mount.
#[derive(Debug, Default)]
pub(crate) struct Orphans {}

/// Credits that [`add`] or [`remove`] needs.
pub(crate) const CREDITS: u32 = 3;

/// Notes that an inode is to be deleted (no name) or cut to its size (a truncation has begun). Does nothing if it is noted. Stores
/// the inode where the list runs through it.
///
/// # Errors
/// The device, damage.
pub(crate) fn add(engine: &Engine, h: &Handle, inode: &Inode) -> Result<()> {
    let _ = (engine, h, inode);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Takes the note away. The caller stores the inode.
///
/// # Errors
/// As [`add`].
pub(crate) fn remove(engine: &Engine, h: &Handle, inode: &Inode) -> Result<()> {
    let _ = (engine, h, inode);
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Finishes at mount what a former mount left.
///
/// # Errors
/// As [`add`].
pub(crate) fn recover(engine: &Arc<Engine>) -> Result<()> {
    let _ = engine;
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

impl Orphans {
    /// None known yet.
    pub(crate) fn open(_sb: &sapwood_ext4_format::SuperBlock) -> Self {
        Self {}
    }

    /// Whether an inode is among them, on disk or in memory.
    pub(crate) fn knows(&self, _ino: u32) -> bool {
        false
    }
}
