//! Counters as JSON, in the form that `sapwood stats` reads.
//!
//! | member | value |
//! |---|---|
//! | a count since the mount | number |
//! | a count by cause | object: cause to number |
//! | a text | string |
//! | durations in nanoseconds | object: `count`, `sum`, `p50`, `p99`, `max`, and `buckets`, a list of pairs: longest duration, how many |
//!
//! A reader can take two reports and subtract numbers, causes and buckets: the differences are the
//! values of the interval.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::Histogram;

/// Writes a JSON object, member by member. Names must not need escapes.
#[derive(Debug, Default)]
pub struct Report(String);

impl Report {
    /// Adds a count.
    pub fn count(self, name: &str, counter: &AtomicU64) -> Self {
        let value = counter.load(Ordering::Relaxed);
        self.member(name, format_args!("{value}"))
    }

    /// Adds counts by cause. Zero counts are included, so that all names are known.
    pub fn causes<'c>(self, name: &str, causes: impl Iterator<Item = (&'c str, u64)>) -> Self {
        let mut inner = Self::default();
        for (cause, count) in causes {
            inner = inner.member(cause, format_args!("{count}"));
        }
        self.member(name, format_args!("{}", inner.finish()))
    }

    /// Adds a text, if it is not `None`.
    pub fn text(self, name: &str, text: Option<&str>) -> Self {
        let Some(text) = text else { return self };
        let mut escaped = String::with_capacity(text.len());
        for char in text.chars() {
            match char {
                '"' | '\\' => escaped.extend(['\\', char]),
                char if char.is_control() => {
                    // Writing to a string cannot fail. A control character fits into JSON's four
                    // digits.
                    let _ = write!(escaped, "\\u{:04x}", u32::from(char));
                }
                char => escaped.push(char),
            }
        }
        self.member(name, format_args!("\"{escaped}\""))
    }

    /// Adds durations.
    pub fn latency(self, name: &str, histogram: &Histogram) -> Self {
        let all = histogram.snapshot();
        let buckets: Vec<String> = all
            .buckets
            .iter()
            .map(|(longest, count)| format!("[{longest},{count}]"))
            .collect();
        let inner = Self::default()
            .member("count", format_args!("{}", all.count()))
            .member("sum", format_args!("{}", all.sum))
            .member("p50", format_args!("{}", all.percentile(50)))
            .member("p99", format_args!("{}", all.percentile(99)))
            .member("max", format_args!("{}", all.max))
            .member("buckets", format_args!("[{}]", buckets.join(",")));
        self.member(name, format_args!("{}", inner.finish()))
    }

    /// The object.
    pub fn finish(self) -> String {
        format!("{{{}}}", self.0)
    }

    fn member(mut self, name: &str, value: std::fmt::Arguments<'_>) -> Self {
        let comma = if self.0.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{comma}\"{name}\":{value}");
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_kinds_of_members_are_json() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_nanos(3));
        histogram.record(Duration::from_nanos(9));
        let json = Report::default()
            .count("fsyncs", &AtomicU64::new(2))
            .causes("full_commits", [("rename", 1), ("error", 0)].into_iter())
            .latency("fsync_latency", &histogram)
            .finish();
        let expected = concat!(
            r#"{"fsyncs":2,"full_commits":{"rename":1,"error":0},"#,
            r#""fsync_latency":{"count":2,"sum":12,"p50":3,"p99":9,"max":9,"#,
            r#""buckets":[[3,1],[9,1]]}}"#
        );
        assert_eq!(json, expected);
    }
}
