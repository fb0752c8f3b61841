//! [`RecordDevice`]: a log of all that changed a device, and every state that a power cut
//! could have left behind.
//!
//! How it works
//!
//! Each request is logged twice, when it began and when it ended, because the promise of
//! a flush hangs on both: a flush makes durable what *ended* before the flush *began*, and
//! one may rely on it only when the flush has *ended*. The log is a list of [`Step`]s; a
//! *crash point* `p` is a power cut after the first `p` of them. At a crash point each
//! write that began is one of:
//! - **durable**: it is write-through and ended, or a successful flush covers it;
//! - **volatile**: anything may have happened to it: there, missing, or torn between
//!   sectors, independently of all others.
//!
//! A [`CrashPlan`] names a crash point and what becomes of volatile writes; what it says
//! about durable ones is ignored, so any plan yields a state that can happen. Writes that
//! failed are volatile for ever, and not there unless the plan tears them. A discard
//! counts as a write of zeros. Writes are applied in the order in which they began.
//!
//! Trouble cases and their tests (`tests/record_device.rs`): a write that ends during a
//! flush is not covered (`flush_covers_only_what_ended_before_it_began`); a write that
//! begins during a flush can survive while one before the flush is lost (same test); a
//! failed flush covers nothing (`failed_requests_promise_nothing`).

mod log;
mod plan;

use std::sync::Arc;

use parking_lot::Mutex;

pub use self::log::{Action, Entry, Epoch, RecordLog, Step};
pub use self::plan::{CrashPlan, Replayer};
use sapwood_block::{Device, Result};

/// Passes everything through and logs what changes the medium. See the module.
///
/// The log starts empty: take a snapshot of the device below first, to replay on.
#[derive(Debug)]
pub struct RecordDevice<D> {
    inner: D,
    recording: Mutex<Recording>,
}

#[derive(Debug, Default)]
struct Recording {
    /// Requests in logs that were taken away already.
    taken: usize,
    entries: Vec<Entry>,
    steps: Vec<Step>,
}

impl<D: Device> RecordDevice<D> {
    /// Wraps `inner`; the log is empty.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            recording: Mutex::default(),
        }
    }

    /// Puts a mark into the log, say "this fsync returned"; returns its step's index. A
    /// crash at any point greater than that happens after the mark.
    pub fn mark(&self, label: impl Into<Arc<str>>) -> usize {
        let steps = &mut self.recording.lock().steps;
        steps.push(Step::Mark(label.into()));
        steps.len() - 1
    }

    /// The crash point "now": steps logged so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.recording.lock().steps.len()
    }

    /// The log so far; shares the data.
    #[must_use]
    pub fn log(&self) -> RecordLog {
        let recording = self.recording.lock();
        RecordLog::new(recording.entries.clone(), recording.steps.clone())
    }

    /// Takes the log and starts an empty one. Requests in flight stay unfinished in the
    /// log taken and are missing from the new one.
    pub fn take_log(&self) -> RecordLog {
        let mut recording = self.recording.lock();
        let entries = std::mem::take(&mut recording.entries);
        recording.taken += entries.len();
        RecordLog::new(entries, std::mem::take(&mut recording.steps))
    }

    /// The device below; requests to it are not logged.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn logged(&self, action: Action, request: impl FnOnce() -> Result<()>) -> Result<()> {
        let id = {
            let mut recording = self.recording.lock();
            let entry = recording.entries.len();
            recording.entries.push(Entry { action });
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
