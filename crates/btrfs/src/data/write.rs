//! Writing into memory.

use std::ops::Range;
use std::sync::Arc;

use sapwood_base::WriteData;
use sapwood_btrfs_format::Incompat;
use sapwood_vfs as vfs;

use super::files::Files;
use super::flush::begin;
use super::hole::clear;
use super::items::{changing, raise_disk_size, sector_ceil, sector_floor};
use super::{items, overwrite, read};
use crate::file_data::{Content, ExtentMap};
use crate::inode::Inode;
use crate::quota::QuotaHold;
use crate::space::{DataReservation, MetadataReservation};
use crate::{Error, Result};

/// Bytes that go into memory at once: the bound on dirty bytes is kept to within this.
const CHUNK: u64 = 1 << 20;
/// A file with this many dirty bytes is written back without waiting for the bound.
const EARLY: u64 = 32 << 20;
/// Items that completing one piece may touch: its own, its checksums, the replaced ones.
pub(super) const ITEMS: u64 = 3;

/// Writes `data` at `offset`; the file grows if it ends there. May wait for writeback. The caller
/// holds `io` exclusively and has checked limits. The caller also sets the times; the completion
/// queues the inode item.
///
/// # Errors
/// [`Error::NoSpace`]; a sector that is written in part cannot be read; the mount takes no changes.
pub(crate) fn write(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    offset: u64,
    data: WriteData<'_>,
) -> Result<()> {
    files.health.check()?;
    if data.is_empty() {
        return Ok(());
    }
    prepare_growth(files, inode, offset, offset + data.len() as u64)?;
    let mut at = offset;
    let mut rest = data;
    while !rest.is_empty() {
        let room = (CHUNK - at % CHUNK).min(rest.len() as u64);
        let (front, back) = rest.split_at(room as usize);
        write_chunk(files, inode, at, &front)?;
        at += room;
        rest = back;
    }
    if inode.data.state.lock().dirty.bytes() >= EARLY {
        begin(files, inode, 0..u64::MAX);
    }
    Ok(())
}

/// Prepares a write to `start..end` (or, empty, a truncation to `start`) that may make the file
/// longer.
pub(super) fn prepare_growth(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    start: u64,
    end: u64,
) -> Result<()> {
    let size = inode.state.lock().size;
    let sector = u64::from(files.sectorsize);
    if end <= size {
        return Ok(());
    }
    // An inline extent must be the only extent of its file, so before data follows it, its sector
    // is made dirty. A write that touches the first sector does that anyway.
    if size > 0 && size <= sector && start >= sector {
        pull_first(files, inode)?;
    }
    if start > size {
        drop_stale(files, inode, size, start)?;
        zero_tail(files, inode, size, start)?;
        let (from, to) = (sector_ceil(files, size), sector_ceil(files, start));
        if from < to && !files.incompat.contains(Incompat::NO_HOLES) {
            insert_holes(files, inode, from..to)?;
        }
    }
    Ok(())
}

/// Drops data after the end of the file at `size`, up to `to`. A power cut may leave such data: it
/// was in the tree already, but the size on disk still had to wait for earlier data.
pub(super) fn drop_stale(files: &Arc<Files>, inode: &Arc<Inode>, size: u64, to: u64) -> Result<()> {
    let mut at = sector_ceil(files, size);
    let to = sector_ceil(files, to);
    while at < to {
        let map = items::find(files, inode, at)?.cut(&(at..to));
        at = map.end;
        if matches!(map.content, Content::Data(_)) {
            clear(files, inode, map.range())?;
        }
    }
    Ok(())
}

/// Makes the first sector dirty if it is in flight, or an inline extent in the tree.
fn pull_first(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    let sector = u64::from(files.sectorsize);
    {
        let state = inode.data.state.lock();
        if state.dirty.contains(0) {
            return Ok(());
        }
        if !state.in_flight.overlaps(0..sector) {
            drop(state);
            if items::find(files, inode, 0)?.content != Content::Inline {
                return Ok(());
            }
        }
    }
    touch_sector(files, inode, 0)
}

/// Reads a sector and makes it dirty, zero after the end of the file.
pub(super) fn touch_sector(files: &Arc<Files>, inode: &Arc<Inode>, start: u64) -> Result<()> {
    let bytes = edge(files, inode, start)?;
    store(files, inode, start, &bytes[..].into(), &[], None).map(|_| ())
}

