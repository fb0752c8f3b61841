//! What is counted of fast commits.

use std::sync::atomic::{AtomicU64, Ordering};

use super::reason::Reason;

/// Counters; they only grow.
#[derive(Debug, Default)]
pub(crate) struct FastCommitCounters {
    commits: AtomicU64,
    blocks: AtomicU64,
    flushes: AtomicU64,
    whole: [AtomicU64; Reason::ALL.len()],
}

impl FastCommitCounters {
    /// A fast commit of so many blocks.
    pub(super) fn written(&self, blocks: u64) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    /// The device was flushed for one.
    pub(super) fn flushed(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// An fsync committed its whole transaction.
    pub(crate) fn whole(&self, reason: Reason) {
        if let Some(counter) = self.whole.get(usize::from(reason.number().get() - 1)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All by name.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let own = [
            ("commits", &self.commits),
            ("blocks", &self.blocks),
            ("flushes", &self.flushes),
        ];
        let own = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let whole = Reason::ALL.into_iter().zip(&self.whole);
        let whole = whole.map(|(reason, value)| (format!("whole_{}", reason.name()), value));
        own.chain(whole)
            .map(|(name, value)| (name, value.load(Ordering::Relaxed)))
            .collect()
    }
}
