//! What the journal asks of the engine above it.

use std::sync::Arc;

use crate::Tid;
use crate::buffer::{Buffer, BufferWrite};
use crate::counters::Counters;
use crate::error::{Error, HostError, Result};
use crate::failure::Failure;
use crate::table::Table;
use crate::transaction::Transaction;

/// Work that the journal would like a background thread of the engine to do soon. Without one, the
/// next handle that finds no room does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// [`Journal::commit_all`](crate::Journal::commit_all): the running transaction is half full.
    Commit,
    /// [`Journal::checkpoint`](crate::Journal::checkpoint): the log is two thirds full.
    Checkpoint,
}

/// The engine. Called with no lock of the journal held, but for [`seal`](Self::seal).
pub trait Host: Send + Sync {
    /// The last changes of a transaction: no handle is open, and none starts until this returns.
    /// Not called for a transaction in which nothing changed. Must not start a handle or commit.
    ///
    /// # Errors
    /// Anything; the journal is aborted.
    fn before_commit(&self, closing: &Closing<'_>) -> std::result::Result<(), HostError>;

    /// Puts the checksum of the block into its content, once per commit. Takes no lock that a
    /// thread may hold when it changes or reads a buffer.
    fn seal(&self, buffer: &Buffer, content: &mut [u8]);

    /// Transaction `tid` is durable, and blocks that it freed may be used again. Called in the order
    /// of the transactions.
    fn after_commit(&self, tid: Tid);

    /// The journal was aborted: nothing will be written any more. Called once, by the thread that
    /// met the error, which may hold locks of the engine.
    fn failed(&self, error: &Error);

    /// The journal has work for a background thread. Must not do it here.
    fn wake(&self, _wish: Wish) {}
}

/// A transaction that is about to be committed: only
/// [`before_commit`](Host::before_commit) changes anything in it.
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

    /// Adds the buffer to the transaction and locks it for a change. Blocks that no handle joined
    /// come out of [`Options::closing_credits`](crate::Options::closing_credits).
    ///
    /// # Errors
    /// [`Error::OutOfCredits`] if more blocks change than were set aside and the log is full;
    /// [`Error::Aborted`].
    pub fn modify<'b>(&self, buffer: &'b Arc<Buffer>) -> Result<BufferWrite<'b>> {
        self.failure.check()?;
        if self.trans.join(self.counters, buffer) {
            self.table.use_closing_credit(self.trans)?;
        }
        Ok(buffer.write())
    }
}
