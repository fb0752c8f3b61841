//! Transactions of SQLite; each is durable before the next begins.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::contestant::Standing;
use crate::error::{io_error, run_program};
use crate::figures::Seen;
use crate::{Error, Result};

/// Number of transactions for each requested second. It is fixed, so that all contestants do the
/// same work.
const TRANSACTIONS: u64 = 150;

pub(super) fn run(dir: &Path, standing: &mut Standing, seconds: u64) -> Result<Seen> {
    let database = dir.join("database");
    let mut create = Command::new("sqlite3");
    let table = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value BLOB);";
    run_program(create.arg(&database).arg(table))?;
    standing.begin()?;
    let count = TRANSACTIONS * seconds;
    // First with a rollback journal next to the database, then with a write-ahead log.
    let rollback = transactions(&database, &script("DELETE", 0, count))?;
    let log = transactions(&database, &script("WAL", count, count))?;
    let mut check = Command::new("sqlite3");
    let found = run_program(check.arg(&database).arg("SELECT count(*) FROM t;"))?;
    if found.trim() != (2 * count).to_string() {
        return Err(Error::Output {
            program: "sqlite3",
            what: "rows",
        });
    }
    Ok(Seen::rate(count as f64 / rollback).with("wal", count as f64 / log))
}

fn script(mode: &str, first: u64, count: u64) -> String {
    let mut text = format!("PRAGMA journal_mode = {mode};\nPRAGMA synchronous = FULL;\n");
    for number in first..first + count {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "BEGIN; INSERT INTO t VALUES ({number}, 'name {number}', randomblob(300)); COMMIT;"
        );
    }
    text
}

/// Seconds that a script took.
fn transactions(database: &Path, script: &str) -> Result<f64> {
    let began = Instant::now();
    let mut child = Command::new("sqlite3")
        .arg("-bail")
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(io_error("sqlite3"))?;
    let told = child
        .stdin
        .take()
        .map(|mut input| input.write_all(script.as_bytes()));
    let status = child.wait().map_err(io_error("sqlite3"))?;
    match (told, status.success()) {
        (Some(Ok(())), true) => Ok(began.elapsed().as_secs_f64()),
        _ => Err(Error::Program {
            program: "sqlite3".to_owned(),
            why: status.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_a_transaction_for_each_row() {
        let text = script("WAL", 5, 2);
        assert!(text.starts_with("PRAGMA journal_mode = WAL;"));
        assert_eq!(text.matches("COMMIT").count(), 2);
        assert!(text.contains("VALUES (6,"));
    }
}
