//! The counters of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

use sapwood_base::{Histogram, Report};

use crate::commit_reason::CommitReason;

/// Counters of a mount since it began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// `fsync` and `fdatasync` calls.
    pub(crate) fsyncs: AtomicU64,
    /// fsyncs with nothing to write.
    pub(crate) empty_fsyncs: AtomicU64,
    /// fsyncs that a log made durable.
    pub(crate) fast_fsyncs: AtomicU64,
    /// fsyncs that committed the transaction.
    full_fsyncs: AtomicU64,
    /// The same by [`CommitReason`].
    causes: [AtomicU64; CommitReason::ALL.len()],
    /// Transactions committed.
    pub(crate) commits: AtomicU64,
    /// Compressed extents that were written as they arrived.
    pub(crate) encoded_writes: AtomicU64,
    /// Their compressed bytes.
    pub(crate) encoded_bytes: AtomicU64,
    /// Compressed extents that were expanded to be read.
    pub(crate) expanded_extents: AtomicU64,
    /// Contents of logs.
    pub(crate) log: LogCounters,
    /// Durations of `fsync` and `fdatasync`.
    pub(crate) fsync_latency: Histogram,
    /// Durations of commits, from the claim to the durable superblock.
    pub(crate) commit_latency: Histogram,
}

/// Contents of logs.
#[derive(Debug, Default)]
pub(crate) struct LogCounters {
    /// Logs that became durable: the superblock names them.
    pub(crate) commits: AtomicU64,
    /// Bytes of tree blocks and superblocks written.
    pub(crate) bytes: AtomicU64,
    /// Flushes of the device, the one within a write of the superblock included.
    pub(crate) flushes: AtomicU64,
    /// Attribute items.
    pub(crate) xattrs: AtomicU64,
    /// File extent items.
    pub(crate) extents: AtomicU64,
    /// Directory entries, added or removed.
    pub(crate) dir_items: AtomicU64,
    /// Ordered extents logged before they were complete.
    pub(crate) pinned: AtomicU64,
}

impl Counters {
    /// Adds one.
    pub(crate) fn count(counter: &AtomicU64) {
        Self::add(counter, 1);
    }

    /// Adds `more`.
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// Counts an fsync that committed the transaction.
    pub(crate) fn count_full(&self, cause: CommitReason) {
        Self::count(&self.full_fsyncs);
        if let Some(counter) = self.causes.get(cause as usize) {
            Self::count(counter);
        }
    }

    fn counts(&self) -> [(&'static str, &AtomicU64); 15] {
        let log = &self.log;
        [
            ("fsyncs", &self.fsyncs),
            ("empty_fsyncs", &self.empty_fsyncs),
            ("fast_fsyncs", &self.fast_fsyncs),
            ("full_fsyncs", &self.full_fsyncs),
            ("commits", &self.commits),
            ("log_commits", &log.commits),
            ("fsync_bytes", &log.bytes),
            ("fsync_flushes", &log.flushes),
            ("log_xattrs", &log.xattrs),
            ("log_extents", &log.extents),
            ("log_dir_items", &log.dir_items),
            ("ordered_pinned", &log.pinned),
            ("encoded_writes", &self.encoded_writes),
            ("encoded_bytes", &self.encoded_bytes),
            ("expanded_extents", &self.expanded_extents),
        ]
    }

    /// All counts with their names.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let counts = self.counts();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let plain = counts.map(|(name, counter)| (name.to_owned(), read(counter)));
        let causes = self.by_cause();
        let causes = causes.map(|(name, count)| (format!("full_fsyncs_{name}"), count));
        plain.into_iter().chain(causes).collect()
    }

    fn by_cause(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let causes = CommitReason::ALL.iter().zip(&self.causes);
        causes.map(|(cause, counter)| (cause.name(), counter.load(Ordering::Relaxed)))
    }

    /// All of them as a JSON object; see [`sapwood_base::report`].
    pub(crate) fn to_json(&self, first_error: Option<&str>) -> String {
        let report = Report::default();
        let counts = self.counts().into_iter();
        counts
            .fold(report, |report, (name, counter)| {
                report.count(name, counter)
            })
            .causes("full_fsyncs_by_cause", self.by_cause())
            .latency("fsync_latency", &self.fsync_latency)
            .latency("commit_latency", &self.commit_latency)
            .text("first_error", first_error)
            .finish()
    }
}
