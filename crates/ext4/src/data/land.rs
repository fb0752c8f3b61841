//! Flights whose I/O is done get into the map.
//!
//! One thread at a time lands the flights of a file, in the order in which they were taken, several in one handle where
//! its credits allow: the new blocks are claimed in the bitmap, inserted into the map, unwritten ones converted,
//! and the size on disk follows what is there. Each handle ends with the inode stored, so that any commit
//! in between is a whole file that is shorter.
//!
//! With `data=journal` the bytes themselves go along ([`journaled`]).

use std::ops::Range;
use std::sync::Arc;

use sapwood_jbd2::Handle;

use super::flight::Flight;
use super::flush::Dispatch;
use super::journaled;
use super::plan::{self, Change, Segment};
use super::writeback::Work;
use crate::block_alloc::{self, Extent};
use crate::engine::Engine;
use crate::fast_commit::note;
use crate::inode::Inode;
use crate::{Result, map};

/// Flights that land in one handle, at most.
const BATCH: usize = 32;
/// Credits to claim one extent: bitmap and descriptor.
pub(super) const CLAIM_CREDITS: u32 = 2;
/// Credits to store the inode.
pub(super) const STORE_CREDITS: u32 = 1;

/// The I/O of a flight is done, or will not be. Called once for each.
pub(super) fn io_finished(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    flight: &Arc<Flight>,
    dispatch: Dispatch,
) {
    if !flight.failed() && only_overwrote(engine, inode, flight) {
        inode.data.state.lock().overwrites += 1;
        if end(engine, inode, flight) {
            go_on(engine, inode, dispatch);
        }
        return;
    }
    if flight.failed()
        && let Some(plan) = flight.plan()
    {
        plan::cancel(engine, &plan.segments);
        if flight.refused() {
            promise_again(engine, inode, flight, plan);
        }
    }
    let ready = inode.data.state.lock().flights.io_done(flight.id);
    if ready {
        go_on(engine, inode, dispatch);
    }
}

/// Promises blocks once more to a flight that could not be written. Its bytes are lost if there are none,
/// because others took them in between.
fn promise_again(engine: &Engine, inode: &Inode, flight: &Flight, plan: &plan::Plan) {
    let new = |segment: &&Segment| segment.change == Change::Insert;
    let blocks: u64 = plan
        .segments
        .iter()
        .filter(new)
        .map(|segment| u64::from(segment.extent().len))
        .sum();
    let Some(promised) = engine.space.try_reserve_again(blocks) else {
        log::error!("inode {}: data is lost: no block is free", inode.ino);
        return flight.give_up();
    };
    let mut state = inode.data.state.lock();
    match &mut state.promised {
        Some(own) => own.merge(promised),
        None => state.promised = Some(promised),
    }
}

fn go_on(engine: &Arc<Engine>, inode: &Arc<Inode>, dispatch: Dispatch) {
    match dispatch {
        Dispatch::Here => land(engine, inode),
        Dispatch::Queue => engine.writeback.push(engine, Work::Land(Arc::clone(inode))),
    }
}

/// Whether neither map nor size on disk have to follow.
fn only_overwrote(engine: &Engine, inode: &Inode, flight: &Flight) -> bool {
    let in_place = flight.plan().is_some_and(|plan| !plan.changes_map());
    if !in_place || journaled::applies(engine, inode) {
        return false;
    }
    let state = inode.state.lock();
    flight.range.end.min(state.size) <= state.raw.size(&engine.geometry)
}

/// Lands what is ready until nothing is. Only for a thread that was told to by the flights.
pub(super) fn land(engine: &Arc<Engine>, inode: &Arc<Inode>) {
    loop {
        let batch = inode.data.state.lock().flights.next_ready(BATCH);
        if batch.is_empty() {
            return;
        }
        let good: Vec<_> = batch.iter().filter(|flight| !flight.failed()).collect();
        let mut claimed = 0;
        let result = match good.is_empty() {
            true => Ok(()),
            false => bring(engine, inode, &good, &mut claimed),
        };
        if let Err(error) = &result {
            log::error!("inode {}: written data is lost: {error}", inode.ino);
            engine.health.fail(error);
            for segment in segments(&good)
                .filter(|s| s.1.change == Change::Insert)
                .skip(claimed)
            {
                plan::cancel(engine, std::slice::from_ref(segment.1));
            }
            good.iter().for_each(|flight| flight.fail());
        }
        for flight in batch {
            end(engine, inode, &flight);
        }
    }
}

