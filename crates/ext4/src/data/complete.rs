//! Completion: after the I/O of a range, its blocks enter the map.
//!
//! # How it works
//! One thread at a time completes the ranges of a file, in the order in which they were taken,
//! several in one handle where its credits allow. Files whose I/O was done together share handles,
//! too. It claims the new blocks in the bitmap, inserts them into the map, converts unwritten ones,
//! and raises the size on disk accordingly. Each handle ends with the inode stored, so that a
//! commit in between has a whole, shorter file.
//!
//! A range that only overwrote blocks ends when its I/O is done.
//!
//! **`data=journal`.** No I/O of its own is submitted for a range of such a file. Completion puts
//! its blocks into the handle as buffers, with the map and the size in the same transaction. The
//! newest content of a block is in the cache until the journal has written it back to its home
//! location, so [reads](mod@super::read) look there first. Freed blocks are revoked, as the log may
//! hold them.

use std::ops::Range;
use std::sync::Arc;

use sapwood_jbd2::{Buffer, Handle};

use super::work::{Dispatch, Taken, Work};
use crate::block_alloc::{self, Extent};
use crate::engine::Engine;
use crate::file_data::{Change, InFlight, Segment, WritePlan};
use crate::inode::{Inode, STORE_CREDITS};
use crate::store::Store;
use crate::{Result, map};

/// Ranges that one handle completes, at most.
const BATCH: usize = 32;
/// Blocks of journaled data that go into one handle at once, at most.
const CHUNK: u32 = 256;

/// Handles ranges, of one or more files, whose I/O is done or has failed. Called once for each
/// range.
pub(super) fn io_finished(engine: &Arc<Engine>, finished: Vec<Taken>, dispatch: Dispatch) {
    let mut ready = Vec::new();
    for (inode, io) in finished {
        if io_done(engine, &inode, &io) {
            ready.push(inode);
        }
    }
    if ready.is_empty() {
        return;
    }
    match dispatch {
        Dispatch::Here => complete(engine, ready),
        Dispatch::Queue => engine.writeback.push(engine, Work::Complete(ready)),
    }
}

/// True if the caller is to complete the file.
fn io_done(engine: &Arc<Engine>, inode: &Arc<Inode>, io: &Arc<InFlight>) -> bool {
    if !io.failed() && only_overwrote(engine, inode, io) {
        inode.data.state.lock().overwrites += 1;
        return end(engine, inode, io);
    }
    if io.failed()
        && let Some(plan) = io.plan()
    {
        for segment in &plan.segments {
            segment.cancel(&engine.groups);
        }
        if io.refused() {
            reserve_again(engine, inode, io, plan);
        }
    }
    inode.data.state.lock().in_flight.io_done(io.id)
}

/// Reserves blocks once more for a range that could not be written. Its bytes are lost if there are
/// none, because other files took them in between.
fn reserve_again(engine: &Engine, inode: &Inode, io: &InFlight, plan: &WritePlan) {
    let new = |segment: &&Segment| segment.change == Change::Insert;
    let blocks: u64 = plan
        .segments
        .iter()
        .filter(new)
        .map(|segment| u64::from(segment.extent().len))
        .sum();
    let Some(promised) = engine.space.try_reserve_again(blocks) else {
        log::error!("inode {}: data is lost: no block is free", inode.ino);
        return io.give_up();
    };
    let mut state = inode.data.state.lock();
    match &mut state.promised {
        Some(own) => own.merge(promised),
        None => state.promised = Some(promised),
    }
}

/// Whether neither the map nor the size on disk must change.
fn only_overwrote(engine: &Engine, inode: &Inode, io: &InFlight) -> bool {
    let in_place = io.plan().is_some_and(|plan| !plan.changes_map());
    if !in_place || inode.is_journaled(engine) {
        return false;
    }
    let state = inode.state.lock();
    io.range.end.min(state.size) <= state.raw.size(&engine.geometry)
}

