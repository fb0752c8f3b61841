//! What a mount counts.

mod histogram;
mod report;

pub(crate) use histogram::Histogram;

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a mount since it began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// `fsync` and `fdatasync` calls.
    pub(crate) fsyncs: AtomicU64,
    /// Of these, those that found nothing to write.
    pub(crate) empty_fsyncs: AtomicU64,
    /// Transactions committed.
    pub(crate) commits: AtomicU64,
    /// How long `fsync` and `fdatasync` took.
    pub(crate) fsync_latency: Histogram,
    /// How long commits took, from being claimed to the superblock's being durable.
    pub(crate) commit_latency: Histogram,
}

impl Counters {
    /// Adds one.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// All of them as a JSON object; see [`report`].
    pub(crate) fn to_json(&self) -> String {
        report::Report::default()
            .count("fsyncs", &self.fsyncs)
            .count("empty_fsyncs", &self.empty_fsyncs)
            .count("commits", &self.commits)
            .latency("fsync_latency", &self.fsync_latency)
            .latency("commit_latency", &self.commit_latency)
            .finish()
    }
}