fn segments<'a>(flights: &'a [&Arc<Flight>]) -> impl Iterator<Item = (&'a Flight, &'a Segment)> {
    flights.iter().flat_map(|flight| {
        let plan = flight.plan().into_iter();
        plan.flat_map(|plan| &plan.segments)
            .map(|segment| (&***flight, segment))
    })
}

/// Brings flights into the map. `claimed`: how many of their new segments are in the bitmap.
fn bring(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    flights: &[&Arc<Flight>],
    claimed: &mut usize,
) -> Result<()> {
    let journaled = journaled::applies(engine, inode);
    let mut h = engine.start_noted(step_credits(engine, inode, 1))?;
    note::landed(engine, &h);
    for (flight, segment) in segments(flights) {
        let step = step_credits(engine, inode, segment.extent().len.into());
        if !h.ensure(step) {
            inode.store(engine, &h)?;
            h.restart(step)?;
            note::landed(engine, &h);
        }
        if journaled {
            journaled::bring(engine, inode, &mut h, flight, segment)?;
            *claimed += usize::from(segment.change == Change::Insert);
            continue;
        }
        let extent = segment.extent();
        match segment.change {
            Change::None => {}
            Change::Convert if sapwood_fault::planted(113) => {}
            Change::Convert => convert(engine, inode, &mut h, segment.blocks.clone())?,
            Change::Insert => {
                block_alloc::claim(engine, &h, extent)?;
                *claimed += 1;
                insert(engine, &h, inode, flight, segment.blocks.start, extent)?;
            }
        }
        raise_disk_size(engine, inode, segment.blocks.end)?;
    }
    inode.store(engine, &h)
}

/// Puts an extent of a flight into the map.
pub(super) fn insert(
    engine: &Engine,
    h: &Handle,
    inode: &Inode,
    flight: &Flight,
    at: u64,
    extent: Extent,
) -> Result<()> {
    let delayed = flight.uncharged(extent.len.into());
    map::insert_delayed(engine, h, inode, at, extent, delayed)?;
    flight.charge(delayed);
    Ok(())
}

/// Credits for a change of the map in which `blocks` blocks become written, and for storing the inode.
pub(super) fn step_credits(engine: &Engine, inode: &Inode, blocks: u64) -> u32 {
    map::insert_credits(engine, inode, blocks).saturating_add(CLAIM_CREDITS + STORE_CREDITS)
}

/// Makes unwritten blocks written, in as many handles as it takes.
pub(super) fn convert(
    engine: &Engine,
    inode: &Inode,
    h: &mut Handle,
    blocks: Range<u64>,
) -> Result<()> {
    let step = step_credits(engine, inode, blocks.end - blocks.start);
    let mut left = blocks;
    loop {
        left = map::convert(engine, h, inode, left)?;
        if left.is_empty() {
            return Ok(());
        }
        raise_disk_size(engine, inode, left.start)?;
        inode.store(engine, h)?;
        h.restart(step)?;
        note::landed(engine, h);
    }
}

/// The size on disk may go up to the end of block `end` (exclusive), if the file does.
pub(super) fn raise_disk_size(engine: &Engine, inode: &Inode, end: u64) -> Result<()> {
    let mut state = inode.state.lock();
    let size = end.saturating_mul(engine.block_size()).min(state.size);
    if size > state.raw.size(&engine.geometry) && !sapwood_fault::planted(114) {
        state.raw.set_size(size, &engine.geometry)?;
    }
    Ok(())
}

/// Takes a flight out and wakes the threads that waited for it. True if the caller is to land what
/// waited for it.
fn end(engine: &Arc<Engine>, inode: &Arc<Inode>, flight: &Flight) -> bool {
    let land = {
        let mut kept = 0;
        let mut state = inode.data.state.lock();
        if flight.failed() && flight.refused() {
            kept = state.put_back(flight);
            state.refusals += 1;
        }
        let end = flight.range.end.div_ceil(engine.block_size());
        state.hole_from = state.hole_from.map(|from| from.max(end));
        if flight.failed() && !flight.refused() {
            state.failures += 1;
        }
        let land = {
            let mut own = inode.state.lock();
            own.charged = own.charged.saturating_sub(flight.charged());
            state.flights.remove(flight)
        };
        state.unpromise(0);
        // Before a waiter looks: its bytes count no longer.
        engine.writeback.leave(flight.len() - kept);
        if flight.refused() {
            engine.writeback.refuse();
        }
        inode.data.changed.notify_all();
        land
    };
    engine.writeback.settle(inode);
    land
}
