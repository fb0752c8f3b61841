//! Limits of quota groups.
//!
//! # How it works
//! A reservation for a subvolume is checked against the limits of its group and of all groups that
//! this one is in. It counts as *ahead* of the numbers of all of them until it is released. Bytes
//! that were allocated stay ahead until the commit that accounts for them. Both count as referenced
//! and as exclusive, so a limit may refuse too early; the caller then writes back and commits, and
//! tries again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Quotas, set_limits};

/// A limit does not allow a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded;

/// Bytes reserved for a subvolume, released when dropped.
#[derive(Debug)]
pub(crate) struct QuotaHold {
    quotas: Arc<Quotas>,
    subvolume: u64,
    bytes: u64,
}

impl QuotaHold {
    /// Takes over another reservation of the same subvolume.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for QuotaHold {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.quotas.state.lock().release(self.subvolume, self.bytes);
        }
    }
}

impl Quotas {
    /// Reserves bytes for a subvolume. `None` if no limit can apply.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub(crate) fn reserve(
        self: &Arc<Self>,
        subvolume: u64,
        bytes: u64,
    ) -> Result<Option<QuotaHold>, Exceeded> {
        if !self.take(subvolume, bytes)? {
            return Ok(None);
        }
        Ok(Some(QuotaHold {
            quotas: Arc::clone(self),
            subvolume,
            bytes,
        }))
    }

    /// Reserves bytes for metadata of a subvolume until the next commit.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub(crate) fn charge(&self, subvolume: u64, bytes: u64) -> Result<(), Exceeded> {
        if self.take(subvolume, bytes)? {
            let mut state = self.state.lock();
            *state.fresh.entry(subvolume).or_default() += bytes;
        }
        Ok(())
    }

    /// Records that a subvolume got an extent, which the next commit accounts for.
    pub(crate) fn allocated(&self, subvolume: u64, bytes: u64) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        let Some(table) = &mut state.table else {
            return;
        };
        for id in table.hierarchy.with_ancestors(subvolume) {
            if let Some(group) = table.groups.get_mut(&id) {
                group.ahead = group.ahead.saturating_add(bytes);
            }
        }
        *state.fresh.entry(subvolume).or_default() += bytes;
    }

    /// Adds bytes to the groups of a subvolume; false if nothing is counted.
    fn take(&self, subvolume: u64, bytes: u64) -> Result<bool, Exceeded> {
        if !self.on.load(Ordering::Acquire) {
            return Ok(false);
        }
        let mut state = self.state.lock();
        if !state.exact {
            return Ok(false);
        }
        let Some(table) = &mut state.table else {
            return Ok(false);
        };
        let groups = table.hierarchy.with_ancestors(subvolume);
        for group in groups.iter().filter_map(|id| table.groups.get(id)) {
            let (referenced, exclusive) = set_limits(&group.limit);
            let ahead = group.ahead.saturating_add(bytes);
            let over = |most: Option<u64>, now: u64| {
                most.is_some_and(|most| now.saturating_add(ahead) > most)
            };
            if over(referenced, group.referenced) || over(exclusive, group.exclusive) {
                return Err(Exceeded);
            }
        }
        for id in groups {
            if let Some(group) = table.groups.get_mut(&id) {
                group.ahead = group.ahead.saturating_add(bytes);
            }
        }
        Ok(true)
    }
}
