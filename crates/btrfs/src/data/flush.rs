//! Writes back dirty data: takes it out, has it decided and submitted, and waits.
//!
//! # How it works
//! [`begin`] takes dirty runs out; each becomes a range in flight, and the threads of writeback do
//! the rest. Short ranges share a piece of work: a thread decides them together, writes them with
//! few requests and has them completed together. A small flush that a thread waits for runs in the
//! caller's thread, the I/O included: an fsync of a page must not pay for two changes of thread.
//!
//! ```text
//!  flush     takes dirty runs
//!  decide    inline, overwrite, compress, new extent; makes the ordered extent
//!  submit    checksums and I/O, in batches; the I/O is done
//!  complete  changes the trees, and ends the range in flight
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::decide::{MAX_EXTENT, decide};
use super::files::{Batch, Dispatch, Files, Work};
use super::submit::submit;
use crate::file_data::{InFlightId, Slice};
use crate::inode::Inode;
use crate::{Error, Result};

/// The extent to which a flush waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: it only starts the writeback.
    None,
    /// Until the bytes are on the device (but not flushed to the medium).
    Io,
    /// Until the tree has them, in a transaction that need not be durable.
    Completion,
}

/// Bytes up to which a flush that is waited for runs in the caller's thread.
const SMALL: u64 = 256 << 10;
/// A job is full when its ranges have this many bytes.
const JOB_BYTES: u64 = 1 << 20;
/// Most ranges of a job.
const JOB_RANGES: usize = 128;

/// Writes back the dirty data in `range`, and waits as requested for all in-flight data of the
/// file.
///
/// # Errors
/// [`Error::WriteFailed`] if a write failed since the last flush that waited; [`Error::NoSpace`] if
/// the host has no space; unwritten data stays dirty.
pub(crate) fn flush(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    wait: Wait,
) -> Result<()> {
    let refusals = inode.data.refusals();
    if wait == Wait::None || inode.data.dirty_bytes() > SMALL {
        begin(files, inode, range);
    } else {
        let batch = Batch::default();
        for (id, _) in take(inode, range) {
            decide(files, inode, id, Dispatch::Here(&batch));
        }
        submit(files, batch.writes.into_inner(), false);
    }
    match wait {
        Wait::None => return Ok(()),
        Wait::Io => {}
        Wait::Completion => files.writeback.hurry(),
    }
    inode.data.wait_in_flight(wait == Wait::Completion);
    let written = inode.check_written(refusals);
    if let Err(Error::WriteFailed { .. }) = written {
        inode.data.failures_reported();
    }
    written
}

/// Takes the dirty data in `range` and hands it to the threads of writeback.
pub(super) fn begin(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) {
    let mut job = Job::default();
    job.add(files, inode, range);
    job.push(files);
}

/// Takes the dirty data of files and hands it to the threads of writeback.
pub(super) fn begin_all(files: &Arc<Files>, inodes: &[Arc<Inode>]) {
    let mut job = Job::default();
    for inode in inodes {
        job.add(files, inode, 0..u64::MAX);
    }
    job.push(files);
}

/// Taken ranges for one thread of writeback.
#[derive(Default)]
struct Job {
    taken: Vec<(Arc<Inode>, InFlightId)>,
    bytes: u64,
}

impl Job {
    fn add(&mut self, files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) {
        for (id, bytes) in take(inode, range) {
            self.taken.push((Arc::clone(inode), id));
            self.bytes += bytes;
            if self.bytes >= JOB_BYTES || self.taken.len() >= JOB_RANGES {
                std::mem::take(self).push(files);
            }
        }
    }

    fn push(self, files: &Arc<Files>) {
        if !self.taken.is_empty() {
            files.writeback.push(files, Work::Decide(self.taken));
        }
    }
}

/// Turns the dirty data in `range` into in-flight entries, and returns them with their lengths.
fn take(inode: &Inode, range: Range<u64>) -> Vec<(InFlightId, u64)> {
    let mut taken = Vec::new();
    let mut guard = inode.data.state.lock();
    let state = &mut *guard;
    while let Some(run) = state.dirty.run(range.start, range.end, MAX_EXTENT) {
        let pieces = state.dirty.take(run.clone());
        let slices = pieces
            .into_iter()
            .map(|(_, bytes)| Slice::new(bytes))
            .collect();
        let bytes = run.end - run.start;
        taken.push((state.in_flight.insert(run, slices), bytes));
    }
    taken
}

