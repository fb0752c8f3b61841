//! Copying within the file system: sharing extents where that is possible.
//!
//! Extents are shared in whole sectors, between files that both have checksums or both have none.
//! Inline data and the edges of a range are copied as bytes.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::InodeFlags;
use sapwood_vfs::{self as vfs, CopyMode};

use super::files::Files;
use super::flush::{Wait, discard, flush};
use super::hole::replace_with_hole;
use super::items::{self, changing, data_ref, raise_disk_size, sector_ceil, sector_floor};
use super::{read, write};
use crate::Result;
use crate::file_data::{Content, ExtentMap, Stored};
use crate::inode::Inode;
use crate::transaction::{Handle, Store};

/// Bytes copied at once where sharing is not possible.
const CHUNK: u64 = 1 << 20;

/// Copies `len` bytes (0: to the end of the source) from one file to another, or within one.
/// Returns how many. The caller holds `io` of both exclusively, and has checked that the target
/// may be written.
///
/// # Errors
/// [`vfs::Error::Invalid`] for ranges that overlap in one file, and, if sharing is required, for
/// ranges that cannot be shared; [`NoSpace`](crate::Error::NoSpace).
pub(crate) fn copy_range(
    files: &Arc<Files>,
    from: &Arc<Inode>,
    from_offset: u64,
    to: &Arc<Inode>,
    to_offset: u64,
    len: u64,
    mode: CopyMode,
) -> Result<u64> {
    files.health.check()?;
    let size = from.state.lock().size;
    let left = size.saturating_sub(from_offset);
    let len = match (len, mode) {
        (0, CopyMode::ShareOnly) if from_offset > size => return Err(vfs::Error::Invalid.into()),
        (0, _) => left,
        (len, CopyMode::Any) => len.min(left),
        (len, CopyMode::ShareOnly) if len <= left => len,
        _ => return Err(vfs::Error::Invalid.into()),
    };
    if to_offset
        .checked_add(len)
        .is_none_or(|end| end > i64::MAX as u64)
    {
        return Err(vfs::Error::FileTooLarge.into());
    }
    if Arc::ptr_eq(from, to)
        && from_offset < to_offset + len
        && to_offset < from_offset + len
        && len > 0
    {
        return Err(vfs::Error::Invalid.into());
    }
    if len == 0 {
        return Ok(0);
    }
    let shared = shareable(files, from, from_offset, to, to_offset, len);
    let whole = shared.start == 0 && shared.end == len;
    if mode == CopyMode::ShareOnly && !whole {
        return Err(vfs::Error::Invalid.into());
    }
    copy(files, from, from_offset, to, to_offset, shared.start)?;
    if !shared.is_empty() {
        let source = from_offset + shared.start..from_offset + shared.end;
        share(files, from, source, to, to_offset + shared.start)?;
    }
    copy(
        files,
        from,
        from_offset + shared.end,
        to,
        to_offset + shared.end,
        len - shared.end,
    )?;
    Ok(len)
}

/// The part of the range that can be shared.
fn shareable(
    store: &Store,
    from: &Inode,
    from_offset: u64,
    to: &Inode,
    to_offset: u64,
    len: u64,
) -> Range<u64> {
    let sector = u64::from(store.sectorsize);
    let (from_size, from_flags) = {
        let state = from.state.lock();
        (state.size, state.flags)
    };
    let (to_size, to_flags) = {
        let state = to.state.lock();
        (state.size, state.flags)
    };
    let sums_differ = from_flags
        .symmetric_difference(to_flags)
        .contains(InodeFlags::NODATASUM);
    if sums_differ || from_offset % sector != to_offset % sector {
        return len..len;
    }
    let head = (sector - from_offset % sector) % sector;
    let end = from_offset + len;
    // The last sector of the source can be shared if it becomes the last of the target.
    let ends_both = end == from_size && to_offset + len >= to_size;
    let tail = if ends_both {
        end
    } else {
        sector_floor(store, end)
    };
    let tail = tail.saturating_sub(from_offset);
    if head >= tail { len..len } else { head..tail }
}

/// Copies bytes.
fn copy(
    files: &Arc<Files>,
    from: &Arc<Inode>,
    from_offset: u64,
    to: &Arc<Inode>,
    to_offset: u64,
    len: u64,
) -> Result<()> {
    let mut buf = vec![0; len.min(CHUNK) as usize];
    let mut done = 0;
    while done < len {
        let part = buf
            .get_mut(..(len - done).min(CHUNK) as usize)
            .unwrap_or_default();
        read::fill(files, from, from_offset + done, part)?;
        write::write(files, to, to_offset + done, (&*part).into())?;
        done += part.len() as u64;
    }
    Ok(())
}

/// Makes the target refer to the extents of `source`, which begins at a sector.
fn share(
    files: &Arc<Files>,
    from: &Arc<Inode>,
    source: Range<u64>,
    to: &Arc<Inode>,
    to_offset: u64,
) -> Result<()> {
    let end = to_offset + (source.end - source.start);
    let whole = source.start..sector_ceil(files, source.end);
    write::prepare_growth(files, to, to_offset, end)?;
    flush(files, from, whole.clone(), Wait::Completion)?;
    discard(files, to, to_offset..to_offset + (whole.end - whole.start));
    let mut at = whole.start;
    while at < whole.end {
        let map = items::find(files, from, at)?.cut(&(at..whole.end));
        let target = to_offset + (map.start - whole.start);
        let target = target..target + (map.end - map.start);
        at = map.end;
        match map.content {
            Content::Inline => {
                let len = target.end.min(end) - target.start;
                copy(files, from, map.start, to, target.start, len)?;
            }
            content => link(files, to, target, content, end)?,
        }
    }
    Ok(())
}

/// Replaces a range of the target by content of the source. The file grows with it, up to `end`.
fn link(
    files: &Arc<Files>,
    to: &Arc<Inode>,
    range: Range<u64>,
    content: Content,
    end: u64,
) -> Result<()> {
    let mut h = files.start(10)?;
    let result = match content {
        Content::Hole | Content::Inline => replace_with_hole(&mut h, to, range.clone(), range.end),
        Content::Data(stored) => replace(&mut h, to, range.clone(), stored, false),
        Content::Prealloc(stored) => replace(&mut h, to, range.clone(), stored, true),
    };
    {
        let data = to.data.state.lock();
        let mut state = to.state.lock();
        state.size = state.size.max(range.end.min(end));
        raise_disk_size(&data, &mut state);
    }
    to.change(&h, |_| {});
    h.finish(result)
}

fn replace(
    h: &mut Handle,
    to: &Inode,
    range: Range<u64>,
    stored: Stored,
    prealloc: bool,
) -> Result<()> {
    let stored = Stored {
        generation: h.transid(),
        ..stored
    };
    let content = if prealloc {
        Content::Prealloc(stored)
    } else {
        Content::Data(stored)
    };
    let map = ExtentMap {
        start: range.start,
        end: range.end,
        content,
    };
    let store = Arc::clone(h.store());
    let change = changing(to);
    let dropped = items::drop_extents(h, to, range.clone())?;
    items::insert(h, to, &map)?;
    let data = data_ref(to, map.start, &stored);
    store.space.add_data_ref(h, &data, 1)?;
    change.done(range, std::slice::from_ref(&map));
    to.data.note_change(map, h.transid());
    let mut state = to.state.lock();
    state.nbytes = (state.nbytes + (map.end - map.start)).saturating_sub(dropped);
    if prealloc {
        state.flags.insert(InodeFlags::PREALLOC);
    }
    Ok(())
}
