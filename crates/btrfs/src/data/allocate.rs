//! `fallocate`: preallocated extents, holes, zeroed ranges.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::InodeFlags;
use sapwood_vfs::{self as vfs, AllocMode};

use super::complete::{changing, data_ref, finish, raise_disk_size};
use super::extent_map::{Content, ExtentMap, Stored};
use super::flush::MAX_EXTENT;
use super::items::{self, Items};
use super::{Wait, check, discard, flush, sector_ceil, sector_floor, write};
use crate::engine::Engine;
use crate::ops::Inode;
use crate::space::DataReservation;
use crate::transaction::Handle;
use crate::{Error, Result};

/// Items dropped in one handle.
const STEP: usize = 32;

/// Allocates, frees or zeroes a range. The caller holds `io` exclusively and has checked that
/// the range is not empty and its end no overflow.
///
/// # Errors
/// [`vfs::Error::NotSupported`] for what btrfs does not have; [`Error::NoSpace`].
pub(crate) fn fallocate(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    len: u64,
    mode: AllocMode,
) -> Result<()> {
    check(engine)?;
    let range = offset..offset + len;
    match mode {
        AllocMode::Allocate { keep_size } => allocate(engine, inode, range, keep_size),
        AllocMode::PunchHole => punch(engine, inode, range),
        AllocMode::ZeroRange { keep_size } => zero(engine, inode, range, keep_size),
        AllocMode::CollapseRange | AllocMode::InsertRange => Err(vfs::Error::NotSupported.into()),
    }
}

/// The whole sectors within a range. Behind the end of the file its last sector counts as whole.
fn inner(engine: &Engine, range: &Range<u64>, size: u64) -> Range<u64> {
    let start = sector_ceil(engine, range.start);
    let end = sector_floor(engine, range.end);
    let end = if range.end >= size {
        end.max(sector_ceil(engine, size))
    } else {
        end
    };
    start..end.max(start)
}

/// Zeroes what of a range lies in sectors that it covers in part, within the file.
fn zero_edges(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: &Range<u64>,
    inner: &Range<u64>,
) -> Result<()> {
    let size = inode.state.lock().size;
    let parts = match sector_floor(engine, range.start) == sector_floor(engine, range.end)
        && inner.is_empty()
    {
        true => [range.clone(), 0..0],
        false => [
            range.start..inner.start.min(range.end),
            inner.end.max(range.start)..range.end,
        ],
    };
    for part in parts {
        write::zero_part(engine, inode, part.start..part.end.min(size))?;
    }
    Ok(())
}

fn punch(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    let size = inode.state.lock().size;
    let inner = inner(engine, &range, size);
    zero_edges(engine, inode, &range, &inner)?;
    clear(engine, inode, inner)
}

/// Makes whole sectors a hole.
pub(super) fn clear(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    if !sapwood_fault::planted(68) {
        discard(engine, inode, range.clone());
    }
    let mut at = range.start;
    while at < range.end {
        let mut h = engine.start_urgent(8)?;
        let end = step_end(engine, inode, at..range.end)?;
        let size = sector_ceil(engine, inode.state.lock().size);
        let result = replace_with_hole(&mut h, inode, at..end, size);
        if end == range.end {
            // Dirty ranges that went may have been all that the size on disk waited for.
            let data = inode.data.state.lock();
            raise_disk_size(&data, &mut inode.state.lock());
        }
        inode.change(&h, |_| {});
        finish(h, result)?;
        at = end;
    }
    Ok(())
}

/// Where a step that begins at the range's start ends, so that it drops only so many items.
fn step_end(engine: &Engine, inode: &Inode, range: Range<u64>) -> Result<u64> {
    let mut items = Items::from(engine, inode, range.start)?;
    let mut end = range.start;
    for _ in 0..STEP {
        match items.next()? {
            Some(item) if item.start < range.end => end = item.end,
            _ => return Ok(range.end),
        }
    }
    Ok(end.min(range.end))
}

/// Drops the items of a range, and puts an explicit hole in their place where that is wanted, up
/// to the end of the file at `size`.
pub(super) fn replace_with_hole(
    h: &mut Handle,
    inode: &Inode,
    range: Range<u64>,
    size: u64,
) -> Result<()> {
    let hole = ExtentMap {
        start: range.start,
        end: range.end,
        content: Content::Hole,
    };
    let change = changing(inode);
    let dropped = items::drop_extents(h, inode, range.clone())?;
    items::insert_hole(h, inode, range.start..range.end.min(size).max(range.start))?;
    change.done(range, &[hole]);
    inode.data.note_change(hole, h.transid());
    let mut state = inode.state.lock();
    state.nbytes = state.nbytes.saturating_sub(dropped);
    Ok(())
}