/// Completes ready ranges of files until there are none. Only for the thread for which
/// `InFlightSet::io_done` or `InFlightSet::remove` returned true.
pub(super) fn complete(engine: &Arc<Engine>, mut inodes: Vec<Arc<Inode>>) {
    while !inodes.is_empty() {
        let mut handle = None;
        let mut ended: Vec<Taken> = Vec::new();
        inodes.retain(|inode| {
            let batch = inode.data.state.lock().in_flight.next_ready(BATCH);
            complete_batch(engine, inode, &batch, &mut handle);
            let some = !batch.is_empty();
            ended.extend(batch.into_iter().map(|io| (Arc::clone(inode), io)));
            some
        });
        // A waiter that is woken may begin a commit, which waits for the handle.
        drop(handle);
        for (inode, io) in ended {
            end(engine, &inode, &io);
        }
    }
}

/// Puts ranges of a file into the map, in a handle that others may have begun.
fn complete_batch(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    batch: &[Arc<InFlight>],
    handle: &mut Option<Handle>,
) {
    let good: Vec<_> = batch.iter().filter(|io| !io.failed()).collect();
    if good.is_empty() {
        return;
    }
    let mut claimed = 0;
    if let Err(error) = map_ranges(engine, inode, &good, &mut claimed, handle) {
        log::error!("inode {}: written data is lost: {error}", inode.ino);
        engine.health.fail(&error);
        for segment in segments(&good)
            .filter(|s| s.1.change == Change::Insert)
            .skip(claimed)
        {
            segment.1.cancel(&engine.groups);
        }
        good.iter().for_each(|io| io.fail());
    }
}

fn segments<'a>(ios: &'a [&Arc<InFlight>]) -> impl Iterator<Item = (&'a InFlight, &'a Segment)> {
    ios.iter().flat_map(|io| {
        let plan = io.plan().into_iter();
        plan.flat_map(|plan| &plan.segments)
            .map(|segment| (&***io, segment))
    })
}

/// Puts ranges into the map. `claimed`: how many of their new segments are in the bitmap. The
/// handle stays for the next file; after an error there is none.
fn map_ranges(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    ios: &[&Arc<InFlight>],
    claimed: &mut usize,
    handle: &mut Option<Handle>,
) -> Result<()> {
    let journaled = inode.is_journaled(engine);
    let step = step_credits(engine, inode, 1);
    let mut h = match handle.take() {
        None => engine.start_tracked(step)?,
        Some(mut h) => {
            engine.health.check()?;
            if !h.ensure(step) {
                h.restart(step)?;
            }
            h
        }
    };
    engine.fast_commits.data_written(&h);
    for (io, segment) in segments(ios) {
        let step = step_credits(engine, inode, segment.extent().len.into());
        if !h.ensure(step) {
            inode.store(engine, &h)?;
            h.restart(step)?;
            engine.fast_commits.data_written(&h);
        }
        if journaled {
            journal_segment(engine, inode, &mut h, io, segment)?;
            *claimed += usize::from(segment.change == Change::Insert);
            continue;
        }
        let extent = segment.extent();
        match segment.change {
            Change::None => {}
            Change::Convert => convert(engine, inode, &mut h, segment.blocks.clone())?,
            Change::Insert => {
                block_alloc::claim(&engine.groups, &h, extent)?;
                *claimed += 1;
                insert(engine, &h, inode, io, segment.blocks.start, extent)?;
            }
        }
        raise_disk_size(engine, inode, segment.blocks.end)?;
    }
    inode.store(engine, &h)?;
    *handle = Some(h);
    Ok(())
}

