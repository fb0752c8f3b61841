//! SQLite: a database file for each client.

use std::path::{Path, PathBuf};
use std::process::Command;

use sapwood_tests::process::{self, ORDINARY};

use super::Database;
use super::client::Client;
use super::ledger::Ledger;

/// Databases, each with the pragmas that its client begins with.
pub(crate) struct Sqlite {
    pragmas: Vec<String>,
}

impl Sqlite {
    pub(crate) fn new(pragmas: &[&str]) -> Self {
        let pragmas = pragmas.iter().map(|pragma| format!("PRAGMA {pragma};"));
        Self {
            pragmas: pragmas.collect(),
        }
    }

    fn pragmas(&self, ledger: &Ledger) -> &str {
        &self.pragmas[usize::try_from(ledger.id).unwrap()]
    }
}

fn file(root: &Path, ledger: &Ledger) -> PathBuf {
    root.join(format!("client-{}.db", ledger.id))
}

fn sqlite(root: &Path, ledger: &Ledger) -> Command {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail"]).arg(file(root, ledger));
    command
}

fn ask(root: &Path, ledger: &Ledger, sql: &str) -> Result<String, String> {
    process::succeed(sqlite(root, ledger).arg(sql), ORDINARY)
}

impl Database for Sqlite {
    fn create(&mut self, root: &Path, ledgers: &[Ledger]) -> Result<(), String> {
        for ledger in ledgers {
            let sql = format!("{}\n{}", self.pragmas(ledger), ledger.schema());
            ask(root, ledger, &sql)?;
        }
        Ok(())
    }

    fn start(&mut self, _root: &Path) -> Result<(), String> {
        Ok(())
    }

    fn query(&mut self, root: &Path, ledger: &Ledger, sql: &str) -> Result<String, String> {
        ask(root, ledger, sql)
    }

    fn check(&mut self, root: &Path, ledger: &Ledger) -> Result<(), String> {
        let said = ask(root, ledger, "PRAGMA integrity_check;")?;
        match said.trim() {
            "ok" => Ok(()),
            damage => Err(format!("client {}: integrity_check: {damage}", ledger.id)),
        }
    }

    fn connect(&mut self, root: &Path, ledger: &Ledger) -> Result<Client, String> {
        // A small log is written back into the database often.
        let pragmas = format!("{} PRAGMA wal_autocheckpoint=64;", self.pragmas(ledger));
        Client::start(sqlite(root, ledger).args(["-cmd", &pragmas]))
    }

    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }
}
