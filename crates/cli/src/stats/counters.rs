//! The counters of a mount as its daemon reports them: an object of counts, counts by cause, and
//! durations. The engine chooses the names; here they are subtracted and laid out.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// All counters of a mount, in the daemon's order, and ratios of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Counters(Map<String, Value>);

/// Durations in nanoseconds. A bucket is the longest duration in it and how many there are.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Durations {
    pub(super) count: u64,
    pub(super) sum: u64,
    p50: u64,
    p99: u64,
    max: u64,
    /// The longest duration of each, and how many there are.
    pub(super) buckets: Vec<(u64, u64)>,
}

/// Ratios: name, dividend, divisor.
const RATIOS: [(&str, &str, &str); 3] = [
    ("fsyncs_per_log_commit", "fast_fsyncs", "log_commits"),
    ("bytes_per_fsync", "fsync_bytes", "fsyncs"),
    ("flushes_per_fsync", "fsync_flushes", "fsyncs"),
];

impl Counters {
    /// From the daemon's JSON.
    pub(super) fn parse(json: &str) -> serde_json::Result<Self> {
        let mut counters = Self(serde_json::from_str(json)?);
        counters.add_ratios();
        Ok(counters)
    }

    /// Names and values, in order.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The difference to `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let members = self.0.iter().filter(|(_, now)| !now.is_f64());
        let changes = members.map(|(name, now)| (name.clone(), change(now, before.0.get(name))));
        let mut changes = Self(changes.collect());
        changes.add_ratios();
        changes
    }

    fn add_ratios(&mut self) {
        for (name, count, by) in RATIOS {
            let value = |name| self.0.get(name).and_then(Value::as_u64);
            let (Some(count), Some(by @ 1..)) = (value(count), value(by)) else {
                continue;
            };
            #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
            let ratio = count as f64 / by as f64;
            self.0.insert(name.to_owned(), ratio.into());
        }
    }
}

fn change(now: &Value, before: Option<&Value>) -> Value {
    if now.is_string() {
        return now.clone();
    }
    if let Some(now) = durations(now) {
        let before = before.and_then(durations).unwrap_or_default();
        return serde_json::to_value(now.since(&before)).unwrap_or_default();
    }
    if let Value::Object(causes) = now {
        let before = |cause: &String| before.and_then(|all| all.get(cause));
        let changes = causes
            .iter()
            .map(|(cause, now)| (cause.clone(), change(now, before(cause))));
        return Value::Object(changes.collect());
    }
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    count(now).saturating_sub(before.map_or(0, count)).into()
}

/// The member as durations, if it is an object of durations.
pub(super) fn durations(value: &Value) -> Option<Durations> {
    value.get("buckets")?;
    Durations::deserialize(value).ok()
}

impl Durations {
    fn since(&self, before: &Self) -> Self {
        let count_before = |longest| {
            let same = before.buckets.iter().find(|(bucket, _)| *bucket == longest);
            same.map_or(0, |(_, count)| *count)
        };
        let counts = self.buckets.iter();
        let counts =
            counts.map(|(longest, count)| (*longest, count.saturating_sub(count_before(*longest))));
        let buckets: Vec<(u64, u64)> = counts.filter(|(_, count)| *count != 0).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let max = buckets
            .last()
            .map_or(0, |(longest, _)| (*longest).min(self.max));
        let percentile = |percent: u128| {
            let mut seen = 0;
            let reached = buckets.iter().find(|(_, in_bucket)| {
                seen += u128::from(*in_bucket) * 100;
                seen >= u128::from(count) * percent
            });
            reached.map_or(0, |(longest, _)| (*longest).min(max))
        };
        Self {
            count,
            sum: self.sum.wrapping_sub(before.sum),
            p50: percentile(50),
            p99: percentile(99),
            max,
            buckets,
        }
    }
}

/// Text cells, then lines of a name, a total, and optionally a difference.
#[derive(Debug)]
pub(super) struct Table {
    texts: Vec<String>,
    rows: Vec<(String, String)>,
    changes: Option<Vec<(String, String)>>,
}

impl Table {
    /// A table of totals.
    pub(super) fn of(total: &Counters) -> Self {
        let texts = total.0.iter().filter_map(|(name, value)| {
            let text = value.as_str()?;
            Some(format!("{}: {text}", name.replace('_', " ")))
        });
        Self {
            texts: texts.collect(),
            rows: rows(total),
            changes: None,
        }
    }

    /// With a column of changes.
    pub(super) fn with_change(self, change: &Counters) -> Self {
        Self {
            changes: Some(rows(change)),
            ..self
        }
    }
}

