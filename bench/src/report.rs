//! Reports: JSON for programs, Markdown for users.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::figures::{Counted, Figures};
use crate::machine::Machine;
use crate::runner::{Entry, Row};
use crate::statistics::{Ratio, Spread};

/// All measurements of a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Its subject.
    pub title: &'static str,
    /// Command line.
    pub command: String,
    /// Seconds of a timed run.
    pub seconds: u64,
    /// Rounds.
    pub rounds: usize,
    /// The machine.
    pub machine: Machine,
    /// True if it has a part about targets.
    pub judged: bool,
    /// Rows so far.
    pub rows: Vec<Row>,
}

impl Report {
    /// An empty report of this command.
    #[must_use]
    pub fn new(title: &'static str, rounds: usize, seconds: u64) -> Self {
        Self {
            title,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            seconds,
            rounds,
            machine: Machine::here(),
            judged: false,
            rows: Vec::new(),
        }
    }

    /// As JSON.
    ///
    /// # Errors
    /// Only if memory is exhausted.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// From the JSON of an earlier report. Names in a report live as long as the process, and so
    /// does the text that they point into.
    ///
    /// # Errors
    /// The text is not the JSON of a report.
    pub fn from_json(text: &'static str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// As Markdown.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    /// Machine, load and parameters, as paragraphs.
    #[must_use]
    pub fn head(&self) -> Vec<String> {
        let Machine {
            kernel,
            processor,
            processors,
            memory,
            load,
            versions,
        } = &self.machine;
        vec![
            format!(
                "Linux {kernel}, {processors} x {processor}, {} GiB; {}.",
                memory >> 30,
                versions.join(", ")
            ),
            format!(
                "Load averages at the start: {load}. {} {}",
                self.busy(),
                self.noise()
            ),
            MOUNTS.to_owned(),
            format!(
                "`{}`: {} rounds, runs of {} s, interleaved, a fresh file system for each run.",
                self.command, self.rounds, self.seconds
            ),
        ]
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "# {}\n", self.title)?;
        for line in self.head() {
            writeln!(out, "{line}\n")?;
        }
        writeln!(out, "{EXPLAIN}\n")?;
        let mut last = None;
        for row in &self.rows {
            let section = (row.face, &row.medium);
            if last != Some(section) {
                writeln!(out, "## {}, image in {}\n", row.face, row.medium.display())?;
                writeln!(out, "{HEAD}")?;
                last = Some(section);
            }
            write_row(out, row)?;
        }
        Ok(())
    }

    /// How much the contestants differ from themselves.
    fn noise(&self) -> String {
        let controls = self.rows.iter().flat_map(|row| {
            let of = |entry: &Entry| {
                let name = entry.name.strip_suffix("+control")?;
                let first = row.entries.iter().find(|other| other.name == name)?;
                let ratio = ratio(first, entry)?;
                Some((ratio.value.ln().abs().exp() - 1.0) * 100.0)
            };
            row.entries.iter().filter_map(of).collect::<Vec<_>>()
        });
        match Spread::of(controls) {
            Some(off) => format!(
                "Noise: a contestant that ran twice differed from itself by {:.1} % (of {:.1} to {:.1} %).",
                off.median, off.min, off.max
            ),
            None => String::new(),
        }
    }

    /// Load of the machine by other processes.
    fn busy(&self) -> String {
        let entries = self.rows.iter().flat_map(|row| &row.entries);
        let runs = entries.flat_map(|entry| entry.runs.iter().flatten());
        match Spread::of(runs.map(|run| run.free_cpu * 100.0)) {
            Some(free) => format!(
                "Processor time that was free before a run: {:.0} % (of all runs {:.0} to {:.0} %).",
                free.median, free.min, free.max
            ),
            None => String::new(),
        }
    }
}