fn allocate(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    keep_size: bool,
) -> Result<()> {
    let size = inode.state.lock().size;
    if !keep_size {
        write::prepare_growth(engine, inode, range.start, range.end)?;
    }
    write::drop_stale(engine, inode, size, range.end)?;
    // From here on writeback looks for the space that is reserved below, and does not put the
    // file into the tree.
    inode.state.lock().flags.insert(InodeFlags::PREALLOC);
    let whole = sector_floor(engine, range.start)..sector_ceil(engine, range.end);
    make_regular(engine, inode, &whole, size)?;
    flush(engine, inode, whole.clone(), Wait::Completion)?;
    let holes = holes(engine, inode, &whole)?;
    let bytes = holes.iter().map(|hole| hole.end - hole.start).sum();
    let promise = engine.space.reserve_data(engine, bytes)?;
    for hole in holes {
        preallocate(
            engine,
            inode,
            &promise,
            hole,
            (!keep_size).then_some(range.end),
        )?;
    }
    if !keep_size && range.end > inode.state.lock().size && !sapwood_fault::planted(6) {
        write::set_size(engine, inode, range.end)?;
    }
    Ok(())
}

/// An inline extent holds a file alone: before others come behind it, it becomes a sector.
fn make_regular(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: &Range<u64>,
    size: u64,
) -> Result<()> {
    let sector = u64::from(engine.sectorsize);
    if size == 0 || size > sector || range.end <= sector {
        return Ok(());
    }
    inode.data.wait_landed(&(0..sector));
    if items::find(engine, inode, 0)?.content == Content::Inline {
        write::touch_sector(engine, inode, 0)?;
        flush(engine, inode, 0..sector, Wait::Completion)?;
    }
    Ok(())
}

/// Holes of a range, side by side ones joined.
fn holes(engine: &Engine, inode: &Inode, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
    let mut holes: Vec<Range<u64>> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let map = items::find(engine, inode, at)?.cut(&(at..range.end));
        at = map.end;
        match holes.last_mut() {
            _ if map.content != Content::Hole => {}
            Some(last) if last.end == map.start => last.end = map.end,
            _ => holes.push(map.range()),
        }
    }
    Ok(holes)
}

/// Fills a hole with preallocated extents. `size`: the file grows with them up to that.
fn preallocate(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    promise: &DataReservation,
    hole: Range<u64>,
    size: Option<u64>,
) -> Result<()> {
    let mut at = hole.start;
    while at < hole.end {
        let hint = inode.data.state.lock().hint;
        let want = (hole.end - at).min(MAX_EXTENT);
        let mut h = engine.start(6)?;
        let taken = engine
            .space
            .reserve_data_extent(promise, engine.sectorsize.into(), want, hint);
        let (bytenr, len) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                drop(h);
                return Err(error);
            }
        };
        let stored = Stored {
            bytenr,
            disk_len: len,
            ram_len: len,
            generation: h.transid(),
            ..Stored::default()
        };
        let map = ExtentMap {
            start: at,
            end: at + len,
            content: Content::Prealloc(stored),
        };
        let result = insert(&mut h, inode, &map, &stored);
        {
            let mut data = inode.data.state.lock();
            data.hint = bytenr + len;
            let mut state = inode.state.lock();
            state.nbytes += len;
            state.size = state.size.max(size.map_or(0, |size| size.min(map.end)));
            raise_disk_size(&data, &mut state);
        }
        inode.change(&h, |_| {});
        finish(h, result)?;
        at += len;
    }
    Ok(())
}

/// Puts an extent that was just taken where there was a hole.
fn insert(h: &mut Handle, inode: &Inode, map: &ExtentMap, stored: &Stored) -> Result<(), Error> {
    let engine = Arc::clone(h.engine());
    let change = changing(inode);
    items::drop_extents(h, inode, map.range())?;
    items::insert(h, inode, map)?;
    let data = data_ref(inode, map.start, stored);
    engine.space.insert_data_extent(h, &data)?;
    change.done(map.range(), std::slice::from_ref(map));
    inode.data.note_change(*map, h.transid());
    Ok(())
}

fn zero(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    keep_size: bool,
) -> Result<()> {
    let size = inode.state.lock().size;
    let inner = sector_ceil(engine, range.start)..sector_floor(engine, range.end);
    if !keep_size {
        write::prepare_growth(engine, inode, range.start, range.end)?;
    }
    if inner.is_empty() {
        zero_edges(engine, inode, &range, &(inner.start..inner.start))?;
    } else {
        zero_edges(engine, inode, &range, &inner)?;
        clear(engine, inode, inner.clone())?;
        allocate(engine, inode, inner.start..inner.end, true)?;
    }
    // What lies behind the old end has no data to zero, but is to be allocated.
    if range.end > size && !keep_size {
        let tail = inner.end.max(range.start)..range.end;
        if !tail.is_empty() {
            allocate(engine, inode, tail, false)?;
        }
        if range.end > inode.state.lock().size {
            write::set_size(engine, inode, range.end)?;
        }
    }
    Ok(())
}
