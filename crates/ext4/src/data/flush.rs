//! From dirty ranges to the device.
//!
//! # How it works
//! [`begin`] takes dirty runs out; each becomes a flight. [`prepare`] plans where it goes and cuts it into
//! requests, which are written by any threads. After the last one the flight is ready to [land](super::land).
//!
//! Small flushes that a thread waits for run in the caller's thread from end to end: an fsync of a
//! page must not pay for changes of thread.
//!
//! Where the host has no space for the bytes of a flight, they become dirty again
//! ([`land`](super::land)), and who flushes is told. The next writeback or flush tries again.
//!
//! What is dirty where something is in flight is left: it is taken by the thread that flushes, once
//! that landed.

use std::ops::Range;
use std::sync::Arc;

use super::plan;
use super::writeback::Work;
use super::{blocks_of, complete, journaled};
use crate::engine::Engine;
use crate::file_data::InFlight;
use crate::file_data::Plan;
use crate::inode::Inode;
use crate::{Error, Result};

/// Bytes of the longest flight.
const MAX_IO: u64 = 64 << 20;
/// Bytes of one write request.
const MAX_WRITE: u64 = 4 << 20;
/// Bytes up to which a flush that is waited for runs in the caller's thread.
const SMALL: u64 = 256 << 10;

/// Where the work of a flush is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dispatch {
    /// In this thread.
    Here,
    /// By the threads of writeback.
    Queue,
}

/// A part of a flight that is one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// Byte on the device.
    at: u64,
    /// Bytes of the file.
    range: Range<u64>,
}

/// Writes back all of a file and waits until the map has it, in a transaction that need not be durable. Waits
/// for nothing of other files. Hold no handle.
///
/// # Errors
/// [`Error::WriteFailed`] if a write failed since the last call; [`Error::NoSpace`] if the host has no
/// space, and all that is not written is kept.
pub(crate) fn flush(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let refusals = refusals(inode);
    flush_range(engine, inode, 0..u64::MAX);
    let told = failure(inode, refusals);
    if let Err(Error::WriteFailed(_)) = told {
        let mut state = inode.data.state.lock();
        state.failures_told = state.failures;
    }
    told
}

/// Writes back what is dirty in a range and waits until the map has it, before the map is changed there
/// otherwise. The caller holds `io` exclusively.
///
/// # Errors
/// [`Error::NoSpace`]: the host has none, and something is dirty still.
pub(super) fn settle_range(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
) -> Result<()> {
    flush_range(engine, inode, range.clone());
    let clean = inode
        .data
        .state
        .lock()
        .dirty
        .covered(range)
        .next()
        .is_none();
    clean.then_some(()).ok_or(Error::NoSpace)
}

/// How often the host had no space for what was to be written.
pub(super) fn refusals(inode: &Inode) -> u64 {
    inode.data.state.lock().refusals
}

/// Writes back what is dirty in a range and waits until the map has it.
fn flush_range(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) {
    let dispatch = match inode.data.dirty_bytes() <= SMALL {
        true => Dispatch::Here,
        false => Dispatch::Queue,
    };
    let left = begin(engine, inode, range.clone(), dispatch);
    wait_for_io(inode);
    if left {
        begin(engine, inode, range, dispatch);
        wait_for_io(inode);
    }
}

/// Waits for what is in flight now.
pub(super) fn wait_for_io(inode: &Inode) {
    let mut state = inode.data.state.lock();
    let mark = state.in_flight.mark();
    while state.in_flight.pending(mark) {
        state.wait(&inode.data.changed);
    }
}

/// An error if a write failed that no [`flush`] of the file has reported, or one was refused since
/// there were so many `refusals`. It is still to be reported then: a thread that writes back all
/// files must not hide a failure from the fsync of the file that it concerns.
pub(super) fn failure(inode: &Inode, refusals: u64) -> Result<()> {
    let state = inode.data.state.lock();
    if state.failures == state.failures_told {
        let refused = state.refusals != refusals && !sapwood_fault::planted(173);
        return (!refused).then_some(()).ok_or(Error::NoSpace);
    }
    Err(Error::WriteFailed(inode.ino))
}

/// Makes durable what was overwritten in place since the device was last flushed for this file. For an fsync
/// after [`flush`], if no commit of a transaction did it.
///
/// # Errors
/// The device.
pub(crate) fn sync_overwrites(engine: &Engine, inode: &Inode) -> Result<()> {
    let overwrites = {
        let state = inode.data.state.lock();
        if state.overwrites == state.overwrites_synced {
            return Ok(());
        }
        state.overwrites
    };
    if !sapwood_fault::planted(137) {
        engine.device.flush()?;
    }
    overwrites_synced(inode, overwrites);
    Ok(())
}

/// Number of overwrites in place whose I/O is done.
pub(crate) fn overwrites(inode: &Inode) -> u64 {
    inode.data.state.lock().overwrites
}

/// The device was flushed since there were so many of them.
pub(crate) fn overwrites_synced(inode: &Inode, overwrites: u64) {
    let mut state = inode.data.state.lock();
    state.overwrites_synced = state.overwrites_synced.max(overwrites);
}

