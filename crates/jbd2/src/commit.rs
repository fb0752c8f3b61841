//! The commit: makes one transaction durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_base::lock::assert_held_at_most;

use crate::counters::Counters;
use crate::home;
use crate::host::{Closing, Request};
use crate::journal::{Journal, LogSide};
use crate::log_write;
use crate::nesting::assert_no_handle;
use crate::rank::Rank;
use crate::state::State;
use crate::superblock::Superblock;
use crate::table::CommitRole;
use crate::transaction::{Snapshot, Transaction};
use crate::{Error, Result, Tid};

impl Journal {
    /// Waits until transaction `tid` is durable, and commits it unless another thread does. Callers
    /// that arrive together share one commit. Returns at once if the transaction is durable
    /// already, or if nothing changed in it.
    ///
    /// The caller holds no handle.
    ///
    /// # Errors
    /// What aborted the journal, if it was aborted before the transaction was durable.
    pub fn commit(&self, tid: Tid) -> Result<()> {
        assert_no_handle();
        self.commit_until(tid, State::Committed)
    }

    /// Waits until every change made so far is durable.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); also if nothing changed since the journal was aborted.
    pub fn commit_all(&self) -> Result<()> {
        match self.table.newest_changed() {
            Some(tid) => self.commit(tid),
            None => self.failure.check(),
        }
    }

    /// As [`commit_all`](Self::commit_all), and also waits for
    /// [`Host::after_commit`](crate::Host::after_commit): the blocks that the transaction freed may
    /// then be used again.
    ///
    /// # Errors
    /// As [`commit_all`](Self::commit_all).
    pub fn commit_and_settle(&self) -> Result<()> {
        match self.table.newest_changed() {
            Some(tid) => self.commit_until(tid, State::Completed),
            None => self.failure.check(),
        }
    }

    /// Writes every block back to its home location and marks the log empty, so that the next mount
    /// has nothing to recover. No handle may start any more.
    ///
    /// # Errors
    /// What aborted the journal.
    pub fn close(&self) -> Result<()> {
        self.commit_and_settle()?;
        self.checkpoint()?;
        self.empty_log()
    }

    pub(crate) fn commit_until(&self, tid: Tid, until: State) -> Result<()> {
        assert_held_at_most(Rank::Nothing);
        let mut own = false;
        while let CommitRole::Leader(trans) = self.table.claim_commit(&self.failure, tid, until)? {
            own = true;
            self.run_commit(trans)?;
        }
        if !own {
            Counters::count(&self.counters.shared_commits);
        }
        Ok(())
    }

    /// Requests a checkpoint if the log, or the memory for its blocks, is nearly full.
    fn request_checkpoint_if_low(&self) {
        let many = |side: &LogSide| side.pending.len() > side.many_pending;
        if self.table.log_is_low() || self.log.as_ref().is_some_and(many) {
            self.request(Request::Checkpoint);
        }
    }

    fn run_commit(&self, trans: Arc<Transaction>) -> Result<()> {
        let mut claim = Claim {
            journal: self,
            trans,
            done: false,
        };
        let result = claim.run();
        match &result {
            Ok(()) => claim.done = true,
            Err(err) => self.fail(err),
        }
        result
    }
}

/// A claimed transaction. If it is dropped before its commit is done, by an error or a panic, it
/// aborts the journal, so that no thread waits for ever.
struct Claim<'a> {
    journal: &'a Journal,
    trans: Arc<Transaction>,
    done: bool,
}

impl Claim<'_> {
    fn run(&self) -> Result<()> {
        let (journal, trans) = (self.journal, &self.trans);
        journal.table.drain(trans);
        // A handle that the drain waited for may have aborted the journal.
        journal.failure.check()?;
        let snapshot = self.close()?;
        match &journal.log {
            Some(side) => self.write_log(side, &snapshot)?,
            None => self.write_in_place(&snapshot)?,
        }
        for one in &snapshot.blocks {
            one.buffer.advance_undo(&one.content);
        }
        Counters::count(&journal.counters.commits);
        journal.table.committed(trans);
        if let Some(side) = &journal.log
            && !sapwood_fault::planted(139)
        {
            side.pending.wait_complete(&snapshot.revoked);
        }
        drop(snapshot);
        if let Some(host) = journal.host() {
            host.after_commit(trans.tid);
        }
        journal.table.completed(trans);
        journal.request_checkpoint_if_low();
        Ok(())
    }

    /// Calls the engine for its last changes, puts the checksums into the blocks, takes the
    /// snapshot.
    fn close(&self) -> Result<Snapshot> {
        let (journal, trans) = (self.journal, &self.trans);
        if let Some(host) = journal.host() {
            let said = host.before_commit(&Closing {
                table: &journal.table,
                failure: &journal.failure,
                counters: &journal.counters,
                trans,
            });
            said.map_err(|err| Error::Host {
                tid: trans.tid,
                reason: err.to_string().into(),
            })?;
            let members = trans.members();
            for buffer in members.iter().filter(|buffer| buffer.seal().is_some()) {
                host.seal(buffer, &mut buffer.write());
            }
        }
        Ok(trans.snapshot())
    }

    /// Lets the next transaction run, and writes this one to the log.
    fn write_log(&self, side: &LogSide, snapshot: &Snapshot) -> Result<()> {
        let (journal, tid) = (self.journal, self.trans.tid);
        side.pending.will_log(tid, snapshot);
        let cost = log_write::cost(side.log.codec(), snapshot);
        let start = journal
            .table
            .unblock(&self.trans, cost)?
            .unwrap_or_default();
        if !side.log.needs_recovery() {
            // The first commit: from now on a recovery reads the log.
            let block = side.log.block_at(start) as u32;
            let begin = |superblock: &mut Superblock| superblock.set_tail(block, tid as u32);
            side.log.update_superblock(begin)?;
        }
        if sapwood_fault::planted(107) {
            side.pending.committed(tid, snapshot);
        }
        let end = log_write::write_blocks(&side.log, &journal.counters, tid, start, snapshot)?;
        // A handle that failed while it changed blocks of this transaction has aborted the journal
        // by now.
        journal.failure.check()?;
        log_write::write_commit(&side.log, tid, end)?;
        side.pending.committed(tid, snapshot);
        if side.fast.swap(false, Ordering::SeqCst) && !sapwood_fault::planted(100) {
            side.log.erase_fast_commits()?;
        }
        Ok(())
    }

    /// Lets the next transaction run, and writes the blocks of this one to their home locations.
    fn write_in_place(&self, snapshot: &Snapshot) -> Result<()> {
        let journal = self.journal;
        journal.table.unblock(&self.trans, 0)?;
        let blocks: Vec<(u64, &[u8])> = snapshot
            .blocks
            .iter()
            .map(|one| (one.buffer.block(), one.content.as_slice()))
            .collect();
        let device = journal.cache.device();
        home::write_blocks(&**device, journal.cache.block_size(), &blocks)?;
        device.flush()?;
        Counters::add(&journal.counters.blocks_logged, blocks.len() as u64);
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.done {
            let err = Error::CommitUnfinished(self.trans.tid);
            self.journal.table.failed(&self.trans);
            self.journal.fail(&err);
        }
    }
}
