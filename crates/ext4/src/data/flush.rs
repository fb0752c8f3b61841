//! Writes back dirty ranges, and waits for them.
//!
//! # How it works
//! [`begin`] takes dirty runs out; each becomes in-flight I/O, which [`submit`] plans and writes.
//! After the last request it is ready to be [completed](super::complete).
//!
//! Short ranges, of one or more files, share a piece of work: a thread plans them together, writes
//! them with few requests and has them completed together.
//!
//! Small flushes that a thread waits for run in the caller's thread from end to end, so that an
//! fsync of a page does not pay for waking threads.
//!
//! Where the host has no space for the bytes, they become dirty again, and the caller that flushes
//! gets an error. The next writeback or flush tries again.
//!
//! A dirty range where I/O is in flight is left: the thread that flushes takes it once that I/O is
//! complete.

use std::ops::Range;
use std::sync::Arc;

use super::submit;
use super::work::{Dispatch, Taken, Work};
use crate::block_alloc::Reservation;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result};

/// Bytes of the longest in-flight range.
const MAX_IO: u64 = 64 << 20;
/// Bytes up to which a flush that is waited for runs in the caller's thread.
const SMALL: u64 = 256 << 10;
/// A piece of work is full when its ranges have this many bytes.
const JOB_BYTES: u64 = 1 << 20;
/// Most ranges of a piece of work.
const JOB_RANGES: usize = 128;

/// Writes back all of a file and waits until the map has it, in a transaction that need not be
/// durable. Waits for nothing of other files. Hold no handle.
///
/// # Errors
/// [`Error::WriteFailed`] if a write failed since the last call; [`Error::NoSpace`] if the host has
/// no space, and unwritten data is kept.
pub(crate) fn flush(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let refusals = inode.data.refusals();
    flush_range(engine, inode, 0..u64::MAX);
    let written = inode.data.check_written(inode.ino, refusals);
    if let Err(Error::WriteFailed(_)) = written {
        inode.data.failures_reported();
    }
    written
}

/// Writes back dirty data in a range and waits until the map has it, before a change of the map
/// there. The caller holds `io` exclusively.
///
/// # Errors
/// [`Error::NoSpace`]: the host has none, and something is dirty still.
pub(super) fn settle_range(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
) -> Result<()> {
    flush_range(engine, inode, range.clone());
    let clean = inode.data.is_clean(range);
    clean.then_some(()).ok_or(Error::NoSpace)
}

/// Writes back dirty data in a range and waits until the map has it.
fn flush_range(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) {
    let dispatch = if inode.data.dirty_bytes() <= SMALL {
        Dispatch::Here
    } else {
        Dispatch::Queue
    };
    // Data that is left because older data is in flight can be taken after the first wait.
    for _pass in 0..2 {
        let left = begin(engine, inode, range.clone(), dispatch);
        inode.data.wait_in_flight();
        if !left {
            return;
        }
    }
}

/// Takes dirty data in `range` and hands it to writeback. True if some was left because it is in
/// flight already.
pub(super) fn begin(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    dispatch: Dispatch,
) -> bool {
    let (taken, left) = take(engine, inode, range);
    match dispatch {
        Dispatch::Queue => push(engine, taken),
        Dispatch::Here => submit::prepare(engine, &taken, dispatch),
    }
    left
}

/// Takes dirty data of files and hands it to the threads of writeback. Returns the files of which
/// some was left because it is in flight already.
pub(super) fn begin_all<'f>(engine: &Arc<Engine>, files: &'f [Arc<Inode>]) -> Vec<&'f Arc<Inode>> {
    let (mut all, mut left) = (Vec::new(), Vec::new());
    for inode in files {
        let (taken, some) = take(engine, inode, 0..u64::MAX);
        all.extend(taken);
        if some {
            left.push(inode);
        }
    }
    push(engine, all);
    left
}