/// Makes the bytes between the end of the file and `to` read as zeros once the file is longer. The
/// rest of its last sector may have any content on a damaged image, or after a truncation that a
/// power cut interrupted.
fn zero_tail(files: &Arc<Files>, inode: &Arc<Inode>, size: u64, to: u64) -> Result<()> {
    let start = sector_floor(files, size);
    // A write in the last sector of the file reads that sector and zeroes its rest.
    if start == size
        || (sector_floor(files, to) == start && !to.is_multiple_of(files.sectorsize.into()))
    {
        return Ok(());
    }
    let end = start + u64::from(files.sectorsize);
    let in_memory = {
        let state = inode.data.state.lock();
        state.dirty.contains(start) || state.in_flight.overlaps(start..end)
    };
    let inline = match items::find(files, inode, start)?.content {
        _ if in_memory => return Ok(()),
        Content::Hole | Content::Prealloc(_) => return Ok(()),
        Content::Inline => true,
        Content::Data(_) => false,
    };
    let mut bytes = vec![0; files.sectorsize as usize];
    read::fill(files, inode, start, &mut bytes)?;
    let tail = bytes.get((size - start) as usize..).unwrap_or_default();
    if !inline && tail.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    touch_sector(files, inode, start)
}

/// Inserts items of explicit holes where the file has none.
fn insert_holes(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    let mut gaps = Vec::new();
    let mut at = range.start;
    let mut walk = items::Items::from(files, inode, range.start)?;
    while let Some(item) = walk.next()?.filter(|item| item.start < range.end) {
        if item.start > at {
            gaps.push(at..item.start);
        }
        at = at.max(item.end);
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    for gap in gaps {
        let mut h = files.start(2)?;
        let change = changing(inode);
        let result = items::insert_hole(&mut h, inode, gap.clone());
        change.done(
            gap.clone(),
            &[ExtentMap {
                start: gap.start,
                end: gap.end,
                content: Content::Hole,
            }],
        );
        let hole = ExtentMap {
            start: gap.start,
            end: gap.end,
            content: Content::Hole,
        };
        inode.data.note_change(hole, h.transid());
        inode.change(&h, |_| {});
        h.finish(result)?;
    }
    Ok(())
}

/// The sector at `start` as the file has it, zero after the end of the file.
fn edge(files: &Arc<Files>, inode: &Arc<Inode>, start: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; files.sectorsize as usize];
    let size = inode.state.lock().size;
    let len = size.saturating_sub(start).min(bytes.len() as u64) as usize;
    read::fill(
        files,
        inode,
        start,
        bytes.get_mut(..len).unwrap_or_default(),
    )?;
    Ok(bytes)
}

/// Writes at most a chunk.
fn write_chunk(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &WriteData<'_>,
) -> Result<()> {
    let sector = u64::from(files.sectorsize);
    let end = offset + data.len() as u64;
    let (first, last) = (sector_floor(files, offset), sector_floor(files, end));
    loop {
        let (mut edges, mut padded) = (Vec::new(), None);
        let dirty = |at: u64| inode.data.state.lock().dirty.contains(at);
        let size = inode.state.lock().size;
        if !offset.is_multiple_of(sector) && !dirty(first) {
            edges.push((first, edge(files, inode, first)?));
        }
        if !end.is_multiple_of(sector) && !dirty(last) && !edges.iter().any(|(at, _)| *at == last) {
            // Up to the end of the file there is nothing to keep after the data.
            if end < size || offset > last {
                edges.push((last, edge(files, inode, last)?));
            } else {
                padded = data.with_zeros((last + sector - offset) as usize);
                if padded.is_none() {
                    edges.push((last, vec![0; sector as usize]));
                }
            }
        }
        let data = padded.as_ref().unwrap_or(data);
        if store(files, inode, offset, data, &edges, Some(end))? {
            return Ok(());
        }
    }
}

