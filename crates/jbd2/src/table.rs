//! [`Table`]: the running and the committing transaction, the threads that wait for them, and the
//! room that they have.

use std::num::NonZeroU8;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Condvar;
use sapwood_base::EventCount;

use crate::failure::Failure;
use crate::rank::{Mutex, MutexGuard, Rank};
use crate::space::LogSpace;
use crate::state::{Action, State};
use crate::transaction::Transaction;
use crate::{Error, Result, Tid};

/// Credits that are added at once for a handle that reserved too few.
const OVERDRAFT: u32 = 8;

#[derive(Debug)]
pub(crate) struct Inner {
    /// Takes handles, or is being closed. Created on demand.
    running: Option<Arc<Transaction>>,
    /// Claimed for commit and not completed. The same as `running` until it is unblocked.
    committing: Option<Arc<Transaction>>,
    /// A fast commit is being written.
    fast: bool,
    /// Number of fast commits whose contents [`Table::quiesce`] fixed. The newest has every change
    /// of the callers that arrived before it was fixed.
    fast_fixed: u64,
    /// Number of the newest fast commit that is durable.
    fast_durable: u64,
    /// No handle may start: the leader of a fast commit fixes its contents.
    gate: bool,
    /// Newest tid in use.
    newest: Tid,
    /// Newest durable tid.
    durable: Tid,
    /// Threads that wait here.
    sleepers: usize,
    /// Sleepers that wait to start a handle.
    starters: usize,
    /// The log; `None` without one.
    space: Option<LogSpace>,
}

/// All transactions of a journal.
#[derive(Debug)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
    /// A copy of [`Inner::durable`] that is read without the lock.
    durable: AtomicU64,
    signals: Signals,
    /// Most blocks of one transaction.
    most: u32,
    /// Blocks of each transaction that are reserved for the engine's last changes.
    closing: u32,
}

/// Events to wait for, one per kind of waiter. Only one of the threads that wait for a commit can
/// perform the next, and waking the others would only delay it.
#[derive(Debug, Default)]
struct Signals {
    /// Handles may start, or there is room for them.
    start: Condvar,
    /// No handle of the transaction is open.
    drained: Condvar,
    /// A fast commit is durable, or the next one needs a leader: one event for even numbers and one
    /// for odd ones, as threads wait for at most two numbers at once.
    fast: [EventCount; 2],
    /// A transaction is durable, or can be claimed for commit: one event for even tids and one for
    /// odd ones, likewise.
    commits: [EventCount; 2],
}

impl Signals {
    fn commit(&self, tid: Tid) -> &EventCount {
        let [even, odd] = &self.commits;
        if tid.is_multiple_of(2) { even } else { odd }
    }

    fn fast(&self, number: u64) -> &EventCount {
        let [even, odd] = &self.fast;
        if number.is_multiple_of(2) { even } else { odd }
    }

    fn all(&self) {
        for signal in [&self.start, &self.drained] {
            signal.notify_all();
        }
        for signal in self.fast.iter().chain(&self.commits) {
            signal.notify_all();
        }
    }

    /// No thread commits any more, and `tid` is done. Wakes one possible leader of each kind.
    fn wake_leaders(&self, tid: Tid) {
        for signal in &self.fast {
            signal.notify_one();
        }
        self.commit(tid).notify_all();
        self.commit(tid + 1).notify_one();
        self.start.notify_all();
    }
}

/// Result of [`Table::enter`].
#[derive(Debug)]
pub(crate) enum Entered {
    /// A handle may be used.
    In {
        trans: Arc<Transaction>,
        /// This handle made the transaction half full.
        half: bool,
    },
    /// Transaction `tid` must be committed first.
    Full(Tid),
    /// The log must be checkpointed first.
    LogFull,
}

/// The role of a caller of commit.
pub(crate) enum CommitRole {
    /// Nothing: the transaction is durable, or nothing changed in it.
    Done,
    /// Commit this transaction, then report.
    Leader(Arc<Transaction>),
}

enum HandleRoom {
    Fits,
    Transaction,
    Log,
}

impl Table {
    /// `last`: the newest tid ever used.
    pub(crate) fn new(last: Tid, most: u32, closing: u32, space: Option<LogSpace>) -> Self {
        let inner = Inner {
            running: None,
            committing: None,
            fast: false,
            fast_fixed: 0,
            fast_durable: 0,
            gate: false,
            newest: last,
            durable: last,
            sleepers: 0,
            starters: 0,
            space,
        };
        Self {
            inner: Mutex::new(Rank::Table, inner),
            durable: AtomicU64::new(last),
            signals: Signals::default(),
            most,
            closing,
        }
    }

