//! Fast commits: one leader at a time writes the area, and no commit ends meanwhile.
//!
//! # How it works
//! A recovery takes a fast commit to belong to the transaction after the last one in the log. So no
//! commit may end while a fast commit is written; handles may start and end. A recovery reads the
//! journal only if the superblock requires it. The first leader sets this in the superblock.
//!
//! The contents of a fast commit are fixed while no handle is open ([`FastCommitLeader::quiesce`]),
//! so it never contains half an operation. Unlike a commit, a fast commit lets the same transaction
//! continue.
//!
//! Fast commits of a committed transaction are stale. The kernel ignores them, but `e2fsck` (1.47)
//! then discards the whole log. So the commit erases the beginning of the area before any caller
//! returns.
//!
//! One caller at a time leads a fast commit. Callers that arrive before its contents are fixed wait
//! for it and are woken together when it is durable. Then one of the callers that arrived later
//! leads the next.
//!
//! An operation that the engine cannot record for a fast commit calls
//! [`Handle::require_whole`](crate::Handle::require_whole). The leader sees this and cancels the
//! fast commit.

use std::num::NonZeroU8;
use std::sync::atomic::Ordering;

use crate::home;
use crate::journal::Journal;
use crate::log::Log;
use crate::nesting::assert_no_handle;
use crate::table::Table;
use crate::{Result, Tid};

/// The right to write fast commits. No transaction is committed while it exists. Fast commits that
/// are written meanwhile belong to [`tid`](Self::tid).
#[derive(Debug)]
pub struct FastCommitLeader<'a> {
    journal: &'a Journal,
    log: &'a Log,
    tid: Tid,
    durable: bool,
}

/// Result of [`Journal::begin_fast_commit`].
#[derive(Debug)]
pub enum FastCommitStart<'a> {
    /// The caller leads the next fast commit.
    Leader(FastCommitLeader<'a>),
    /// Another thread's fast commit is durable, and it was [fixed](FastCommitLeader::quiesce) after
    /// the call began.
    Durable,
    /// The journal has no area for fast commits.
    NoArea,
}

impl Journal {
    /// Waits until no thread commits and keeps commits away, or waits until another thread's fast
    /// commit has made the caller's changes durable. The caller holds no handle.
    ///
    /// # Errors
    /// The error that aborted the journal.
    pub fn begin_fast_commit(&self) -> Result<FastCommitStart<'_>> {
        assert_no_handle();
        let log = self.log().filter(|log| log.fast_commit_blocks() > 0);
        let Some(log) = log else {
            return Ok(FastCommitStart::NoArea);
        };
        let Some((tid, head)) = self.table.begin_fast(&self.failure)? else {
            return Ok(FastCommitStart::Durable);
        };
        let leader = FastCommitLeader {
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
        Ok(FastCommitStart::Leader(leader))
    }
}

impl FastCommitLeader<'_> {
    /// The transaction that is not committed yet. A fast commit stores the low 32 bits of its
    /// number.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Calls `look` while no handle is open and none can start. `look` gets the reason if only a
    /// whole commit makes the transaction durable. It must not start a handle, nor wait for a
    /// thread that may start one.
    ///
    /// # Errors
    /// The error that aborted the journal.
    pub fn quiesce<R>(&self, look: impl FnOnce(Option<NonZeroU8>) -> R) -> Result<R> {
        let table = &self.journal.table;
        let running = table.quiesce(&self.journal.failure)?;
        let _gate = Gate(table);
        Ok(look(running.and_then(|trans| trans.requires_whole())))
    }

    /// The reason why only a whole commit makes the transaction durable, as of now.
    #[must_use]
    pub fn requires_whole(&self) -> Option<NonZeroU8> {
        self.journal.table.requires_whole()
    }

    /// Requires a whole commit for the transaction, because no fast commit contains the records
    /// that the leader took.
    pub fn require_whole(&self, reason: NonZeroU8) {
        self.journal.table.require_whole(reason);
    }

    /// Writes blocks of the area, from `index` on, without a flush. The commit of the transaction
    /// erases them.
    ///
    /// # Errors
    /// [`Error::BlockRange`](crate::Error::BlockRange), [`Error::Device`](crate::Error::Device).
    pub fn write(&self, index: u64, pieces: &[&[u8]]) -> Result<()> {
        if let Some(side) = &self.journal.log {
            side.fast.store(true, Ordering::SeqCst);
        }
        self.log.write_fast_commit(index, pieces)
    }

    /// Ends the fast commit as durable: everything that was [fixed](Self::quiesce) last is on disk,
    /// with all data written before it. Callers that waited for it return.
    pub fn durable(mut self) {
        self.durable = true;
    }

    /// Writes the last committed content of a block to its home location, if the block waits for a
    /// checkpoint; true if so. Does not flush; the log keeps its copy.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn write_back(&self, block: u64) -> Result<bool> {
        let side = self.journal.log.as_ref();
        let Some((side, content)) =
            side.and_then(|side| Some((side, side.pending.content(block)?)))
        else {
            return Ok(false);
        };
        // A checkpoint may be writing an older content.
        side.pending.wait_complete(&[block]);
        let cache = &self.journal.cache;
        home::write_blocks(&**cache.device(), cache.block_size(), &[(block, &content)])?;
        Ok(true)
    }

    /// The log, with its fast-commit area.
    #[must_use]
    pub fn log(&self) -> &Log {
        self.log
    }
}

/// Lets handles start again, even if `look` panics.
struct Gate<'a>(&'a Table);

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.reopen();
    }
}

impl Drop for FastCommitLeader<'_> {
    fn drop(&mut self) {
        self.journal.table.end_fast(self.durable);
    }
}
