//! Turns for fast commits.
//!
//! # How it works
//! What a fast commit says belongs to the transaction that is not committed yet: a recovery takes
//! it for the one behind the last in the log. So no commit may end while it is written; handles may
//! start and end as they like. A recovery looks at the journal at all only if the superblock says so,
//! which it does from the first turn on.

use crate::journal::Journal;
use crate::log::Log;
use crate::{Result, Tid};

/// While it lives no transaction is committed. Fast commits written meanwhile belong to
/// [`tid`](Self::tid).
#[derive(Debug)]
pub struct FastCommitTurn<'a> {
    journal: &'a Journal,
    log: &'a Log,
    tid: Tid,
}

impl Journal {
    /// Waits until nobody commits, and keeps commits away. `None` if the journal has no area for
    /// fast commits. The caller holds no handle.
    ///
    /// # Errors
    /// What aborted the journal.
    pub fn begin_fast_commit(&self) -> Result<Option<FastCommitTurn<'_>>> {
        let log = self.log().filter(|log| log.fast_commit_blocks() > 0);
        let Some(log) = log else {
            return Ok(None);
        };
        let (tid, head) = self.table.begin_fast(&self.failure)?;
        let turn = FastCommitTurn {
            journal: self,
            log,
            tid,
        };
        if !log.needs_recovery() {
            let start = log.block_at(head) as u32;
            let begin = log.update_superblock(|superblock| superblock.set_tail(start, tid as u32));
            if let Err(err) = begin {
                self.fail(&err);
                return Err(err);
            }
        }
        Ok(Some(turn))
    }
}

impl FastCommitTurn<'_> {
    /// The transaction that is not committed yet; its low 32 bits go into the fast commit.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// The log, with its fast-commit area.
    #[must_use]
    pub fn log(&self) -> &Log {
        self.log
    }
}

impl Drop for FastCommitTurn<'_> {
    fn drop(&mut self) {
        self.journal.table.end_fast();
    }
}
