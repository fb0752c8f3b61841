//! Tables of contestants by sizes of a workload, for every form of output.

mod operations;

use std::path::PathBuf;

use crate::metric::Metric;
use crate::runner::{Entry, Row};
use crate::statistics::{Ratio, Spread};

/// One figure of one family of workloads on one medium.
#[derive(Debug, Clone)]
pub struct Table {
    /// Family.
    pub family: &'static str,
    /// Figure.
    pub metric: Metric,
    /// Directory of the images.
    pub medium: PathBuf,
    /// The contestant with which ratios compare.
    pub base: String,
    /// Sizes of the workload.
    pub columns: Vec<String>,
    /// A line for each contestant.
    pub lines: Vec<Line>,
    /// The columns have an order, or are few, so that a plot is useful.
    pub plotted: bool,
}

/// The results of one contestant.
#[derive(Debug, Clone)]
pub struct Line {
    /// Contestant.
    pub name: String,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// The result of one contestant at one size.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// The contestant does not run this size.
    Absent,
    /// Every run failed, for this reason.
    Failed(String),
    /// Measured.
    Measured {
        /// Over the rounds.
        spread: Spread,
        /// How many times as good as the base; `None` for the base and for single rounds.
        ratio: Option<Ratio>,
        /// Runs that failed.
        failed: usize,
    },
}

/// Peers for ratios; the first one that runs is the base.
pub const BASES: [&str; 2] = ["kernel-btrfs", "kernel-ext4"];

/// Makes tables of rows. Adjacent rows of one family and medium are in one table.
#[must_use]
pub fn tables(rows: &[Row]) -> Vec<Table> {
    let same = |one: &Row, other: &Row| (one.family, &one.medium) == (other.family, &other.medium);
    let groups = rows.chunk_by(same);
    groups
        .flat_map(|rows| {
            let metrics = rows.first().map(|row| row.metrics.clone());
            let tables = metrics.unwrap_or_default().into_iter();
            let tables = tables.filter_map(|metric| table(rows, metric));
            tables.chain(rows.iter().flat_map(operations::tables))
        })
        .collect()
}

/// `None` if no contestant has the figure.
fn table(rows: &[Row], metric: Metric) -> Option<Table> {
    let first = rows.first()?;
    let mut names: Vec<&str> = Vec::new();
    for entry in rows.iter().flat_map(|row| &row.entries) {
        if !names.contains(&entry.name.as_str()) {
            names.push(&entry.name);
        }
    }
    let base = BASES.iter().find(|base| names.contains(base));
    let base = base.or(names.first())?.to_string();
    let lines: Vec<Line> = names
        .iter()
        .map(|name| Line {
            name: (*name).to_owned(),
            cells: rows
                .iter()
                .map(|row| cell(row, &metric, name, &base))
                .collect(),
        })
        .filter(|line| line.cells.iter().any(|cell| *cell != Cell::Absent))
        .collect();
    let measured = |line: &Line| {
        line.cells
            .iter()
            .any(|cell| matches!(cell, Cell::Measured { .. }))
    };
    lines.iter().any(measured).then(|| Table {
        family: first.family,
        metric,
        medium: first.medium.clone(),
        base,
        columns: rows.iter().map(|row| row.size.clone()).collect(),
        lines,
        plotted: true,
    })
}

fn cell(row: &Row, metric: &Metric, name: &str, base: &str) -> Cell {
    let find = |name: &str| row.entries.iter().find(|entry| entry.name == name);
    let Some(entry) = find(name) else {
        return Cell::Absent;
    };
    let Some(spread) = metric.spread(entry) else {
        return match entry.failures.first() {
            Some(why) if entry.runs.iter().all(Option::is_none) => Cell::Failed(why.clone()),
            _ => Cell::Absent,
        };
    };
    let ratio = |base: &Entry| metric.ratio(entry, base);
    Cell::Measured {
        spread,
        ratio: find(base).filter(|_| name != base).and_then(ratio),
        failed: entry.failures.len(),
    }
}

