//! Ranges that a transaction freed. They must not be reused before the transaction is durable,
//! because the trees of the last commit, and the logs built on it, still refer to them.

use crate::lock::{Rank, RankedMutex};
use sapwood_base::RangeSet;

/// Ranges pinned by one transaction.
#[derive(Debug)]
pub(crate) struct Pinned {
    ranges: RankedMutex<RangeSet>,
}

impl Default for Pinned {
    fn default() -> Self {
        Self {
            ranges: RankedMutex::new(Rank::Leaf, RangeSet::new()),
        }
    }
}

impl Pinned {
    /// Pins a range.
    pub(crate) fn add(&self, bytenr: u64, len: u64) {
        self.ranges
            .lock()
            .insert(bytenr, bytenr.saturating_add(len));
    }

    /// Takes all ranges (start, end).
    pub(crate) fn take(&self) -> Vec<(u64, u64)> {
        let ranges = std::mem::take(&mut *self.ranges.lock());
        ranges.iter().collect()
    }
}
