//! The log trees of a transaction, the threads that change them, the fsyncs in progress, and the
//! durable log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Condvar;
use sapwood_base::EventCount;
use sapwood_btrfs_format::{Key, RootItem, kind, objectid};

use super::pending::Pending;
use crate::Result;
use crate::commit_reason::CommitReason;
use crate::lock::{Rank, RankedMutex, RankedMutexGuard};
use crate::transaction::{Handle, Store, Transaction};
use crate::tree::{Root, create_root};

/// The logs of one transaction. They build on the transaction before it and count until the
/// transaction itself is durable.
#[derive(Debug)]
pub(crate) struct TransactionLog {
    /// There is a log tree; read without a lock by the thread that changes names.
    exists: AtomicBool,
    /// Held while a log tree is created.
    creating: RankedMutex<()>,
    pub(super) state: RankedMutex<LogState>,
    /// Copy of the number in the state, for threads that are woken because of it.
    durable: AtomicU64,
    pub(super) signals: Signals,
}

/// State under the lock of a [`TransactionLog`].
#[derive(Debug)]
pub(super) struct LogState {
    /// The log root tree.
    pub(super) root: Option<Arc<Root>>,
    /// The log trees, by subvolume.
    pub(super) trees: BTreeMap<u64, Arc<SubvolumeLog>>,
    /// Threads that change log trees now.
    pub(super) loggers: usize,
    /// A thread collects the log: no thread begins to change log trees.
    pub(super) collecting: bool,
    /// The log that is being filled.
    pub(super) filling: u64,
    /// Newest log whose blocks are on disk or being written; the log after it may be collected.
    pub(super) written: u64,
    /// Newest log that the superblock names.
    pub(super) durable: u64,
    /// No log of this transaction can be trusted any more: commit.
    pub(super) broken: Option<CommitReason>,
}

/// The events of a log. Each wakes only the threads that it concerns: if many wait, only one can
/// continue with the next log.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// No thread collects any more.
    pub(super) opened: Condvar,
    /// No logger is at work; for the thread that collects.
    pub(super) quiet: Condvar,
    /// The blocks of a log are being written.
    pub(super) written: Condvar,
    /// A log is durable, or the filling one may be collected. By number modulo 4; few are waited
    /// for at once.
    durable: [EventCount; 4],
}

impl Signals {
    /// The event of log `number`.
    pub(super) fn of(&self, number: u64) -> &EventCount {
        let [a, b, c, d] = &self.durable;
        match number % 4 {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        }
    }

    fn all(&self) {
        for signal in [&self.opened, &self.quiet, &self.written] {
            signal.notify_all();
        }
        for signal in &self.durable {
            signal.notify_all();
        }
    }
}

impl Default for TransactionLog {
    fn default() -> Self {
        let state = LogState {
            root: None,
            trees: BTreeMap::new(),
            loggers: 0,
            collecting: false,
            filling: 1,
            written: 0,
            durable: 0,
            broken: None,
        };
        Self {
            exists: AtomicBool::new(false),
            creating: RankedMutex::new(Rank::LogTrees, ()),
            state: RankedMutex::new(Rank::Leaf, state),
            durable: AtomicU64::new(0),
            signals: Signals::default(),
        }
    }
}

impl TransactionLog {
    /// The log of a transaction.
    pub(super) fn of(trans: &Transaction) -> &Self {
        trans.log.get_or_default()
    }

    /// The log of a subvolume, if it has one.
    pub(super) fn find(&self, subvolume: u64) -> Option<Arc<SubvolumeLog>> {
        if !self.exists.load(Ordering::Acquire) {
            return None;
        }
        self.state.lock().trees.get(&subvolume).cloned()
    }

    /// The log of a subvolume, made if need be: the log root tree with the first one.
    ///
    /// # Errors
    /// No space.
    pub(super) fn create(&self, h: &mut Handle, subvolume: u64) -> Result<Arc<SubvolumeLog>> {
        if let Some(found) = self.find(subvolume) {
            return Ok(found);
        }
        let _creating = self.creating.lock();
        if let Some(found) = self.find(subvolume) {
            return Ok(found);
        }
        if self.state.lock().root.is_none() {
            let root = create_root(h, objectid::TREE_LOG)?;
            self.state.lock().root = Some(root);
        }
        let tree = create_root(h, objectid::TREE_LOG)?;
        let made = Arc::new(SubvolumeLog::new(subvolume, tree));
        self.state.lock().trees.insert(subvolume, made.clone());
        self.exists.store(true, Ordering::Release);
        Ok(made)
    }

    /// Whether the superblock names log `number` or a newer one.
    pub(super) fn is_durable(&self, number: u64) -> bool {
        self.durable.load(Ordering::Acquire) >= number
    }

