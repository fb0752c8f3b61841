//! The report of a run: JSON, and Markdown made of it.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::runner::{Entry, Heading, Measured};
use crate::statistics::{Ratio, Spread};

/// A run of the suite.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) title: String,
    pub(crate) machine: String,
    pub(crate) rounds: usize,
    pub(crate) seconds: u64,
    pub(crate) rows: Vec<Measured>,
}

/// Contestants with which the others are compared: the first of these that runs.
const BASES: [&str; 4] = ["kernel-btrfs", "mkfs.btrfs", "kernel-ext4", "mke2fs"];

/// The contestant that does nothing: the limit of a mount with a daemon.
const LIMIT: &str = "fuse-limit";
/// Suffixes of the contestants that are mounts with a daemon of Sapwood.
const SERVED: [&str; 3] = ["-fuse", "-loop", "-trusted"];

impl Heading {
    /// The spread of a contestant's values over the rounds.
    pub(crate) fn spread(&self, entry: &Entry) -> Option<Spread> {
        Spread::of(
            entry
                .runs
                .iter()
                .filter_map(|run| run.get(&self.key).copied()),
        )
    }

    /// The ratio of `entry` to `base`, from pairs of one round. A ratio above 1 means that `entry`
    /// is better, also if less of the figure is better.
    pub(crate) fn ratio(&self, entry: &Entry, base: &Entry) -> Option<Ratio> {
        let pairs = entry
            .runs
            .iter()
            .zip(&base.runs)
            .filter_map(|(one, other)| {
                let (one, other) = (*one.get(&self.key)?, *other.get(&self.key)?);
                Some(if self.lower {
                    (other, one)
                } else {
                    (one, other)
                })
            });
        Ratio::of(&pairs.collect::<Vec<_>>())
    }

    fn to_text(&self) -> String {
        match self.unit.as_str() {
            "" => self.title.clone(),
            unit => format!("{}, {unit}", self.title),
        }
    }
}

impl Measured {
    /// The contestant of this name.
    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The contestant with which the others are compared: one of [`BASES`], or the first one.
    fn base(&self) -> Option<&Entry> {
        let found = BASES.iter().find_map(|name| self.entry(name));
        found.or(self.entries.first())
    }
}

impl Report {
    /// The first figure of each row, as a table in Markdown.
    pub(crate) fn summary(&self) -> String {
        let mut out = "| row | figure | contestant | median | times as good |\n".to_owned();
        out += "|---|---|---|--:|---|\n";
        for row in &self.rows {
            let figure = &row.figures[0];
            for name in row.entries.iter().map(|entry| &entry.name) {
                let (median, ratio) = measured(row, figure, name).unwrap_or_default();
                let ratio = match row.base() {
                    Some(base) if !ratio.is_empty() => format!("{ratio} ({})", base.name),
                    _ => "–".to_owned(),
                };
                let (row, figure) = (&row.row, figure.to_text());
                // Writing to a string does not fail.
                let _ = writeln!(out, "| {row} | {figure} | {name} | {median} | {ratio} |");
            }
        }
        out
    }

    /// The whole report as Markdown.
    pub(crate) fn to_markdown(&self) -> String {
        let mut out = format!("# {}\n\n{}.\n\n", self.title, self.machine);
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{} rounds, runs of {} s where they have no end of their own. Medians (and the extremes \
             of the rounds); below them how many times as good the contestant is as another one, \
             with the 95 % interval: above 1 it is better, also where a lower value is. A ratio \
             within its noise is not stated.",
            self.rounds, self.seconds
        );
        let pairs = |row: &Measured| (row.title.clone(), row.medium.clone());
        for rows in self.rows.chunk_by(|one, other| pairs(one) == pairs(other)) {
            let (title, medium) = pairs(&rows[0]);
            let _ = writeln!(out, "\n## {title} (image in {})", medium.display());
            for figure in &rows[0].figures {
                table(&mut out, rows, figure);
            }
            for row in rows {
                failures(&mut out, row);
            }
        }
        out
    }
}

/// A table of one figure with a line for each contestant and a column for each size.
fn table(out: &mut String, rows: &[Measured], figure: &Heading) {
    let has = |entry: &&Entry| figure.spread(entry).is_some();
    let mut names: Vec<&str> = Vec::new();
    for entry in rows.iter().flat_map(|row| &row.entries).filter(has) {
        if !names.contains(&entry.name.as_str()) {
            names.push(&entry.name);
        }
    }
    if names.is_empty() {
        return;
    }
    let bases: BTreeSet<_> = rows
        .iter()
        .filter_map(|row| Some(row.base()?.name.as_str()))
        .collect();
    let bases = bases.into_iter().collect::<Vec<_>>().join(" or ");
    let sizes: Vec<_> = rows.iter().map(|row| row.size.as_str()).collect();
    let _ = write!(out, "\n{}; ratios to {bases}:\n\n| | ", figure.to_text());
    let _ = writeln!(
        out,
        "{} |\n|---|{}",
        sizes.join(" | "),
        "--:|".repeat(sizes.len())
    );
    for name in names {
        let cells: Vec<_> = rows.iter().map(|row| cell(row, figure, name)).collect();
        let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
    }
}

fn cell(row: &Measured, figure: &Heading, name: &str) -> String {
    match measured(row, figure, name) {
        None => "–".to_owned(),
        Some((median, ratio)) if ratio.is_empty() => median + &share(row, figure, name),
        Some((median, ratio)) => format!("{median}<br>{ratio}{}", share(row, figure, name)),
    }
}