    /// Most credits of one handle.
    pub(crate) fn most_credits(&self) -> u32 {
        self.most.saturating_sub(self.closing)
    }

    pub(crate) fn durable(&self) -> Tid {
        self.durable.load(Ordering::SeqCst)
    }

    /// Tid of the running transaction, or of the one that will run next.
    pub(crate) fn running_tid(&self) -> Tid {
        let inner = self.inner.lock();
        inner.running.as_ref().map_or(inner.newest + 1, |t| t.tid)
    }

    /// Oldest tid in the log, or the next one to be there.
    pub(crate) fn tail_tid(&self) -> Tid {
        let inner = self.inner.lock();
        let oldest = inner.space.as_ref().and_then(LogSpace::oldest);
        oldest.map_or(inner.durable + 1, |one| one.tid)
    }

    /// The first transaction in the log after `tid`, which is durable, and its position. If there
    /// is none, the next transaction and the position at which it will begin.
    pub(crate) fn log_after(&self, tid: Tid) -> (Tid, u64) {
        let inner = self.inner.lock();
        let Some(space) = &inner.space else {
            return (tid + 1, 0);
        };
        match space.oldest_after(tid) {
            Some(one) => (one.tid, one.start),
            None => (tid + 1, space.head()),
        }
    }

    /// Frees the blocks of the log up to transaction `tid`.
    pub(crate) fn release_log(&self, tid: Tid) {
        let mut inner = self.inner.lock();
        if let Some(space) = inner.space.as_mut() {
            space.release(tid);
        }
        self.signals.start.notify_all();
    }

    /// Whether the log is nearly full.
    pub(crate) fn log_is_low(&self) -> bool {
        let inner = self.inner.lock();
        inner.space.as_ref().is_some_and(LogSpace::is_low)
    }

    /// Number of threads that wait in the table.
    pub(crate) fn sleepers(&self) -> usize {
        self.inner.lock().sleepers
    }

    fn sleep(&self, inner: &mut MutexGuard<'_, Inner>, signal: &Condvar) {
        inner.sleepers += 1;
        inner.wait(signal);
        inner.sleepers -= 1;
    }

