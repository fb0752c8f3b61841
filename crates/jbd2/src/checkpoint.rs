//! The checkpoint: writes committed blocks back to their home locations and frees their part of the
//! log.
//!
//! # How it works
//! [`Pending`] has the newest committed content of every block in the log. A checkpoint takes these
//! steps:
//!
//! 1. Remember the newest durable transaction T.
//! 2. Write all pending blocks of transactions up to T, in the order of the blocks. A block that
//!    [`Journal::write_late`] names follows the others, after a flush.
//! 3. Flush the device.
//! 4. Move the tail in the journal's superblock past T, durably.
//! 5. Free the blocks of the log up to T.
//!
//! ```text
//!   commit of T durable -> pending[block] = (T, content)      T forgot block -> not pending
//!   checkpoint: batch -> in flight -> home ... flush -> not pending (unless a newer T) -> tail
//! ```
//!
//! An error aborts the journal. The tail has not moved then, so everything can be recovered.

use std::sync::atomic::Ordering;

use crate::counters::Counters;
use crate::home;
use crate::journal::{Journal, LogSide, NO_BLOCK};
use crate::pending::Pending;
use crate::{Result, Tid};

impl Journal {
    /// Writes committed blocks back to their home locations and frees their part of the log. Does
    /// nothing without a log. One checkpoint runs at a time; commits continue meanwhile.
    ///
    /// # Errors
    /// The error that aborted the journal.
    pub fn checkpoint(&self) -> Result<()> {
        let Some(side) = &self.log else {
            return self.failure.check();
        };
        let _checkpointer = side.checkpointer.lock();
        self.failure.check()?;
        let tid = self.table.durable();
        if self.table.tail_tid() > tid {
            return Ok(());
        }
        let result = self.write_back(side, tid);
        if let Err(err) = &result {
            self.fail(err);
        }
        result
    }

    /// Makes checkpoints write this block after all others, until it is `None`: readers that look
    /// at it before they recover the log then find the others as it expects.
    pub fn write_late(&self, block: Option<u64>) {
        if let Some(side) = &self.log {
            side.late
                .store(block.unwrap_or(NO_BLOCK), Ordering::Release);
        }
    }

    /// The block of [`write_late`](Self::write_late).
    #[must_use]
    pub fn late_block(&self) -> Option<u64> {
        let late = self.log.as_ref()?.late.load(Ordering::Acquire);
        (late != NO_BLOCK).then_some(late)
    }

    fn write_back(&self, side: &LogSide, tid: Tid) -> Result<()> {
        let late = self.late_block();
        let mut from = 0;
        loop {
            let batch = side.pending.start_batch(from, tid, late);
            let Some((last, _)) = batch.last() else {
                break;
            };
            let _in_flight = InFlight(&side.pending);
            let blocks: Vec<(u64, &[u8])> = batch
                .iter()
                .map(|(block, content)| (*block, content.as_slice()))
                .collect();
            let device = self.cache.device();
            home::write_blocks(&**device, self.cache.block_size(), &blocks)?;
            Counters::add(&self.counters.blocks_checkpointed, blocks.len() as u64);
            from = last + 1;
        }
        self.cache.device().flush()?;
        if let Some(block) = late {
            self.write_back_late(side, block, tid)?;
        }
        side.pending.written_back(tid);
        self.move_tail(side, tid)
    }

    fn write_back_late(&self, side: &LogSide, block: u64, tid: Tid) -> Result<()> {
        let Some(content) = side.pending.start_one(block, tid) else {
            return Ok(());
        };
        let _in_flight = InFlight(&side.pending);
        let device = self.cache.device();
        home::write_blocks(&**device, self.cache.block_size(), &[(block, &content)])?;
        Counters::add(&self.counters.blocks_checkpointed, 1);
        Ok(device.flush()?)
    }

    /// Makes the log begin after transaction `tid`.
    fn move_tail(&self, side: &LogSide, tid: Tid) -> Result<()> {
        let (next, position) = self.table.log_after(tid);
        let start = side.log.block_at(position) as u32;
        side.log
            .update_superblock(|superblock| superblock.set_tail(start, next as u32))?;
        // The table comes first. A block that is forgotten in between gets a revoke record that it
        // does not need, which is harmless.
        self.table.release_log(tid);
        side.pending.released(tid);
        Counters::count(&self.counters.checkpoints);
        Ok(())
    }

    /// Marks the log empty. The caller has checkpointed everything, and no handle is open.
    pub(crate) fn empty_log(&self) -> Result<()> {
        let Some(side) = &self.log else {
            return Ok(());
        };
        let _checkpointer = side.checkpointer.lock();
        self.failure.check()?;
        if !side.log.needs_recovery() {
            // No transaction was ever committed.
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

/// Ends the in-flight state of a batch, also after an error or a panic.
struct InFlight<'a>(&'a Pending);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.complete();
    }
}
