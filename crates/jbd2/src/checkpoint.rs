//! The checkpoint: writes home what the log has, so that its blocks can be used again.
//!
//! # How it works
//! [`Pending`] has the newest committed content of every block in the log. A checkpoint notes the newest durable
//! transaction, writes all pending blocks up to it in the order of the blocks, flushes, and moves
//! the tail in the journal's superblock behind that transaction. Only when this is durable the blocks
//! of the log are free.
//!
//! ```text
//!   commit of T durable -> pending[block] = (T, content)      T forgot block -> not pending
//!   checkpoint: batch -> in flight -> home ... flush -> not pending (unless a newer T) -> tail
//! ```
//!
//! An error aborts the journal; the tail did not move, so that everything can be recovered.

use crate::counters::Counters;
use crate::home;
use crate::journal::{Journal, LogSide};
use crate::pending::Pending;
use crate::{Result, Tid};

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
