//! Transactions: the unit that a commit makes durable as a whole.
//!
//! # How it works
//! A handle of the running transaction makes every change, on a buffer that joined the transaction.
//! A commit moves the transaction through the [`State`]s. The first caller that claims it performs
//! the commit; callers that arrive meanwhile wait and share the outcome.
//!
//! ```text
//!                 changed by          what happens, and what waits
//!  running        open handles        a start waits only for room in the transaction or the log
//!    |  a caller of `commit` claims it, once the previous one is completed
//!  locked         open handles        starts wait for "unblocked";
//!    |                                the committer waits until no handle is open
//!  snapshotting   the committer       the engine's last changes, seals, a clone of every
//!    |                                content; no device I/O except reads of the engine
//!  unblocked      none                the next transaction runs (created on demand);
//!    |                                the committer writes the log, flushes, writes the commit
//!    |                                block; without a log it writes the blocks home and flushes
//!  committed      none                callers of `commit` return: it is durable;
//!    |                                the committer waits for checkpoint writes of blocks that
//!    |                                the transaction forgot, then calls `after_commit`
//!  completed      none                the next commit may be claimed
//! ```
//!
//! A checkpoint writes the blocks to their home locations later; no commit waits for it.
//!
//! A credit reserves one block in the log. A handle starts with its credits. A buffer that joins
//! turns one credit into a member, and the end of the handle returns the rest. So the sum of
//! credits and members bounds the size of a commit, and it changes only where handles start and
//! end.
//!
//! A transaction in which nothing changed is not committed. It stays the running one, so that
//! sequence numbers in the log have no gaps.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crate::Tid;
use crate::buffer::{Buffer, Content};
use crate::counters::Counters;
use crate::rank::{Mutex, Rank};
use crate::state::{Action, State};

/// One transaction.
pub(crate) struct Transaction {
    /// Its id. The log stores the low 32 bits.
    pub(crate) tid: Tid,
    /// Changes only under the table's lock, as do the two counts.
    state: AtomicU8,
    pub(crate) handles: AtomicU32,
    /// Credits of open handles, plus members.
    pub(crate) reserved: AtomicU32,
    /// A buffer joined or a block was forgotten.
    dirty: AtomicBool,
    /// The reason why only a whole commit makes it durable, in the engine's numbers; 0 if a fast
    /// commit may.
    whole: AtomicU8,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    buffers: BTreeMap<u64, Arc<Buffer>>,
    /// Blocks whose older copies in the log must not be replayed.
    revoked: BTreeSet<u64>,
}

/// Result of [`Transaction::forget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forgotten {
    /// It was a member: its credit is free again.
    pub(crate) left: bool,
    /// The number of revoke records of the transaction, if one was added.
    pub(crate) revokes: Option<usize>,
}

/// One block of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    pub(crate) content: Content,
    pub(crate) buffer: Arc<Buffer>,
}

/// The contents of a commit, fixed while no handle is open.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Blocks in ascending order of their numbers.
    pub(crate) blocks: Vec<Logged>,
    /// Revoked blocks, in rising order.
    pub(crate) revoked: Vec<u64>,
}

impl Transaction {
    pub(crate) fn new(tid: Tid) -> Self {
        Self {
            tid,
            state: AtomicU8::new(State::Running as u8),
            handles: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            dirty: AtomicBool::new(false),
            whole: AtomicU8::new(0),
            members: Mutex::new(Rank::Members, Members::default()),
        }
    }

    /// Its current state.
    pub(crate) fn state(&self) -> State {
        State::from_u8(self.state.load(Ordering::SeqCst))
    }

    /// Moves it to the next state. Only the table calls this, under its lock.
    pub(crate) fn set_state(&self, next: State) {
        let now = self.state();
        assert!(now.may_become(next), "{self:?} to {next:?}");
        self.state.store(next as u8, Ordering::SeqCst);
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst)
    }

    /// Requires a whole commit. The first reason stays.
    pub(crate) fn require_whole(&self, reason: NonZeroU8) {
        let (new, order) = (reason.get(), Ordering::SeqCst);
        let _ = self.whole.compare_exchange(0, new, order, order);
    }

    /// The reason why only a whole commit makes it durable.
    pub(crate) fn requires_whole(&self) -> Option<NonZeroU8> {
        NonZeroU8::new(self.whole.load(Ordering::SeqCst))
    }

    fn may_change(&self) -> bool {
        let state = self.state();
        state.admits(Action::Change) || state.admits(Action::Close)
    }

    /// Makes the buffer a member. True if its block was not a member before, which costs a credit.
    /// The caller has a handle or is the committer.
    pub(crate) fn join(&self, counters: &Counters, buffer: &Arc<Buffer>) -> bool {
        if buffer.joined() == self.tid {
            return false;
        }
        debug_assert!(self.may_change(), "a change in {self:?}");
        let mut members = self.members.lock();
        if buffer.joined() == self.tid {
            return false;
        }
        let before = members.buffers.insert(buffer.block(), buffer.clone());
        if let Some(before) = &before {
            before.set_joined(0);
        }
        buffer.set_joined(self.tid);
        if members.revoked.remove(&buffer.block()) {
            Counters::count(&counters.cancelled_revokes);
        }
        Counters::count(&counters.joins);
        self.dirty.store(true, Ordering::SeqCst);
        before.is_none()
    }

    /// Removes the block, and revokes older copies of it if the log may have some.
    pub(crate) fn forget(&self, block: u64, in_log: bool) -> Forgotten {
        debug_assert!(self.may_change(), "a change in {self:?}");
        let mut members = self.members.lock();
        let member = members.buffers.remove(&block);
        if let Some(buffer) = &member {
            buffer.set_joined(0);
        }
        let fresh = in_log && members.revoked.insert(block);
        if member.is_some() || fresh {
            self.dirty.store(true, Ordering::SeqCst);
        }
        Forgotten {
            left: member.is_some(),
            revokes: fresh.then(|| members.revoked.len()),
        }
    }

    /// The current members.
    pub(crate) fn members(&self) -> Vec<Arc<Buffer>> {
        self.members.lock().buffers.values().cloned().collect()
    }

    /// The contents for the commit. No thread changes the transaction any more.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let logged = |buffer: Arc<Buffer>| Logged {
            content: buffer.read().0,
            buffer,
        };
        Snapshot {
            blocks: self.members().into_iter().map(logged).collect(),
            revoked: self.members.lock().revoked.iter().copied().collect(),
        }
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("tid", &self.tid)
            .field("state", &self.state())
            .field("handles", &self.handles)
            .field("reserved", &self.reserved)
            .field("dirty", &self.is_dirty())
            .finish_non_exhaustive()
    }
}
