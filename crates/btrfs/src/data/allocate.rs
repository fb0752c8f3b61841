//! `fallocate`: preallocated extents, holes, zeroed ranges.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::InodeFlags;
use sapwood_vfs::{self as vfs, AllocMode};

use super::decide::MAX_EXTENT;
use super::files::Files;
use super::flush::{Wait, flush};
use super::hole::clear;
use super::items::{self, changing, data_ref, raise_disk_size, sector_ceil, sector_floor};
use super::write;
use crate::file_data::{Content, ExtentMap, Stored};
use crate::inode::Inode;
use crate::space::DataReservation;
use crate::transaction::{Handle, Store};
use crate::{Error, Result};

/// Allocates, frees or zeroes a range. The caller holds `io` exclusively and has checked that
/// the range is not empty and its end no overflow.
///
/// # Errors
/// [`vfs::Error::NotSupported`] for a mode that btrfs lacks; [`Error::NoSpace`].
pub(crate) fn fallocate(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    offset: u64,
    len: u64,
    mode: AllocMode,
) -> Result<()> {
    files.health.check()?;
    let range = offset..offset + len;
    match mode {
        AllocMode::Allocate { keep_size } => allocate(files, inode, range, keep_size),
        AllocMode::PunchHole => punch(files, inode, range),
        AllocMode::ZeroRange { keep_size } => zero(files, inode, range, keep_size),
        AllocMode::CollapseRange | AllocMode::InsertRange => Err(vfs::Error::NotSupported.into()),
    }
}

/// The whole sectors within a range. If the range reaches the end of the file, the file's last
/// sector counts as whole.
fn inner(store: &Store, range: &Range<u64>, size: u64) -> Range<u64> {
    let start = sector_ceil(store, range.start);
    let end = sector_floor(store, range.end);
    let end = if range.end >= size {
        end.max(sector_ceil(store, size))
    } else {
        end
    };
    start..end.max(start)
}

/// Zeroes the parts of a range in partly covered sectors, within the file.
fn zero_edges(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: &Range<u64>,
    inner: &Range<u64>,
) -> Result<()> {
    let size = inode.state.lock().size;
    let parts =
        if sector_floor(files, range.start) == sector_floor(files, range.end) && inner.is_empty() {
            [range.clone(), 0..0]
        } else {
            [
                range.start..inner.start.min(range.end),
                inner.end.max(range.start)..range.end,
            ]
        };
    for part in parts {
        write::zero_part(files, inode, part.start..part.end.min(size))?;
    }
    Ok(())
}

fn punch(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    let size = inode.state.lock().size;
    let inner = inner(files, &range, size);
    zero_edges(files, inode, &range, &inner)?;
    clear(files, inode, inner)
}

fn allocate(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    keep_size: bool,
) -> Result<()> {
    let size = inode.state.lock().size;
    if !keep_size {
        write::prepare_growth(files, inode, range.start, range.end)?;
    }
    write::drop_stale(files, inode, size, range.end)?;
    // From here on writeback looks for the space that is reserved below, and does not put the
    // file into the tree.
    inode.state.lock().flags.insert(InodeFlags::PREALLOC);
    let whole = sector_floor(files, range.start)..sector_ceil(files, range.end);
    make_regular(files, inode, &whole, size)?;
    flush(files, inode, whole.clone(), Wait::Completion)?;
    let holes = holes(files, inode, &whole)?;
    let bytes = holes.iter().map(|hole| hole.end - hole.start).sum();
    let _quota = files.reserve_quota(inode.root.id(), bytes)?;
    let promise = files.space.reserve_data(files.store(), bytes)?;
    for hole in holes {
        preallocate(
            files,
            inode,
            &promise,
            hole,
            (!keep_size).then_some(range.end),
        )?;
    }
    if !keep_size && range.end > inode.state.lock().size {
        write::set_size(files, inode, range.end)?;
    }
    Ok(())
}

/// Turns an inline extent into a sector before other extents follow it: an inline extent must be
/// the only extent of its file.
fn make_regular(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: &Range<u64>,
    size: u64,
) -> Result<()> {
    let sector = u64::from(files.sectorsize);
    if size == 0 || size > sector || range.end <= sector {
        return Ok(());
    }
    inode.data.wait_not_in_flight(&(0..sector));
    if items::find(files, inode, 0)?.content == Content::Inline {
        write::touch_sector(files, inode, 0)?;
        flush(files, inode, 0..sector, Wait::Completion)?;
    }
    Ok(())
}

/// The holes in a range; adjacent ones are joined.
fn holes(store: &Store, inode: &Inode, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
    let mut holes: Vec<Range<u64>> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let map = items::find(store, inode, at)?.cut(&(at..range.end));
        at = map.end;
        match holes.last_mut() {
            _ if map.content != Content::Hole => {}
            Some(last) if last.end == map.start => last.end = map.end,
            _ => holes.push(map.range()),
        }
    }
    Ok(holes)
}

/// Fills a hole with preallocated extents. The file grows with them, up to `size`.
fn preallocate(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    promise: &DataReservation,
    hole: Range<u64>,
    size: Option<u64>,
) -> Result<()> {
    let mut at = hole.start;
    while at < hole.end {
        let hint = inode.data.state.lock().hint;
        let want = (hole.end - at).min(MAX_EXTENT);
        let mut h = files.start(6)?;
        let taken = files
            .space
            .reserve_data_extent(promise, files.sectorsize.into(), want, hint);
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
        h.finish(result)?;
        at += len;
    }
    Ok(())
}

/// Inserts the item of a newly allocated extent where the file had a hole.
fn insert(h: &mut Handle, inode: &Inode, map: &ExtentMap, stored: &Stored) -> Result<(), Error> {
    let store = Arc::clone(h.store());
    let change = changing(inode);
    items::drop_extents(h, inode, map.range())?;
    items::insert(h, inode, map)?;
    let data = data_ref(inode, map.start, stored);
    store.space.insert_data_extent(h, &data)?;
    store.quotas.allocated(inode.root.id(), stored.disk_len);
    change.done(map.range(), std::slice::from_ref(map));
    inode.data.note_change(*map, h.transid());
    Ok(())
}

fn zero(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>, keep_size: bool) -> Result<()> {
    let size = inode.state.lock().size;
    let inner = sector_ceil(files, range.start)..sector_floor(files, range.end);
    if !keep_size {
        write::prepare_growth(files, inode, range.start, range.end)?;
    }
    if inner.is_empty() {
        zero_edges(files, inode, &range, &(inner.start..inner.start))?;
    } else {
        zero_edges(files, inode, &range, &inner)?;
        clear(files, inode, inner.clone())?;
        allocate(files, inode, inner.start..inner.end, true)?;
    }
    // The range after the old end has no data to zero, but must be allocated.
    if range.end > size && !keep_size {
        let tail = inner.end.max(range.start)..range.end;
        if !tail.is_empty() {
            allocate(files, inode, tail, false)?;
        }
        if range.end > inode.state.lock().size {
            write::set_size(files, inode, range.end)?;
        }
    }
    Ok(())
}