/// Puts a segment of a range into the journal and into the map, in as many handles as it takes.
fn journal_segment(
    store: &Store,
    inode: &Arc<Inode>,
    h: &mut Handle,
    io: &InFlight,
    segment: &Segment,
) -> Result<()> {
    let step = step_credits(store, inode, CHUNK.into());
    let chunk = (store.journal.most_credits() / 2).saturating_sub(step);
    let chunk = chunk.clamp(1, CHUNK);
    let blocks = segment.blocks.clone();
    for at in blocks.clone().step_by(chunk as usize) {
        let len = (blocks.end - at).min(chunk.into()) as u32;
        if !h.ensure(step + len) {
            inode.store(store, h)?;
            h.restart(step + len)?;
        }
        let start = segment.physical + (at - blocks.start);
        let end = at + u64::from(len);
        match segment.change {
            Change::None => {}
            Change::Convert => {
                convert(store, inode, h, at..end)?;
                if !h.ensure(step + len) {
                    inode.store(store, h)?;
                    h.restart(step + len)?;
                }
            }
            Change::Insert => {
                block_alloc::claim(&store.groups, h, Extent { start, len })?;
                insert(store, h, inode, io, at, Extent { start, len })?;
            }
        }
        for block in at..end {
            let buffer = buffer(store, start + (block - at))?;
            let block_size = store.block_size();
            let slices = io.slices(block * block_size..(block + 1) * block_size);
            let mut content = h.modify(&buffer)?;
            let mut rest: &mut [u8] = &mut content;
            for slice in slices {
                let (front, back) = rest.split_at_mut(slice.len().min(rest.len()));
                front.copy_from_slice(slice.get(..front.len()).unwrap_or_default());
                rest = back;
            }
        }
        raise_disk_size(store, inode, end)?;
    }
    Ok(())
}

/// The buffer of a block that will be overwritten as a whole.
fn buffer(store: &Store, block: u64) -> Result<Arc<Buffer>> {
    match store.cache.peek(block) {
        Some(buffer) => Ok(buffer),
        None => Ok(store.cache.get_new(block)?),
    }
}

/// Credits for a change of the map in which `blocks` blocks become written, and for storing the
/// inode.
fn step_credits(store: &Store, inode: &Inode, blocks: u64) -> u32 {
    let stored = block_alloc::CREDITS + STORE_CREDITS + store.quota.credits();
    map::insert_credits(store, inode, blocks).saturating_add(stored)
}

/// Puts an extent of an in-flight range into the map.
fn insert(
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
fn convert(store: &Store, inode: &Inode, h: &mut Handle, blocks: Range<u64>) -> Result<()> {
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

/// Raises the size on disk to the start of block `end`, but not beyond the size of the file.
fn raise_disk_size(store: &Store, inode: &Inode, end: u64) -> Result<()> {
    let mut state = inode.state.lock();
    let size = end.saturating_mul(store.block_size()).min(state.size);
    if size > state.raw.size(&store.geometry) {
        state.raw.set_size(size, &store.geometry)?;
    }
    Ok(())
}

/// Takes a range out and wakes the threads that waited for it. True if the caller is to complete
/// the ranges that waited for it.
fn end(engine: &Arc<Engine>, inode: &Arc<Inode>, io: &InFlight) -> bool {
    let next = {
        let mut kept = 0;
        let mut state = inode.data.state.lock();
        if io.failed() && io.refused() {
            kept = state.put_back(io);
            state.refusals += 1;
        }
        let end = io.range.end.div_ceil(engine.block_size());
        state.hole_from = state.hole_from.map(|from| from.max(end));
        if io.failed() && !io.refused() {
            state.failures += 1;
        }
        let next = {
            let mut own = inode.state.lock();
            own.charged = own.charged.saturating_sub(io.charged());
            state.in_flight.remove(io)
        };
        state.unpromise(0);
        // Before waiters are woken: they must not count these bytes any more.
        engine.writeback.leave(io.len() - kept);
        if io.refused() {
            engine.writeback.refuse();
        }
        inode.data.changed.notify_all();
        next
    };
    engine.writeback.settle(inode);
    next
}