    /// Sleeps until the event, or until a spurious wake-up.
    fn sleep_until<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        event: &EventCount,
    ) -> MutexGuard<'a, Inner> {
        inner.sleepers += 1;
        event.wait(inner);
        let mut inner = self.inner.lock();
        inner.sleepers -= 1;
        inner
    }

    /// Wakes every waiter, for instance because the journal failed.
    pub(crate) fn wake(&self) {
        let _inner = self.inner.lock();
        self.signals.all();
    }

    /// Starts a handle of `credits` in the running transaction. Waits while that transaction is
    /// being closed, and while other handles hold the missing room.
    pub(crate) fn enter(&self, failure: &Failure, credits: u32) -> Result<Entered> {
        let mut inner = self.inner.lock();
        loop {
            failure.check()?;
            let trans = inner.running();
            if trans.state().admits(Action::Start) && !inner.gate {
                match self.room(&inner, &trans, credits) {
                    HandleRoom::Fits => return Ok(self.admit(&trans, credits)),
                    HandleRoom::Log if inner.has_old() => return Ok(Entered::LogFull),
                    _ if inner.committing.is_none() && trans.is_dirty() => {
                        return Ok(Entered::Full(trans.tid));
                    }
                    _ => {}
                }
            }
            inner.starters += 1;
            self.sleep(&mut inner, &self.signals.start);
            inner.starters -= 1;
        }
    }

    fn admit(&self, trans: &Arc<Transaction>, credits: u32) -> Entered {
        trans.handles.fetch_add(1, Ordering::SeqCst);
        let before = trans.reserved.fetch_add(credits, Ordering::SeqCst);
        let half = self.most_credits() / 2;
        Entered::In {
            trans: trans.clone(),
            half: before < half && before.saturating_add(credits) >= half,
        }
    }

    fn room(&self, inner: &Inner, trans: &Transaction, credits: u32) -> HandleRoom {
        let total = u64::from(trans.reserved.load(Ordering::SeqCst))
            + u64::from(credits)
            + u64::from(self.closing);
        if total > u64::from(self.most) {
            return HandleRoom::Transaction;
        }
        if inner.fits_log(total) {
            HandleRoom::Fits
        } else {
            HandleRoom::Log
        }
    }

    /// Reserves more credits for an open handle, if there is room now.
    pub(crate) fn extend(&self, trans: &Transaction, credits: u32) -> bool {
        let inner = self.inner.lock();
        let fits = matches!(self.room(&inner, trans, credits), HandleRoom::Fits);
        // A committer that waits for this handle should not wait for long.
        if !fits || trans.state() != State::Running {
            return false;
        }
        trans.reserved.fetch_add(credits, Ordering::SeqCst);
        true
    }

    /// Adds credits for a handle that reserved too few, so that its change can continue. They may
    /// exceed a transaction's limit, but never the log.
    ///
    /// # Errors
    /// [`Error::OutOfCredits`].
    pub(crate) fn overdraw(&self, trans: &Transaction) -> Result<u32> {
        let inner = self.inner.lock();
        let total = u64::from(trans.reserved.load(Ordering::SeqCst))
            + u64::from(OVERDRAFT)
            + u64::from(self.closing);
        if !inner.fits_log(total) {
            return Err(Error::OutOfCredits(trans.tid));
        }
        trans.reserved.fetch_add(OVERDRAFT, Ordering::SeqCst);
        Ok(OVERDRAFT)
    }

    /// Takes a credit for a block that joins while the transaction is being closed.
    ///
    /// # Errors
    /// [`Error::OutOfCredits`].
    pub(crate) fn use_closing_credit(&self, trans: &Transaction) -> Result<()> {
        let inner = self.inner.lock();
        let total = u64::from(trans.reserved.fetch_add(1, Ordering::SeqCst)) + 1;
        if inner.fits_log(total) {
            Ok(())
        } else {
            Err(Error::OutOfCredits(trans.tid))
        }
    }

    /// Ends a handle that has `credits` left.
    pub(crate) fn leave(&self, trans: &Transaction, credits: u32) {
        let inner = self.inner.lock();
        trans.reserved.fetch_sub(credits, Ordering::SeqCst);
        let before = trans.handles.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "left twice: {trans:?}");
        if before == 1 {
            self.signals.drained.notify_all();
        }
        if inner.starters > 0 && trans.state().admits(Action::Start) {
            self.signals.start.notify_all();
        }
    }

    /// The transaction that must be durable for all changes so far to be durable.
    pub(crate) fn newest_changed(&self) -> Option<Tid> {
        let inner = self.inner.lock();
        let running = inner.running.as_ref().filter(|trans| trans.is_dirty());
        let newest = running.or(inner.committing.as_ref())?;
        Some(newest.tid)
    }

    /// Waits until `target` has reached `until`, or until the caller can claim it for commit.
    pub(crate) fn claim_commit(
        &self,
        failure: &Failure,
        target: Tid,
        until: State,
    ) -> Result<CommitRole> {
        let mut inner = self.inner.lock();
        loop {
            if inner.has_reached(target, until) {
                return Ok(CommitRole::Done);
            }
            failure.check()?;
            if inner.committing.is_none() && !inner.fast {
                let running = inner.running.clone();
                // The target is newer than every change: there is nothing to wait for.
                let Some(trans) = running.filter(|t| t.tid <= target && t.is_dirty()) else {
                    // The other threads that wait for it can return too.
                    self.signals.commit(target).notify_one();
                    return Ok(CommitRole::Done);
                };
                self.step(&inner, &trans, State::Locked);
                inner.committing = Some(trans.clone());
                return Ok(CommitRole::Leader(trans));
            }
            inner = self.sleep_until(inner, self.signals.commit(target));
        }
    }

    /// Waits until no thread commits, and keeps commits away until [`end_fast`](Self::end_fast).
    /// Returns the oldest tid that is not committed, and where its transaction will begin in the
    /// log. Returns `None` if another thread's fast commit, fixed after the call began, is durable.
    pub(crate) fn begin_fast(&self, failure: &Failure) -> Result<Option<(Tid, u64)>> {
        let mut inner = self.inner.lock();
        // The next fast commit that is fixed has the caller's changes.
        let number = inner.fast_fixed + 1;
        loop {
            if inner.fast_durable >= number {
                return Ok(None);
            }
            failure.check()?;
            if inner.committing.is_none() && !inner.fast {
                inner.fast = true;
                let head = inner.space.as_ref().map_or(0, LogSpace::head);
                return Ok(Some((inner.durable + 1, head)));
            }
            inner = self.sleep_until(inner, self.signals.fast(number));
        }
    }

    /// Ends the leadership. `durable`: the contents fixed last are durable.
    pub(crate) fn end_fast(&self, durable: bool) {
        let mut inner = self.inner.lock();
        inner.fast = false;
        let before = inner.fast_durable;
        if durable {
            inner.fast_durable = inner.fast_fixed;
        }
        let (fast_durable, tid) = (inner.fast_durable, inner.durable);
        drop(inner);
        for number in (before + 1..=fast_durable).take(2) {
            self.signals.fast(number).notify_all();
        }
        self.signals.wake_leaders(tid);
    }

    /// Keeps handles from starting until [`reopen`](Self::reopen), and waits until none is open.
    /// Returns the running transaction, if there is one. The caller leads a fast commit
    /// ([`begin_fast`](Self::begin_fast)).
    pub(crate) fn quiesce(&self, failure: &Failure) -> Result<Option<Arc<Transaction>>> {
        let mut inner = self.inner.lock();
        inner.gate = true;
        loop {
            if let Err(err) = failure.check() {
                inner.gate = false;
                self.signals.start.notify_all();
                return Err(err);
            }
            let running = inner.running.clone();
            let open = |trans: &Arc<Transaction>| trans.handles.load(Ordering::SeqCst) > 0;
            if !running.as_ref().is_some_and(open) {
                inner.fast_fixed += 1;
                return Ok(running);
            }
            self.sleep(&mut inner, &self.signals.drained);
        }
    }

    /// The reason why only a whole commit makes the running transaction durable.
    pub(crate) fn requires_whole(&self) -> Option<NonZeroU8> {
        let inner = self.inner.lock();
        inner.running.as_ref()?.requires_whole()
    }

    pub(crate) fn require_whole(&self, reason: NonZeroU8) {
        if let Some(running) = &self.inner.lock().running {
            running.require_whole(reason);
        }
    }

    pub(crate) fn reopen(&self) {
        self.inner.lock().gate = false;
        self.signals.start.notify_all();
    }

    fn step(&self, _inner: &MutexGuard<'_, Inner>, trans: &Transaction, next: State) {
        trans.set_state(next);
        if next == State::Unblocked {
            self.signals.start.notify_all();
        }
    }

    /// Waits until no handle of a locked transaction is open, then moves it to `Snapshotting`.
    pub(crate) fn drain(&self, trans: &Transaction) {
        let mut inner = self.inner.lock();
        while trans.handles.load(Ordering::SeqCst) > 0 {
            self.sleep(&mut inner, &self.signals.drained);
        }
        self.step(&inner, trans, State::Snapshotting);
    }

    /// Lets the next transaction run, after the snapshot was taken. `cost` is the number of log
    /// blocks that the commit takes. Returns the position of the first one, if there is a log.
    ///
    /// # Errors
    /// [`Error::OutOfCredits`] if they do not fit, which the reservations exclude.
    pub(crate) fn unblock(&self, trans: &Transaction, cost: u64) -> Result<Option<u64>> {
        let mut inner = self.inner.lock();
        let mut start = None;
        if let Some(space) = inner.space.as_mut() {
            let taken = space.take(trans.tid, cost);
            start = Some(taken.ok_or(Error::OutOfCredits(trans.tid))?);
        }
        self.step(&inner, trans, State::Unblocked);
        inner.running = None;
        Ok(start)
    }

    /// Records that the transaction is durable.
    pub(crate) fn committed(&self, trans: &Transaction) {
        let mut inner = self.inner.lock();
        self.step(&inner, trans, State::Committed);
        inner.durable = trans.tid;
        self.durable.store(trans.tid, Ordering::SeqCst);
        self.signals.commit(trans.tid).notify_all();
        // Its blocks in the log can be checkpointed now.
        self.signals.start.notify_all();
    }

    /// Records that the commit is finished: the next transaction may be claimed.
    pub(crate) fn completed(&self, trans: &Transaction) {
        let mut inner = self.inner.lock();
        self.step(&inner, trans, State::Completed);
        inner.committing = None;
        self.signals.wake_leaders(trans.tid);
    }

    /// Records that the commit failed. The transaction stays in the table, so that its changes stay
    /// in memory.
    pub(crate) fn failed(&self, trans: &Transaction) {
        let inner = self.inner.lock();
        if trans.state() != State::Completed {
            self.step(&inner, trans, State::Completed);
            self.signals.all();
        }
    }
}

impl Inner {
    fn running(&mut self) -> Arc<Transaction> {
        let newest = &mut self.newest;
        let running = self.running.get_or_insert_with(|| {
            *newest += 1;
            Arc::new(Transaction::new(*newest))
        });
        running.clone()
    }

    /// Whether the running transaction may grow to `blocks` blocks.
    fn fits_log(&self, blocks: u64) -> bool {
        let Some(space) = &self.space else {
            return true;
        };
        space.cost(blocks) <= space.free()
    }

    /// Whether a checkpoint could free blocks of the log.
    fn has_old(&self) -> bool {
        let oldest = self.space.as_ref().and_then(LogSpace::oldest);
        oldest.is_some_and(|one| one.tid <= self.durable)
    }

    fn has_reached(&self, target: Tid, until: State) -> bool {
        match &self.committing {
            // Durable, but not completed.
            Some(trans) if trans.tid <= target && until > State::Committed => false,
            _ => self.durable >= target,
        }
    }
}
