//! The search for a free inode in one group, and its claim.
//!
//! # How it works
//! ```text
//!   search, no lock ── full ──> leave the group
//!     | found a bit
//!   write access to the bitmap (may wait for a commit)
//!   lock the group
//!   test-and-set ── was clear ──> taken
//!     | another thread took it meanwhile: a lost race
//!   search again, lock held ── full ──> leave the group
//!     | found a bit, which no other thread can take
//!   set ──> taken
//! ```
//!
//! The second search ends the race. Threads that start over without the lock all find the same next
//! free bit, and all but one lose again: with `n` of them the last may lose `n - 1` races, and each
//! takes the group's lock once more.
//!
//! The starts of the searches decide which threads meet in one bit: see [`policy`](super::policy).
//!
//! The function knows a group only as a [`Pool`], so that the tests run it under a scheduler that
//! takes every order of steps: `schedules` has the cases (no inode is given twice; one lost race at
//! most; a group is left only when it is full).

use std::ops::Range;

use crate::counters::{AllocCounters, count};
use crate::group::{InodeMap, WORD};

/// A search's view of a group: with the group's lock or without, with a journal or not.
pub(crate) trait Bits {
    /// Inodes `index * 64 ..` of the group, a set bit is one in use. Without the lock it may be out
    /// of date at once.
    fn used(&self, index: u32) -> u64;

    /// Bits of these inodes that were deleted too recently for reuse. None with a journal, which
    /// makes a deletion and later changes durable in their order.
    fn recent(&self, index: u32) -> u64;
}

impl Bits for InodeMap {
    fn used(&self, index: u32) -> u64 {
        self.used(index)
    }

    fn recent(&self, index: u32) -> u64 {
        self.recent(index)
    }
}

/// The first free inode of `span` from `start` on, going round. One that was recently deleted is
/// found only if no other is free: to wait for it is a preference, not a reason to leave the group.
/// `None`: the span is full.
pub(crate) fn search(bits: &impl Bits, span: &Range<u32>, start: u32) -> Option<u32> {
    let start = if span.contains(&start) {
        start
    } else {
        span.start
    };
    let mut recent = None;
    for part in [start..span.end, span.start..start] {
        for index in part.start / WORD..part.end.div_ceil(WORD) {
            let free = !bits.used(index) & mask(index, &part);
            if free == 0 {
                continue;
            }
            let waiting = bits.recent(index);
            if free & !waiting != 0 {
                return Some(index * WORD + (free & !waiting).trailing_zeros());
            }
            recent = recent.or(Some(index * WORD + free.trailing_zeros()));
        }
    }
    recent
}

/// The bits of word `index` that are in the range.
fn mask(index: u32, range: &Range<u32>) -> u64 {
    let first = index * WORD;
    let below = |end: u32| match end.saturating_sub(first) {
        bits if bits >= WORD => !0,
        bits => (1u64 << bits) - 1,
    };
    below(range.end) & !below(range.start)
}

/// A group whose lock is held.
pub(crate) trait Locked: Bits {
    /// Error of setting a bit.
    type Error;

    /// Sets the bit. True: it was clear. Only the holder of the lock does this.
    ///
    /// # Errors
    /// The bitmap cannot be changed.
    fn test_and_set(&mut self, bit: u32) -> Result<bool, Self::Error>;
}

/// A group in the view of the claim. A search without the lock uses the same bits, see [`Bits`].
pub(crate) trait Pool: Bits {
    /// Error of the access.
    type Error;
    /// The held lock.
    type Guard<'a>: Locked<Error = Self::Error>
    where
        Self: 'a;

    /// Gets journal write access to the bitmap. May wait; the lock is not held. Further calls cost
    /// nothing.
    ///
    /// # Errors
    /// Errors of the journal and of the device.
    fn access(&self) -> Result<(), Self::Error>;

    /// Takes the group's lock.
    fn lock(&self) -> Self::Guard<'_>;
}

/// Claims a free inode of the group: its bit is set, and the lock is still held for the related
/// changes. `None`: the span is full. `start`: where to search first.
///
/// # Errors
/// The errors of the pool.
pub(crate) fn claim<'a, P: Pool>(
    pool: &'a P,
    span: &Range<u32>,
    start: u32,
    counters: &AllocCounters,
) -> Result<Option<(P::Guard<'a>, u32)>, P::Error> {
    count(&counters.searches);
    let Some(bit) = search(pool, span, start) else {
        return Ok(None);
    };
    pool.access()?;
    let mut group = pool.lock();
    if group.test_and_set(bit)? {
        return Ok(Some((group, bit)));
    }
    count(&counters.lost_races);
    count(&counters.second_searches);
    let Some(bit) = search(&group, span, start) else {
        return Ok(None);
    };
    // No other thread can have set it: this thread has the lock since it saw it clear.
    Ok(group.test_and_set(bit)?.then_some((group, bit)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Plain {
        used: Vec<u64>,
        recent: Vec<u64>,
    }

    impl Bits for Plain {
        fn used(&self, index: u32) -> u64 {
            self.used[index as usize]
        }
        fn recent(&self, index: u32) -> u64 {
            self.recent[index as usize]
        }
    }

    fn bit(words: &[u64], bit: u32) -> bool {
        words[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    #[test]
    fn goes_round_and_stays_in_its_span() {
        let mut bits = Plain {
            used: vec![0; 2],
            recent: vec![0; 2],
        };
        assert_eq!(search(&bits, &(10..100), 0), Some(10));
        assert_eq!(search(&bits, &(10..100), 99), Some(99));
        assert_eq!(search(&bits, &(10..100), 100), Some(10));
        bits.used = vec![!0 << 12, !0];
        assert_eq!(search(&bits, &(10..100), 12), Some(10));
        bits.used = vec![!0 << 10, !0];
        assert_eq!(search(&bits, &(10..100), 12), None);
    }

    #[test]
    fn a_recently_deleted_inode_comes_last() {
        let mut bits = Plain {
            used: vec![!0b1011, !0],
            recent: vec![0b0011, 0],
        };
        assert_eq!(search(&bits, &(0..128), 0), Some(3));
        bits.used[0] |= 0b1000;
        assert_eq!(search(&bits, &(0..128), 0), Some(0));
        assert_eq!(search(&bits, &(0..128), 1), Some(1));
    }

    proptest! {
        #[test]
        fn finds_what_going_bit_by_bit_finds(
            used in prop::collection::vec(prop_oneof![Just(!0u64), any::<u64>()], 4),
            recent in prop::collection::vec(any::<u64>(), 4),
            first in 0u32..256, last in 0u32..256, start in 0u32..256,
        ) {
            let span = first.min(last)..first.max(last) + 1;
            let from = if span.contains(&start) { start } else { span.start };
            let order = || (from..span.end).chain(span.start..from);
            let free = |b: &u32| !bit(&used, *b);
            let expected = order().find(|b| free(b) && !bit(&recent, *b)).or_else(|| order().find(free));
            let bits = Plain { used: used.clone(), recent: recent.clone() };
            prop_assert_eq!(search(&bits, &span, start), expected);
        }
    }
}
