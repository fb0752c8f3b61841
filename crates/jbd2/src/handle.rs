//! [`Handle`]: one operation's part of a transaction.

use std::cell::Cell;
use std::fmt::Display;
use std::num::NonZeroU8;
use std::sync::Arc;

use sapwood_base::lock::assert_held_at_most;

use crate::buffer::{Buffer, BufferWrite};
use crate::counters::Counters;
use crate::host::Request;
use crate::journal::Journal;
use crate::nesting::{Open, assert_no_handle};
use crate::rank::Rank;
use crate::state::State;
use crate::table::Entered;
use crate::transaction::Transaction;
use crate::{Error, Result, Tid};

/// One operation's part of the running transaction, which is not committed before the handle ends.
///
/// Dropping the handle ends it. It may move to another thread, but only one thread uses it at a
/// time. A thread has at most one handle: starting a second one may wait for the end of the first
/// (debug builds panic).
#[derive(Debug)]
pub struct Handle {
    journal: Arc<Journal>,
    trans: Arc<Transaction>,
    credits: Cell<u32>,
    /// The last reason given to [`require_whole`](Self::require_whole).
    whole: Cell<Option<NonZeroU8>>,
    /// A restart failed: the handle is in no transaction.
    ended: bool,
    _open: Open,
}

impl Handle {
    pub(crate) fn new(journal: Arc<Journal>, trans: Arc<Transaction>, credits: u32) -> Self {
        Self {
            journal,
            trans,
            credits: Cell::new(credits),
            whole: Cell::new(None),
            ended: false,
            _open: Open::new(),
        }
    }

