//! File data: from the bytes of a write to extents and checksums on disk, and back.
//!
//! # How it works
//! Each file has a [`FileData`]. Bytes go through it like this:
//!
//! ```text
//!  write      reserves space, copies into the dirty ranges                    (dirty)
//!  take       a dirty run becomes an entry among the flights                  (flight)
//!  prepare    inline? overwrite? compress? allocate -> ordered extents        (flush, inline,
//!                                                                              overwrite)
//!  I/O        checksums are computed once, bytes go to the device             (parts)
//!  complete   joins a transaction: old items out, new item and checksums in,  (complete)
//!             nbytes, size on disk
//! ```
//!
//! Reads look at the dirty ranges, then the flights, then the tree; an entry leaves the flights
//! only when the tree has it. Nothing of a file is locked over I/O but its `io` lock, which callers
//! hold: shared to read, exclusive to write, truncate, fallocate and clone. Writeback does not take
//! it. So a reader's range that is not in memory cannot change under it: a thread that could begin
//! to change it needs `io` exclusively. Completions change the items of other ranges of the file,
//! in steps that leave each of those findable at any time ([`items`]), one change at a time.
//!
//! Who changes items beside writeback (truncate, punch, clone, fallocate) first throws away or
//! flushes what is dirty in the range and waits until nothing there is in flight.
//!
//! Dirty bytes are bounded over all files: a writer that would exceed the bound starts writeback
//! and waits for room ([`writeback`]). It may hold `io`, as writeback never needs it.
//!
//! A failed write turns the mount read-only: the data is gone, `flush` says so. If only the host has no
//! space, the bytes become dirty again, the space in the file system is free and promised to them, and
//! nothing reaches the tree or the log. `flush` says so, and the next one tries again.
//!
//! [`writeback`]: self::writeback

mod ahead;
mod allocate;
mod clone;
mod complete;
pub(crate) mod compress;
mod flush;
mod inline;
mod items;
mod overwrite;
mod parts;
mod read;
mod seek;
#[cfg(test)]
mod tests;
mod truncate;
mod write;
mod writeback;

use std::ops::Range;
use std::sync::Arc;

pub(crate) use allocate::fallocate;
pub(crate) use clone::copy_range;
pub(crate) use flush::flush;
pub(crate) use inline::read_symlink;
pub(crate) use items::{drop_extents, preallocated_behind};
pub(crate) use read::read;
pub(crate) use seek::stretch;
pub(crate) use truncate::{delete_content, truncate};
pub(crate) use write::write;
pub(crate) use writeback::Files;

use crate::inode::Inode;
use crate::transaction::Store;
use crate::{Error, Result};

/// How long a flush waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: it only starts.
    None,
    /// Until the bytes are on the device (but not flushed to the medium).
    Io,
    /// Until the tree has them, in a transaction that need not be durable.
    Completion,
}

/// Writes back all of a file and waits until the tree has it, so that a commit makes it durable.
///
/// # Errors
/// As [`flush`].
pub(crate) fn flush_complete(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    flush(files, inode, 0..u64::MAX, Wait::Completion)
}

/// The same for all files.
///
/// # Errors
/// As [`flush`], of one of them.
pub(crate) fn flush_all(files: &Arc<Files>) -> Result<()> {
    files.writeback.flush_all(files, Wait::Completion)
}

/// Throws away what is dirty in `range` (whole sectors) and waits until nothing of it is in
/// flight. The caller holds `io` exclusively.
fn discard(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) {
    loop {
        let bytes = {
            let mut state = inode.data.state.lock();
            let before = state.dirty.bytes();
            let taken = state.dirty.take(range.clone());
            let bytes = before - state.dirty.bytes();
            if let Some(promised) = &state.promised {
                promised.give_back(bytes);
            }
            drop(taken);
            if state.bytes() == 0 {
                state.promised_metadata = None;
            }
            bytes
        };
        files.writeback.leave(bytes);
        files.writeback.settle(inode);
        inode.data.wait_landed(&range);
        // What could not be written became dirty again.
        let state = inode.data.state.lock();
        if state.dirty.covered(range.clone()).next().is_none() {
            return;
        }
    }
}

/// Start of the sector that `offset` lies in.
fn sector_floor(store: &Store, offset: u64) -> u64 {
    offset - offset % u64::from(store.sectorsize)
}

/// End of the sectors that `end` bytes take.
fn sector_ceil(store: &Store, end: u64) -> u64 {
    end.checked_next_multiple_of(store.sectorsize.into())
        .unwrap_or(sector_floor(store, u64::MAX))
}

/// An error that names the file and says what is wrong with its items.
fn damaged(inode: &Inode, offset: u64, reason: &'static str) -> Error {
    Error::FileExtent {
        root: inode.root.id(),
        objectid: inode.objectid,
        offset,
        reason,
    }
}

/// Refuses changes if the mount takes none.
fn check(store: &Store) -> Result<()> {
    Ok(store.health.check()?)
}
