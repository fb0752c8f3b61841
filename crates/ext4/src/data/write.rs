//! Writing into memory.
//!
//! A write reads the rest of partly covered blocks, promises blocks to holes, waits for room among
//! the dirty bytes of all files, and copies. `ENOSPC` happens here and nowhere later.

use std::ops::Range;
use std::sync::Arc;

use sapwood_base::WriteData;
use sapwood_ext4_format::InodeFlags;
use sapwood_vfs as vfs;

use super::work::Dispatch;
use super::{flush, inline, read};
use crate::block_alloc::Reservation;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::map::{self, Mapped};
use crate::quota_table::Charge;
use crate::{Error, Result};

/// Bytes that go into memory at once: the bound on dirty bytes is kept to within this.
const CHUNK: u64 = 1 << 20;
/// A file with this many dirty bytes is written back without waiting for the bound.
const EARLY: u64 = 32 << 20;

/// Writes `data` at `offset`; the file grows if it ends there. May wait for writeback: hold no
/// handle. The caller holds `io` exclusively, and sets the times. `privileged`: as for
/// [`reserve`](crate::block_alloc::Space::reserve).
///
/// # Errors
/// [`Error::NoSpace`]; [`vfs::Error::FileTooLarge`]; a block that is written in part cannot be
/// read; the mount takes no changes.
pub(crate) fn write(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    data: WriteData<'_>,
    privileged: bool,
) -> Result<()> {
    engine.check()?;
    inode.check_changeable()?;
    if data.is_empty() {
        return Ok(());
    }
    let end = offset
        .checked_add(data.len() as u64)
        .ok_or(vfs::Error::FileTooLarge)?;
    let is_inline = inode.flags().contains(InodeFlags::INLINE_DATA);
    if is_inline || inline::may_begin(engine, inode, end)? {
        if inline::write_at(engine, inode, offset, &data)? {
            return Ok(());
        }
        if is_inline {
            inline::convert(engine, inode)?;
        }
    }
    if end > inode.max_size(engine) {
        return Err(vfs::Error::FileTooLarge.into());
    }
    let size = inode.size();
    if offset > size {
        zero_tail(engine, inode, size)?;
    }
    let mut at = offset;
    let mut rest = data;
    while !rest.is_empty() {
        let room = (CHUNK - at % CHUNK).min(rest.len() as u64);
        let (front, back) = rest.split_at(room as usize);
        write_chunk(engine, inode, at, &front, privileged)?;
        at += room;
        rest = back;
    }
    if inode.data.dirty_bytes() >= EARLY {
        flush::begin(engine, inode, 0..u64::MAX, Dispatch::Queue);
    }
    Ok(())
}

/// Writes whole blocks after the end of the file, whose size stays. The caller holds `io`
/// exclusively and no handle, and has made the inode an orphan, so that a recovery frees the blocks.
///
/// # Errors
/// [`Error::NoSpace`]; [`vfs::Error::FileTooLarge`]; the mount takes no changes.
pub(super) fn write_after_end(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
) -> Result<()> {
    engine.check()?;
    let end = offset.checked_add(data.len() as u64);
    if end.is_none_or(|end| end > inode.max_size(engine)) {
        return Err(vfs::Error::FileTooLarge.into());
    }
    let size = inode.size();
    let mut at = offset;
    for piece in data.chunks(CHUNK as usize) {
        let whole = store(engine, inode, at, &piece.into(), &[], size, false)?;
        debug_assert!(whole, "whole blocks need no edges");
        at += piece.len() as u64;
    }
    if inode.data.dirty_bytes() >= EARLY {
        flush::begin(engine, inode, 0..u64::MAX, Dispatch::Queue);
    }
    Ok(())
}

/// Zeroes the rest of the last block of a file that ends at `size` and is about to grow: it may
/// have any content on disk.
pub(super) fn zero_tail(engine: &Arc<Engine>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    zero_part(engine, inode, size..engine.block_ceil(size), size)
}

/// Zeroes part of a block, unless it is zero already. The file does not grow beyond `size`.
pub(super) fn zero_part(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    size: u64,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let mut bytes = vec![0; (range.end - range.start) as usize];
    read::fill(engine, inode, range.start, &mut bytes)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let start = engine.block_floor(range.start);
    let mut block = vec![0; engine.block_size() as usize];
    read::fill(engine, inode, start, &mut block)?;
    let part = block.get_mut((range.start - start) as usize..(range.end - start) as usize);
    part.unwrap_or_default().fill(0);
    let whole = store(engine, inode, start, &block[..].into(), &[], size, false)?;
    debug_assert!(whole, "a whole block needs no edges");
    Ok(())
}

/// The block at `start` as the file has it, zero after the end of the file.
fn edge(engine: &Arc<Engine>, inode: &Arc<Inode>, start: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; engine.block_size() as usize];
    let len = inode.size().saturating_sub(start).min(bytes.len() as u64) as usize;
    let part = bytes.get_mut(..len).unwrap_or_default();
    read::fill(engine, inode, start, part)?;
    Ok(bytes)
}

