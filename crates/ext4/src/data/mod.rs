//! File data: from the bytes of a write to blocks on the device, and back.
//!
//! # How it works
//! Each file has a [`FileData`]. Bytes go through it like this:
//!
//! ```text
//!  write    reserves blocks, copies into the dirty ranges                  (dirty)
//!  take     a dirty run becomes a flight                                   (flight, flush)
//!  plan     in place? unwritten? a hole: allocate, in memory only          (plan)
//!  I/O      bytes go to the device                                         (flush)
//!  land     one handle: bitmap, map, size on disk, inode                   (land)
//! ```
//!
//! Data is on its way to the device before any handle knows of it, and the device is flushed before a commit
//! block. So no power cut shows what stood in a block before, and a commit never waits for data.
//!
//! Reads look at the dirty ranges, then the flights, then the map; a flight ends only when the map
//! has it. Nothing of a file is locked over I/O but its `io` lock, which callers hold: shared to
//! read, exclusive to write, truncate, fallocate and copy. Writeback does not take it. So a
//! reader's range that is not in memory cannot change under it: a thread that could begin to change
//! it needs `io` exclusively.
//!
//! Who takes blocks out of the map (truncate, punch, collapse) first throws away or flushes what is dirty in the range
//! and waits until nothing there is in flight.
//!
//! Dirty bytes are bounded over all files: a writer that would exceed the bound starts writeback
//! and waits for room ([`writeback`]). It may hold `io`, as writeback never needs it. No thread may
//! wait for data with a handle open: landing needs one, and may wait for the commit that waits for
//! the other.
//!
//! A failed write turns the mount read-only: the data is gone, `flush` says so.
//!
//! | trouble | test |
//! |---|---|
//! | a power cut between data and extent | `tests::order::extents_follow_their_data` |
//! | written again while in flight | `tests::order::what_is_written_again_in_flight_is_kept` |
//! | a write fails | `tests::order::a_failed_write_is_told_once` |
//! | fsync beside other files' writeback | `tests::order::fsync_waits_for_its_file_only` |
//! | a later part is written first | `tests::order::a_growing_file_lands_in_order` |
//! | no block left | `tests::space::a_full_file_system_refuses_at_the_write` |
//!
//! [`writeback`]: self::writeback

mod complete;
mod copy;
mod fallocate;
mod flush;
mod inline;
mod journaled;
mod plan;
mod read;
mod seek;
mod symlink;
#[cfg(test)]
mod tests;
mod truncate;
mod write;
mod writeback;

use std::ops::Range;
use std::sync::Arc;

use sapwood_ext4_format::InodeFlags;
use sapwood_vfs as vfs;

pub(crate) use copy::copy_range;
pub(crate) use fallocate::fallocate;
pub(crate) use flush::{flush, overwrites, overwrites_synced, sync_overwrites};
pub(crate) use read::read;
pub(crate) use seek::stretch;
pub(crate) use symlink::{read_symlink, write_symlink};
pub(crate) use truncate::{delete_content, is_bare, truncate};
pub(crate) use write::write;
pub(crate) use writeback::Writeback;

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Result, map};

/// Behind the last block that any map can have.
const END: u64 = map::BLOCKS_MAX;

/// Whether data was overwritten since the device was last flushed for this file.
#[cfg(test)]
pub(crate) fn owes_flush(inode: &Inode) -> bool {
    let state = inode.data.state.lock();
    state.overwrites != state.overwrites_synced
}

/// Whether something was written that waits for what is before it in the file.
#[cfg(test)]
pub(crate) fn is_waiting_to_complete(inode: &Inode) -> bool {
    inode.data.state.lock().in_flight.is_waiting()
}

/// Writes back all of all files and waits until the maps have it. The first error is returned, after all were tried.
///
/// # Errors
/// As [`flush`], of one of them.
pub(crate) fn flush_all(engine: &Arc<Engine>) -> Result<()> {
    engine.writeback.flush_all(engine)
}

/// Longest that a file may become, in bytes.
pub(crate) fn max_size(engine: &Engine, inode: &Inode) -> u64 {
    if inode.flags().contains(InodeFlags::EXTENTS) {
        engine.geometry.max_extent_file_size()
    } else {
        engine.geometry.max_indirect_file_size()
    }
}

/// Where new blocks at `block` of the file had best be, if that is known without looking.
fn hint(inode: &Inode, block: u64) -> Option<u64> {
    let hint = inode.data.state.lock().hint;
    hint.filter(|(logical, _)| *logical == block)
        .map(|(_, physical)| physical)
}

/// Throws away what is dirty in `range` (whole blocks, in bytes) and waits until nothing of it is in flight. The
/// caller holds `io` exclusively.
fn discard(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) {
    loop {
        let bytes = {
            let mut state = inode.data.state.lock();
            let before = state.dirty.bytes();
            let taken = state.dirty.take(range.clone());
            let bytes = before - state.dirty.bytes();
            let blocks = blocks_of(engine, &range);
            let count = state.delayed.remove(blocks.start, blocks.end);
            state.unpromise(count);
            drop(taken);
            bytes
        };
        engine.writeback.leave(bytes);
        engine.writeback.settle(inode);
        inode.data.wait_completed(&range);
        // What could not be written became dirty again.
        let state = inode.data.state.lock();
        if state.dirty.covered(range.clone()).next().is_none() {
            return;
        }
    }
}

/// Start of the block that `offset` lies in.
fn block_floor(engine: &Engine, offset: u64) -> u64 {
    offset - offset % engine.block_size()
}

/// End of the blocks that `end` bytes take.
fn block_ceil(engine: &Engine, end: u64) -> u64 {
    end.checked_next_multiple_of(engine.block_size())
        .unwrap_or_else(|| block_floor(engine, u64::MAX))
}

/// The blocks of a range of bytes that begins and ends with whole ones; the end may be [`u64::MAX`].
fn blocks_of(engine: &Engine, range: &Range<u64>) -> Range<u64> {
    let block_size = engine.block_size();
    range.start / block_size..range.end.div_ceil(block_size)
}

/// Refuses changes if the mount takes none.
fn check(engine: &Engine) -> Result<()> {
    Ok(engine.health.check()?)
}

/// Refuses to change content whose keys or whose hashes are not kept here.
fn check_changeable(inode: &Inode) -> Result<()> {
    let flags = inode.flags();
    if flags.contains(InodeFlags::ENCRYPT) {
        return Err(vfs::Error::NotSupported.into());
    }
    if flags.contains(InodeFlags::VERITY) {
        return Err(vfs::Error::NotPermitted.into());
    }
    Ok(())
}