/// Writes back all of a file and waits until the tree has it, with its size, so that a commit makes
/// it durable.
///
/// # Errors
/// [`Error::WriteFailed`], [`Error::NoSpace`], [`Error::Aborted`].
pub(crate) fn flush_complete(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    let begun = Begun::of(inode);
    flush(files, inode, 0..u64::MAX, Wait::Completion)?;
    settle_size(files, inode, begun)
}

/// Writes back all files and waits until the trees have them, with their sizes. The first error is
/// returned, after all were tried.
pub(crate) fn flush_all(files: &Arc<Files>) -> Result<()> {
    flush_some(files, Wait::Completion, |_| true, settle_size)
}

/// Writes back all files and waits until the trees have their data. A size may be recorded later.
pub(super) fn write_back_all(files: &Arc<Files>) -> Result<()> {
    flush_some(files, Wait::Completion, |_| true, |_, _, _| Ok(()))
}

/// Flushes the files of one tree; with [`Wait::Completion`] their sizes, too.
pub(crate) fn flush_root(files: &Arc<Files>, root: u64, wait: Wait) -> Result<()> {
    flush_some(files, wait, |inode| inode.root.id() == root, settle_size)
}

fn flush_some(
    files: &Arc<Files>,
    wait: Wait,
    which: impl Fn(&Inode) -> bool,
    settle: impl Fn(&Arc<Files>, &Arc<Inode>, Begun) -> Result<()>,
) -> Result<()> {
    let mut active = files.writeback.active();
    active.retain(|inode| which(inode));
    let begun: Vec<_> = active
        .iter()
        .map(|inode| (inode.data.refusals(), Begun::of(inode)))
        .collect();
    begin_all(files, &active);
    if wait == Wait::None {
        return Ok(());
    }
    let mut result = Ok(());
    for (inode, (refusals, begun)) in active.iter().zip(begun) {
        if wait == Wait::Completion {
            files.writeback.hurry();
        }
        inode.data.wait_in_flight(wait == Wait::Completion);
        let mut written = inode.check_written(refusals);
        if written.is_ok() && wait == Wait::Completion {
            written = settle(files, inode, begun);
        }
        result = result.and(written);
    }
    result
}

/// The length of a file when a flush began.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    size: u64,
    shrinks: u64,
}

impl Begun {
    pub(super) fn of(inode: &Inode) -> Self {
        let state = inode.state.lock();
        Self {
            size: state.size,
            shrinks: state.shrinks,
        }
    }
}

/// Raises the size on disk to the file's size at the start of a flush whose data the tree now has.
///
/// A completion raises it only up to the first byte that the tree lacks. Another thread may have
/// written that byte since, below data that the flush promised. That byte is not part of the
/// promise, and reads as its old content. After a truncation it could expose bytes that the file
/// never had, so the file is flushed again. A failed mount is left alone: its commits return the
/// failure.
pub(super) fn settle_size(files: &Arc<Files>, inode: &Arc<Inode>, mut begun: Begun) -> Result<()> {
    let behind = |begun: Begun| {
        let state = inode.state.lock();
        state.disk_size < begun.size.min(state.size)
    };
    while !files.health.failed() && behind(begun) {
        let h = files.start_urgent(1)?;
        let settled = {
            let mut state = inode.state.lock();
            let same = state.shrinks == begun.shrinks;
            if same {
                state.disk_size = state.disk_size.max(begun.size.min(state.size));
            }
            same
        };
        if settled {
            inode.change(&h, |_| {});
            return h.end();
        }
        h.end()?;
        begun = Begun::of(inode);
        flush(files, inode, 0..u64::MAX, Wait::Completion)?;
    }
    Ok(())
}

/// Discards the dirty data in `range` (whole sectors) and waits until none of it is in flight. The
/// caller holds `io` exclusively.
pub(super) fn discard(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) {
    let take = || {
        let mut state = inode.data.state.lock();
        let before = state.dirty.bytes();
        let taken = state.dirty.take(range.clone());
        let bytes = before - state.dirty.bytes();
        if let Some(promised) = &state.promised {
            promised.give_back(bytes);
        }
        drop(taken);
        if state.bytes() == 0 {
            state.promised_metadata = None;
        }
        bytes
    };
    let wait = || {
        inode.data.wait_not_in_flight(&range);
        inode.data.is_clean(range.clone())
    };
    files.writeback.discard(inode, take, wait);
}
