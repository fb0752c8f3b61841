//! Which blocks are free, and who gets them.

use sapwood_ext4_format::{Geometry, SuperBlock};
use sapwood_jbd2::Handle;
use sapwood_vfs::FsStat;

use crate::engine::Engine;
use crate::group::Groups;
use crate::{Error, Result};

/// Blocks side by side on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block.
    pub(crate) start: u64,
    /// Blocks.
    pub(crate) len: u32,
}

/// What is wanted of an allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// Block near which it had best be.
    pub(crate) goal: u64,
    /// Blocks wanted; fewer may come, at least one.
    pub(crate) len: u32,
    /// Inode that it is for: files that grow at once are kept apart.
    pub(crate) ino: u32,
}

/// Sums and promises of blocks. `ENOSPC` happens where blocks are promised, nowhere later.
pub(crate) struct Space {}

/// Blocks promised to a file; what is left is given back on drop.
#[derive(Debug)]
pub(crate) struct Reservation {}

impl Space {
    /// Counts of a file system that was just opened.
    ///
    /// # Errors
    /// The superblock contradicts the groups.
    pub(crate) fn open(groups: &Groups, geometry: &Geometry, sb: &SuperBlock) -> Result<Self> {
        let _ = (groups, geometry, sb);
        Ok(Self {})
    }

    /// Promises `data` blocks of data and what metadata they may need. `privileged`: may use what is kept for the
    /// superuser.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn reserve(&self, _data: u64, _privileged: bool) -> Result<Reservation> {
        Err(Error::NoSpace)
    }

    /// What `statfs` shows.
    pub(crate) fn statfs(&self) -> FsStat {
        FsStat::default()
    }
}

/// Takes free blocks, in memory only: [`claim`] or [`cancel`] must follow. Takes group locks, one at a time.
///
/// # Errors
/// `NoSpace`.
pub(crate) fn allocate(engine: &Engine, request: &Request) -> Result<Extent> {
    let _ = (engine, request);
    Err(Error::NoSpace)
}

/// Marks allocated blocks as used in the bitmap, in this transaction.
///
/// # Errors
/// The bitmap says they are in use (the image is damaged).
pub(crate) fn claim(engine: &Engine, h: &Handle, extent: Extent) -> Result<()> {
    let _ = (engine, h, extent);
    Err(Error::NoSpace)
}

/// Gives blocks back that were allocated and not claimed.
pub(crate) fn cancel(engine: &Engine, extent: Extent) {
    let _ = (engine, extent);
}

/// Allocates and claims one block for metadata.
///
/// # Errors
/// As [`allocate`].
pub(crate) fn allocate_meta(engine: &Engine, h: &Handle, goal: u64) -> Result<u64> {
    let _ = (engine, h, goal);
    Err(Error::NoSpace)
}

/// Frees claimed blocks in this transaction; they can be allocated again when it is durable. `metadata`: the journal
/// may hold them, so they are forgotten and revoked.
///
/// # Errors
/// The bitmap says they are free (the image is damaged), the range is outside its groups.
pub(crate) fn free(engine: &Engine, h: &Handle, extent: Extent, metadata: bool) -> Result<()> {
    let _ = (engine, h, extent, metadata);
    Err(Error::NoSpace)
}
