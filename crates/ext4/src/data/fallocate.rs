//! `fallocate`: unwritten blocks, holes, zeroed, collapsed and inserted ranges.
//!
//! Every change of the map here first settles memory in its range: dirty data there is flushed, or
//! discarded where it would be lost anyway, and data in flight is waited for. Steps have handles of
//! their own, each of which leaves a whole file.

use std::ops::Range;
use std::sync::Arc;

use sapwood_ext4_format::InodeFlags;
use sapwood_vfs::{self as vfs, AllocMode};

use super::flush::{discard, settle_range};
use super::truncate::{remove_blocks, set_size};
use super::{flush, inline, write};
use crate::Result;
use crate::block_alloc;
use crate::engine::Engine;
use crate::inode::{Inode, STORE_CREDITS};
use crate::map::{self, Mapped, Shift};

/// Blocks of the longest unwritten extent.
const MAX_UNWRITTEN: u64 = (1 << 15) - 1;

/// Allocates, frees, zeroes or moves a range. The caller holds `io` exclusively and no handle, and
/// has checked that the range is not empty and its end no overflow.
///
/// # Errors
/// [`vfs::Error::NotSupported`] for a mode that files with indirect blocks lack;
/// [`vfs::Error::Invalid`]; [`vfs::Error::FileTooLarge`]; [`NoSpace`](crate::Error::NoSpace).
pub(crate) fn fallocate(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    len: u64,
    mode: AllocMode,
) -> Result<()> {
    engine.check()?;
    inode.check_changeable()?;
    let end = offset.checked_add(len).ok_or(vfs::Error::FileTooLarge)?;
    let range = offset..end;
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        inline::convert(engine, inode)?;
    }
    let tree = inode.flags().contains(InodeFlags::EXTENTS);
    if !tree && mode != AllocMode::PunchHole {
        return Err(vfs::Error::NotSupported.into());
    }
    let grows = !matches!(mode, AllocMode::PunchHole | AllocMode::CollapseRange);
    if grows && end > inode.max_size(engine) {
        return Err(vfs::Error::FileTooLarge.into());
    }
    match mode {
        AllocMode::Allocate { keep_size } => allocate(engine, inode, range, keep_size),
        AllocMode::PunchHole => punch(engine, inode, range),
        AllocMode::ZeroRange { keep_size } => zero(engine, inode, range, keep_size),
        AllocMode::CollapseRange => collapse(engine, inode, range),
        AllocMode::InsertRange => insert(engine, inode, range),
    }
}

/// Allocates unwritten blocks for all holes of a range, also after the end of the file if the size
/// is kept.
fn allocate(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    keep_size: bool,
) -> Result<()> {
    let old = inode.size();
    if !keep_size && range.end > old {
        write::zero_tail(engine, inode, old)?;
    }
    let whole = engine.block_floor(range.start)..engine.block_ceil(range.end);
    settle_range(engine, inode, to_settle(engine, inode, &whole))?;
    let blocks = engine.blocks_of(&whole);
    let size = if keep_size { 0 } else { range.end };
    let mut at = blocks.start;
    while at < blocks.end {
        let run = map::lookup(engine, inode, at, blocks.end - at)?;
        let end = map::run_end(inode.ino, &run, at, blocks.end)?;
        at = match run.what {
            Mapped::Hole => {
                let hole = at..end.min(at + MAX_UNWRITTEN);
                fill_hole(engine, inode, hole, size)?
            }
            Mapped::Written(_) | Mapped::Unwritten(_) => end,
        };
    }
    if size > inode.size() {
        set_size(engine, inode, size)?;
    }
    Ok(())
}

/// The range to write back before a range gets unwritten blocks: the dirty data there. If the size
/// on disk must cover the range, it is all dirty data of the file. Otherwise a commit in between
/// would show a size inside of one call's write, and a hole where its start is still dirty.
fn to_settle(engine: &Engine, inode: &Inode, range: &Range<u64>) -> Range<u64> {
    let is_dirty = !inode.data.is_clean(range.clone());
    let on_disk = inode.state.lock().raw.size(&engine.geometry);
    if is_dirty && on_disk < range.end {
        0..u64::MAX
    } else {
        range.clone()
    }
}

/// Allocates unwritten blocks for the start of a hole; returns where they end. The file grows with
/// them, up to `size`.
fn fill_hole(engine: &Arc<Engine>, inode: &Arc<Inode>, hole: Range<u64>, size: u64) -> Result<u64> {
    let len = hole.end - hole.start;
    let mut promised = flush::reserve(engine, len, false)?;
    write::count_for_owners(engine, inode, &mut promised, len)?;
    let goal = match inode.data.hint(hole.start) {
        Some(goal) => goal,
        None => map::goal(engine, inode, hole.start)?,
    };
    let want = u32::try_from(len).unwrap_or(u32::MAX);
    let extent = engine.take_blocks(inode.ino, goal, want)?;
    promised.give_back(extent.len.into());
    let end = hole.start + u64::from(extent.len);
    let credits = map::insert_credits(engine, inode, len) + block_alloc::CREDITS + STORE_CREDITS;
    let h = match engine.start_tracked(credits) {
        Ok(h) => h,
        Err(error) => {
            block_alloc::cancel(&engine.groups, extent);
            return Err(error);
        }
    };
    engine.abort((|| {
        block_alloc::claim(&engine.groups, &h, extent)?;
        let len = extent.len.into();
        map::insert(engine, &h, inode, hole.start, extent.start, len, false)?;
        {
            let mut state = inode.state.lock();
            let reached = end.saturating_mul(engine.block_size()).min(size);
            if reached > state.size {
                state.size = reached;
                state.raw.set_size(reached, &engine.geometry)?;
            }
        }
        inode.data.forget_shape();
        inode.store(engine, &h)
    })())?;
    inode
        .data
        .set_hint(end, extent.start.saturating_add(extent.len.into()));
    Ok(end)
}

