//! An inode in memory.
//!
//! # How it works
//! There is at most one [`Inode`] object for an inode; the [table](crate::table) sees to it. Its locks, in
//! rank order:
//!
//! - `io` is what an operation on the inode takes first: shared to read, exclusive to change content,
//!   length, attributes or, in a directory, names. Several are taken in the order of their numbers.
//! - `map` guards the 60 bytes that say where the blocks are, and all tree blocks below them.
//! - `data` belongs to the data path and has a lock of its own.
//! - `state` guards the native copy of everything else in the inode, for short sections only.
//!
//! A change of the state or the map reaches the inode table with [`Inode::store`], once at the end of the
//! operation, in its handle. What changed without a handle (times) goes with the next store; before
//! a commit nothing is stored on its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sapwood_ext4_format::{InodeFlags, RawInode};
use sapwood_jbd2::{Handle, Tid};
use sapwood_vfs::{Attr, FileKind, Ino, Timestamp};

use crate::data::FileData;
use crate::dir::DirState;
use crate::engine::Engine;
use crate::lock::{Rank, RankedMutex, RankedRwLock};
use crate::{Error, Result};

/// Bytes in the inode that say where its blocks are.
pub(crate) const MAP_BYTES: usize = 60;

/// An inode in memory. See the module's documentation.
pub(crate) struct Inode {
    /// Number.
    pub(crate) ino: u32,
    /// Type; never changes.
    pub(crate) kind: FileKind,
    /// Tells uses of the same number apart; part of every checksum of the inode's metadata.
    pub(crate) generation: u32,
    /// Taken first by every operation on the inode.
    pub(crate) io: RankedRwLock<()>,
    /// Where the blocks are: extent root, block pointers, target of a short link, or inline data.
    pub(crate) map: RankedRwLock<[u8; MAP_BYTES]>,
    /// Dirty ranges, flights.
    pub(crate) data: FileData,
    /// What a directory keeps besides.
    pub(crate) dir: DirState,
    /// Native copy of the rest.
    pub(crate) state: RankedMutex<InodeState>,
    /// References held above the engine.
    pub(crate) references: AtomicU64,
    /// The table was asked for it lately.
    pub(crate) asked_for: AtomicBool,
    /// Last transaction that stored it, and the last in which something changed that `fdatasync` needs.
    sync_tid: AtomicU64,
    datasync_tid: AtomicU64,
}

/// Native copy of an inode but for its map, and what memory adds to it.
#[derive(Debug, Clone)]
pub(crate) struct InodeState {
    /// All fields as on disk. Its size is the one on disk: not beyond data that is not there yet.
    pub(crate) raw: RawInode,
    /// Length in bytes as callers see it.
    pub(crate) size: u64,
    /// The inode is gone; only references keep the object.
    pub(crate) deleted: bool,
    /// Its deletion has begun: nobody gets a reference any more.
    pub(crate) dying: bool,
    /// It was made without a name and may be given one.
    pub(crate) linkable: bool,
    /// It is among the orphans.
    pub(crate) orphan: bool,
    /// In-memory state differs from what was stored last (times).
    pub(crate) unstored: bool,
}