/// Writes at most a chunk.
fn write_chunk(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &WriteData<'_>,
    privileged: bool,
) -> Result<()> {
    let block_size = engine.block_size();
    let end = offset + data.len() as u64;
    let (first, last) = (engine.block_floor(offset), engine.block_floor(end));
    loop {
        let (mut edges, mut padded) = (Vec::new(), None);
        let dirty = |at: u64| inode.data.state.lock().dirty.contains(at);
        if !offset.is_multiple_of(block_size) && !dirty(first) {
            edges.push((first, edge(engine, inode, first)?));
        }
        if !end.is_multiple_of(block_size)
            && !dirty(last)
            && edges.iter().all(|(at, _)| *at != last)
        {
            // Up to the end of the file there is nothing to keep after the data.
            if end < inode.size() || offset > last {
                edges.push((last, edge(engine, inode, last)?));
            } else {
                padded = data.with_zeros((last + block_size - offset) as usize);
                if padded.is_none() {
                    edges.push((last, vec![0; block_size as usize]));
                }
            }
        }
        let data = padded.as_ref().unwrap_or(data);
        if store(engine, inode, offset, data, &edges, end, privileged)? {
            return Ok(());
        }
    }
}

/// Puts bytes into the dirty ranges: first `edges` (whole blocks that `data` covers in part),
/// then `data`. The file grows to at least `size`. Returns false, without a change, if writeback
/// took a block meanwhile whose other bytes are needed.
fn store(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &WriteData<'_>,
    edges: &[(u64, Vec<u8>)],
    size: u64,
    privileged: bool,
) -> Result<bool> {
    let end = offset + data.len() as u64;
    let range = engine.block_floor(offset)..engine.block_ceil(end);
    let gaps = inode.data.state.lock().dirty.gaps(range);
    let bytes: u64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
    let (holes, promised) = promise(engine, inode, &gaps, privileged)?;
    if !engine.writeback.enter(engine, bytes) {
        return Err(Error::NoSpace);
    }
    {
        let mut guard = inode.data.state.lock();
        let state = &mut *guard;
        // Writeback may have taken pieces since, so that more is new than was counted.
        let before = state.dirty.bytes();
        let cuts = [offset, end]
            .map(|at| (!at.is_multiple_of(engine.block_size())).then(|| engine.block_floor(at)));
        let has = |at: &u64| state.dirty.contains(*at) || edges.iter().any(|(edge, _)| edge == at);
        if !cuts.iter().flatten().all(has) {
            drop(guard);
            engine.writeback.leave(bytes);
            return Ok(false);
        }
        for (at, block) in edges {
            if !state.dirty.contains(*at) {
                state.dirty.write(*at, &block[..].into());
            }
        }
        state.dirty.write(offset, data);
        engine
            .writeback
            .correct(bytes, state.dirty.bytes() - before);
        for hole in holes {
            state.delayed.insert(hole.start, hole.end);
        }
        match (&mut state.promised, promised) {
            (Some(own), Some(more)) => own.merge(more),
            (None, Some(more)) => state.promised = Some(more),
            (_, None) => {}
        }
        let mut own = inode.state.lock();
        own.size = own.size.max(size);
    }
    engine.writeback.activate(inode);
    Ok(true)
}

/// Promises blocks to the holes among `gaps` (whole blocks, in bytes), and returns the holes.
/// Ranges in flight are left out, because they get blocks of their own.
fn promise(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    gaps: &[Range<u64>],
    privileged: bool,
) -> Result<(Vec<Range<u64>>, Option<Reservation>)> {
    let mut holes = Vec::new();
    for gap in gaps {
        let free = inode.data.state.lock().in_flight.gaps(gap.clone());
        for part in free {
            find_holes(engine, inode, engine.blocks_of(&part), &mut holes)?;
        }
    }
    let blocks: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
    if blocks == 0 {
        return Ok((holes, None));
    }
    let mut promised = flush::reserve(engine, blocks, privileged)?;
    count_for_owners(engine, inode, &mut promised, blocks)?;
    Ok((holes, Some(promised)))
}

/// Counts promised blocks for the owners of the inode. The caller of a write is not known, so limits
/// hold for root, too.
///
/// # Errors
/// `Quota`.
pub(super) fn count_for_owners(
    engine: &Engine,
    inode: &Inode,
    promised: &mut Reservation,
    blocks: u64,
) -> Result<()> {
    if !engine.quota.is_on() {
        return Ok(());
    }
    let charge = Charge::of(&inode.state.lock().raw, &engine.geometry);
    let bytes = blocks.saturating_mul(engine.block_size());
    let now = engine.ambient.seconds();
    promised.count_for(engine.quota.promise(&charge, bytes, now)?);
    Ok(())
}

/// Adds the holes within `blocks` to `holes`.
fn find_holes(
    engine: &Engine,
    inode: &Inode,
    blocks: Range<u64>,
    holes: &mut Vec<Range<u64>>,
) -> Result<()> {
    let known = inode.data.state.lock().hole_from;
    let tree = inode.flags().contains(InodeFlags::EXTENTS);
    let mut at = blocks.start;
    while at < blocks.end {
        if known.is_some_and(|from| at >= from) {
            holes.push(at..blocks.end);
            return Ok(());
        }
        let max = if tree {
            map::BLOCKS_MAX - at.min(map::BLOCKS_MAX - 1)
        } else {
            blocks.end - at
        };
        let run = map::lookup(engine, inode, at, max)?;
        let end = map::run_end(inode.ino, &run, at, u64::MAX)?;
        if run.what == Mapped::Hole {
            holes.push(at..end.min(blocks.end));
            if tree && end >= map::BLOCKS_MAX {
                inode.data.state.lock().hole_from = Some(at);
            }
        }
        at = end;
    }
    Ok(())
}
