//! The claim of a free inode in one group.
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
//! The second search is what ends it. Threads that start over without the lock find the same next
//! free bit again, all of them, and all but one lose again: with `n` of them the last may lose `n -
//! 1` races, and each costs a turn at the group's lock. The feature `ablation` keeps that policy
//! for comparison.
//!
//! Which threads meet in one bit at all is decided by where they start to search: see
//! [`policy`](super::policy).
//!
//! The function knows a group only as a [`Pool`], so that the tests run it under a scheduler that
//! takes every order of steps: `schedules` has the cases (no inode is given twice; one lost race at
//! most; the old policy loses many in a row; a group is left only when it is full).

use std::ops::Range;

use super::search::{Bits, search};
use crate::counters::{AllocCounters, count};
use crate::options::AllocPolicy;

/// A group whose lock is held.
pub(crate) trait Locked: Bits {
    /// Why a bit could not be set.
    type Error;

    /// Sets the bit. True: it was clear. Only the holder of the lock does this.
    ///
    /// # Errors
    /// The bitmap cannot be changed.
    fn test_and_set(&mut self, bit: u32) -> Result<bool, Self::Error>;
}

/// A group as the claim sees it. A search without the lock goes by the same bits, see [`Bits`].
pub(crate) trait Pool: Bits {
    /// Why there is no access.
    type Error;
    /// The held lock.
    type Guard<'a>: Locked<Error = Self::Error>
    where
        Self: 'a;

    /// Gets journal write access to the bitmap. May wait; the lock is not held. Further calls cost
    /// nothing.
    ///
    /// # Errors
    /// The journal, the device.
    fn access(&self) -> Result<(), Self::Error>;

    /// Takes the group's lock.
    fn lock(&self) -> Self::Guard<'_>;
}

/// Claims a free inode of the group: its bit is set, and the lock still held for what goes with it.
/// `None`: the span is full. `start`: where to search first.
///
/// # Errors
/// Those of the pool.
pub(crate) fn claim<'a, P: Pool>(
    pool: &'a P,
    span: &Range<u32>,
    start: u32,
    policy: AllocPolicy,
    counters: &AllocCounters,
) -> Result<Option<(P::Guard<'a>, u32)>, P::Error> {
    loop {
        count(&counters.searches);
        let Some(bit) = search(pool, span, start) else {
            return Ok(None);
        };
        pool.access()?;
        let mut group = pool.lock();
        if group.test_and_set(bit)? || sapwood_fault::planted(102) {
            return Ok(Some((group, bit)));
        }
        count(&counters.lost_races);
        if !policy.search_again_locked() {
            continue;
        }
        count(&counters.second_searches);
        if sapwood_fault::planted(103) {
            drop(group);
            let Some(bit) = search(pool, span, start) else {
                return Ok(None);
            };
            let mut group = pool.lock();
            return Ok(group.test_and_set(bit)?.then_some((group, bit)));
        }
        let Some(bit) = search(&group, span, start) else {
            return Ok(None);
        };
        // No other thread can have set it: this thread has the lock since it saw it clear.
        return Ok(group.test_and_set(bit)?.then_some((group, bit)));
    }
}