impl Table {
    /// Family and medium, for the heading of a section.
    #[must_use]
    pub fn section(&self) -> String {
        format!("{} (image in {})", self.family, self.medium.display())
    }

    /// Figure and unit, for the heading of a table.
    #[must_use]
    pub fn heading(&self) -> String {
        match self.metric.unit {
            "" => self.metric.name.to_owned(),
            unit => format!("{}, {unit}", self.metric.name),
        }
    }

    /// A number on an axis.
    #[must_use]
    pub fn tick(value: f64) -> String {
        let text = Self::number(value);
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    }

    /// A number with a useful number of digits.
    #[must_use]
    pub fn number(value: f64) -> String {
        match value.abs() {
            large if large >= 100.0 => format!("{value:.0}"),
            middle if middle >= 10.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::figures::{Figures, Seen};
    use crate::metric::Source;

    /// A row of one metric; a contestant's rates, or none of a failed run.
    pub(crate) fn row(size: &str, entries: &[(&str, &[Option<f64>])]) -> Row {
        let figures = |rate: &Option<f64>| {
            rate.map(|rate| Figures {
                seen: Seen::rate(rate),
                counted: None,
                free_cpu: 1.0,
            })
        };
        let entry = |(name, rates): &(&str, &[Option<f64>])| Entry {
            name: (*name).to_owned(),
            runs: rates.iter().map(figures).collect(),
            failures: vec![
                "no space".to_owned();
                rates.iter().filter(|rate| rate.is_none()).count()
            ],
        };
        Row {
            workload: format!("seq-{size}"),
            family: "sequential",
            size: size.to_owned(),
            unit: "MiB/s",
            metrics: vec![
                Metric::high("bandwidth", "MiB/s", Source::Rate),
                Metric::low("fsync", "ms", Source::FsyncP50),
            ],
            face: "FUSE",
            medium: "/image".into(),
            entries: entries.iter().map(entry).collect(),
        }
    }

    #[test]
    fn rows_of_a_family_make_a_table_of_each_figure_that_someone_has() {
        let rows = [
            row(
                "1",
                &[
                    ("ours", &[Some(4.0), Some(4.0)]),
                    ("kernel-btrfs", &[Some(2.0), Some(2.0)]),
                ],
            ),
            row("2", &[("kernel-btrfs", &[Some(3.0)]), ("late", &[None])]),
        ];
        let tables = tables(&rows);
        assert_eq!(tables.len(), 1, "{tables:?}");
        let Table {
            base,
            columns,
            lines,
            ..
        } = &tables[0];
        assert_eq!((base.as_str(), columns.len()), ("kernel-btrfs", 2));
        let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["ours", "kernel-btrfs", "late"]);
        let Cell::Measured {
            spread,
            ratio: Some(ratio),
            failed: 0,
        } = &lines[0].cells[0]
        else {
            panic!("{lines:?}");
        };
        assert_eq!((spread.median, ratio.value), (4.0, 2.0));
        assert_eq!(lines[0].cells[1], Cell::Absent);
        assert!(matches!(
            lines[1].cells[0],
            Cell::Measured { ratio: None, .. }
        ));
        assert_eq!(lines[2].cells[1], Cell::Failed("no space".to_owned()));
    }

    #[test]
    fn another_medium_begins_another_table() {
        let one = row("1", &[("ours", &[Some(1.0)])]);
        let other = Row {
            medium: "/memory".into(),
            ..one.clone()
        };
        assert_eq!(tables(&[one.clone(), one.clone(), other]).len(), 2);
        assert_eq!(tables(&[one])[0].base, "ours");
        assert_eq!(tables(&[]).len(), 0);
    }

    #[test]
    fn numbers_have_the_digits_that_they_deserve() {
        let all = [0.0123, 9.876, 56.78, 12345.6].map(Table::number);
        assert_eq!(all, ["0.01", "9.88", "56.8", "12346"]);
        let all = [0.0, 0.5, 20.0, 500.0].map(Table::tick);
        assert_eq!(all, ["0", "0.5", "20", "500"]);
    }
}
