//! [`Pending`]: what the log has and its home location has not.
//!
//! For every such block it has the newest committed content, and the buffer, so that the cache keeps
//! the block until a [checkpoint](crate::checkpoint) has written it back.
//!
//! Trouble cases:
//! - A newer commit of a block while it is on its way home: the entry has a newer tid then, and
//!   stays (`a_block_committed_again_during_its_checkpoint_stays`).
//! - A block that the running transaction forgot is still written home: if that transaction is never
//!   committed, the block is still in use. It only is not once the forgetting is durable; a write
//!   that is in flight then is waited for before the engine may use the block again
//!   (`a_forgotten_block_in_flight_is_waited_for`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Condvar;
use sapwood_base::NumberMap;

use crate::Tid;
use crate::buffer::{Buffer, Content};
use crate::rank::{Mutex, Rank};
use crate::transaction::Snapshot;

/// Bytes on their way home at once.
const BATCH_BYTES: usize = 4 << 20;

#[derive(Debug)]
struct Entry {
    tid: Tid,
    content: Content,
    _buffer: Arc<Buffer>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: BTreeMap<u64, Entry>,
    /// Blocks of which the log has a copy that a recovery would replay, with the newest one's tid.
    in_log: NumberMap<u64, Tid>,
    /// Being written home now.
    in_flight: BTreeSet<u64>,
}

/// What is in the log.
#[derive(Debug)]
pub(crate) struct Pending {
    inner: Mutex<Inner>,
    landed: Condvar,
}

impl Pending {
    pub(crate) fn new() -> Self {
        Self {
            inner: Mutex::new(Rank::Pending, Inner::default()),
            landed: Condvar::new(),
        }
    }

    /// Whether the log has, or will soon have, a copy of the block.
    pub(crate) fn may_be_in_log(&self, block: u64) -> bool {
        self.inner.lock().in_log.contains_key(&block)
    }

    /// The newest committed content of a block that waits for a checkpoint.
    pub(crate) fn content(&self, block: u64) -> Option<Content> {
        let inner = self.inner.lock();
        Some(inner.entries.get(&block)?.content.clone())
    }

    /// Blocks that wait for a checkpoint.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().entries.len()
    }

    /// Transaction `tid` is about to be written to the log; the next one does not run yet.
    pub(crate) fn will_log(&self, tid: Tid, snapshot: &Snapshot) {
        let mut inner = self.inner.lock();
        for one in &snapshot.blocks {
            inner.in_log.insert(one.buffer.block(), tid);
        }
    }

    /// Transaction `tid` is durable.
    pub(crate) fn committed(&self, tid: Tid, snapshot: &Snapshot) {
        let mut inner = self.inner.lock();
        for block in &snapshot.revoked {
            inner.entries.remove(block);
        }
        for one in &snapshot.blocks {
            let entry = Entry {
                tid,
                content: one.content.clone(),
                _buffer: one.buffer.clone(),
            };
            inner.entries.insert(one.buffer.block(), entry);
        }
    }

    /// Waits until none of these blocks is on its way home. New writes of them do not begin: they
    /// are not pending any more.
    pub(crate) fn wait_landed(&self, blocks: &[u64]) {
        let mut inner = self.inner.lock();
        while blocks.iter().any(|block| inner.in_flight.contains(block)) {
            inner.wait(&self.landed);
        }
    }

    /// The next blocks from `from` on that were committed by `tid` or before, in rising order; they
    /// are in flight until [`landed`](Self::landed).
    pub(crate) fn launch(&self, from: u64, tid: Tid) -> Vec<(u64, Content)> {
        let mut inner = self.inner.lock();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for (block, entry) in inner.entries.range(from..) {
            if bytes >= BATCH_BYTES {
                break;
            }
            if entry.tid <= tid {
                bytes += entry.content.len();
                batch.push((*block, entry.content.clone()));
            }
        }
        inner
            .in_flight
            .extend(batch.iter().map(|(block, _)| *block));
        batch
    }

    /// What was launched last is at home, or failed.
    pub(crate) fn landed(&self) {
        self.inner.lock().in_flight.clear();
        self.landed.notify_all();
    }

    /// All blocks up to transaction `tid` are durable at home.
    pub(crate) fn at_home(&self, tid: Tid) {
        let mut inner = self.inner.lock();
        let all = std::mem::take(&mut inner.entries).into_iter();
        let (gone, stay): (BTreeMap<_, _>, _) =
            all.partition(|(_, entry)| entry.tid <= tid || sapwood_fault::planted(146));
        inner.entries = stay;
        // Contents and buffers go without the lock.
        drop(inner);
        drop(gone);
    }

    /// The log has no transaction up to `tid` any more.
    pub(crate) fn released(&self, tid: Tid) {
        self.inner.lock().in_log.retain(|_, newest| *newest > tid);
    }
}