    /// Records that log `number` and all logs before it are durable.
    pub(super) fn set_durable(&self, number: u64) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.durable, number);
        self.durable.store(number, Ordering::Release);
        let filling = state.filling;
        drop(state);
        for done in before + 1..=number {
            self.signals.of(done).notify_all();
        }
        // There is room for one more log, and one of the threads that wait for it is enough.
        self.signals.of(filling).notify_one();
    }

    /// The reason why the log of this transaction is broken, if it is.
    pub(super) fn broken(&self) -> Option<CommitReason> {
        self.state.lock().broken
    }

    /// Marks the log of this transaction as broken.
    pub(super) fn set_broken(&self, cause: CommitReason) {
        let mut state = self.state.lock();
        state.broken.get_or_insert(cause);
        self.signals.all();
    }

    /// Begins to change log trees; waits while a thread collects the log.
    pub(super) fn begin(&self) -> Logging<'_> {
        let mut state = self.state.lock();
        while state.collecting {
            state.wait(&self.signals.opened);
        }
        state.loggers += 1;
        Logging { log: self }
    }
}

/// A thread changes log trees. While this lives no log is collected, so that all changes that
/// belong together go into one.
pub(super) struct Logging<'a> {
    log: &'a TransactionLog,
}

impl Logging<'_> {
    /// The log that the changes will be in.
    pub(super) fn number(&self) -> u64 {
        self.log.state.lock().filling
    }
}

impl Drop for Logging<'_> {
    fn drop(&mut self) {
        let mut state = self.log.state.lock();
        state.loggers -= 1;
        let (left, collecting) = (state.loggers, state.collecting);
        drop(state);
        if left == 0 && collecting {
            self.log.signals.quiet.notify_one();
        }
    }
}

/// The log of one subvolume in one transaction.
#[derive(Debug)]
pub(super) struct SubvolumeLog {
    /// Id of the subvolume.
    pub(super) subvolume: u64,
    /// The log tree.
    pub(super) tree: Arc<Root>,
    /// Held by the thread that changes checksums in it.
    pub(super) sums: RankedMutex<()>,
    inodes: RankedMutex<HashMap<u64, Arc<InodeLog>>>,
    /// Logged inodes whose names changed since.
    pending: RankedMutex<Pending>,
}

impl SubvolumeLog {
    fn new(subvolume: u64, tree: Arc<Root>) -> Self {
        Self {
            subvolume,
            tree,
            sums: RankedMutex::new(Rank::Checksums, ()),
            inodes: RankedMutex::new(Rank::Leaf, HashMap::new()),
            pending: RankedMutex::new(Rank::Leaf, Pending::default()),
        }
    }

    /// Key of its item in the log root tree.
    pub(super) fn item_key(&self) -> Key {
        Key::new(objectid::TREE_LOG, kind::ROOT_ITEM, self.subvolume)
    }

    /// Item in the log root tree.
    pub(super) fn item(&self, transid: u64) -> RootItem {
        self.tree.update_item(transid)
    }

    /// The log record of an inode, made if there is none. It outlives the inode in memory, so an
    /// inode that was evicted and loaded again still counts as logged.
    pub(super) fn inode(&self, objectid: u64) -> Arc<InodeLog> {
        let mut inodes = self.inodes.lock();
        inodes.entry(objectid).or_default().clone()
    }

    /// The log record of an inode, if there is one.
    pub(super) fn find(&self, objectid: u64) -> Option<Arc<InodeLog>> {
        self.inodes.lock().get(&objectid).cloned()
    }

    /// The pending inodes.
    pub(super) fn pending(&self) -> RankedMutexGuard<'_, Pending> {
        self.pending.lock()
    }
}

/// Contents of this transaction's log for an inode.
#[derive(Debug)]
pub(super) struct InodeLog {
    pub(super) logged: RankedMutex<Logged>,
}

impl Default for InodeLog {
    fn default() -> Self {
        Self {
            logged: RankedMutex::new(Rank::InodeLog, Logged::default()),
        }
    }
}

/// The part of an inode in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Logged {
    /// The item is there, and the names as of `names`.
    pub(super) exists: bool,
    /// All of it is there, as of `sequence`.
    pub(super) full: bool,
    /// Change counter of the inode when it was logged in full.
    pub(super) sequence: u64,
    /// Length when it was logged in full.
    pub(super) size: u64,
    /// The removal of its last name is there.
    pub(super) removed: bool,
    /// Version of the names that were logged.
    pub(super) names: u64,
    /// Version of the attributes that were logged.
    pub(super) xattrs: u64,
    /// The newest log with something of it.
    pub(super) number: u64,
}

/// The fsyncs in progress in a mount.
#[derive(Debug, Default)]
pub(crate) struct Fsyncs(AtomicUsize);

/// An fsync in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a Fsyncs);

impl Fsyncs {
    /// Begins an fsync.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    /// Number of fsyncs in progress.
    pub(super) fn under_way(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes one subvolume's log.
pub(super) struct Writer<'a> {
    pub(super) h: &'a mut Handle,
    pub(super) store: Arc<Store>,
    pub(super) log: Arc<SubvolumeLog>,
    /// Number of the log that it fills.
    pub(super) number: u64,
}

impl Writer<'_> {
    /// The log tree.
    pub(super) fn tree(&self) -> Arc<Root> {
        Arc::clone(&self.log.tree)
    }

    /// Puts an item into the log.
    pub(super) fn put(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.tree().put(self.h, key, data)
    }
}
