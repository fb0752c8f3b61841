//! Distribution of durations, counted without a lock.
//!
//! # How it works
//! There is a bucket for each quarter of a power of two, so that a percentile is at most a quarter
//! too long. Recording takes a few relaxed atomic operations and never waits. A snapshot is not
//! atomic: a concurrent record may be in only some of its fields. Its count is therefore the sum of
//! the buckets that it read. Each bucket only grows, so the difference of two snapshots is a
//! distribution, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets: 0 to 3 ns have one each, then four for each power of two up to 2^63.
const BUCKETS: usize = 4 + 62 * 4;

/// Durations in nanoseconds, by size.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(ns, Ordering::Relaxed);
        self.max.fetch_max(ns, Ordering::Relaxed);
    }

    /// The distribution of all durations so far.
    pub fn snapshot(&self) -> Snapshot {
        let counts = self
            .buckets
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let filled = counts.enumerate().filter(|(_, count)| *count != 0);
        Snapshot {
            buckets: filled.map(|(at, count)| (longest_of(at), count)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
            max: self.max.load(Ordering::Relaxed),
        }
    }
}

/// The contents of a [`Histogram`]. All durations are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Longest duration of a bucket, and the number of durations in it. Only buckets that are not
    /// empty, in order.
    pub buckets: Vec<(u64, u64)>,
    /// Sum of all durations. It wraps after 584 years.
    pub sum: u64,
    /// The longest.
    pub max: u64,
}

impl Snapshot {
    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// A duration that `percent` of all do not exceed, at most a quarter too long; 0 if there are
    /// none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let wanted = u128::from(self.count()) * u128::from(percent);
        let mut seen = 0u128;
        for (longest, count) in &self.buckets {
            seen += u128::from(*count) * 100;
            if seen >= wanted {
                return (*longest).min(self.max);
            }
        }
        self.max
    }
}

/// The bucket for a duration.
fn bucket_of(ns: u64) -> usize {
    let Some(power) = ns.checked_ilog2().filter(|power| *power >= 2) else {
        return (ns & 3) as usize;
    };
    let quarter = (ns >> (power - 2)) & 3;
    (power as usize - 1) * 4 + quarter as usize
}

/// The longest duration in a bucket.
fn longest_of(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let (shift, quarter) = (bucket / 4 - 1, bucket as u64 % 4);
    // The next higher value would overflow for the last bucket.
    ((4 + quarter) << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_falls_into_a_bucket_that_is_at_most_a_quarter_longer() {
        for power in 0..64 {
            for near in [-2i64, -1, 0, 1, 2] {
                let ns = (1u64 << power).wrapping_add_signed(near);
                let bucket = bucket_of(ns);
                let longest = longest_of(bucket);
                assert!(longest >= ns && longest - ns <= ns / 4, "{ns}: {longest}");
                assert!(bucket == 0 || longest_of(bucket - 1) < ns, "{ns}");
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(longest_of(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn percentiles_are_those_of_the_durations() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().percentile(50), 0);
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), 1000);
        assert_eq!(snapshot.sum, 500_500_000);
        assert_eq!(snapshot.max, 1_000_000);
        for (percent, exact) in [(1, 10_000), (50, 500_000), (99, 990_000), (100, 1_000_000)] {
            let found = snapshot.percentile(percent);
            assert!(
                (exact..=exact + exact / 4).contains(&found),
                "{percent}: {found}"
            );
        }
    }

    #[test]
    fn concurrent_records_are_all_counted() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..10_000).for_each(|ns| histogram.record(Duration::from_nanos(ns)))
                });
            }
        });
        assert_eq!(histogram.snapshot().count(), 40_000);
    }
}
