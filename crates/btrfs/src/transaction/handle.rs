//! A handle: the right to change the running transaction.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use sapwood_btrfs_format::objectid;

use super::dirty::Delayed;
use super::state::HandlePurpose;
use super::store::Store;
use super::table::Transaction;
use crate::lock::{Rank, assert_held_at_most};
use crate::space::MetadataReservation;
use crate::tree::Root;
use crate::{Error, Result};

/// Changed inodes of a transaction from which on it is committed early, at least and at most.
const INODES: RangeInclusive<usize> = 256..=1 << 16;
/// Bytes that a changed inode takes, about.
const INODE_BYTES: usize = 2048;

thread_local! {
    /// Whether this thread holds a handle: a second start could wait for the first for ever.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// The right to change one transaction, which cannot become durable (in part) while the
/// handle lives. Ends when dropped. Stays with its thread.
pub(crate) struct Handle {
    store: Arc<Store>,
    trans: Arc<Transaction>,
    entry: HandlePurpose,
    /// Metadata promised to this handle; none for a join or a commit.
    pub(crate) reservation: Option<MetadataReservation>,
    /// Bytes of it that the commit needs for delayed items.
    kept: Cell<u64>,
    /// Data extents that files lost through this handle, by address.
    pub(crate) lost: Vec<u64>,
    _not_send: PhantomData<*const ()>,
}

impl Handle {
    /// Transid: the generation of everything that the handle changes.
    pub(crate) fn transid(&self) -> u64 {
        self.trans.transid
    }

    /// The store.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The transaction.
    pub(crate) fn trans(&self) -> &Arc<Transaction> {
        &self.trans
    }

    /// Whether this is the handle of a commit, which is alone in its transaction.
    pub(crate) fn is_commit(&self) -> bool {
        self.entry == HandlePurpose::Commit
    }

    /// Records a change.
    pub(crate) fn mark_dirty(&self) {
        self.store.transactions.mark_dirty(&self.trans);
    }

    /// Records a change of `root`.
    pub(crate) fn record_root(&self, root: &Arc<Root>) {
        if root.id() == objectid::TREE_LOG {
            // The root item goes into the log root tree, not into a commit.
            root.set_last_trans(self.transid());
            return;
        }
        if root.last_trans() != self.transid() || self.is_commit() {
            self.trans.dirty_roots.insert(root);
            root.set_last_trans(self.transid());
            self.mark_dirty();
        }
    }

    /// Queues an inode, which is not queued yet: the commit writes its items.
    pub(crate) fn delay(&self, inode: Arc<dyn Delayed>) {
        let queued = self.trans.delayed.insert(inode);
        self.mark_dirty();
        // Queued inodes cannot be evicted.
        let many = self.store.many_inodes();
        if queued.is_multiple_of(many) {
            self.store.transactions.request_commit();
        }
        if queued >= 2 * many {
            self.store.transactions.set_overfull(self.transid());
        }
        // A leaf to copy, and as much again for the nodes above and for the records of the copies.
        self.keep(2 * u64::from(self.store.nodesize));
    }

    /// Leaves a part of the reservation to the commit, for one delayed item. Several delayed items
    /// share the leaf that the commit copies.
    pub(crate) fn keep_item(&self) {
        self.keep(u64::from(self.store.nodesize) / 8);
    }

    /// Leaves `bytes` of the reservation to the commit, for something that is delayed.
    pub(crate) fn keep(&self, bytes: u64) {
        self.kept.set(self.kept.get() + bytes);
    }

    /// Aborts: the changes of this handle are incomplete and must never be committed. The mount
    /// becomes read-only.
    pub(crate) fn abort(&self, err: &Error) {
        self.store.health.fail(err);
        self.store.transactions.wake();
    }

    /// Writes all delayed items of its transaction. For the commit.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn write_delayed(&mut self) -> Result<()> {
        for delayed in self.trans.delayed.take() {
            delayed.write(self)?;
        }
        Ok(())
    }

    /// Ends the handle of an operation. If the operation failed, its changes may be incomplete and
    /// cannot be undone, so the mount becomes read-only.
    ///
    /// # Errors
    /// The error of the operation; [`Error::Aborted`].
    pub(crate) fn finish<T>(self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => self.end().map(|()| value),
            Err(error) => {
                self.abort(&error);
                Err(error)
            }
        }
    }

    /// Ends the handle.
    ///
    /// # Errors
    /// [`Error::Aborted`]: the changes will not become durable.
    pub(crate) fn end(self) -> Result<()> {
        let store = self.store.clone();
        drop(self);
        Ok(store.health.check()?)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        let space = &self.trans.space;
        if self.store.space.is_tracing() && self.store.quotas.is_much(space.traced.count()) {
            self.store.transactions.request_commit();
        }
        if let Some(reservation) = self.reservation.take()
            && self.kept.get() > 0
        {
            self.trans.keep(reservation.split(self.kept.get()));
        }
        self.store.transactions.leave(&self.trans, self.entry);
    }
}

impl Store {
    /// Changed inodes from which on a transaction is committed early: half of the inodes' memory.
    fn many_inodes(&self) -> usize {
        let most = self.options.inode_bytes / 2 / INODE_BYTES;
        most.clamp(*INODES.start(), *INODES.end())
    }

    fn enter(
        self: &Arc<Self>,
        entry: HandlePurpose,
        reservation: Option<MetadataReservation>,
    ) -> Result<Handle> {
        match entry {
            HandlePurpose::Start => assert_held_at_most(Rank::Inode),
            HandlePurpose::Join => assert_held_at_most(Rank::FileDataFlush),
            HandlePurpose::Commit => {}
        }
        let trans = self.transactions.enter(&self.health, entry)?;
        HELD.set(HELD.get() + 1);
        Ok(Handle {
            store: self.clone(),
            trans,
            entry,
            reservation,
            kept: Cell::new(0),
            lost: Vec::new(),
            _not_send: PhantomData,
        })
    }

    /// Starts an operation that touches at most `items` items. May wait for a commit: hold no
    /// lock above [`Rank::Inode`], and no other handle.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::Aborted`].
    pub(crate) fn start(self: &Arc<Self>, items: u64) -> Result<Handle> {
        self.start_with(items, false)
    }

    /// Like [`start`](Self::start) for an operation that frees space: it may use the reserve for
    /// that.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::Aborted`].
    pub(crate) fn start_urgent(self: &Arc<Self>, items: u64) -> Result<Handle> {
        self.start_with(items, true)
    }

    fn start_with(self: &Arc<Self>, items: u64, urgent: bool) -> Result<Handle> {
        self.health.check()?;
        debug_assert!(HELD.get() == 0, "a thread that holds a handle starts one");
        if let Some(overfull) = self.transactions.overfull() {
            self.commit(Some(overfull))?;
        }
        let reservation = self.space.reserve_metadata(self, items, urgent)?;
        self.enter(HandlePurpose::Start, Some(reservation))
    }

    /// Joins the running transaction for work that a commit may wait for, on a reservation
    /// made before.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Aborted`].
    pub(crate) fn join(self: &Arc<Self>) -> Result<Handle> {
        self.enter(HandlePurpose::Join, None)
    }

    /// The handle of a commit.
    pub(super) fn enter_commit(self: &Arc<Self>) -> Result<Handle> {
        let mut h = self.enter(HandlePurpose::Commit, None)?;
        h.reservation = h.trans.take_kept();
        Ok(h)
    }
}
