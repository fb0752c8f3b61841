//! The interface through which the journal calls the engine above it.

use std::sync::Arc;

use crate::Tid;
use crate::buffer::{Buffer, BufferWrite};
use crate::counters::Counters;
use crate::error::{Error, HostError, Result};
use crate::failure::Failure;
use crate::table::Table;
use crate::transaction::Transaction;

/// Work that the journal requests from a background thread of the engine. Without such a thread,
/// the next handle that finds no room does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// [`Journal::commit_all`](crate::Journal::commit_all): the running transaction is half full.
    Commit,
    /// [`Journal::checkpoint`](crate::Journal::checkpoint): the log is two thirds full.
    Checkpoint,
}

/// The engine. The journal calls it with no lock of its own held, except in [`seal`](Self::seal).
pub trait Host: Send + Sync {
    /// Makes the engine's last changes to a transaction. No handle is open, and none starts until
    /// this returns. Not called for a transaction in which nothing changed. Must not start a handle
    /// or commit.
    ///
    /// # Errors
    /// Any error; it aborts the journal.
    fn before_commit(&self, closing: &Closing<'_>) -> std::result::Result<(), HostError>;

    /// Puts the checksum of the block into its content, once per commit. It must not take a lock
    /// that a thread may hold while it changes or reads a buffer.
    fn seal(&self, buffer: &Buffer, content: &mut [u8]);

    /// Reports that transaction `tid` is durable, and that the blocks that it freed may be used
    /// again. Called in the order of the transactions.
    fn after_commit(&self, tid: Tid);

    /// Reports that the journal was aborted: nothing will be written any more. Called once, by the
    /// thread that met the error, which may hold locks of the engine.
    fn failed(&self, error: &Error);

    /// Requests work from a background thread. Must not do the work in the call.
    fn wake(&self, _request: Request) {}
}

/// A transaction that is about to be committed. Only [`before_commit`](Host::before_commit) may
/// change it.
#[derive(Debug)]
pub struct Closing<'a> {
    pub(crate) table: &'a Table,
    pub(crate) failure: &'a Failure,
    pub(crate) counters: &'a Counters,
    pub(crate) trans: &'a Arc<Transaction>,
}

impl Closing<'_> {
    /// The transaction.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.trans.tid
    }

    /// Adds the buffer to the transaction and locks it for a change. A block that no handle added
    /// uses a credit of [`Options::closing_credits`](crate::Options::closing_credits).
    ///
    /// # Errors
    /// [`Error::OutOfCredits`] if more blocks change than were reserved and the log is full;
    /// [`Error::Aborted`].
    pub fn modify<'b>(&self, buffer: &'b Arc<Buffer>) -> Result<BufferWrite<'b>> {
        self.failure.check()?;
        if self.trans.join(self.counters, buffer) {
            self.table.use_closing_credit(self.trans)?;
        }
        Ok(buffer.write())
    }
}
