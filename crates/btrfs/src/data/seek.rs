//! `SEEK_DATA` and `SEEK_HOLE`. Preallocated extents are holes, what is in memory is data.

use std::sync::Arc;

use sapwood_vfs::{self as vfs, SeekFrom};

use super::extent_map::Content;
use super::items;
use crate::Result;
use crate::engine::Engine;
use crate::ops::Inode;

/// Finds data or a hole. The end of the file counts as a hole. The caller holds `io`.
///
/// # Errors
/// [`vfs::Error::NoSuchOffset`] behind the end, or if no data follows; unreadable items.
pub(crate) fn seek(engine: &Arc<Engine>, inode: &Arc<Inode>, from: SeekFrom) -> Result<u64> {
    let size = inode.state.lock().size;
    let (SeekFrom::Data(offset) | SeekFrom::Hole(offset)) = from;
    let wants_data = matches!(from, SeekFrom::Data(_));
    let mut at = offset;
    while at < size {
        let (is_data, end) = stretch(engine, inode, at)?;
        if is_data == wants_data {
            return Ok(at);
        }
        at = end;
    }
    if offset >= size || wants_data {
        return Err(vfs::Error::NoSuchOffset.into());
    }
    Ok(size)
}

/// Whether the byte at `at` is data, and up to where that is known to go on.
fn stretch(engine: &Arc<Engine>, inode: &Inode, at: u64) -> Result<(bool, u64)> {
    let next = {
        let state = inode.data.state.lock();
        let dirty = state.dirty.covered(at..u64::MAX).next();
        let flight = state.flights.covered(at..u64::MAX).next();
        dirty
            .into_iter()
            .chain(flight)
            .min_by_key(|part| part.start)
    };
    if let Some(part) = next.clone().filter(|part| part.start <= at) {
        return Ok((true, part.end));
    }
    let limit = next.map_or(u64::MAX, |part| part.start);
    let map = items::find(engine, inode, at)?;
    let is_data = matches!(map.content, Content::Data(_) | Content::Inline);
    Ok((is_data, map.end.min(limit)))
}
