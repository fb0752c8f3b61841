//! Counters in the text format of Prometheus, version 0.0.4: for the textfile collector of its node
//! exporter, or for whatever answers a scraper.
//!
//! Counts are counters with the suffix `_total`, counts by cause have the label `cause`, durations
//! are histograms in seconds. Every sample has the labels `mount` and `engine`.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::counters::{Counters, Durations, durations};

/// Numbers that are not event counts.
const GAUGES: [&str; 1] = ["fast_commit_area_blocks"];

/// The page for the mount on `point`.
pub(super) fn page(counters: &Counters, point: &Path) -> String {
    let labels = format!(
        "mount=\"{}\",engine=\"{}\"",
        escaped(&point.to_string_lossy()),
        engine(counters)
    );
    let mut page = Page {
        text: String::new(),
        labels,
    };
    let failed = counters.members().any(|(name, _)| name == "first_error");
    page.head("failed", "gauge", "Whether written data was lost");
    page.sample("failed", "", u64::from(failed));
    for (name, value) in counters.members() {
        page.member(name, value);
    }
    page.text
}

/// The engine, by a count that only it has.
fn engine(counters: &Counters) -> &'static str {
    let has = |wanted| counters.members().any(|(name, _)| name == wanted);
    match (has("log_commits"), has("fsyncs_clean")) {
        (true, _) => "btrfs",
        (_, true) => "ext4",
        _ => "unknown",
    }
}

struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn member(&mut self, name: &str, value: &Value) {
        let words = name.replace('_', " ");
        if let Some(durations) = durations(value) {
            self.histogram(name, &words, &durations);
        } else if let Value::Object(causes) = value {
            let name = format!("{name}_total");
            self.head(&name, "counter", &words);
            for (cause, count) in causes {
                let label = format!(",cause=\"{}\"", escaped(cause));
                self.sample(&name, &label, count);
            }
        } else if GAUGES.contains(&name) {
            self.head(name, "gauge", &words);
            self.sample(name, "", value);
        } else if let Some(count) = value.as_u64() {
            match name.strip_suffix("_ns") {
                Some(name) => {
                    let name = format!("{name}_seconds_total");
                    self.head(&name, "counter", &words);
                    self.sample(&name, "", seconds(count));
                }
                None => {
                    let name = format!("{name}_total");
                    self.head(&name, "counter", &words);
                    self.sample(&name, "", count);
                }
            }
        }
    }

    fn histogram(&mut self, name: &str, words: &str, durations: &Durations) {
        let name = format!("{name}_seconds");
        self.head(&name, "histogram", words);
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (longest, count) in &durations.buckets {
            below += count;
            let label = format!(",le=\"{}\"", seconds(*longest));
            self.sample(&bucket, &label, below);
        }
        self.sample(&bucket, ",le=\"+Inf\"", durations.count);
        self.sample(&format!("{name}_sum"), "", seconds(durations.sum));
        self.sample(&format!("{name}_count"), "", durations.count);
    }

    fn head(&mut self, name: &str, kind: &str, words: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP sapwood_{name} {words} since the mount.");
        let _ = writeln!(self.text, "# TYPE sapwood_{name} {kind}");
    }

    fn sample(&mut self, name: &str, label: &str, value: impl std::fmt::Display) {
        let labels = &self.labels;
        let _ = writeln!(self.text, "sapwood_{name}{{{labels}{label}}} {value}");
    }
}

/// Nanoseconds as a decimal number of seconds, without loss.
fn seconds(ns: u64) -> String {
    let (whole, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let text = format!("{whole}.{rest:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The value of a label.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const JSON: &str = r#"{"fsyncs":2,"log_commits":3,"lock_wait_ns":1500,
        "full_commits":{"rename":1,"link":0},"first_error":"no \"device\"",
        "fast_commit_area_blocks":256,
        "fsync_latency":{"count":4,"sum":2000000012,"p50":3,"p99":9,"max":9,
        "buckets":[[3,1],[2000000000,3]]}}"#;

    /// Samples by name and labels, and the type of each family, of a page in the text format.
    fn parsed(page: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
        let (mut samples, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        let mut help = String::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                help = rest.split(' ').next().unwrap_or_default().to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert_eq!(name, help, "TYPE follows HELP");
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none());
            } else {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                let family = name.split('{').next().unwrap_or_default();
                assert!(family.starts_with(&help), "{family} is below its head");
                assert!(
                    family
                        .bytes()
                        .all(|b| b == b'_' || b.is_ascii_alphanumeric())
                );
                let value = value.parse().expect("a number");
                assert!(samples.insert(name.to_owned(), value).is_none(), "{name}");
            }
        }
        (samples, kinds)
    }

    #[test]
    fn a_page_has_types_labels_and_cumulative_buckets() {
        let counters = Counters::parse(JSON).expect("counters");
        let page = page(&counters, Path::new("/mnt/a \"b\"\\c"));
        assert!(page.ends_with('\n'));
        let (samples, kinds) = parsed(&page);
        let labels = r#"mount="/mnt/a \"b\"\\c",engine="btrfs""#;
        let value = |name: &str, more: &str| {
            let name = format!("sapwood_{name}{{{labels}{more}}}");
            samples.get(&name).copied().unwrap_or(-1.0)
        };
        for (name, more, wanted) in [
            ("fsyncs_total", "", 2.0),
            ("failed", "", 1.0),
            ("lock_wait_seconds_total", "", 0.000_001_5),
            ("full_commits_total", ",cause=\"rename\"", 1.0),
            ("fast_commit_area_blocks", "", 256.0),
            ("fsync_latency_seconds_bucket", ",le=\"0.000000003\"", 1.0),
            ("fsync_latency_seconds_bucket", ",le=\"2\"", 4.0),
            ("fsync_latency_seconds_bucket", ",le=\"+Inf\"", 4.0),
            ("fsync_latency_seconds_count", "", 4.0),
            ("fsync_latency_seconds_sum", "", 2.000_000_012),
        ] {
            let found = value(name, more);
            assert!(
                (found - wanted).abs() < 1e-12,
                "{name}{more} {found}\n{page}"
            );
        }
        let kind = |name: &str| kinds.get(&format!("sapwood_{name}")).map(String::as_str);
        assert_eq!(kind("fsyncs_total"), Some("counter"));
        assert_eq!(kind("fast_commit_area_blocks"), Some("gauge"));
        assert_eq!(kind("fsync_latency_seconds"), Some("histogram"));
    }
}
