//! dbench, in a directory.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::error::run_program;
use crate::figures::Seen;
use crate::{Error, Result};

/// The load of the Debian package.
const LOAD: &str = "/usr/share/dbench/client.txt";

/// In less time, many clients have not even made their directories.
const LEAST: u64 = 5;

pub(super) fn run(dir: &Path, clients: u32, seconds: u64) -> Result<Seen> {
    let mut command = Command::new("dbench");
    command.args(["--loadfile", LOAD, "--skip-cleanup"]);
    command.args(["--timelimit", &seconds.max(LEAST).to_string()]);
    command.arg("--directory").arg(dir).arg(clients.to_string());
    read(&run_program(&mut command)?)
}

/// Parses its last line, and the table per operation before it.
fn read(text: &str) -> Result<Seen> {
    let missing = |what| Error::Output {
        program: "dbench",
        what,
    };
    let line = text.lines().find(|line| line.starts_with("Throughput "));
    let line = line.ok_or(missing("throughput"))?;
    let rate = line
        .split_whitespace()
        .nth(1)
        .and_then(|mb| mb.parse().ok());
    let slowest = line.split("max_latency=").nth(1);
    let slowest = slowest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    let operations = text.lines().filter_map(operation).collect();
    let rate = rate.filter(|rate| *rate > 0.0);
    let mut seen = Seen::rate(rate.ok_or(missing("throughput"))?);
    seen.slowest_ms = Some(slowest.ok_or(missing("latency"))?);
    seen.details = Value::Array(operations);
    Ok(seen)
}

/// A row of the table: name, count, mean and longest in milliseconds.
fn operation(line: &str) -> Option<Value> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let count: u64 = words.next()?.parse().ok()?;
    let mean: f64 = words.next()?.parse().ok()?;
    let max: f64 = words.next()?.parse().ok()?;
    let done = words.next().is_none() && line.starts_with(' ');
    done.then(|| json!({"operation": name, "count": count, "mean_ms": mean, "max_ms": max}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_and_the_table_are_read() {
        let text = "
   1     11103   351.34 MB/sec  warmup   1 sec  latency 5.186 ms
 Operation      Count    AvgLat    MaxLat
 ----------------------------------------
 NTCreateX      59345     0.016     4.002
 Flush           4158     0.811    18.126

Throughput 311.042 MB/sec  16 clients  16 procs  max_latency=18.130 ms
";
        let seen = read(text).unwrap();
        assert!((seen.rate - 311.042).abs() < 1e-9);
        assert_eq!(seen.slowest_ms, Some(18.130));
        let rows = seen.details.as_array().unwrap();
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!(rows[1]["operation"], "Flush");
        assert!(read("failed").is_err());
        let nothing = text.replace("311.042", "0");
        assert!(read(&nothing).is_err(), "nothing was done");
    }
}