/// Puts bytes into the dirty ranges: first `edges` (whole sectors that `data` covers in part),
/// then `data`. The file grows to at least `size`. Returns false, without a change, if writeback
/// took a sector meanwhile whose other bytes are needed.
fn store(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &WriteData<'_>,
    edges: &[(u64, Vec<u8>)],
    size: Option<u64>,
) -> Result<bool> {
    let range = sector_floor(files, offset)..sector_ceil(files, offset + data.len() as u64);
    let (bytes, pieces) = {
        let state = inode.data.state.lock();
        let gaps = state.dirty.gaps(range.clone());
        let bytes: u64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
        // A gap right after a piece makes that one longer.
        let pieces = gaps.iter().filter(|gap| {
            gap.start.is_multiple_of(CHUNK) || !state.dirty.contains(gap.start.wrapping_sub(1))
        });
        (bytes, pieces.count() as u64)
    };
    let Promises {
        data: promised,
        metadata,
        quota,
    } = promise(files, inode, &range, bytes, pieces)?;
    if !files.writeback.enter(files, bytes) {
        return Err(Error::NoSpace);
    }
    {
        let mut guard = inode.data.state.lock();
        let state = &mut *guard;
        // Writeback may have taken pieces since, so that more is new than was counted.
        let before = state.dirty.bytes();
        let end = offset + data.len() as u64;
        let cuts = [offset, end].map(|at| {
            (!at.is_multiple_of(files.sectorsize.into())).then(|| sector_floor(files, at))
        });
        let has = |at: &u64| state.dirty.contains(*at) || edges.iter().any(|(edge, _)| edge == at);
        if !cuts.iter().flatten().all(has) {
            drop(guard);
            files.writeback.leave(bytes);
            return Ok(false);
        }
        for (at, sector) in edges {
            if !state.dirty.contains(*at) {
                state.dirty.write(*at, &sector[..].into());
            }
        }
        state.dirty.write(offset, data);
        let added = state.dirty.bytes() - before;
        files.writeback.correct(bytes, added);
        match (&state.promised, promised) {
            (Some(own), Some(more)) => own.merge(more),
            (None, Some(more)) => state.promised = Some(Arc::new(more)),
            (_, None) => {}
        }
        state.hold_quota(quota);
        match (&state.promised_metadata, metadata) {
            (Some(own), Some(more)) => own.merge(more),
            (None, Some(more)) => state.promised_metadata = Some(Arc::new(more)),
            (_, None) => {}
        }
        if let Some(size) = size {
            let mut own = inode.state.lock();
            own.size = own.size.max(size);
        }
    }
    files.writeback.activate(inode);
    Ok(true)
}

/// Space reserved for a write.
#[derive(Default)]
struct Promises {
    data: Option<DataReservation>,
    metadata: Option<MetadataReservation>,
    quota: Option<QuotaHold>,
}

/// Reserves space for a write. On a full file system, or at a limit of quotas, a write that
/// overwrites in place needs no data space.
fn promise(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: &Range<u64>,
    bytes: u64,
    pieces: u64,
) -> Result<Promises> {
    if bytes == 0 {
        return Ok(Promises::default());
    }
    let quota = match files.reserve_quota(inode.root.id(), bytes) {
        Err(Error::Vfs(vfs::Error::Quota)) if overwrite::possible(files, inode, range)? => None,
        other => other?,
    };
    let data = match files.space.reserve_data(files.store(), bytes) {
        Ok(data) => Some(data),
        Err(Error::NoSpace) if overwrite::possible(files, inode, range)? => None,
        Err(error) => return Err(error),
    };
    let metadata = match pieces {
        0 => None,
        pieces => {
            let items = pieces * ITEMS;
            Some(files.space.reserve_metadata(files.store(), items, false)?)
        }
    };
    Ok(Promises {
        data,
        metadata,
        quota,
    })
}

/// Sets the length of a file that grew without data. The caller did [`prepare_growth`].
pub(super) fn set_size(files: &Arc<Files>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    let h = files.start(1)?;
    {
        let data = inode.data.state.lock();
        let mut state = inode.state.lock();
        state.size = size;
        raise_disk_size(&data, &mut state);
    }
    inode.change(&h, |_| {});
    h.end()
}

/// Zeroes part of a sector, unless it is zero already.
pub(super) fn zero_part(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let mut bytes = vec![0; (range.end - range.start) as usize];
    read::fill(files, inode, range.start, &mut bytes)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    bytes.fill(0);
    write_chunk(files, inode, range.start, &bytes[..].into())
}