/// Makes a hole. After the end of the file nothing changes: blocks that are allocated there stay.
fn punch(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    let size = inode.size();
    if range.start >= size {
        return Ok(());
    }
    let range = range.start..if range.end >= size {
        engine.block_ceil(size)
    } else {
        range.end
    };
    clear(engine, inode, &range)
}

/// Zeroes the edges of a range and takes the whole blocks in it out of the map.
fn clear(engine: &Arc<Engine>, inode: &Arc<Inode>, range: &Range<u64>) -> Result<()> {
    let inner = settle(engine, inode, range)?;
    if inner.is_empty() {
        return Ok(());
    }
    engine.abort(remove_blocks(engine, inode, engine.blocks_of(&inner)))
}

/// Zeroes the edges of a range and discards the data in memory of its whole blocks; returns those
/// blocks.
fn settle(engine: &Arc<Engine>, inode: &Arc<Inode>, range: &Range<u64>) -> Result<Range<u64>> {
    let size = inode.size();
    let inner = inner(engine, range);
    for edge in edges(range, &inner) {
        write::zero_part(engine, inode, edge, size)?;
    }
    if inner.is_empty() {
        return Ok(inner);
    }
    discard(engine, inode, inner.clone());
    // The size on disk may have waited for discarded data.
    let on_disk = inode.state.lock().raw.size(&engine.geometry);
    if on_disk < size && on_disk < inner.end {
        set_size(engine, inode, size)?;
    }
    Ok(inner)
}

/// The whole blocks within a range.
fn inner(engine: &Engine, range: &Range<u64>) -> Range<u64> {
    let start = engine.block_ceil(range.start);
    start..engine.block_floor(range.end).max(start)
}

/// The parts of blocks that a range covers outside of its whole blocks; each lies in one block.
fn edges(range: &Range<u64>, inner: &Range<u64>) -> [Range<u64>; 2] {
    [
        range.start..inner.start.min(range.end),
        inner.end.max(range.start).min(range.end)..range.end,
    ]
}

/// Makes a range read as zeros: its blocks become unwritten, and its holes get unwritten blocks.
fn zero(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    keep_size: bool,
) -> Result<()> {
    let inner = settle(engine, inode, &range)?;
    if !inner.is_empty() {
        let blocks = engine.blocks_of(&inner);
        let step = map::insert_credits(engine, inode, blocks.end - blocks.start);
        engine.abort(map::in_steps(engine, inode, blocks, step, map::unwrite))?;
    }
    allocate(engine, inode, range, keep_size)
}

/// Whether a range begins and ends with whole blocks.
fn is_aligned(engine: &Engine, range: &Range<u64>) -> bool {
    engine.block_floor(range.start) == range.start && engine.block_floor(range.end) == range.end
}

/// Takes a range out; the blocks after it move down.
fn collapse(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    let size = inode.size();
    if !is_aligned(engine, &range) || range.end >= size {
        return Err(vfs::Error::Invalid.into());
    }
    settle_range(engine, inode, range.start..u64::MAX)?;
    let blocks = engine.blocks_of(&range);
    inode.data.forget_shape();
    engine.abort((|| {
        remove_blocks(engine, inode, blocks.clone())?;
        let by = blocks.end - blocks.start;
        let step = map::insert_credits(engine, inode, 1);
        map::in_steps(
            engine,
            inode,
            blocks.end..map::BLOCKS_MAX,
            step,
            |engine, h, inode, range| map::shift(engine, h, inode, range, Shift::Left(by)),
        )?;
        set_size(engine, inode, size - (range.end - range.start))
    })())
}

/// Opens a hole; the blocks from there on move up.
fn insert(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    let size = inode.size();
    let len = range.end - range.start;
    if !is_aligned(engine, &range) || range.start >= size {
        return Err(vfs::Error::Invalid.into());
    }
    let size = size
        .checked_add(len)
        .filter(|size| *size <= inode.max_size(engine));
    let size = size.ok_or(vfs::Error::FileTooLarge)?;
    settle_range(engine, inode, range.start..u64::MAX)?;
    let blocks = engine.blocks_of(&range);
    inode.data.forget_shape();
    engine.abort((|| {
        // First the size: no block is after the end at any time.
        set_size(engine, inode, size)?;
        let by = blocks.end - blocks.start;
        let step = map::insert_credits(engine, inode, 1);
        map::in_steps(
            engine,
            inode,
            blocks.start..map::BLOCKS_MAX,
            step,
            |engine, h, inode, range| map::shift(engine, h, inode, range, Shift::Right(by)),
        )
    })())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_what_is_beside_the_whole_blocks() {
        let some = |range: Range<u64>, inner: Range<u64>| -> Vec<Range<u64>> {
            let parts = edges(&range, &inner).into_iter();
            parts.filter(|part| !part.is_empty()).collect()
        };
        assert_eq!(some(100..9000, 4096..8192), [100..4096, 8192..9000]);
        assert!(some(4096..8192, 4096..8192).is_empty());
        assert_eq!(some(4096..9000, 4096..8192), vec![8192..9000; 1]);
        assert_eq!(some(100..200, 4096..4096), vec![100..200; 1]);
        assert_eq!(some(4000..5000, 4096..4096), [4000..4096, 4096..5000]);
    }
}
