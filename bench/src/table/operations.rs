//! Tables with a column for each operation of a workload: dbench's own, and one client's.

use serde_json::Value;

use super::{BASES, Cell, Line, Table};
use crate::metric::{Metric, Source};
use crate::runner::{Entry, Row};
use crate::statistics::{Ratio, Spread};

/// A figure that the details of a run have for each operation.
struct Figure {
    key: &'static str,
    name: &'static str,
    unit: &'static str,
    /// Ratios to the base are meaningful.
    compared: bool,
}

/// All of them, in the order of the report. A workload has some.
const FIGURES: [Figure; 5] = [
    Figure::time("mean_ms", "ms"),
    Figure::time("mean_us", "µs"),
    Figure::count("client_switches", "context switches of the client, each"),
    Figure::count("server_switches", "context switches of the server, each"),
    Figure::count("requests", "requests of each operation, by kind"),
];

impl Figure {
    const fn time(key: &'static str, unit: &'static str) -> Self {
        Self {
            key,
            name: "mean time of each operation",
            unit,
            compared: true,
        }
    }

    const fn count(key: &'static str, name: &'static str) -> Self {
        Self {
            key,
            name,
            unit: "",
            compared: false,
        }
    }

    /// The columns that an operation has: one, or one for each kind of request. Whether the client
    /// is bound does not change its requests.
    fn columns(&self, details: &Value) -> Vec<Column> {
        let Some(operation) = details["operation"].as_str() else {
            return Vec::new();
        };
        let column = |kind: Option<&String>| Column {
            operation: operation.to_owned(),
            kind: kind.cloned(),
        };
        match &details[self.key] {
            Value::Number(_) => vec![column(None)],
            Value::Object(kinds) if details["bound"] != true => {
                let often = kinds.iter().filter(|(_, count)| is_often(count));
                often.map(|(kind, _)| column(Some(kind))).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Requests below one for a hundred operations do not belong to the operation.
fn is_often(count: &Value) -> bool {
    count.as_f64().is_some_and(|count| count >= 0.01)
}

#[derive(Debug, Clone, PartialEq)]
struct Column {
    operation: String,
    /// Kind of request.
    kind: Option<String>,
}

impl Column {
    fn name(&self) -> String {
        match &self.kind {
            Some(kind) => format!("{}: {kind}", self.operation),
            None => self.operation.clone(),
        }
    }

    /// The value in each round.
    fn values(&self, entry: &Entry, key: &str) -> Vec<Option<f64>> {
        let value = |details: &Value| {
            let all = details.as_array()?;
            let mut all = all.iter();
            let found = &all.find(|one| one["operation"] == *self.operation)?[key];
            match &self.kind {
                // A kind that is not there was not sent.
                Some(kind) => Some(found.as_object()?.get(kind).map_or(0.0, number)),
                None => found.as_f64(),
            }
        };
        let runs = entry.runs.iter();
        runs.map(|run| value(&run.as_ref()?.seen.details)).collect()
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// The tables of a row; none of a workload without operations.
pub(super) fn tables(row: &Row) -> impl Iterator<Item = Table> + '_ {
    FIGURES.iter().filter_map(|figure| table(row, figure))
}

fn table(row: &Row, figure: &Figure) -> Option<Table> {
    let runs = row.entries.iter();
    let runs = runs.flat_map(|entry| entry.runs.iter().flatten());
    let details = runs.filter_map(|run| run.seen.details.as_array()).flatten();
    let mut columns: Vec<Column> = Vec::new();
    for column in details.flat_map(|one| figure.columns(one)) {
        if !columns.contains(&column) {
            // Beside the others of its operation, which another contestant may have had.
            let same = |known: &Column| known.operation == column.operation;
            let at = columns.iter().rposition(same).map(|last| last + 1);
            columns.insert(at.unwrap_or(columns.len()), column);
        }
    }
    let has = |entry: &&Entry| {
        let mut columns = columns.iter();
        columns.any(|column| column.values(entry, figure.key).iter().any(Option::is_some))
    };
    let entries: Vec<&Entry> = row.entries.iter().filter(has).collect();
    let find = |name: &&&str| entries.iter().find(|entry| entry.name == **name);
    let base = BASES.iter().find(|name| find(name).is_some());
    let base = *base.as_ref().and_then(find).or(entries.first())?;
    let line = |entry: &&Entry| Line {
        name: entry.name.clone(),
        cells: columns
            .iter()
            .map(|column| cell(entry, base, column, figure))
            .collect(),
    };
    Some(Table {
        family: row.family,
        metric: Metric::low(heading(row, figure), figure.unit, Source::Slowest),
        medium: row.medium.clone(),
        base: base.name.clone(),
        lines: entries.iter().map(line).collect(),
        columns: columns.iter().map(Column::name).collect(),
        plotted: false,
    })
}

/// Rows of dbench share a family, so their headings have the number of clients.
fn heading(row: &Row, figure: &Figure) -> &'static str {
    match (figure.key, row.size.as_str()) {
        ("mean_ms", "1") => "mean time of each operation, 1 client",
        ("mean_ms", "16") => "mean time of each operation, 16 clients",
        ("mean_ms", "64") => "mean time of each operation, 64 clients",
        _ => figure.name,
    }
}

fn cell(entry: &Entry, base: &Entry, column: &Column, figure: &Figure) -> Cell {
    let [own, others] = [entry, base].map(|entry| column.values(entry, figure.key));
    let Some(spread) = Spread::of(own.iter().flatten().copied()) else {
        return Cell::Absent;
    };
    let pairs = own.iter().zip(others);
    let pairs: Vec<_> = pairs
        .filter_map(|(own, other)| Some((other?, (*own)?)))
        .collect();
    let compared = figure.compared && entry.name != base.name;
    Cell::Measured {
        spread,
        ratio: Ratio::of(&pairs).filter(|_| compared),
        failed: 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::tests::row;

    const TWO: &[Option<f64>] = &[Some(1.0), Some(1.0)];

    #[test]
    fn operations_are_columns() {
        let mut row = row("64", &[("btrfs-fuse", TWO), ("kernel-btrfs", TWO)]);
        assert_eq!(tables(&row).count(), 0);
        for (entry, mean) in row.entries.iter_mut().zip([0.5, 2.0]) {
            for run in entry.runs.iter_mut().flatten() {
                run.seen.details = json!([{"operation": "Flush", "count": 1, "mean_ms": mean}]);
            }
        }
        let all: Vec<_> = tables(&row).collect();
        let [table] = &all[..] else {
            panic!("{all:?}");
        };
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

    #[test]
    fn requests_are_columns_by_kind_and_the_kernel_has_none() {
        let mut row = row("2000", &[("kernel-btrfs", TWO), ("btrfs-fuse", TWO)]);
        for run in row.entries[0].runs.iter_mut().flatten() {
            run.seen.details = json!([{"operation": "create", "bound": false, "mean_us": 9.0}]);
        }
        for run in row.entries[1].runs.iter_mut().flatten() {
            let requests = json!({"create": 1.0, "getattr": 0.001});
            run.seen.details = json!([
                {"operation": "create", "bound": false, "mean_us": 5.0, "requests": requests},
                {"operation": "create, bound", "bound": true, "mean_us": 6.0, "requests": requests},
            ]);
        }
        let all: Vec<_> = tables(&row).collect();
        let [times, requests] = &all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(times.columns, ["create", "create, bound"]);
        assert_eq!(times.lines[0].cells[1], Cell::Absent);
        assert_eq!(requests.columns, ["create: create"]);
        assert_eq!(requests.lines.len(), 1);
        let Cell::Measured { spread, ratio, .. } = &requests.lines[0].cells[0] else {
            panic!("{requests:?}");
        };
        assert_eq!((spread.median, *ratio), (1.0, None));
    }
}
