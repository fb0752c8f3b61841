//! Changes of the map and of the size on disk, in as many handles as they take.

use std::ops::Range;

use sapwood_jbd2::Handle;

use crate::block_alloc::Extent;
use crate::file_data::InFlight;
use crate::inode::Inode;
use crate::store::Store;
use crate::{Result, map};

/// Credits to claim one extent: bitmap and descriptor.
pub(super) const CLAIM_CREDITS: u32 = 2;
/// Credits to store the inode.
pub(super) const STORE_CREDITS: u32 = 1;

/// Credits for a change of the map in which `blocks` blocks become written, and for storing the
/// inode.
pub(super) fn step_credits(store: &Store, inode: &Inode, blocks: u64) -> u32 {
    map::insert_credits(store, inode, blocks).saturating_add(CLAIM_CREDITS + STORE_CREDITS)
}

/// Puts an extent of an in-flight range into the map.
pub(super) fn insert(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    io: &InFlight,
    at: u64,
    extent: Extent,
) -> Result<()> {
    let delayed = io.uncharged(extent.len.into());
    map::insert_delayed(store, h, inode, at, extent, delayed)?;
    io.charge(delayed);
    Ok(())
}

/// Makes unwritten blocks written, in as many handles as it takes.
pub(super) fn convert(
    store: &Store,
    inode: &Inode,
    h: &mut Handle,
    blocks: Range<u64>,
) -> Result<()> {
    let step = step_credits(store, inode, blocks.end - blocks.start);
    let mut left = blocks;
    loop {
        left = map::convert(store, h, inode, left)?;
        if left.is_empty() {
            return Ok(());
        }
        raise_disk_size(store, inode, left.start)?;
        inode.store(store, h)?;
        h.restart(step)?;
        store.fast_commits.data_written(h);
    }
}

/// The size on disk may go up to the end of block `end` (exclusive), if the file does.
pub(super) fn raise_disk_size(store: &Store, inode: &Inode, end: u64) -> Result<()> {
    let mut state = inode.state.lock();
    let size = end.saturating_mul(store.block_size()).min(state.size);
    if size > state.raw.size(&store.geometry) && !sapwood_fault::planted(114) {
        state.raw.set_size(size, &store.geometry)?;
    }
    Ok(())
}

/// Changes the map in a range, as far in each handle as its credits allow: `change` returns what is
/// left. `step`: credits that it needs to get on.
///
/// # Errors
/// What `change` meets; the journal.
pub(super) fn in_steps(
    store: &Store,
    inode: &Inode,
    blocks: Range<u64>,
    step: u32,
    change: impl Fn(&Store, &Handle, &Inode, Range<u64>) -> Result<Range<u64>>,
) -> Result<()> {
    let step = step.saturating_add(STORE_CREDITS);
    let mut h = store.start_tracked(step)?;
    let mut left = blocks;
    loop {
        left = change(store, &h, inode, left)?;
        inode.store(store, &h)?;
        if left.is_empty() {
            return Ok(());
        }
        h.restart(step)?;
    }
}
