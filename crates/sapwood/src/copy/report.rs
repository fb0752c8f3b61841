//! Progress reports of a copy, and its counters.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::CopyReport;
use super::error::{CopyCause, CopyError, Result};
use super::side::Shown;
use crate::progress::{OnProgress, Progress, Stop};
use crate::shown;

/// Progress reports of a copy to its caller, and its counters.
pub(super) struct Report<'p> {
    done: AtomicU64,
    bytes: AtomicU64,
    kept: AtomicU64,
    stop: Stop,
    failed: AtomicU64,
    first: Mutex<Option<CopyError>>,
    progress: Mutex<&'p mut OnProgress<'p>>,
}

impl<'p> Report<'p> {
    pub(super) fn new(progress: &'p mut OnProgress<'p>, stop: Stop) -> Self {
        Self {
            done: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            stop,
            failed: AtomicU64::new(0),
            first: Mutex::new(None),
            progress: Mutex::new(progress),
        }
    }

    /// One more name is being copied.
    pub(super) fn one(&self, item: &Item<'_>) {
        let mut progress = self.progress.lock();
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let phase = "copied";
        progress(Progress::Done { phase, done });
        progress(Progress::Item(item));
    }

    /// One more name is done.
    pub(super) fn step(&self) {
        self.until(self.done.load(Ordering::Relaxed) + 1);
    }

    /// At least this number of names is done.
    pub(super) fn until(&self, done: u64) {
        let mut progress = self.progress.lock();
        let before = self.done.fetch_max(done, Ordering::Relaxed);
        let (phase, done) = ("copied", before.max(done));
        progress(Progress::Done { phase, done });
    }

    /// Counts bytes that were copied.
    pub(super) fn bytes(&self, count: u64) {
        let mut progress = self.progress.lock();
        let done = self.bytes.fetch_add(count, Ordering::Relaxed);
        progress(Progress::Bytes(done.saturating_add(count)));
    }

    /// A file stays as it is, and its copy is left out.
    pub(super) fn kept(&self) {
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the copy if the caller asks for it.
    pub(super) fn check_stop(&self) -> Result<()> {
        if !self.stop.is_stopped() {
            Ok(())
        } else {
            Err(CopyError::on("", CopyCause::Interrupted).that_ends())
        }
    }

    pub(super) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    pub(super) fn failed(&self, error: CopyError) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        (self.progress.lock())(Progress::Failed(&error));
        self.first.lock().get_or_insert(error);
    }

    /// The counters at the end.
    pub(super) fn end(&self) -> CopyReport {
        let left_out = self.failed.load(Ordering::Relaxed);
        CopyReport {
            copied: self.done.load(Ordering::Relaxed).saturating_sub(left_out),
            left_out,
            kept: self.kept.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            first_error: self.first.lock().take(),
        }
    }
}

/// A source and its copy, as text.
pub(super) struct Item<'i> {
    pub(super) from: &'i dyn Shown,
    pub(super) to: &'i dyn Shown,
    /// Name of the copy in the directory `to`; empty for `to` itself.
    pub(super) name: &'i [u8],
}

impl Display for Item<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (from, to, name) = (self.from.shown(), self.to.shown(), shown::name(self.name));
        let slash = if self.name.is_empty() || to.ends_with('/') {
            ""
        } else {
            "/"
        };
        write!(f, "{from} -> {to}{slash}{name}")
    }
}