    /// The transaction.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.trans.tid
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Number of blocks that may still join.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits.get()
    }

    /// Adds the buffer to the transaction, whose commit then includes its content. Costs one credit
    /// the first time in a transaction. After a success, [`modify`](Self::modify) of the same
    /// buffer cannot fail in this handle.
    ///
    /// # Errors
    /// [`Error::Aborted`](crate::Error::Aborted).
    /// [`Error::OutOfCredits`](crate::Error::OutOfCredits) if no credit is left and the log has no
    /// room, which aborts the journal.
    pub fn write_access(&self, buffer: &Arc<Buffer>) -> Result<()> {
        if buffer.joined() == self.trans.tid {
            return Ok(());
        }
        self.journal.failure.check()?;
        if self.trans.join(&self.journal.counters, buffer) {
            self.use_credit()?;
        }
        Ok(())
    }

    /// Like [`write_access`](Self::write_access). In addition, [`Buffer::committed`] gives the
    /// content as of the last commit from now on, which separates blocks that this transaction
    /// freed from blocks that were free before. Every change of such a buffer must go through this
    /// function.
    ///
    /// # Errors
    /// [`Error::Aborted`](crate::Error::Aborted),
    /// [`Error::OutOfCredits`](crate::Error::OutOfCredits).
    pub fn undo_access(&self, buffer: &Arc<Buffer>) -> Result<()> {
        buffer.keep_undo();
        self.write_access(buffer)
    }

    /// [`write_access`](Self::write_access), then locks the content for a change.
    ///
    /// # Errors
    /// [`Error::Aborted`](crate::Error::Aborted),
    /// [`Error::OutOfCredits`](crate::Error::OutOfCredits).
    pub fn modify<'b>(&self, buffer: &'b Arc<Buffer>) -> Result<BufferWrite<'b>> {
        self.write_access(buffer)?;
        Ok(buffer.write())
    }

    /// Drops a block that is no longer metadata: it leaves the transaction and the cache, and a
    /// revoke record keeps older copies in the log from being replayed. May cost a credit for the
    /// revoke record.
    ///
    /// The block must not be used for anything but metadata before
    /// [`Host::after_commit`](crate::Host::after_commit) of this transaction.
    ///
    /// # Errors
    /// [`Error::Aborted`](crate::Error::Aborted),
    /// [`Error::OutOfCredits`](crate::Error::OutOfCredits).
    pub fn forget(&self, block: u64) -> Result<()> {
        self.journal.failure.check()?;
        let forgotten = self.trans.forget(block, self.journal.may_be_in_log(block));
        self.journal.cache.forget(block);
        if forgotten.left {
            self.credits.set(self.credits.get() + 1);
        }
        match forgotten.revokes {
            Some(count) if self.journal.starts_revoke_block(count) => self.use_credit(),
            _ => Ok(()),
        }
    }

    /// Requires a whole commit, because the engine's records for fast commits do not cover this
    /// handle's changes. This also holds for the transaction that a [`restart`](Self::restart)
    /// moves the handle to. [`FastCommitLeader`](crate::FastCommitLeader) reports `reason`, in the
    /// engine's numbers.
    pub fn require_whole(&self, reason: NonZeroU8) {
        self.whole.set(Some(reason));
        self.trans.require_whole(reason);
    }

    /// Whether any handle of the transaction required a whole commit.
    #[must_use]
    pub fn requires_whole(&self) -> bool {
        self.trans.requires_whole().is_some()
    }

    fn use_credit(&self) -> Result<()> {
        let mut credits = self.credits.get();
        if credits == 0 {
            Counters::count(&self.journal.counters.overdrafts);
            match self.journal.table.overdraw(&self.trans) {
                Ok(more) => credits = more,
                Err(err) => {
                    self.journal.fail(&err);
                    return Err(err);
                }
            }
        }
        self.credits.set(credits - 1);
        Ok(())
    }

    /// Reserves more credits without waiting. Returns false if there is no room. The caller then
    /// brings its changes to a consistent point and calls [`restart`](Self::restart).
    #[must_use]
    pub fn extend(&self, credits: u32) -> bool {
        let fits = self.journal.table.extend(&self.trans, credits);
        if fits {
            self.credits.set(self.credits.get().saturating_add(credits));
        }
        fits
    }

    /// Makes sure that the handle has at least `credits` credits, and reserves the missing ones as
    /// [`extend`](Self::extend) does.
    #[must_use]
    pub fn ensure(&self, credits: u32) -> bool {
        let missing = credits.saturating_sub(self.credits.get());
        missing == 0 || self.extend(missing)
    }

    /// Ends the handle and starts it again, perhaps in the next transaction. A commit may then
    /// include the changes so far without those that follow. Waits as [`Journal::start`] does.
    ///
    /// # Errors
    /// [`Error::TooManyCredits`], [`Error::Aborted`]. After an error the handle can only be
    /// dropped.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.journal.check_credits(credits)?;
        if !self.ended {
            self.journal.table.leave(&self.trans, self.credits.take());
        }
        // If this fails, the journal is aborted, so later changes of this handle are never
        // committed.
        self.ended = true;
        self.trans = self.journal.enter(credits)?;
        self.ended = false;
        self.credits.set(credits);
        if let Some(reason) = self.whole.get() {
            self.trans.require_whole(reason);
        }
        Ok(())
    }

    /// Aborts the journal in the middle of a change, so that nothing of this transaction is ever
    /// committed.
    pub fn abort(&self, reason: &dyn Display) {
        self.journal.abort(reason);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.ended {
            self.journal.table.leave(&self.trans, self.credits.get());
        }
    }
}

impl Journal {
    /// Starts a handle that changes at most `credits` blocks, each counted once.
    ///
    /// It may wait for a commit or a checkpoint, or perform one. The caller holds no other handle,
    /// and no lock that the owner of a handle may take.
    ///
    /// # Errors
    /// [`Error::TooManyCredits`], [`Error::Aborted`].
    pub fn start(self: &Arc<Self>, credits: u32) -> Result<Handle> {
        assert_no_handle();
        self.check_credits(credits)?;
        let trans = self.enter(credits)?;
        Ok(Handle::new(self.clone(), trans, credits))
    }

    pub(crate) fn check_credits(&self, credits: u32) -> Result<()> {
        let most = self.table.most_credits();
        if credits <= most {
            return Ok(());
        }
        Err(Error::TooManyCredits { credits, most })
    }

    /// Enters the running transaction with `credits` credits.
    pub(crate) fn enter(&self, credits: u32) -> Result<Arc<Transaction>> {
        assert_held_at_most(Rank::Nothing);
        loop {
            match self.table.enter(&self.failure, credits)? {
                Entered::In { trans, half } => {
                    Counters::count(&self.counters.handles);
                    if half {
                        self.request(Request::Commit);
                    }
                    return Ok(trans);
                }
                Entered::Full(tid) => {
                    Counters::count(&self.counters.waits_for_transaction);
                    self.commit_until(tid, State::Committed)?;
                }
                Entered::LogFull => {
                    Counters::count(&self.counters.waits_for_log);
                    self.checkpoint()?;
                }
            }
        }
    }
}
