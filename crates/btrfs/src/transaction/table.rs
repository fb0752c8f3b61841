//! The running and the committing transaction, and the threads that wait for them.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Condvar;

use super::dirty::LogBlocks;
use super::dirty::{DelayedItems, DirtyBlocks, DirtyRoots};
use super::state::{HandlePurpose, State};
use crate::Result;
use crate::lock::{Rank, RankedMutex, RankedMutexGuard};
use crate::space::{MetadataReservation, SpaceChanges};
use sapwood_base::Health;

/// State that a part above transactions keeps for one transaction, which drops it at its end.
#[derive(Default)]
pub(crate) struct Slot(OnceLock<Box<dyn Any + Send + Sync>>);

impl Slot {
    /// Whether there is any.
    pub(crate) fn is_filled(&self) -> bool {
        self.0.get().is_some()
    }

    /// The state, made if there is none. One slot has states of one type.
    pub(crate) fn get_or_default<T: Any + Default + Send + Sync>(&self) -> &T {
        let state = self.0.get_or_init(|| Box::new(T::default()));
        state.downcast_ref().expect("a slot has one type")
    }
}

/// One transaction. Counts and state change only under the lock of [`Transactions`].
pub(crate) struct Transaction {
    /// Id: the generation of everything that it writes.
    pub(crate) transid: u64,
    state: AtomicU8,
    /// Open handles of [`HandlePurpose::Start`].
    starters: AtomicU32,
    /// Open handles of [`HandlePurpose::Join`].
    joiners: AtomicU32,
    /// Ordered extents that the commit has to wait for.
    pins: AtomicU32,
    dirty: AtomicBool,
    /// Tree blocks to write.
    pub(crate) dirty_blocks: DirtyBlocks,
    /// Trees whose root items to write.
    pub(crate) dirty_roots: DirtyRoots,
    /// Items that were delayed until the commit.
    pub(crate) delayed: DelayedItems,
    /// Metadata promised to ended handles, for their delayed items.
    kept: RankedMutex<Option<MetadataReservation>>,
    /// Changes of space: delayed refs, freed extents.
    pub(crate) space: Arc<SpaceChanges>,
    /// The tree log's state of this transaction.
    pub(crate) log: Slot,
    /// Blocks of log trees.
    pub(crate) log_blocks: LogBlocks,
    /// Time of its creation.
    begun: Instant,
}

impl Transaction {
    fn new(transid: u64) -> Self {
        Self {
            transid,
            state: AtomicU8::new(State::Running as u8),
            starters: AtomicU32::new(0),
            joiners: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            dirty: AtomicBool::new(false),
            dirty_blocks: DirtyBlocks::default(),
            dirty_roots: DirtyRoots::default(),
            delayed: DelayedItems::default(),
            kept: RankedMutex::new(Rank::DirtyRoots, None),
            space: Arc::new(SpaceChanges::default()),
            log: Slot::default(),
            log_blocks: LogBlocks::default(),
            begun: Instant::now(),
        }
    }

    /// The current state.
    pub(crate) fn state(&self) -> State {
        State::from_u8(self.state.load(Ordering::SeqCst))
    }

    /// Takes over metadata promised for something that the commit will do.
    pub(super) fn keep(&self, promise: MetadataReservation) {
        let mut kept = self.kept.lock();
        match &*kept {
            Some(all) => all.merge(promise),
            None => *kept = Some(promise),
        }
    }

    /// The promise for the commit.
    pub(super) fn take_kept(&self) -> Option<MetadataReservation> {
        self.kept.lock().take()
    }

