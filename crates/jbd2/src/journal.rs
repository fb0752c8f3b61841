//! [`Journal`]: one file system's transactions.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

use crate::cache::Cache;
use crate::counters::{CounterValues, Counters};
use crate::failure::Failure;
use crate::host::{Host, Request};
use crate::log::Log;
use crate::pending::Pending;
use crate::rank::{Mutex, Rank};
use crate::space::LogSpace;
use crate::table::Table;
use crate::{Error, Result, Tid};

/// Limits of a journal.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Blocks of each transaction that are reserved for the changes of [`Host::before_commit`].
    pub closing_credits: u32,
    /// Most blocks of one transaction. With a log, a quarter of the log is a second limit.
    pub max_transaction: u32,
    /// Bytes of committed blocks kept in memory above which the journal requests a checkpoint.
    pub checkpoint_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            closing_credits: 16,
            max_transaction: 8192,
            checkpoint_bytes: 64 << 20,
        }
    }
}

/// The transactions of one file system, with a log or *in place*. Without a log, a commit writes
/// the blocks to their home locations and flushes. Such a commit is not atomic; all else is the
/// same.
pub struct Journal {
    pub(crate) cache: Arc<Cache>,
    pub(crate) table: Table,
    pub(crate) failure: Failure,
    pub(crate) counters: Counters,
    /// The log; `None` in place.
    pub(crate) log: Option<LogSide>,
    host: OnceLock<Weak<dyn Host>>,
}

/// State of a journal with a log.
#[derive(Debug)]
pub(crate) struct LogSide {
    pub(crate) log: Log,
    pub(crate) pending: Pending,
    /// Held by the thread that makes a checkpoint.
    pub(crate) checkpointer: Mutex<()>,
    /// The running transaction has fast commits.
    pub(crate) fast: AtomicBool,
    /// Number of pending blocks above which the journal requests a checkpoint.
    pub(crate) many_pending: usize,
    /// The block that checkpoints write last; [`NO_BLOCK`]: none.
    pub(crate) late: AtomicU64,
}

/// The number of no block.
pub(crate) const NO_BLOCK: u64 = u64::MAX;

impl Journal {
    /// A journal without a log, for a file system that has none.
    #[must_use]
    pub fn in_place(cache: Arc<Cache>, options: Options) -> Arc<Self> {
        let most = options.max_transaction;
        let table = Table::new(0, most, options.closing_credits, None);
        Arc::new(Self::assemble(cache, table, None))
    }

    /// A journal with a log, which is empty or recovered. Writes nothing before the first commit.
    ///
    /// # Errors
    /// [`Error::NeedsRecovery`]; [`Error::OldSuperblock`] if the log's superblock has no fields for
    /// the features; [`Error::TooManyCredits`] if the log is too small for the options.
    pub fn with_log(cache: Arc<Cache>, mut log: Log, options: Options) -> Result<Arc<Self>> {
        // New transactions use the features of the log, and no others.
        log.set_form(log.features())?;
        let superblock = log.superblock();
        let quarter = u32::try_from(log.size() / 4).unwrap_or(u32::MAX);
        let most = options.max_transaction.min(quarter);
        let credits = options.closing_credits;
        if credits >= most {
            return Err(Error::TooManyCredits { credits, most });
        }
        // Above 32 bits, so that no tid is 0.
        let first = (1 << 32) + Tid::from(superblock.sequence());
        let tags = log.codec().tags_per_block() as u64;
        let space = LogSpace::new(log.size(), 0, tags);
        let block_size = u64::from(log.block_size());
        let side = LogSide {
            many_pending: usize::try_from(options.checkpoint_bytes / block_size)
                .unwrap_or(usize::MAX),
            log,
            pending: Pending::new(),
            fast: AtomicBool::new(false),
            late: AtomicU64::new(NO_BLOCK),
            checkpointer: Mutex::new(Rank::Checkpointer, ()),
        };
        let table = Table::new(first - 1, most, credits, Some(space));
        Ok(Arc::new(Self::assemble(cache, table, Some(side))))
    }

    fn assemble(cache: Arc<Cache>, table: Table, log: Option<LogSide>) -> Self {
        Self {
            cache,
            table,
            failure: Failure::new(),
            counters: Counters::default(),
            log,
            host: OnceLock::new(),
        }
    }

    /// The log; `None` in place.
    #[must_use]
    pub fn log(&self) -> Option<&Log> {
        self.log.as_ref().map(|side| &side.log)
    }

    /// Sets the engine that the journal calls. Called once, before the first handle.
    pub fn attach(&self, host: Weak<dyn Host>) {
        let attached = self.host.set(host);
        debug_assert!(attached.is_ok(), "two hosts");
    }

    pub(crate) fn host(&self) -> Option<Arc<dyn Host>> {
        self.host.get()?.upgrade()
    }

    /// The blocks in memory.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Most credits of one handle.
    #[must_use]
    pub fn most_credits(&self) -> u32 {
        self.table.most_credits()
    }

    /// The counters now.
    #[must_use]
    pub fn counters(&self) -> CounterValues {
        self.counters.snapshot()
    }

    /// Tid of the transaction that a handle started now would join.
    #[must_use]
    pub fn running_tid(&self) -> Tid {
        self.table.running_tid()
    }

    /// Newest durable tid.
    #[must_use]
    pub fn durable_tid(&self) -> Tid {
        self.table.durable()
    }

    /// Threads that wait in the journal: for a commit, for room, or to start. For tests that must
    /// know that a thread waits.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.table.sleepers()
    }

    pub(crate) fn request(&self, request: Request) {
        if let Some(host) = self.host() {
            host.wake(request);
        }
    }

    /// Oldest tid in the log that is not checkpointed yet. All older ones are.
    #[must_use]
    pub fn tail_tid(&self) -> Tid {
        self.table.tail_tid()
    }

    /// Aborts the journal: no handle starts and nothing is written any more. The next recovery
    /// finds all committed transactions.
    pub fn abort(&self, reason: &dyn Display) {
        self.fail(&Error::GivenUp(reason.to_string().into()));
    }

    /// Fails if the journal was aborted.
    ///
    /// # Errors
    /// [`Error::Aborted`] with the first error.
    pub fn check(&self) -> Result<()> {
        self.failure.check()
    }

    /// Whether the log may have a copy of the block that a recovery would replay.
    pub(crate) fn may_be_in_log(&self, block: u64) -> bool {
        let side = self.log.as_ref();
        side.is_some_and(|side| side.pending.may_be_in_log(block))
    }

    /// Whether the `count`-th revoke record of a transaction is the first in its block.
    pub(crate) fn starts_revoke_block(&self, count: usize) -> bool {
        let first = |side: &LogSide| count % side.log.codec().revokes_per_block() == 1;
        self.log.as_ref().is_some_and(first)
    }

    /// Aborts the journal. Only the first error counts. Holds no lock while it calls the engine.
    pub(crate) fn fail(&self, err: &Error) {
        let first = self.failure.fail(err);
        self.table.wake();
        if let Some(host) = self.host().filter(|_| first) {
            host.failed(err);
        }
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("table", &self.table)
            .field("failure", &self.failure)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
