//! The checkpoint: writes home what the log has, so that its blocks can be used again.
//!
//! # How it works
//! [`Pending`] has for every block in the log the newest committed content, and the buffer, so
//! that the cache keeps the block while the device is behind. A checkpoint notes the newest durable
//! transaction, writes all pending blocks up to it in the order of the blocks, flushes, and moves
//! the tail in the journal's superblock behind that transaction. Only when this is durable the blocks
//! of the log are free.
//!
//! ```text
//!   commit of T durable -> pending[block] = (T, content)      T forgot block -> not pending
//!   checkpoint: batch -> in flight -> home ... flush -> not pending (unless a newer T) -> tail
//! ```
//!
//! Trouble cases:
//! - A newer commit of a block while it is on its way home: the entry has a newer tid then, and
//!   stays (`a_block_committed_again_during_its_checkpoint_stays`).
//! - A block that the running transaction forgot is still written home: if that transaction is never
//!   committed, the block is still in use. It only is not once the forgetting is durable; a write
//!   that is in flight then is waited for before the engine may use the block again
//!   (`a_forgotten_block_in_flight_is_waited_for`).
//! - An error aborts the journal; the tail did not move, so that everything can be recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Condvar;
use sapwood_base::NumberMap;

use crate::buffer::{Buffer, Content};
use crate::counters::Counters;
use crate::home;
use crate::journal::{Journal, LogSide};
use crate::rank::{Mutex, Rank};
use crate::transaction::Snapshot;
use crate::{Result, Tid};

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

impl Journal {
    /// Writes home what is committed, and frees its part of the log. Nothing without a log. One at a
    /// time; commits go on meanwhile.
    ///
    /// # Errors
    /// What aborted the journal.
    pub fn checkpoint(&self) -> Result<()> {
        let Some(side) = &self.log else {
            return self.failure.check();
        };
        let _turn = side.checkpointer.lock();
        self.failure.check()?;
        let tid = self.table.durable();
        if self.table.tail_tid() > tid {
            return Ok(());
        }
        let result = self.write_home(side, tid);
        if let Err(err) = &result {
            self.fail(err);
        }
        result
    }

    fn write_home(&self, side: &LogSide, tid: Tid) -> Result<()> {
        let mut from = 0;
        loop {
            let batch = side.pending.launch(from, tid);
            let Some((last, _)) = batch.last() else {
                break;
            };
            let _landing = Landing(&side.pending);
            let blocks: Vec<(u64, &[u8])> = batch
                .iter()
                .map(|(block, content)| (*block, content.as_slice()))
                .collect();
            let device = self.cache.device();
            home::write_blocks(&**device, self.cache.block_size(), &blocks)?;
            Counters::add(&self.counters.blocks_checkpointed, blocks.len() as u64);
            from = last + 1;
        }
        if sapwood_fault::planted(108) {
            side.pending.at_home(tid);
            self.move_tail(side, tid)?;
            return Ok(self.cache.device().flush()?);
        }
        self.cache.device().flush()?;
        side.pending.at_home(tid);
        self.move_tail(side, tid)
    }

    /// The log begins behind transaction `tid` from now on.
    fn move_tail(&self, side: &LogSide, tid: Tid) -> Result<()> {
        let (next, position) = self.table.log_after(tid);
        let start = side.log.block_at(position) as u32;
        side.log
            .update_superblock(|superblock| superblock.set_tail(start, next as u32))?;
        // First the table: a block that is forgotten in between gets a revoke that it would not need.
        self.table.release_log(tid);
        side.pending.released(tid);
        Counters::count(&self.counters.checkpoints);
        Ok(())
    }

    /// Marks the log empty. All is at home, and nothing runs.
    pub(crate) fn empty_log(&self) -> Result<()> {
        let Some(side) = &self.log else {
            return Ok(());
        };
        let _turn = side.checkpointer.lock();
        self.failure.check()?;
        if !side.log.needs_recovery() {
            // Nothing was ever committed.
            return Ok(());
        }
        let (next, position) = self.table.log_after(self.table.durable());
        let head = side.log.block_at(position) as u32;
        let result = side.log.update_superblock(|superblock| {
            superblock.set_tail(0, next as u32);
            superblock.set_head(head);
        });
        if let Err(err) = &result {
            self.fail(err);
        }
        result
    }
}

/// Ends a flight whatever becomes of it.
struct Landing<'a>(&'a Pending);

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.0.landed();
    }
}
