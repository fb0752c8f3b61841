//! The measurements of one run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use sapwood_testing::Counts;

/// Duration of an operation, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the operations took at most this long.
    pub p50: f64,
    /// 99 of 100 operations took at most this long.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// Of single durations; `None` if there are none.
    #[must_use]
    pub fn of(mut all: Vec<Duration>) -> Option<Self> {
        all.sort_unstable();
        let at = |percent: usize| {
            let rank = (all.len() * percent).div_ceil(100).max(1);
            let found = all.get(rank - 1)?;
            Some(found.as_secs_f64() * 1e6)
        };
        Some(Self {
            p50: at(50)?,
            p99: at(99)?,
            max: at(100)?,
        })
    }
}

/// Counters of the engine and its device; for a run, their increase.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counted {
    /// `fsync` and `fdatasync` calls.
    pub fsyncs: u64,
    /// Of these, those that committed the transaction.
    pub full_fsyncs: u64,
    /// The same by cause.
    pub full_fsyncs_by_cause: BTreeMap<String, u64>,
    /// Transactions committed.
    pub commits: u64,
    /// Log commits: superblocks that were written with a new log.
    pub log_commits: u64,
    /// Bytes written for logs.
    pub fsync_bytes: u64,
    /// Flushes for logs.
    pub fsync_flushes: u64,
    /// Attribute items logged.
    pub log_xattrs: u64,
    /// Extent items logged.
    pub log_extents: u64,
    /// Directory entries logged.
    pub log_dir_items: u64,
    /// Ordered extents logged before they were complete.
    pub ordered_pinned: u64,
    /// Ordered extents waited for.
    pub ordered_waited: u64,
    /// Inodes that ext4 allocated.
    pub inode_alloc_given: u64,
    /// Bits of inode bitmaps that another thread took between search and claim.
    pub inode_alloc_lost_races: u64,
    /// Searches for an inode with the lock held.
    pub inode_alloc_second_searches: u64,
    /// Requests that the kernel sent, by kind.
    pub requests: BTreeMap<String, u64>,
    /// Bytes written to the device, for all purposes.
    pub device_bytes: u64,
    /// Flushes of the device and write-through writes.
    pub device_flushes: u64,
}

/// Counters with other names in ext4; its journal commits stand for the log commits of btrfs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OfExt4 {
    fsyncs_clean: u64,
    fsyncs_committed: u64,
    journal_commits: u64,
}

impl Counted {
    /// From the counters of the engine and of the device below it.
    ///
    /// # Errors
    /// The engine's counters are not a JSON object of numbers.
    pub fn read(engine: &str, device: &Counts) -> serde_json::Result<Self> {
        let mut found: Self = serde_json::from_str(engine)?;
        let ext4: OfExt4 = serde_json::from_str(engine)?;
        found.fsyncs += ext4.fsyncs_clean + ext4.fsyncs_committed;
        found.commits += ext4.journal_commits;
        found.log_commits += ext4.journal_commits;
        Ok(Self {
            device_bytes: device.write_bytes + device.fua_bytes,
            device_flushes: device.flushes + device.fuas,
            ..found
        })
    }

    /// The increase since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            fsyncs: less(self.fsyncs, before.fsyncs),
            full_fsyncs: less(self.full_fsyncs, before.full_fsyncs),
            full_fsyncs_by_cause: since_each(
                &self.full_fsyncs_by_cause,
                &before.full_fsyncs_by_cause,
            ),
            requests: since_each(&self.requests, &before.requests),
            commits: less(self.commits, before.commits),
            log_commits: less(self.log_commits, before.log_commits),
            fsync_bytes: less(self.fsync_bytes, before.fsync_bytes),
            fsync_flushes: less(self.fsync_flushes, before.fsync_flushes),
            log_xattrs: less(self.log_xattrs, before.log_xattrs),
            log_extents: less(self.log_extents, before.log_extents),
            log_dir_items: less(self.log_dir_items, before.log_dir_items),
            ordered_pinned: less(self.ordered_pinned, before.ordered_pinned),
            ordered_waited: less(self.ordered_waited, before.ordered_waited),
            inode_alloc_given: less(self.inode_alloc_given, before.inode_alloc_given),
            inode_alloc_lost_races: less(
                self.inode_alloc_lost_races,
                before.inode_alloc_lost_races,
            ),
            inode_alloc_second_searches: less(
                self.inode_alloc_second_searches,
                before.inode_alloc_second_searches,
            ),
            device_bytes: less(self.device_bytes, before.device_bytes),
            device_flushes: less(self.device_flushes, before.device_flushes),
        }
    }
}

/// The increase since `before` by name, without zeros.
fn since_each(
    now: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    now.iter()
        .map(|(name, count)| {
            let then = before.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(then))
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// The measurements of the workload itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Work done per second, in the workload's unit.
    pub rate: f64,
    /// Duration of an fsync for the caller.
    pub fsync: Option<Latency>,
    /// The longest operation of any kind in milliseconds.
    pub slowest_ms: Option<f64>,
    /// Additional figures by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<String, f64>,
    /// The other output of the load generator.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl Seen {
    /// Only a rate.
    #[must_use]
    pub fn rate(rate: f64) -> Self {
        Self {
            rate,
            fsync: None,
            slowest_ms: None,
            more: BTreeMap::new(),
            details: Value::Null,
        }
    }

    /// The same with an additional figure.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.more.insert(name.to_owned(), value);
        self
    }
}

/// The measurements of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The measurements of the workload.
    #[serde(flatten)]
    pub seen: Seen,
    /// The counters of the run; the kernel has none.
    pub counted: Option<Counted>,
    /// Share of the processors, 0 to 1, that was free just before.
    pub free_cpu: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_durations() {
        let all = (1..=200).rev().map(Duration::from_micros).collect();
        let latency = Latency::of(all).unwrap();
        let expected = Latency {
            p50: 100.0,
            p99: 198.0,
            max: 200.0,
        };
        assert!((latency.p50 - expected.p50).abs() < 1e-6);
        assert!((latency.p99 - expected.p99).abs() < 1e-6);
        assert!((latency.max - expected.max).abs() < 1e-6);
        assert_eq!(Latency::of(Vec::new()), None);
        assert!(Latency::of(vec![Duration::ZERO]).is_some());
    }

    #[test]
    fn counters_are_read_by_name_and_subtracted() {
        let device = Counts {
            write_bytes: 100,
            fua_bytes: 10,
            flushes: 3,
            fuas: 1,
            ..Counts::default()
        };
        let text = r#"{"fsyncs":7,"log_commits":2,"fsync_latency":{"count":7}}"#;
        let counted = Counted::read(text, &device).unwrap();
        assert_eq!((counted.fsyncs, counted.log_commits), (7, 2));
        assert_eq!((counted.device_bytes, counted.device_flushes), (110, 4));
        let before = Counted {
            fsyncs: 5,
            ..Counted::default()
        };
        assert_eq!(counted.since(&before).fsyncs, 2);
        assert!(Counted::read("7", &device).is_err());
        let text = r#"{"fsyncs_clean":2,"fsyncs_committed":3,"journal_commits":4}"#;
        let ext4 = Counted::read(text, &device).unwrap();
        assert_eq!((ext4.fsyncs, ext4.commits, ext4.log_commits), (5, 4, 4));
    }
}
