//! dbench's own table per operation.

use serde_json::Value;

use super::{BASES, Cell, Line, Table};
use crate::metric::{Metric, Source};
use crate::runner::{Entry, Row};
use crate::statistics::{Ratio, Spread};

/// Mean time of each operation; `None` of another workload.
pub(super) fn table(row: &Row) -> Option<Table> {
    let runs = row
        .entries
        .iter()
        .flat_map(|entry| entry.runs.iter().flatten());
    let mut columns: Vec<String> = Vec::new();
    for operation in runs.filter_map(|run| run.seen.details.as_array()).flatten() {
        let name = operation["operation"].as_str()?;
        if !columns.iter().any(|known| known == name) {
            columns.push(name.to_owned());
        }
    }
    if columns.is_empty() {
        return None;
    }
    let find = |name: &&&str| row.entries.iter().find(|entry| entry.name == **name);
    let base = BASES.iter().find(|name| find(name).is_some());
    let base = base.as_ref().and_then(find).or(row.entries.first())?;
    let line = |entry: &Entry| Line {
        name: entry.name.clone(),
        cells: columns
            .iter()
            .map(|column| cell(entry, base, column))
            .collect(),
    };
    Some(Table {
        family: row.family,
        metric: Metric::low(heading(&row.size), "ms", Source::Slowest),
        medium: row.medium.clone(),
        base: base.name.clone(),
        lines: row.entries.iter().map(line).collect(),
        columns,
        plotted: false,
    })
}

fn heading(clients: &str) -> &'static str {
    match clients {
        "1" => "mean time of each operation, 1 client",
        "16" => "mean time of each operation, 16 clients",
        "64" => "mean time of each operation, 64 clients",
        _ => "mean time of each operation",
    }
}

/// Mean time in each round, in milliseconds.
fn means(entry: &Entry, operation: &str) -> Vec<Option<f64>> {
    let mean = |details: &Value| {
        let all = details.as_array()?;
        let found = all.iter().find(|one| one["operation"] == operation)?;
        found["mean_ms"].as_f64()
    };
    let runs = entry.runs.iter();
    runs.map(|run| mean(&run.as_ref()?.seen.details)).collect()
}

fn cell(entry: &Entry, base: &Entry, operation: &str) -> Cell {
    let (own, others) = (means(entry, operation), means(base, operation));
    let Some(spread) = Spread::of(own.iter().flatten().copied()) else {
        return Cell::Absent;
    };
    let pairs = own.iter().zip(others);
    let pairs: Vec<_> = pairs
        .filter_map(|(own, other)| Some((other?, (*own)?)))
        .collect();
    Cell::Measured {
        spread,
        ratio: Ratio::of(&pairs).filter(|_| entry.name != base.name),
        failed: 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::tests::row;

    #[test]
    fn operations_are_columns() {
        let two: &[Option<f64>] = &[Some(1.0), Some(1.0)];
        let mut row = row("64", &[("btrfs-fuse", two), ("kernel-btrfs", two)]);
        assert!(table(&row).is_none());
        for (entry, mean) in row.entries.iter_mut().zip([0.5, 2.0]) {
            for run in entry.runs.iter_mut().flatten() {
                run.seen.details = json!([{"operation": "Flush", "count": 1, "mean_ms": mean}]);
            }
        }
        let table = table(&row).unwrap();
        assert_eq!(table.columns, ["Flush"]);
        assert_eq!(table.base, "kernel-btrfs");
        let Cell::Measured {
            ratio: Some(ratio), ..
        } = &table.lines[0].cells[0]
        else {
            panic!("{table:?}");
        };
        assert!((ratio.value - 4.0).abs() < 1e-9);
    }
}