/// The ratio of a mount's median to the limit of FUSE, if that ran in this row.
fn share(row: &Measured, figure: &Heading, name: &str) -> String {
    let base = name.split([':', '~', '@', '+']).next().unwrap_or(name);
    let served = SERVED.iter().any(|suffix| base.ends_with(suffix));
    let median = |name: &str| Some(figure.spread(row.entry(name)?)?.median);
    match (median(name), median(LIMIT)) {
        (Some(own), Some(limit)) if served => {
            let share = if figure.lower {
                limit / own
            } else {
                own / limit
            };
            format!("<br>{} of {LIMIT}", number(share))
        }
        _ => String::new(),
    }
}

/// Median with the extremes, and the ratio to the base of the contestant, if it has one.
fn measured(row: &Measured, figure: &Heading, name: &str) -> Option<(String, String)> {
    let entry = row.entry(name)?;
    let Spread { median, min, max } = figure.spread(entry)?;
    let [median, min, max] = [median, min, max].map(number);
    let base = row.base().filter(|base| base.name != name);
    let ratio = base.and_then(|base| figure.ratio(entry, base));
    let ratio = ratio.map_or_else(String::new, Ratio::to_text);
    Some((format!("{median} ({min}–{max})"), ratio))
}

fn failures(out: &mut String, row: &Measured) {
    for entry in &row.entries {
        if let Some(first) = entry.failures.first() {
            let (count, all) = (entry.failures.len(), entry.runs.len());
            let _ = write!(
                out,
                "\n{} {}: {count} of {all} runs failed: {first}\n",
                row.row, entry.name
            );
        }
    }
}

/// A number with a useful number of digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of one figure. Less of it is better.
    pub(crate) fn report(row: &str, entries: &[(&str, &[f64])]) -> Report {
        let run = |value: &f64| [("s".to_owned(), *value)].into();
        let entries = entries.iter().map(|(name, values)| Entry {
            name: (*name).to_owned(),
            runs: values.iter().map(run).collect(),
            failures: Vec::new(),
        });
        let row = Measured {
            row: row.to_owned(),
            title: "a task".to_owned(),
            size: "8".to_owned(),
            medium: "/disk".into(),
            figures: vec![Heading {
                key: "s".to_owned(),
                title: "time".to_owned(),
                unit: "s".to_owned(),
                lower: true,
            }],
            entries: entries.collect(),
        };
        Report {
            title: "Title".to_owned(),
            machine: "a machine".to_owned(),
            rounds: 2,
            seconds: 1,
            rows: vec![row],
        }
    }

    #[test]
    fn a_ratio_above_one_is_better_whichever_end_is_good() {
        let times: &[(&str, &[f64])] = &[("ours", &[2.0, 2.0]), ("kernel-btrfs", &[1.0, 1.0])];
        let report = report("task-8", times);
        let (row, mut figure) = (&report.rows[0], report.rows[0].figures[0].clone());
        let ratio = |figure: &Heading| {
            figure
                .ratio(&row.entries[0], &row.entries[1])
                .unwrap()
                .value
        };
        assert!((ratio(&figure) - 0.5).abs() < 1e-9);
        figure.lower = false;
        assert!((ratio(&figure) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_table_has_medians_ratios_and_failures() {
        let times: &[(&str, &[f64])] = &[
            ("ours", &[0.5, 0.5]),
            ("kernel-btrfs", &[1.0, 1.0]),
            ("late", &[]),
        ];
        let mut one = report("task-8", times);
        one.rows[0].entries[2].failures.push("no space".to_owned());
        let mut other = one.rows[0].clone();
        other.size = "9".to_owned();
        one.rows.push(other);
        let text = one.to_markdown();
        assert!(
            text.contains("time, s; ratios to kernel-btrfs:\n\n| | 8 | 9 |\n|---|--:|--:|\n"),
            "{text}"
        );
        let cell = "0.50 (0.50–0.50)<br>2.00 [2.00, 2.00]";
        assert!(
            text.contains(&format!("| ours | {cell} | {cell} |")),
            "{text}"
        );
        assert!(
            text.contains("task-8 late: 1 of 0 runs failed: no space"),
            "{text}"
        );
        let line =
            "| task-8 | time, s | ours | 0.50 (0.50–0.50) | 2.00 [2.00, 2.00] (kernel-btrfs) |";
        assert!(one.summary().contains(line), "{}", one.summary());
        assert_eq!(text.matches("## a task (image in /disk)").count(), 1);
        let json = serde_json::to_string(&one).unwrap();
        let read: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(read.to_markdown(), text);
    }

    #[test]
    fn a_mount_with_a_daemon_shows_its_share_of_the_limit() {
        let times: &[(&str, &[f64])] = &[
            ("btrfs-fuse:commit=5", &[2.0, 2.0]),
            ("kernel-btrfs", &[2.0, 2.0]),
            ("fuse-limit", &[1.0, 1.0]),
        ];
        let text = report("task-8", times).to_markdown();
        assert_eq!(
            text.matches("<br>0.50 of fuse-limit |").count(),
            1,
            "{text}"
        );
    }

    #[test]
    fn numbers_have_the_digits_that_they_deserve() {
        let all = [0.0123, 9.876, 56.78, 12345.6].map(number);
        assert_eq!(all, ["0.01", "9.88", "56.8", "12346"]);
    }
}
