//! Turns for fast commits.
//!
//! # How it works
//! What a fast commit says belongs to the transaction that is not committed yet: a recovery takes
//! it for the one behind the last in the log. So no commit may end while it is written; handles may
//! start and end as they like. A recovery looks at the journal at all only if the superblock says so,
//! which it does from the first turn on.
//!
//! What a fast commit says is fixed at a moment when no handle is open ([`FastCommitTurn::quiesce`]), as a commit fixes its snapshot: so
//! it has whole operations only. Unlike a commit it lets the same transaction go on afterwards.
//!
//! Fast commits of a transaction that was committed are old, and no thread looks at them but
//! `e2fsck` (1.47), which then gives up all of the log. So the commit erases the begin of the area
//! before any caller is told that it is durable.
//!
//! One caller at a time leads a fast commit. Callers that arrive before its contents are fixed wait
//! for it, and are woken together when it is durable. Then one of the callers that arrived since
//! leads the next.
//!
//! An operation that the engine keeps no records of calls
//! [`Handle::require_whole`](crate::Handle::require_whole); the leader is told, and gives the fast
//! commit up.

use std::num::NonZeroU8;
use std::sync::atomic::Ordering;

use crate::home;
use crate::journal::Journal;
use crate::log::Log;
use crate::nesting::assert_no_handle;
use crate::table::Table;
use crate::{Result, Tid};

/// While it lives no transaction is committed. Fast commits written meanwhile belong to
/// [`tid`](Self::tid).
#[derive(Debug)]
pub struct FastCommitTurn<'a> {
    journal: &'a Journal,
    log: &'a Log,
    tid: Tid,
    durable: bool,
}

/// What a caller of [`Journal::begin_fast_commit`] got.
#[derive(Debug)]
pub enum FastCommitStart<'a> {
    /// The turn.
    Turn(FastCommitTurn<'a>),
    /// Another thread's fast commit, [fixed](FastCommitTurn::quiesce) after the call began, is
    /// durable.
    Served,
    /// The journal has no area for fast commits.
    NoArea,
}

impl Journal {
    /// Waits until no thread commits, and keeps commits away; or until there is nothing more to
    /// wait for. The caller holds no handle.
    ///
    /// # Errors
    /// What aborted the journal.
    pub fn begin_fast_commit(&self) -> Result<FastCommitStart<'_>> {
        assert_no_handle();
        let log = self.log().filter(|log| log.fast_commit_blocks() > 0);
        let Some(log) = log else {
            return Ok(FastCommitStart::NoArea);
        };
        let Some((tid, head)) = self.table.begin_fast(&self.failure)? else {
            return Ok(FastCommitStart::Served);
        };
        let turn = FastCommitTurn {
            journal: self,
            log,
            tid,
            durable: false,
        };
        if !log.needs_recovery() {
            let start = log.block_at(head) as u32;
            let begin = log.update_superblock(|superblock| superblock.set_tail(start, tid as u32));
            if let Err(err) = begin {
                self.fail(&err);
                return Err(err);
            }
        }
        Ok(FastCommitStart::Turn(turn))
    }
}

impl FastCommitTurn<'_> {
    /// The transaction that is not committed yet; its low 32 bits go into the fast commit.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Calls `look` while no handle is open, and none starts: with the reason if only a whole commit makes the transaction
    /// durable. `look` must not start a handle, nor wait for anybody who may.
    ///
    /// # Errors
    /// What aborted the journal.
    pub fn quiesce<R>(&self, look: impl FnOnce(Option<NonZeroU8>) -> R) -> Result<R> {
        let table = &self.journal.table;
        let running = table.quiesce(&self.journal.failure)?;
        let _gate = Gate(table);
        Ok(look(running.and_then(|trans| trans.requires_whole())))
    }

    /// The reason if only a whole commit makes the transaction durable, as it is now.
    #[must_use]
    pub fn requires_whole(&self) -> Option<NonZeroU8> {
        self.journal.table.requires_whole()
    }

    /// Only a whole commit makes the transaction durable from now on: what was to be in a fast commit is in none.
    pub fn require_whole(&self, reason: NonZeroU8) {
        self.journal.table.require_whole(reason);
    }

    /// Writes blocks of the area, from `index` on. Flushes nothing. The commit of the transaction erases them.
    ///
    /// # Errors
    /// [`Error::BlockRange`](crate::Error::BlockRange), [`Error::Device`](crate::Error::Device).
    pub fn write(&self, index: u64, pieces: &[&[u8]]) -> Result<()> {
        if let Some(side) = &self.journal.log {
            side.fast.store(true, Ordering::SeqCst);
        }
        self.log.write_fast_commit(index, pieces)
    }

    /// What was [fixed](Self::quiesce) last is durable, with all data that was written before it: those who came before that
    /// have nothing to wait for.
    pub fn durable(mut self) {
        self.durable = true;
    }

    /// Writes a block home, as it was committed last, if that waits for a checkpoint. Flushes nothing; the log still has it.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn bring_home(&self, block: u64) -> Result<()> {
        let side = self.journal.log.as_ref();
        let Some(content) = side.and_then(|side| side.pending.content(block)) else {
            return Ok(());
        };
        let cache = &self.journal.cache;
        home::write_blocks(&**cache.device(), cache.block_size(), &[(block, &content)])
    }

    /// The log, with its fast-commit area.
    #[must_use]
    pub fn log(&self) -> &Log {
        self.log
    }
}

/// Lets handles start again, whatever becomes of who looked.
struct Gate<'a>(&'a Table);

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.reopen();
    }
}

impl Drop for FastCommitTurn<'_> {
    fn drop(&mut self) {
        self.journal.table.end_fast(self.durable);
    }
}