/// The lines of a table; names in words.
fn rows(counters: &Counters) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for (name, value) in counters.0.iter().filter(|(_, value)| !value.is_string()) {
        let name = name.replace('_', " ");
        if let Some(durations) = durations(value) {
            let parts = [
                ("p50", durations.p50),
                ("p99", durations.p99),
                ("max", durations.max),
            ];
            rows.extend(parts.map(|(part, ns)| (format!("{name}, {part}"), time(ns))));
        } else if let Value::Object(causes) = value {
            for (cause, count) in causes {
                rows.push((
                    format!("{name}, {}", cause.replace('_', " ")),
                    count.to_string(),
                ));
            }
        } else if let Some(ratio) = value.as_f64().filter(|_| value.is_f64()) {
            rows.push((name, format!("{ratio:.2}")));
        } else {
            rows.push((name, value.to_string()));
        }
    }
    rows
}

/// A duration with three digits and a unit.
fn time(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
        let names = longest(&mut self.rows.iter().map(|(name, _)| name.len()));
        let totals = longest(&mut self.rows.iter().map(|(_, total)| total.len()));
        for text in &self.texts {
            writeln!(f, "{text}")?;
        }
        for (nth, (name, total)) in self.rows.iter().enumerate() {
            if nth > 0 {
                writeln!(f)?;
            }
            write!(f, "{name:names$}  {total:>totals$}")?;
            if let Some(changes) = &self.changes {
                let change = changes.iter().find(|(changed, _)| changed == name);
                write!(f, "  {:>12}", change.map_or("", |(_, change)| change))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"{"fsyncs":2,"fsync_bytes":100,"full_commits":{"rename":1},
        "fsync_latency":{"count":2,"sum":12,"p50":3,"p99":9,"max":9,"buckets":[[3,1],[9,1]]}}"#;
    const AFTER: &str = r#"{"fsyncs":6,"fsync_bytes":300,"full_commits":{"rename":1,"link":2},
        "fsync_latency":{"count":6,"sum":40012,"p50":9,"p99":40000,"max":39000,
        "buckets":[[3,1],[9,3],[15,1],[40000,1]]}}"#;

    fn parse(json: &str) -> Counters {
        Counters::parse(json).unwrap_or(Counters(Map::new()))
    }

    #[test]
    fn changes_are_differences_and_their_own_percentiles() {
        let change = parse(AFTER).since(&parse(BEFORE));
        let expected = serde_json::json!({
            "fsyncs": 4,
            "fsync_bytes": 200,
            "full_commits": {"rename": 0, "link": 2},
            "fsync_latency": {
                "count": 4, "sum": 40000, "p50": 9, "p99": 39000, "max": 39000,
                "buckets": [[9, 2], [15, 1], [40000, 1]],
            },
            "bytes_per_fsync": 50.0,
        });
        assert_eq!(Value::Object(change.0), expected);
    }

    #[test]
    fn texts_come_first_and_do_not_change() {
        let total = parse(r#"{"fsyncs":2,"first_error":"no device"}"#);
        let change = total.since(&parse(r#"{"fsyncs":1}"#));
        assert_eq!(
            Value::Object(change.0.clone()),
            serde_json::json!({"fsyncs": 1, "first_error": "no device"})
        );
        let table = Table::of(&total).with_change(&change).to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 2, "{table}");
        assert_eq!(lines[0], "first error: no device");
    }

    #[test]
    fn nothing_happened() {
        let change = parse(AFTER).since(&parse(AFTER));
        let all = durations(&change.0["fsync_latency"]).unwrap_or_default();
        assert_eq!(all, Durations::default());
    }

    #[test]
    fn a_table_has_a_line_for_each_number() {
        let (before, after) = (parse(BEFORE), parse(AFTER));
        let table = Table::of(&after).with_change(&after.since(&before));
        let lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 8, "{lines:#?}");
        let words: Vec<Vec<&str>> = lines
            .iter()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(words.contains(&vec!["fsyncs", "6", "4"]), "{lines:#?}");
        assert!(
            words.contains(&vec!["full", "commits,", "link", "2", "2"]),
            "{lines:#?}"
        );
        let max = vec!["fsync", "latency,", "max", "39.0", "us", "39.0", "us"];
        assert!(words.contains(&max), "{lines:#?}");
        assert!(
            words.contains(&vec!["bytes", "per", "fsync", "50.00", "50.00"]),
            "{lines:#?}"
        );
    }
}
