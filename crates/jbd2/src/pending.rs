//! [`Pending`]: committed blocks that are in the log but not yet at their home locations.
//!
//! Each entry has the newest committed content of a block, and its buffer, so that the cache keeps
//! the block until a [checkpoint](crate::checkpoint) has written it back.
//!
//! Trouble cases:
//! - A block is committed again while a checkpoint writes it: its entry then has a newer tid, and
//!   stays (`a_block_committed_again_during_its_checkpoint_stays`).
//! - The running transaction forgets a block: a checkpoint still writes it, because the block stays
//!   in use if that transaction is never committed. Once the commit is durable, the committer waits
//!   for an in-flight write of the block before the engine may use the block again
//!   (`a_forgotten_block_in_flight_is_waited_for`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Condvar;
use sapwood_base::NumberMap;

use crate::Tid;
use crate::buffer::{Buffer, Content};
use crate::rank::{Mutex, Rank};
use crate::transaction::Snapshot;

/// Most bytes in flight at once.
const BATCH_BYTES: usize = 4 << 20;

#[derive(Debug)]
struct PendingBlock {
    tid: Tid,
    content: Content,
    _buffer: Arc<Buffer>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: BTreeMap<u64, PendingBlock>,
    /// Blocks with a copy in the log that a recovery would replay, with the tid of the newest copy.
    in_log: NumberMap<u64, Tid>,
    /// Blocks that a checkpoint is writing now.
    in_flight: BTreeSet<u64>,
}

/// The blocks of the log that wait for a checkpoint.
#[derive(Debug)]
pub(crate) struct Pending {
    inner: Mutex<Inner>,
    complete: Condvar,
}

impl Pending {
    pub(crate) fn new() -> Self {
        Self {
            inner: Mutex::new(Rank::Pending, Inner::default()),
            complete: Condvar::new(),
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

    /// Number of blocks that wait for a checkpoint.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().entries.len()
    }

    /// Records that transaction `tid` is about to be written to the log. The next one does not run
    /// yet.
    pub(crate) fn will_log(&self, tid: Tid, snapshot: &Snapshot) {
        let mut inner = self.inner.lock();
        for one in &snapshot.blocks {
            inner.in_log.insert(one.buffer.block(), tid);
        }
    }

    /// Records that transaction `tid` is durable.
    pub(crate) fn committed(&self, tid: Tid, snapshot: &Snapshot) {
        let mut inner = self.inner.lock();
        for block in &snapshot.revoked {
            inner.entries.remove(block);
        }
        for one in &snapshot.blocks {
            let entry = PendingBlock {
                tid,
                content: one.content.clone(),
                _buffer: one.buffer.clone(),
            };
            inner.entries.insert(one.buffer.block(), entry);
        }
    }

    /// Waits until none of these blocks is in flight. No new write of them begins, as they are no
    /// longer pending.
    pub(crate) fn wait_complete(&self, blocks: &[u64]) {
        let mut inner = self.inner.lock();
        while blocks.iter().any(|block| inner.in_flight.contains(block)) {
            inner.wait(&self.complete);
        }
    }

    /// Returns the next blocks from `from` on that `tid` or an older transaction committed, in
    /// rising order, without the block `late`. They are in flight until
    /// [`complete`](Self::complete).
    pub(crate) fn start_batch(
        &self,
        from: u64,
        tid: Tid,
        late: Option<u64>,
    ) -> Vec<(u64, Content)> {
        let mut inner = self.inner.lock();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for (block, entry) in inner.entries.range(from..) {
            if bytes >= BATCH_BYTES {
                break;
            }
            if entry.tid <= tid && Some(*block) != late {
                bytes += entry.content.len();
                batch.push((*block, entry.content.clone()));
            }
        }
        inner
            .in_flight
            .extend(batch.iter().map(|(block, _)| *block));
        batch
    }

    /// Returns a block alone, if `tid` or an older transaction committed it. It is in flight until
    /// [`complete`](Self::complete).
    pub(crate) fn start_one(&self, block: u64, tid: Tid) -> Option<Content> {
        let mut inner = self.inner.lock();
        let entry = inner.entries.get(&block).filter(|entry| entry.tid <= tid)?;
        let content = entry.content.clone();
        inner.in_flight.insert(block);
        Some(content)
    }

    /// Ends the in-flight state of the last batch, which was written or failed.
    pub(crate) fn complete(&self) {
        self.inner.lock().in_flight.clear();
        self.complete.notify_all();
    }

    /// Removes the blocks of transactions up to `tid`, which are durable at their home locations.
    pub(crate) fn written_back(&self, tid: Tid) {
        let mut inner = self.inner.lock();
        let all = std::mem::take(&mut inner.entries).into_iter();
        let (gone, stay): (BTreeMap<_, _>, _) = all.partition(|(_, entry)| entry.tid <= tid);
        inner.entries = stay;
        // Contents and buffers are dropped without the lock.
        drop(inner);
        drop(gone);
    }

    /// Records that the log has no transaction up to `tid` any more.
    pub(crate) fn released(&self, tid: Tid) {
        self.inner.lock().in_log.retain(|_, newest| *newest > tid);
    }
}