/// Mount options of the file systems; see `peer` and `contestant`.
const MOUNTS: &str = "\
Mounts: kernel-btrfs `-o ssd,nodiscard`, kernel-ext4 `-o noinit_itable` (nobody zeroes inode tables meanwhile), \
kernel-xfs and fuse2fs by default; the kernel's on loop devices, with direct I/O where the file system \
below can. Sapwood as root has it by default, on the image file (with PostgreSQL, which runs as another user, \
it and fuse2fs with `allow_other`); commits every 30 s (btrfs) and 5 s (ext4), as \
the kernel's. Images of btrfs and ext4 are the same for us and for others. On a disk all have the same image \
file, one after the other, which was written out whole beforehand (not with `--sparse`), so that the file \
system below has nothing to allocate; in memory a sparse one.";

const EXPLAIN: &str = "\
Rates are medians (least to greatest). *worth*: rate of `on` divided by that of the row, with its \
95 % interval; above 1 the mechanism pays; `too noisy` where the spread leaves no meaning. \
`on (control)` is `on` once more: what it differs from 1 is noise. Latencies are in milliseconds, \
medians of the rounds. *log* bytes and flushes are what fsyncs wrote by way of the log, *device* \
all that was written, both per fsync; *shared*: fsyncs per log commit; *full*: fsyncs that \
committed a transaction.";

const HEAD: &str = "\
| workload | log | rate | worth | fsync p50 | p99 | max | log KiB | log flushes | device KiB | device flushes | shared | full |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

