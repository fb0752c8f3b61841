//! `SEEK_DATA` and `SEEK_HOLE`. Unwritten blocks are holes; what is in memory is data.

use sapwood_ext4_format::InodeFlags;

use crate::Result;
use crate::inode::Inode;
use crate::map::{self, Mapped};
use crate::store::Store;

/// Whether the byte at `at` is data, and up to where that is known to go on; inline data is data.
/// The caller holds `io`.
///
/// # Errors
/// The map is damaged.
pub(crate) fn stretch(store: &Store, inode: &Inode, at: u64, size: u64) -> Result<(bool, u64)> {
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return Ok((true, size));
    }
    let next = {
        let state = inode.data.state.lock();
        let dirty = state.dirty.covered(at..u64::MAX).next();
        let io = state.in_flight.covered(at..u64::MAX).next();
        dirty.into_iter().chain(io).min_by_key(|part| part.start)
    };
    if let Some(part) = next.clone().filter(|part| part.start <= at) {
        return Ok((true, part.end));
    }
    let limit = next.map_or(u64::MAX, |part| part.start);
    let block_size = store.block_size();
    let (block, end) = (at / block_size, size.div_ceil(block_size));
    let run = map::lookup(store, inode, block, end - block)?;
    let run_end = map::run_end(inode.ino, &run, block, end)?;
    let is_data = matches!(run.what, Mapped::Written(_));
    Ok((is_data, run_end.saturating_mul(block_size).min(limit)))
}