/// Takes what is dirty in `range` and starts its way to disk. True if some was left because it is in flight
/// already.
pub(super) fn begin(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    dispatch: Dispatch,
) -> bool {
    let mut taken = Vec::new();
    let mut left = false;
    {
        let mut guard = inode.data.state.lock();
        let state = &mut *guard;
        let mut at = range.start;
        while let Some(run) = state.dirty.run(at, range.end, MAX_IO) {
            at = run.end;
            let free = state.in_flight.gaps(run.clone());
            left |=
                free.iter().map(|part| part.end - part.start).sum::<u64>() < run.end - run.start;
            for part in free {
                let pieces = state.dirty.take(part.clone());
                let blocks = blocks_of(engine, &part);
                let delayed = state.delayed.remove(blocks.start, blocks.end);
                taken.push(state.in_flight.insert(part, pieces, delayed));
            }
        }
    }
    for io in taken {
        match dispatch {
            Dispatch::Here => prepare(engine, inode, &io, dispatch),
            Dispatch::Queue => engine
                .writeback
                .push(engine, Work::Prepare(Arc::clone(inode), io)),
        }
    }
    left
}

/// Plans a flight and sends it on.
pub(super) fn prepare(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    io: &Arc<InFlight>,
    dispatch: Dispatch,
) {
    let plan = super::check(engine).and_then(|()| plan::make(engine, inode, io));
    inode.data.state.lock().unpromise(io.delayed);
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            lost(engine, inode, io, &error);
            return complete::io_finished(engine, inode, io, dispatch);
        }
    };
    if journaled::applies(engine, inode) {
        // Landing puts it into the journal.
        io.set_plan(plan, 0);
        return complete::io_finished(engine, inode, io, dispatch);
    }
    let requests = requests(engine.block_size(), &plan);
    io.set_plan(plan, requests.len());
    for request in requests {
        match dispatch {
            Dispatch::Here => write_part(engine, inode, io, &request, dispatch),
            Dispatch::Queue => {
                let work = Work::Write(Arc::clone(inode), Arc::clone(io), request);
                engine.writeback.push(engine, work);
            }
        }
    }
}

/// The bytes of a flight are lost; says so, and ends all changes unless this damages only the file. If
/// only the host has no space, they are kept.
fn lost(engine: &Engine, inode: &Inode, io: &InFlight, error: &Error) {
    let Range { start, end } = io.range;
    if error.is_host_full() && !sapwood_fault::planted(174) {
        log::warn!(
            "inode {}: {start}..{end} stays in memory: {error}",
            inode.ino
        );
        io.refuse();
        return io.fail();
    }
    let lost = format!(
        "inode {}: bytes {start}..{end} are lost: {error}",
        inode.ino
    );
    log::error!("{lost}");
    engine.health.record(&lost);
    // Nothing on disk contradicts anything if only space was lacking.
    if !matches!(error, Error::NoSpace) {
        engine.health.fail(error);
    }
    io.fail();
}

/// Cuts a plan into requests: what is side by side goes at once.
fn requests(block_size: u64, plan: &Plan) -> Vec<Request> {
    let mut whole: Vec<Request> = Vec::new();
    for segment in &plan.segments {
        let at = segment.physical.saturating_mul(block_size);
        let range = segment.blocks.start.saturating_mul(block_size)
            ..segment.blocks.end.saturating_mul(block_size);
        match whole.last_mut() {
            Some(last)
                if last.range.end == range.start
                    && last.at.checked_add(last.range.end - last.range.start) == Some(at) =>
            {
                last.range.end = range.end;
            }
            _ => whole.push(Request { at, range }),
        }
    }
    let cut = |request: Request| {
        let Request { at, range } = request;
        let step = usize::try_from(MAX_WRITE).unwrap_or(usize::MAX);
        (range.start..range.end)
            .step_by(step)
            .map(move |start| Request {
                at: at + (start - range.start),
                range: start..range.end.min(start + MAX_WRITE),
            })
    };
    whole.into_iter().flat_map(cut).collect()
}

/// Writes a part of a flight; after the last one the flight goes on.
pub(super) fn write_part(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    io: &Arc<InFlight>,
    request: &Request,
    dispatch: Dispatch,
) {
    let slices = io.slices(request.range.clone());
    let result = super::check(engine)
        .and_then(|()| Ok(engine.device.write_vectored_at(request.at, &slices)?));
    if let Err(error) = &result {
        lost(engine, inode, io, error);
    }
    if io.request_done(result.is_ok()) {
        complete::io_finished(engine, inode, io, dispatch);
    }
    if matches!(dispatch, Dispatch::Queue) && result.is_ok() {
        let len = request.range.end - request.range.start;
        engine.device.write_behind(request.at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_data::{Change, Segment};

    fn segment(blocks: Range<u64>, physical: u64) -> Segment {
        Segment {
            blocks,
            physical,
            change: Change::Insert,
        }
    }

    #[test]
    fn neighbours_are_one_request() {
        let plan = Plan {
            segments: vec![segment(4..6, 100), segment(6..7, 102), segment(7..9, 50)],
        };
        let wanted = [
            Request {
                at: 100 << 12,
                range: 4 << 12..7 << 12,
            },
            Request {
                at: 50 << 12,
                range: 7 << 12..9 << 12,
            },
        ];
        assert_eq!(requests(4096, &plan), wanted);
    }

    #[test]
    fn long_ones_are_cut() {
        let plan = Plan {
            segments: vec![segment(1..2500, 7)],
        };
        let requests = requests(4096, &plan);
        assert_eq!(requests.len(), 3);
        let mut at = 4096;
        for request in &requests {
            assert_eq!(request.range.start, at);
            assert_eq!(request.at, at + 6 * 4096);
            assert!(request.range.end - at <= MAX_WRITE);
            at = request.range.end;
        }
        assert_eq!(at, 2500 * 4096);
    }
}
