//! [`LogSpace`]: which blocks of the log are in use.

use std::collections::VecDeque;

use crate::Tid;

/// A committed transaction that is not checkpointed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InLog {
    pub(crate) tid: Tid,
    /// Position of its first block.
    pub(crate) start: u64,
    pub(crate) blocks: u64,
}

/// The log as a ring of `size` blocks; positions count from its first block. The table's lock
/// guards it.
#[derive(Debug)]
pub(crate) struct LogSpace {
    size: u64,
    /// First block of the next transaction.
    head: u64,
    free: u64,
    /// Tags in one descriptor block.
    tags_per_block: u64,
    /// Transactions in the log, the oldest first.
    transactions: VecDeque<InLog>,
}

impl LogSpace {
    /// An empty log whose next transaction begins at position `head`.
    pub(crate) fn new(size: u64, head: u64, tags_per_block: u64) -> Self {
        Self {
            size,
            head: head % size.max(1),
            // One block stays free, so that a full log does not look like an empty one.
            free: size.saturating_sub(1),
            tags_per_block: tags_per_block.max(1),
            transactions: VecDeque::new(),
        }
    }

    /// Blocks of the log that a transaction of `blocks` blocks takes, including descriptors and the
    /// commit block.
    pub(crate) fn cost(&self, blocks: u64) -> u64 {
        blocks + blocks.div_ceil(self.tags_per_block) + 1
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Whether a checkpoint is due.
    pub(crate) fn is_low(&self) -> bool {
        self.free < self.size / 3
    }

    /// Takes `blocks` blocks for transaction `tid`. Returns the position of the first, or `None` if
    /// they do not fit, which the reservations exclude.
    pub(crate) fn take(&mut self, tid: Tid, blocks: u64) -> Option<u64> {
        self.free = self.free.checked_sub(blocks)?;
        let start = self.head;
        self.head = (self.head + blocks) % self.size.max(1);
        self.transactions.push_back(InLog { tid, start, blocks });
        Some(start)
    }

    /// The oldest transaction in the log that is newer than `tid`.
    pub(crate) fn oldest_after(&self, tid: Tid) -> Option<InLog> {
        let mut all = self.transactions.iter();
        all.find(|one| one.tid > tid).copied()
    }

    /// The oldest transaction in the log.
    pub(crate) fn oldest(&self) -> Option<InLog> {
        self.transactions.front().copied()
    }

    /// Frees the blocks of all transactions up to `tid`.
    pub(crate) fn release(&mut self, tid: Tid) {
        while let Some(first) = self.transactions.front().filter(|one| one.tid <= tid) {
            self.free += first.blocks;
            self.transactions.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_wraps_and_keeps_one_block_free() {
        let mut log = LogSpace::new(10, 8, 4);
        assert_eq!(log.cost(4), 6);
        assert_eq!(log.cost(5), 8);
        assert_eq!(log.take(1, 6), Some(8));
        assert_eq!(log.head(), 4);
        assert_eq!(log.take(2, 3), Some(4));
        assert_eq!(log.take(3, 1), None);
        assert_eq!(log.oldest_after(1).map(|one| one.start), Some(4));
        log.release(1);
        assert_eq!((log.free(), log.oldest().is_some()), (6, true));
        log.release(2);
        assert_eq!((log.free(), log.oldest()), (9, None));
    }
}
