//! What a mount counts.

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
}

impl Counters {
    /// Adds one.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// All of them as a JSON object.
    pub(crate) fn to_json(&self) -> String {
        let rows = [
            ("fsyncs", &self.fsyncs),
            ("empty_fsyncs", &self.empty_fsyncs),
            ("commits", &self.commits),
        ];
        let fields: Vec<String> = rows
            .iter()
            .map(|(name, counter)| format!("\"{name}\":{}", counter.load(Ordering::Relaxed)))
            .collect();
        format!("{{{}}}", fields.join(","))
    }
}