/// Turns dirty data in `range` into in-flight ranges. True if some was left.
fn take(engine: &Engine, inode: &Arc<Inode>, range: Range<u64>) -> (Vec<Taken>, bool) {
    let mut taken = Vec::new();
    let mut left = false;
    let mut guard = inode.data.state.lock();
    let state = &mut *guard;
    let mut at = range.start;
    while let Some(run) = state.dirty.run(at, range.end, MAX_IO) {
        at = run.end;
        let free = state.in_flight.gaps(run.clone());
        left |= free.iter().map(|part| part.end - part.start).sum::<u64>() < run.end - run.start;
        for part in free {
            let pieces = state.dirty.take(part.clone());
            let blocks = engine.blocks_of(&part);
            let delayed = state.delayed.remove(blocks.start, blocks.end);
            let io = state.in_flight.insert(part, pieces, delayed);
            taken.push((Arc::clone(inode), io));
        }
    }
    (taken, left)
}

/// Queues ranges. Short ones share a piece of work.
fn push(engine: &Arc<Engine>, taken: Vec<Taken>) {
    let (mut job, mut bytes) = (Vec::new(), 0);
    for (inode, io) in taken {
        bytes += io.len();
        job.push((inode, io));
        if bytes >= JOB_BYTES || job.len() >= JOB_RANGES {
            bytes = 0;
            let work = Work::Prepare(std::mem::take(&mut job));
            engine.writeback.push(engine, work);
        }
    }
    if !job.is_empty() {
        engine.writeback.push(engine, Work::Prepare(job));
    }
}

/// Discards dirty data in `range` (whole blocks, in bytes) and waits until none of it is in flight.
/// The caller holds `io` exclusively.
pub(super) fn discard(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) {
    let take = || {
        let mut state = inode.data.state.lock();
        let before = state.dirty.bytes();
        let taken = state.dirty.take(range.clone());
        let bytes = before - state.dirty.bytes();
        let blocks = engine.blocks_of(&range);
        let count = state.delayed.remove(blocks.start, blocks.end);
        state.unpromise(count);
        drop(taken);
        bytes
    };
    let wait = || {
        inode.data.wait_not_in_flight(&range);
        inode.data.is_clean(range.clone())
    };
    engine.writeback.discard(inode, take, wait);
}

/// Writes back the current data of all files in memory, and waits for it.
pub(super) fn drain(engine: &Arc<Engine>) {
    drain_files(engine, &engine.writeback.active());
}

fn drain_files(engine: &Arc<Engine>, files: &[Arc<Inode>]) {
    for inode in begin_all(engine, files) {
        inode.data.wait_in_flight();
        begin(engine, inode, 0..u64::MAX, Dispatch::Queue);
    }
    for inode in files {
        inode.data.wait_in_flight();
    }
}

/// Reserves blocks. If there are too few, dirty and in-flight data is written first: it may need
/// fewer blocks than were reserved for it. Hold no handle.
///
/// # Errors
/// [`Error::NoSpace`].
pub(super) fn reserve(engine: &Arc<Engine>, blocks: u64, privileged: bool) -> Result<Reservation> {
    match engine.space.reserve(blocks, privileged) {
        Err(Error::NoSpace) => {
            // A failure of another file is reported to callers of that file.
            drain(engine);
            engine.space.reserve(blocks, privileged)
        }
        other => other,
    }
}

/// Writes back all of all files and waits until the maps have it. The first error is returned,
/// after all were tried.
///
/// # Errors
/// The error of [`flush`] for one of them.
pub(crate) fn flush_all(engine: &Arc<Engine>) -> Result<()> {
    let files = engine.writeback.active();
    let refusals: Vec<u64> = files.iter().map(|inode| inode.data.refusals()).collect();
    drain_files(engine, &files);
    let told = files.iter().zip(refusals);
    told.map(|(inode, refusals)| inode.data.check_written(inode.ino, refusals))
        .fold(Ok(()), Result::and)
}
