//! [`Handle`]: one operation's part of a transaction.

use std::cell::Cell;
use std::fmt::Display;
use std::num::NonZeroU8;
use std::sync::Arc;

use sapwood_base::lock::assert_held_at_most;

use crate::buffer::{Buffer, BufferWrite};
use crate::counters::Counters;
use crate::host::Wish;
use crate::journal::Journal;
use crate::nesting::{Open, assert_no_handle};
use crate::rank::Rank;
use crate::state::State;
use crate::table::Entered;
use crate::transaction::Transaction;
use crate::{Error, Result, Tid};

/// One operation's part of the running transaction, which is not committed before the handle ends.
///
/// May move to another thread, but only one thread uses it. Dropping ends it. A thread has at most
/// one: starting a second one may wait for the first one's end (debug builds panic).
#[derive(Debug)]
pub struct Handle {
    journal: Arc<Journal>,
    trans: Arc<Transaction>,
    credits: Cell<u32>,
    /// What [`require_whole`](Self::require_whole) was told last.
    whole: Cell<Option<NonZeroU8>>,
    /// A restart failed: it is in no transaction any more.
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

    /// Blocks that may still join.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits.get()
    }

    /// Adds the buffer to the transaction: from now on its content is committed with it. Costs a
    /// credit the first time in a transaction. Once it has succeeded, [`modify`](Self::modify) of
    /// the same buffer cannot fail in this handle.
    ///
    /// # Errors
    /// [`Error::Aborted`](crate::Error::Aborted); [`Error::OutOfCredits`](crate::Error::OutOfCredits)
    /// if no credit is left and the log has no room, which aborts the journal.
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

    /// As [`write_access`](Self::write_access), and from now on [`Buffer::committed`] gives the
    /// content as of the last commit, so that what this transaction freed in it can be told from
    /// what is free. For buffers that are changed in this way only.
    ///
    /// # Errors
    /// As [`write_access`](Self::write_access).
    pub fn undo_access(&self, buffer: &Arc<Buffer>) -> Result<()> {
        buffer.keep_undo();
        self.write_access(buffer)
    }

    /// [`write_access`](Self::write_access), then locks the content for a change.
    ///
    /// # Errors
    /// As [`write_access`](Self::write_access).
    pub fn modify<'b>(&self, buffer: &'b Arc<Buffer>) -> Result<BufferWrite<'b>> {
        self.write_access(buffer)?;
        Ok(buffer.write())
    }

    /// The block is no metadata any more: it leaves the transaction and the cache, and copies of it
    /// that the log has from before are not replayed. May cost a credit for the revoke record.
    ///
    /// The block must not be used for anything that is not metadata before
    /// [`Host::after_commit`](crate::Host::after_commit) of this transaction.
    ///
    /// # Errors
    /// As [`write_access`](Self::write_access).
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

    /// What this handle changes is not in the engine's records for fast commits: only a whole commit makes the transaction
    /// durable, also the one that a [`restart`](Self::restart) leads to. `reason` is what a
    /// [`FastCommitTurn`](crate::FastCommitTurn) is told, in the engine's numbers.
    pub fn require_whole(&self, reason: NonZeroU8) {
        self.whole.set(Some(reason));
        self.trans.require_whole(reason);
    }

    /// Whether only a whole commit makes the transaction durable, because of any handle in it.
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

    /// Asks for more credits, without waiting. False if there is no room: end what was begun so
    /// that it is consistent, and [`restart`](Self::restart).
    #[must_use]
    pub fn extend(&self, credits: u32) -> bool {
        let fits = self.journal.table.extend(&self.trans, credits);
        if fits {
            self.credits.set(self.credits.get().saturating_add(credits));
        }
        fits
    }

    /// Has at least `credits` credits: those that are missing are asked for as by
    /// [`extend`](Self::extend).
    #[must_use]
    pub fn ensure(&self, credits: u32) -> bool {
        let missing = credits.saturating_sub(self.credits.get());
        missing == 0 || self.extend(missing)
    }

    /// Ends the handle here and starts it again, perhaps in the next transaction: what was changed
    /// so far may be committed without what follows. Waits as [`Journal::start`].
    ///
    /// # Errors
    /// As [`Journal::start`]; the handle is then good for nothing but its end.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.journal.check_credits(credits)?;
        if !self.ended {
            self.journal.table.leave(&self.trans, self.credits.take());
        }
        // The journal is aborted if this fails: what the handle changes then is never committed.
        self.ended = true;
        self.trans = self.journal.enter(credits)?;
        self.ended = false;
        self.credits.set(credits);
        if let Some(reason) = self.whole.get() {
            self.trans.require_whole(reason);
        }
        Ok(())
    }

    /// Gives up in the middle of a change: the journal is aborted, so that nothing of this
    /// transaction is ever committed.
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
    /// May wait for a commit or a checkpoint, or do it: hold no lock that a handle's owner may ask for, and
    /// no other handle.
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

    /// Enters the running transaction with so many credits.
    pub(crate) fn enter(&self, credits: u32) -> Result<Arc<Transaction>> {
        assert_held_at_most(Rank::Nothing);
        loop {
            match self.table.enter(&self.failure, credits)? {
                Entered::In { trans, half } => {
                    Counters::count(&self.counters.handles);
                    if half {
                        self.wish(Wish::Commit);
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
