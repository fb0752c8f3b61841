//! The commits of a client, and the required state afterwards.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sapwood_tests::random::Random;

/// Transactions whose rows are kept; older ones are deleted.
const KEPT: u64 = 150;

/// The commits of one client, numbered from 1.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Number of the client.
    pub(crate) id: u64,
    /// The last transaction that is known to be committed.
    acknowledged: u64,
    /// The last that was sent.
    sent: u64,
    /// Acknowledged commits that a crash may undo.
    may_lose: u64,
    /// Acknowledgements over all rounds.
    pub(crate) all_acknowledged: u64,
}

impl Ledger {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            acknowledged: 0,
            sent: 0,
            may_lose: 0,
            all_acknowledged: 0,
        }
    }

    /// For a database that does not promise to keep its last commits.
    pub(crate) fn that_may_lose(self, may_lose: u64) -> Self {
        Self { may_lose, ..self }
    }

    /// Makes the tables.
    pub(crate) fn schema(&self) -> String {
        let id = self.id;
        format!(
            "CREATE TABLE rows_{id} (tx BIGINT, nth BIGINT, body TEXT, PRIMARY KEY (tx, nth));
             CREATE INDEX bodies_{id} ON rows_{id} (nth, tx);
             CREATE TABLE last_{id} (tx BIGINT);
             INSERT INTO last_{id} VALUES (0);\n"
        )
    }

    /// The last transaction that is there.
    pub(crate) fn last_query(&self) -> String {
        format!("SELECT tx FROM last_{};", self.id)
    }

    /// All rows.
    pub(crate) fn all_query(&self) -> String {
        let id = self.id;
        format!("SELECT tx, nth, body FROM rows_{id} ORDER BY tx, nth;")
    }

    /// The rows of a transaction.
    fn rows(&self, tx: u64) -> Vec<String> {
        let mut random = Random::new(tx << 8 | self.id);
        let count = 1 + random.below(5);
        let len = |random: &mut Random| match random.below(12) {
            0 => random.below(30_000),
            _ => random.below(600),
        };
        let bodies = (0..count).map(|_| {
            let len = usize::try_from(len(&mut random)).unwrap();
            String::from_utf8(random.text(len)).unwrap()
        });
        bodies.collect()
    }

    fn transaction(&self, tx: u64) -> String {
        let id = self.id;
        let mut sql = format!("BEGIN;\nUPDATE last_{id} SET tx = {tx};\n");
        for (nth, body) in self.rows(tx).iter().enumerate() {
            let _ = writeln!(sql, "INSERT INTO rows_{id} VALUES ({tx}, {nth}, '{body}');");
        }
        if tx > KEPT {
            let _ = writeln!(sql, "DELETE FROM rows_{id} WHERE tx = {};", tx - KEPT);
        }
        sql + &format!("COMMIT;\nSELECT 'done {tx}';\n")
    }

    /// Commits one transaction after the other until the client ends. The client ends at its first
    /// error, so its output after a commit proves the commit.
    pub(crate) fn commit_until_the_end(
        &mut self,
        mut input: ChildStdin,
        output: BufReader<ChildStdout>,
        acknowledged: &AtomicU64,
        killed: &AtomicBool,
    ) {
        let mut lines = output.lines();
        loop {
            let tx = self.sent + 1;
            let sql = self.transaction(tx);
            self.sent = tx;
            if input.write_all(sql.as_bytes()).is_err() {
                return;
            }
            let wanted = format!("done {tx}");
            loop {
                match lines.next() {
                    Some(Ok(line)) if line == wanted => break,
                    Some(Ok(_)) => {}
                    _ => return,
                }
            }
            if killed.load(Ordering::SeqCst) {
                return;
            }
            self.acknowledged = tx;
            self.all_acknowledged += 1;
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Compares the tables, as the answers to the two queries, with the allowed states.
    ///
    /// # Errors
    /// The lost or wrong rows.
    pub(crate) fn compare(&mut self, last: &str, all: &str) -> Result<(), String> {
        let id = self.id;
        let last = last.trim();
        let found: u64 = last
            .parse()
            .map_err(|_| format!("client {id}: the last transaction is {last:?}"))?;
        let least = self.acknowledged.saturating_sub(self.may_lose);
        if !(least..=self.sent).contains(&found) {
            let (acknowledged, sent) = (self.acknowledged, self.sent);
            return Err(format!(
                "client {id}: the last transaction is {found}; {acknowledged} was acknowledged, {sent} was sent"
            ));
        }
        let mut lines = all.lines();
        for tx in (found.saturating_sub(KEPT) + 1)..=found {
            for (nth, body) in self.rows(tx).iter().enumerate() {
                let wanted = format!("{tx}|{nth}|{body}");
                let line = lines.next().unwrap_or("");
                if line != wanted {
                    let short = |text: &str| text.chars().take(60).collect::<String>();
                    return Err(format!(
                        "client {id}, up to {found}: row {:?} instead of {:?} ({} and {} bytes)",
                        short(line),
                        short(&wanted),
                        line.len(),
                        wanted.len()
                    ));
                }
            }
        }
        if let Some(more) = lines.next() {
            return Err(format!("client {id}: a row too many: {more:.60}"));
        }
        (self.acknowledged, self.sent) = (found, found);
        Ok(())
    }
}
