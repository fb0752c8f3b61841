//! Transactions: what a commit makes durable all at once.
//!
//! # How it works
//! Every change is made through a handle of the running transaction, on a buffer that joined it. A
//! commit moves the transaction through the [`State`]s; a thread that asks for it first does the
//! work; threads that come meanwhile wait and share the outcome.
//!
//! ```text
//!                 who changes it       who waits for what
//!  running        open handles         starts wait only for room in the transaction or the log
//!    |  a caller of `commit` claims it, once the previous one is completed
//!  locked         open handles         starts wait for "unblocked";
//!    |                                 the committer waits until no handle is open
//!  snapshotting   the committer        the engine's last changes, seals, a clone of every
//!    |                                 content; no device I/O but what the engine reads
//!  unblocked      none                 the next transaction runs (created on demand);
//!    |                                 the committer writes the log, flushes, writes the commit
//!    |                                 block; without a log it writes home and flushes
//!  committed      none                 callers of `commit` return: it is durable;
//!    |                                 the committer waits for checkpoint writes of blocks that
//!    |                                 the transaction forgot, then tells the engine
//!  completed      none                 the next commit may be claimed
//! ```
//!
//! Its blocks are written home later (see `checkpoint`), which no commit waits for.
//!
//! A credit is the promise of one block in the log. A handle brings its credits along; a buffer
//! that joins turns one into a member; what is left goes back when the handle ends. So the sum
//! over credits and members is a bound of what a commit has to write, and it changes only where
//! handles start and end.
//!
//! A transaction in which nothing changed is not committed; it stays the running one, so that
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
    /// Its id. The log has the low 32 bits.
    pub(crate) tid: Tid,
    /// Changes only under the lock of the table; so do the two counts.
    state: AtomicU8,
    pub(crate) handles: AtomicU32,
    /// Credits of open handles, and members.
    pub(crate) reserved: AtomicU32,
    /// Something joined or was forgotten.
    dirty: AtomicBool,
    /// Why only a whole commit makes it durable, in the engine's numbers; 0: a fast commit may.
    whole: AtomicU8,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    buffers: BTreeMap<u64, Arc<Buffer>>,
    /// Blocks whose older copies in the log count no more.
    revoked: BTreeSet<u64>,
}

/// What became of a forgotten block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forgotten {
    /// It was a member: its credit is free again.
    pub(crate) left: bool,
    /// The transaction has this many revoke records now, one more than before.
    pub(crate) revokes: Option<usize>,
}

/// One block of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    pub(crate) content: Content,
    pub(crate) buffer: Arc<Buffer>,
}

/// What a commit writes: fixed when no handle is open.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// In the order of the blocks.
    pub(crate) blocks: Vec<Logged>,
    /// Revoked blocks, in order.
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

    /// Where it stands now.
    pub(crate) fn state(&self) -> State {
        State::from_u8(self.state.load(Ordering::SeqCst))
    }

    /// One step on. Only the table calls this, under its lock.
    pub(crate) fn set_state(&self, next: State) {
        let now = self.state();
        assert!(now.may_become(next), "{self:?} to {next:?}");
        self.state.store(next as u8, Ordering::SeqCst);
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst)
    }

    /// From now on only a whole commit makes it durable; the first reason stays.
    pub(crate) fn require_whole(&self, reason: NonZeroU8) {
        let (new, order) = (reason.get(), Ordering::SeqCst);
        let _ = self.whole.compare_exchange(0, new, order, order);
    }

    /// Why only a whole commit makes it durable.
    pub(crate) fn requires_whole(&self) -> Option<NonZeroU8> {
        NonZeroU8::new(self.whole.load(Ordering::SeqCst))
    }

    fn may_change(&self) -> bool {
        let state = self.state();
        state.admits(Action::Change) || state.admits(Action::Close)
    }

    /// Makes the buffer a member. True if its block was none before, which costs a credit. The
    /// caller has a handle, or is the committer.
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

    /// Takes the block out, and revokes older copies of it if the log may have some.
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

    /// Members now.
    pub(crate) fn members(&self) -> Vec<Arc<Buffer>> {
        self.members.lock().buffers.values().cloned().collect()
    }

    /// What the commit writes. No thread changes the transaction any more.
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