fn write_row(out: &mut String, row: &Row) -> std::fmt::Result {
    let Some(base) = row.entries.first() else {
        return Ok(());
    };
    for (number, entry) in row.entries.iter().enumerate() {
        let name = if number == 0 {
            row.workload.as_str()
        } else {
            ""
        };
        let worth = if number == 0 {
            "1".to_owned()
        } else {
            worth(base, entry)
        };
        write!(
            out,
            "| {name} | {} | {} | {worth} |",
            entry.name,
            rate(row, entry)
        )?;
        for cell in cells(entry) {
            write!(out, " {cell} |")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Ratio of the rates of `entry` and `base`, over the rounds that both have.
#[must_use]
pub fn ratio(base: &Entry, entry: &Entry) -> Option<Ratio> {
    let pairs = base.runs.iter().zip(&entry.runs);
    let both = pairs.filter_map(|(one, other)| {
        let (one, other) = (one.as_ref()?, other.as_ref()?);
        Some((one.seen.rate, other.seen.rate))
    });
    Ratio::of(&both.collect::<Vec<_>>())
}

fn worth(base: &Entry, entry: &Entry) -> String {
    ratio(base, entry).map_or_else(|| "–".to_owned(), |ratio| ratio.to_text())
}

fn rate(row: &Row, entry: &Entry) -> String {
    let runs = entry.runs.iter().flatten();
    let Some(rate) = Spread::of(runs.map(|run| run.seen.rate)) else {
        let why = entry.failures.first();
        return why.map_or_else(|| "–".to_owned(), |why| format!("failed: {why}"));
    };
    let digits = if rate.median < 100.0 { 1 } else { 0 };
    let mut text = format!(
        "{:.digits$} {} ({:.digits$}–{:.digits$})",
        rate.median, row.unit, rate.min, rate.max
    );
    if row.unit == "renames/s" {
        let _ = write!(text, ", {:.1} µs each", 1e6 / rate.median);
    }
    if !entry.failures.is_empty() {
        let _ = write!(text, ", {} failed", entry.failures.len());
    }
    text
}

/// The columns after rate and effect.
fn cells(entry: &Entry) -> [String; 9] {
    let latency = |value: fn(&Figures) -> Option<f64>| {
        middle(entry, value).map_or_else(|| "–".to_owned(), |ms| format!("{ms:.2}"))
    };
    let per = |value: fn(&Counted) -> f64, below: fn(&Counted) -> u64, digits: usize| {
        let runs = entry.runs.iter().flatten();
        let shares = runs.filter_map(|run| {
            let counted = run.counted.as_ref()?;
            let below = below(counted);
            (below > 0).then(|| value(counted) / below as f64)
        });
        Spread::of(shares).map_or_else(|| "–".to_owned(), |all| format!("{:.digits$}", all.median))
    };
    [
        latency(|run| Some(run.seen.fsync?.p50 / 1000.0)),
        latency(|run| Some(run.seen.fsync?.p99 / 1000.0)),
        latency(|run| match run.seen.fsync {
            Some(fsync) => Some(fsync.max / 1000.0),
            None => run.seen.slowest_ms,
        }),
        per(|c| c.fsync_bytes as f64 / 1024.0, |c| c.fsyncs, 1),
        per(|c| c.fsync_flushes as f64, |c| c.fsyncs, 2),
        per(|c| c.device_bytes as f64 / 1024.0, |c| c.fsyncs, 1),
        per(|c| c.device_flushes as f64, |c| c.fsyncs, 2),
        per(|c| (c.fsyncs - c.full_fsyncs) as f64, |c| c.log_commits, 2),
        middle(entry, |run| Some(run.counted.as_ref()?.full_fsyncs as f64))
            .map_or_else(|| "–".to_owned(), |full| format!("{full:.0}")),
    ]
}

/// Median of a figure over the rounds that have it.
fn middle(entry: &Entry, value: fn(&Figures) -> Option<f64>) -> Option<f64> {
    let found = entry.runs.iter().flatten().filter_map(value);
    Spread::of(found).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Latency, Seen};

    fn figures(rate: f64) -> Option<Figures> {
        let latency = Latency {
            p50: 1000.0,
            p99: 2000.0,
            max: 3000.0,
        };
        let mut seen = Seen::rate(rate);
        seen.fsync = Some(latency);
        let counted = Counted {
            fsyncs: 10,
            full_fsyncs: 2,
            log_commits: 4,
            fsync_bytes: 10 << 10,
            ..Counted::default()
        };
        Some(Figures {
            seen,
            counted: Some(counted),
            free_cpu: 0.5,
        })
    }

    fn row(off: [f64; 3]) -> Row {
        let entry = |name: &str, rates: [f64; 3]| Entry {
            name: name.to_owned(),
            runs: rates.into_iter().map(figures).collect(),
            failures: Vec::new(),
        };
        Row {
            workload: "seq-1".to_owned(),
            family: "sequential",
            size: "1".to_owned(),
            metrics: Vec::new(),
            unit: "MiB/s",
            face: "FUSE",
            medium: "/image".into(),
            entries: vec![entry("on", [100.0, 110.0, 120.0]), entry("all-off", off)],
        }
    }

    fn report(row: Row) -> String {
        let mut report = Report::new("Mechanisms", 3, 5);
        report.rows = vec![row];
        assert!(report.to_json().unwrap().contains("\"all-off\""));
        report.to_markdown()
    }

    #[test]
    fn a_steady_ratio_is_stated_with_all_figures() {
        let text = report(row([50.0, 55.0, 60.0]));
        let line = text.lines().find(|line| line.contains("all-off")).unwrap();
        let expected = "|  | all-off | 55.0 MiB/s (50.0–60.0) | 2.00 [2.00, 2.00] | \
            1.00 | 2.00 | 3.00 | 1.0 | 0.00 | 0.0 | 0.00 | 2.00 | 2 |";
        assert_eq!(line, expected);
    }

    #[test]
    fn a_noisy_ratio_and_missing_rounds_are_not_made_up() {
        let text = report(row([50.0, 300.0, 60.0]));
        assert!(text.contains("too noisy"), "{text}");
        let mut broken = row([1.0, 1.0, 1.0]);
        broken.entries[1].runs = vec![None, None, None];
        broken.entries[1].failures = vec!["no space".to_owned(); 3];
        let text = report(broken);
        assert!(text.contains("failed: no space | – |"), "{text}");
    }
}
