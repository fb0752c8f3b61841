//! The commit: makes one transaction durable.

use std::sync::Arc;

use super::handle::Handle;
use super::state::State;
use super::table::{Transaction, Turn};
use crate::engine::Engine;
use crate::{Error, Result};

impl Engine {
    /// Waits until transaction `transid` (default: the newest in which something changed) is
    /// durable; commits it if nobody does. Callers who come together share one commit.
    ///
    /// # Errors
    /// What made the mount read-only, if that was before the transaction was durable.
    pub(crate) fn commit(self: &Arc<Self>, transid: Option<u64>) -> Result<()> {
        self.commit_until(transid, State::SuperWritten)
    }

    /// As [`commit`](Self::commit), and the space that the transaction freed is free.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub(crate) fn commit_and_unpin(self: &Arc<Self>, transid: Option<u64>) -> Result<()> {
        self.commit_until(transid, State::Completed)
    }

    /// Transid of the newest durable transaction.
    pub(crate) fn last_committed(&self) -> u64 {
        self.transactions.last_committed()
    }

    fn commit_until(self: &Arc<Self>, transid: Option<u64>, until: State) -> Result<()> {
        loop {
            match self.transactions.turn(&self.health, transid, until)? {
                Turn::Done => return Ok(()),
                Turn::Commit(trans) => self.run_commit(trans)?,
            }
        }
    }

    fn run_commit(self: &Arc<Self>, trans: Arc<Transaction>) -> Result<()> {
        let mut claim = Claim {
            engine: self,
            trans,
            done: false,
        };
        let result = claim.run();
        if let Err(err) = &result {
            self.health.fail(err);
        } else {
            claim.done = true;
        }
        result
    }
}

/// A claimed transaction. Dropped before it is done, by an error or a panic, it fails the mount,
/// so that nobody waits for ever.
struct Claim<'a> {
    engine: &'a Arc<Engine>,
    trans: Arc<Transaction>,
    done: bool,
}

impl Claim<'_> {
    fn run(&self) -> Result<()> {
        let (engine, trans) = (self.engine, &self.trans);
        let transactions = &engine.transactions;
        let order = transactions.superblock_order.lock();
        transactions.drain_starters(trans);
        transactions.advance(trans, State::CommitDoing);
        engine.health.check()?;
        let handle = engine.enter_commit()?;
        self.critical(&handle)?;
        drop(handle);
        transactions.advance(trans, State::Unblocked);
        engine.health.check()?;
        transactions.advance(trans, State::SuperWritten);
        drop(order);
        transactions.advance(trans, State::Completed);
        Ok(())
    }

    /// All that has to see the transaction at rest.
    fn critical(&self, _h: &Handle) -> Result<()> {
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.engine
                .health
                .fail(&Error::CommitFailed(self.trans.transid));
            self.engine.transactions.fail(&self.trans);
        }
    }
}
