//! The layer of subvolumes, their part in a commit, and the cleaner's queue.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Condvar;

use super::pending::PendingSnapshots;
use crate::Result;
use crate::lock::{Rank, RankedMutex};
use crate::namespace::Namespace;
use crate::transaction::{Handle, Participant};
use crate::tree::{BlockCache, Root, TreeRead};

/// Time until the next attempt for a deleted subvolume that is still in use.
const RETRY: Duration = Duration::from_secs(2);

/// Work of the cleaner.
#[derive(Debug)]
pub(crate) struct Cleaner {
    /// Held by the thread that does a round, or several with commits between them.
    pub(super) round: RankedMutex<()>,
    pub(super) work: RankedMutex<Work>,
    wake: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct Work {
    /// Trees to drop.
    pub(super) dead: VecDeque<Arc<Root>>,
    /// A transaction was committed: block groups may be empty.
    committed: bool,
    stopping: bool,
}

impl Default for Cleaner {
    fn default() -> Self {
        Self {
            round: RankedMutex::new(Rank::Mount, ()),
            work: RankedMutex::new(Rank::Leaf, Work::default()),
            wake: Condvar::new(),
        }
    }
}

impl Cleaner {
    /// Queues the tree of a deleted subvolume.
    pub(crate) fn add(&self, root: Arc<Root>) {
        let mut work = self.work.lock();
        if work.dead.iter().all(|other| other.id() != root.id()) {
            work.dead.push_back(root);
        }
        self.wake.notify_one();
    }

    /// Records that a transaction was committed.
    pub(crate) fn committed(&self) {
        self.work.lock().committed = true;
        self.wake.notify_one();
    }

    /// Ends the cleaner's thread.
    pub(crate) fn stop(&self) {
        self.work.lock().stopping = true;
        self.wake.notify_all();
    }

    /// The trees that wait to be dropped.
    pub(super) fn dead(&self) -> Vec<Arc<Root>> {
        self.work.lock().dead.iter().cloned().collect()
    }

    pub(super) fn stopping(&self) -> bool {
        self.work.lock().stopping
    }

    /// Sleeps until there is work. Returns false at the end of the thread. `wait`: the last attempt
    /// has to wait for another event.
    pub(super) fn wait_work(&self, wait: bool) -> bool {
        let mut work = self.work.lock();
        if wait && !work.stopping && !work.committed {
            work.wait_for(&self.wake, RETRY);
        }
        while !work.stopping && work.dead.is_empty() && !work.committed {
            work.wait(&self.wake);
        }
        work.committed = false;
        !work.stopping
    }
}

/// Subvolumes, on top of names; always in an `Arc`.
pub(crate) struct Subvolumes {
    namespace: Arc<Namespace>,
    /// Held by the thread that makes or deletes a subvolume, or changes its flags.
    pub(super) changes: RankedMutex<()>,
    /// Snapshots that the next commit takes.
    pub(super) pending: PendingSnapshots,
    /// Deleted subvolumes whose blocks are still to be dropped.
    pub(crate) cleaner: Cleaner,
}

impl Subvolumes {
    /// The subvolumes of a mount.
    pub(crate) fn new(namespace: Arc<Namespace>) -> Arc<Self> {
        Arc::new(Self {
            namespace,
            changes: RankedMutex::new(Rank::Subvolume, ()),
            pending: PendingSnapshots::default(),
            cleaner: Cleaner::default(),
        })
    }
}

impl Deref for Subvolumes {
    type Target = Arc<Namespace>;

    fn deref(&self) -> &Arc<Namespace> {
        &self.namespace
    }
}

impl TreeRead for Subvolumes {
    fn blocks(&self) -> &BlockCache {
        &self.namespace.blocks
    }
}

impl Participant for Subvolumes {
    fn settle(&self, h: &mut Handle) -> Result<()> {
        if self.pending.take_all(h)? {
            // The names of the snapshots delay items of their own.
            h.write_delayed()?;
        }
        Ok(())
    }

    fn completed(&self) {
        self.cleaner.committed();
    }
}
