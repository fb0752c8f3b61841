//! [`RecordDevice`]: a log of all changes of a device, and every state that a power cut could have
//! left.
//!
//! How it works
//!
//! The log has two entries for each request, its begin and its end, because the guarantee of a
//! flush depends on both: a flush makes durable every write that *ended* before the flush *began*,
//! and a caller may rely on it only after the flush has *ended*. The log is a list of [`Step`]s; a
//! *crash point* `p` is a power cut after the first `p` of them. At a crash point each write that
//! began is one of:
//! - **durable**: it is write-through and ended, or a successful flush covers it;
//! - **volatile**: each sector of it may be there or missing, independently of all other sectors
//!   and writes.
//!
//! A [`CrashPlan`] names a crash point and the outcome of volatile writes; it has no effect on
//! durable ones, so every plan yields a state that can happen. A failed write stays volatile for
//! ever, and is missing unless the plan tears it. A discard counts as a write of zeros, or of
//! another byte ([`RecordLog::discards_leave`]). Writes are applied in the order in which they
//! began.
//!
//! Trouble cases and their tests (`tests/record_device.rs`): a write that ends during a
//! flush is not covered (`flush_covers_only_what_ended_before_it_began`); a write that
//! begins during a flush can survive while one before the flush is lost (same test); a
//! failed flush covers nothing (`failed_requests_promise_nothing`).

mod log;
mod plan;

use std::sync::Arc;

use parking_lot::Mutex;

pub use self::log::{Action, Epoch, RecordLog, RecordedRequest, Step};
pub use self::plan::{CrashPlan, Replayer};
use sapwood_block::{Device, Result};

/// Passes all requests through and logs those that change the medium. See the module.
///
/// The log starts empty: take a snapshot of the device below first, as the base of a replay.
#[derive(Debug)]
pub struct RecordDevice<D> {
    inner: D,
    recording: Mutex<Recording>,
}

#[derive(Debug, Default)]
struct Recording {
    /// Number of requests in logs that were taken already.
    taken: usize,
    entries: Vec<RecordedRequest>,
    steps: Vec<Step>,
}

impl<D: Device> RecordDevice<D> {
    /// Wraps `inner` with an empty log.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            recording: Mutex::default(),
        }
    }

    /// Adds a mark to the log, for example "this fsync returned", and returns the index of its
    /// step. A crash at a greater point happens after the mark.
    pub fn mark(&self, label: impl Into<Arc<str>>) -> usize {
        let steps = &mut self.recording.lock().steps;
        steps.push(Step::Mark(label.into()));
        steps.len() - 1
    }

    /// The crash point "now": the number of steps so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.recording.lock().steps.len()
    }

    /// The log so far; it shares the data.
    #[must_use]
    pub fn log(&self) -> RecordLog {
        let recording = self.recording.lock();
        RecordLog::new(recording.entries.clone(), recording.steps.clone())
    }

    /// Takes the log and starts an empty one. Requests in flight stay unfinished in the returned
    /// log and are missing from the new one.
    pub fn take_log(&self) -> RecordLog {
        let mut recording = self.recording.lock();
        let entries = std::mem::take(&mut recording.entries);
        recording.taken += entries.len();
        RecordLog::new(entries, std::mem::take(&mut recording.steps))
    }

    /// The device below; requests made to it directly are not logged.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn logged(&self, action: Action, request: impl FnOnce() -> Result<()>) -> Result<()> {
        let id = {
            let mut recording = self.recording.lock();
            let entry = recording.entries.len();
            recording.entries.push(RecordedRequest { action });
            recording.steps.push(Step::Begin(entry));
            recording.taken + entry
        };
        let outcome = request();
        let mut recording = self.recording.lock();
        if let Some(entry) = id.checked_sub(recording.taken) {
            let ok = outcome.is_ok();
            recording.steps.push(Step::End { entry, ok });
        }
        outcome
    }
}

impl<D: Device> sapwood_block::Layer for RecordDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let action = Action::Write {
            offset,
            data: buf.into(),
            fua: false,
        };
        self.logged(action, || self.inner.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let action = Action::Write {
            offset,
            data: bufs.concat().into(),
            fua: false,
        };
        self.logged(action, || self.inner.write_vectored_at(offset, bufs))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let action = Action::Write {
            offset,
            data: buf.into(),
            fua: true,
        };
        self.logged(action, || self.inner.write_fua(offset, buf))
    }

    fn flush(&self) -> Result<()> {
        self.logged(Action::Flush, || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.logged(Action::Discard { offset, len }, || {
            self.inner.discard(offset, len)
        })
    }
}
