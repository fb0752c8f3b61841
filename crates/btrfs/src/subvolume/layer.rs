//! The layer of subvolumes, and their part in a commit.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cleaner_queue::Cleaner;
use super::pending::PendingSnapshots;
use super::quota;
use crate::Result;
use crate::lock::{Rank, RankedMutex};
use crate::namespace::Namespace;
use crate::transaction::{Handle, Participant};
use crate::tree::{BlockCache, TreeRead};

/// Subvolumes, on top of names; always behind an `Arc`.
pub(crate) struct Subvolumes {
    namespace: Arc<Namespace>,
    /// Held by the thread that makes or deletes a subvolume, or changes its flags.
    pub(super) changes: RankedMutex<()>,
    /// Snapshots that the next commit takes.
    pub(super) pending: PendingSnapshots,
    /// Deleted subvolumes whose blocks are still to be dropped.
    pub(crate) cleaner: Cleaner,
    /// The quota numbers are marked as wrong, or there are none.
    quota_marked: AtomicBool,
}

impl Subvolumes {
    /// The subvolumes of a mount.
    pub(crate) fn new(namespace: Arc<Namespace>) -> Arc<Self> {
        Arc::new(Self {
            namespace,
            changes: RankedMutex::new(Rank::Subvolume, ()),
            pending: PendingSnapshots::default(),
            cleaner: Cleaner::default(),
            quota_marked: AtomicBool::new(false),
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
        if !self.quota_marked.swap(true, Ordering::SeqCst) {
            quota::mark_inconsistent(h)?;
        }
        Ok(())
    }

    fn completed(&self) {
        self.cleaner.committed();
    }
}