    /// Whether anything changed in it.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst)
    }

    fn count(&self, entry: HandlePurpose) -> Option<&AtomicU32> {
        match entry {
            HandlePurpose::Start => Some(&self.starters),
            HandlePurpose::Join => Some(&self.joiners),
            HandlePurpose::Commit => None,
        }
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("transid", &self.transid)
            .field("state", &self.state())
            .field("starters", &self.starters)
            .field("joiners", &self.joiners)
            .field("pins", &self.pins)
            .field("dirty", &self.is_dirty())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Table {
    /// The newest transaction, until it is unblocked; the next one is made on demand.
    current: Option<Arc<Transaction>>,
    /// Claimed and not completed; the same as `current` until it is unblocked.
    committing: Option<Arc<Transaction>>,
    /// Newest transid assigned.
    newest: u64,
    /// Newest transid whose superblock is on disk.
    durable: u64,
    /// The committer is to commit now.
    requested: bool,
    /// The background threads are to end.
    stopping: bool,
    /// Threads that sleep here; tests wait for them.
    sleepers: usize,
}

/// All transactions of a mount.
#[derive(Debug)]
pub(crate) struct Transactions {
    table: RankedMutex<Table>,
    /// Any change that a thread may wait for.
    changed: Condvar,
    /// The committer thread sleeps here.
    committer: Condvar,
    /// Transaction that holds more than memory has room for: the next operation commits it first.
    /// 0: none.
    overfull: AtomicU64,
    /// Held by a commit from when no handle is left until its superblock is on disk, and by a log
    /// commit while it writes its superblock.
    pub(crate) superblock_order: RankedMutex<()>,
}

/// The role of a caller of commit.
pub(super) enum Turn {
    /// It is durable.
    Done,
    /// Commit this transaction, then report.
    Commit(Arc<Transaction>),
}

impl Transactions {
    /// State for a file system whose superblock has this generation.
    pub(crate) fn new(generation: u64) -> Self {
        Self {
            table: RankedMutex::new(
                Rank::TransactionState,
                Table {
                    current: None,
                    committing: None,
                    newest: generation,
                    durable: generation,
                    requested: false,
                    stopping: false,
                    sleepers: 0,
                },
            ),
            changed: Condvar::new(),
            committer: Condvar::new(),
            overfull: AtomicU64::new(0),
            superblock_order: RankedMutex::new(Rank::SuperblockOrder, ()),
        }
    }

    /// Transid whose superblock was written last.
    pub(crate) fn last_committed(&self) -> u64 {
        self.table.lock().durable
    }

    /// Enters the running transaction, or waits until one runs.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly), [`Error::Aborted`](crate::Error::Aborted).
    pub(super) fn enter(&self, health: &Health, entry: HandlePurpose) -> Result<Arc<Transaction>> {
        let mut table = self.table.lock();
        loop {
            health.check()?;
            let table_ref = &mut *table;
            let newest = &mut table_ref.newest;
            let current = table_ref.current.get_or_insert_with(|| {
                *newest += 1;
                Arc::new(Transaction::new(*newest))
            });
            if current.state().admits(entry) {
                let current = current.clone();
                if let Some(count) = current.count(entry) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                return Ok(current);
            }
            self.sleep(&mut table, &self.changed);
        }
    }

    /// Leaves a transaction.
    pub(super) fn leave(&self, trans: &Transaction, entry: HandlePurpose) {
        let _table = self.table.lock();
        if let Some(count) = trans.count(entry) {
            let before = count.fetch_sub(1, Ordering::SeqCst);
            debug_assert!(before > 0, "left twice: {trans:?}");
            if before == 1 && trans.state() != State::Running {
                self.changed.notify_all();
            }
        }
    }

    /// Records a change in `trans`, so that it will be committed.
    pub(super) fn mark_dirty(&self, trans: &Transaction) {
        if !trans.dirty.swap(true, Ordering::SeqCst) {
            let _table = self.table.lock();
            self.committer.notify_one();
        }
    }

    /// Makes the commit of `trans` wait for an [`unpin`](Self::unpin). The caller holds a
    /// handle of it.
    pub(crate) fn pin(&self, trans: &Transaction) {
        trans.pins.fetch_add(1, Ordering::SeqCst);
        self.mark_dirty(trans);
    }

    /// Work that the commit waited for is done.
    pub(crate) fn unpin(&self, trans: &Transaction) {
        let _table = self.table.lock();
        if trans.pins.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.changed.notify_all();
        }
    }

    /// The transaction that a caller of commit has to wait for: `transid`, or the newest in which
    /// something changed; `None` if all is durable.
    ///
    /// # Errors
    /// [`Error::Aborted`](crate::Error::Aborted).
    pub(super) fn target(&self, health: &Health, transid: Option<u64>) -> Result<Option<u64>> {
        let table = self.table.lock();
        let target = transid.or_else(|| table.newest_changed());
        match target {
            Some(target) => Ok(Some(target)),
            // Changes may be lost.
            None => {
                health.check_unfailed()?;
                Ok(None)
            }
        }
    }

    /// Transaction `transid`, if it takes handles of every kind.
    pub(super) fn running(&self, transid: u64) -> Option<Arc<Transaction>> {
        let current = self.table.lock().current.clone()?;
        let fits = current.transid == transid && current.state() == State::Running;
        fits.then_some(current)
    }

    /// Waits until `target` has reached `until`, or until it is the caller's turn to commit it.
    ///
    /// # Errors
    /// [`Error::Aborted`](crate::Error::Aborted).
    pub(super) fn turn(&self, health: &Health, target: u64, until: State) -> Result<Turn> {
        let mut table = self.table.lock();
        loop {
            if health.failed() && table.durable < target {
                health.check()?;
            }
            if table.has_reached(target, until) {
                return Ok(Turn::Done);
            }
            let claimable = table.committing.is_none();
            // The sleeper keeps no reference to the transaction: its last owner drops the
            // reservation, which must not happen under this lock.
            match &table.current {
                Some(current) if claimable && current.transid <= target => {
                    let current = current.clone();
                    self.step(&table, &current, State::CommitStart);
                    table.requested = false;
                    table.committing = Some(current.clone());
                    return Ok(Turn::Commit(current));
                }
                None if claimable => return Ok(Turn::Done),
                _ => {}
            }
            self.sleep(&mut table, &self.changed);
        }
    }

    fn step(&self, _table: &RankedMutexGuard<'_, Table>, trans: &Transaction, next: State) {
        let now = trans.state();
        assert!(now.may_become(next), "{trans:?} to {next:?}");
        trans.state.store(next as u8, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Moves a claimed transaction on and waits until it is as empty as `next` needs it.
    pub(super) fn advance(&self, trans: &Arc<Transaction>, next: State) {
        let mut table = self.table.lock();
        self.step(&table, trans, next);
        match next {
            State::CommitDoing => self.drain(&mut table, &trans.joiners),
            State::Unblocked => table.current = None,
            State::SuperWritten => table.durable = trans.transid,
            State::Completed => table.committing = None,
            State::Running | State::CommitStart => {}
        }
    }

    /// Waits until no starter is left, then until pinned work is done. `hurry` speeds it up.
    pub(super) fn drain_starters(&self, trans: &Transaction, hurry: impl FnOnce()) {
        let mut table = self.table.lock();
        self.drain(&mut table, &trans.starters);
        if trans.pins.load(Ordering::SeqCst) > 0 {
            drop(table);
            hurry();
            table = self.table.lock();
        }
        self.drain(&mut table, &trans.pins);
    }

    fn drain(&self, table: &mut RankedMutexGuard<'_, Table>, count: &AtomicU32) {
        while count.load(Ordering::SeqCst) > 0 {
            self.sleep(table, &self.changed);
        }
    }

    fn sleep(&self, table: &mut RankedMutexGuard<'_, Table>, on: &Condvar) {
        table.sleepers += 1;
        table.wait(on);
        table.sleepers -= 1;
    }

    /// Threads that sleep in the table.
    #[cfg(test)]
    pub(crate) fn sleepers(&self) -> usize {
        self.table.lock().sleepers
    }

    /// Ends a claimed transaction whose commit failed. [`Health`] has failed before.
    pub(super) fn fail(&self, trans: &Arc<Transaction>) {
        let mut table = self.table.lock();
        if trans.state() != State::Completed {
            self.step(&table, trans, State::Completed);
        }
        if table
            .current
            .as_ref()
            .is_some_and(|c| Arc::ptr_eq(c, trans))
        {
            table.current = None;
        }
        table.committing = None;
        self.changed.notify_all();
    }

    /// Wakes all threads that wait, to look at [`Health`] again.
    pub(super) fn wake(&self) {
        let _table = self.table.lock();
        self.changed.notify_all();
    }

    /// Asks the committer thread for a commit, soon; does not wait.
    pub(crate) fn request_commit(&self) {
        self.table.lock().requested = true;
        self.committer.notify_one();
    }

    /// Records that a transaction holds more than memory has room for.
    pub(super) fn set_overfull(&self, transid: u64) {
        self.overfull.store(transid, Ordering::Relaxed);
    }

    /// The transaction that must be committed before it grows further.
    pub(super) fn overfull(&self) -> Option<u64> {
        let transid = self.overfull.load(Ordering::Relaxed);
        (transid > 0 && transid > self.last_committed()).then_some(transid)
    }

    /// Ends the background threads' waits for good.
    pub(crate) fn stop(&self) {
        self.table.lock().stopping = true;
        self.committer.notify_all();
    }

    /// Sleeps until a commit is due: asked for, or `interval` after the first change. False:
    /// the thread is to end. Without changes it sleeps for ever.
    pub(crate) fn wait_due(&self, interval: Duration) -> bool {
        let mut table = self.table.lock();
        loop {
            if table.stopping {
                return false;
            }
            if std::mem::take(&mut table.requested) {
                return true;
            }
            let dirty = table.current.as_ref().filter(|c| c.is_dirty());
            match dirty.map(|c| c.begun.elapsed()) {
                Some(age) if age >= interval => return true,
                Some(age) => {
                    table.sleepers += 1;
                    let _ = table.wait_for(&self.committer, interval - age);
                    table.sleepers -= 1;
                }
                None => self.sleep(&mut table, &self.committer),
            }
        }
    }
}

impl Table {
    fn newest_changed(&self) -> Option<u64> {
        let current = self.current.as_ref().filter(|c| c.is_dirty());
        let newest = current.or(self.committing.as_ref());
        newest.map(|trans| trans.transid)
    }

    fn has_reached(&self, target: u64, until: State) -> bool {
        let busy = self
            .committing
            .as_ref()
            .is_some_and(|c| c.transid <= target);
        self.durable >= target && (until <= State::SuperWritten || !busy)
    }
}
