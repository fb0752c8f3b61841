//! `SEEK_DATA` and `SEEK_HOLE`. Preallocated extents are holes, what is in memory is data.

use std::sync::Arc;

use super::items;
use super::writeback::Files;
use crate::Result;
use crate::file_data::Content;
use crate::inode::Inode;

/// Whether the byte at `at` is data, and up to where that is known to go on. Expects `io`.
pub(crate) fn stretch(files: &Arc<Files>, inode: &Inode, at: u64) -> Result<(bool, u64)> {
    let next = {
        let state = inode.data.state.lock();
        let dirty = state.dirty.covered(at..u64::MAX).next();
        let in_flight = state.in_flight.covered(at..u64::MAX).next();
        dirty
            .into_iter()
            .chain(in_flight)
            .min_by_key(|part| part.start)
    };
    if let Some(part) = next.clone().filter(|part| part.start <= at) {
        return Ok((true, part.end));
    }
    let limit = next.map_or(u64::MAX, |part| part.start);
    let map = items::find(files, inode, at)?;
    let is_data = matches!(map.content, Content::Data(_) | Content::Inline);
    Ok((is_data, map.end.min(limit)))
}
