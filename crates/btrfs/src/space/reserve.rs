//! Reservations: `ENOSPC` comes here or nowhere.
//!
//! # How it works
//! An operation says how many items it changes. For each a path from root to leaf may be copied and
//! every block of it split. What it does not use goes back when its handle ends; what its delayed
//! refs need has moved to the heads by then. Metadata may be promised beyond its groups as long as
//! unallocated device space could hold it; data never. Under pressure, in this order: allocate a
//! chunk, write back dirty data (whose promises are larger than what it needs), commit (which frees
//! what is pinned). A thread that has to do that stands in a [queue](super::queue): what the first
//! one frees is not snatched away by those that came later. For data, deletions that other threads
//! are at count too: what an unlinked file holds shows in no sum before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::chunk_size::copies_on_device;
use super::info::{DataReservation, MetadataReservation, SpaceInfo};
use super::state::Space;
use crate::error::{Error, Result};

/// Rounds of write-back and commit after which there is no space indeed.
const MOST_ROUNDS: usize = 4;
/// Times that a reservation of data waits for deletions.
const MOST_DELETIONS: usize = 8;
/// Part of the unallocated space that metadata may be promised.
const BEYOND_DIVISOR: u64 = 2;
/// Part of the global reserve that urgent operations leave.
const URGENT_DIVISOR: u64 = 4;

/// How space can be made; each may wait, and must be called without a handle.
pub(crate) trait Pressure {
    /// Writes back dirty data and waits for its completion.
    ///
    /// # Errors
    /// Those of the write-back.
    fn write_back(&self) -> Result<()>;
    /// Commits the running transaction and waits until what it freed is free.
    ///
    /// # Errors
    /// Those of the commit.
    fn commit(&self) -> Result<()>;
    /// Deletions of files with lower numbers have ended.
    fn deleted_below(&self) -> u64 {
        0
    }
    /// Waits for the deletions of files that are under way. True if any has ended since
    /// [`deleted_below`](Self::deleted_below) returned `before`. The caller deletes nothing itself.
    fn settle_deletions(&self, _before: u64) -> bool {
        false
    }
}

impl Space {
    /// Bytes that changing `items` items may need.
    pub(crate) fn metadata_cost(&self, items: u64) -> u64 {
        let levels = u64::from(self.height.load(Ordering::Relaxed)) + 1;
        items * levels.clamp(2, 8) * 2 * self.nodesize
    }

    /// Promises metadata for `items` items. `urgent`: for what frees space; it may use part of
    /// the global reserve. Hold no handle, and no lock above those of inodes.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of [`Pressure`].
    pub(crate) fn reserve_metadata(
        &self,
        pressure: &dyn Pressure,
        items: u64,
        urgent: bool,
    ) -> Result<MetadataReservation> {
        let bytes = self.metadata_cost(items);
        if !self.metadata.queue.is_busy()
            && let Some(promise) = self.try_metadata(bytes, false)
        {
            return Ok(promise);
        }
        if urgent && let Some(promise) = self.try_metadata(bytes, true) {
            return Ok(promise);
        }
        self.with_pressure(pressure, &self.metadata, || {
            let promise = self.try_metadata(bytes, false);
            Ok(promise.or_else(|| self.try_metadata(bytes, urgent)))
        })
    }

    /// Makes room until `try_it` finds some.
    fn with_pressure<T>(
        &self,
        pressure: &dyn Pressure,
        info: &SpaceInfo,
        mut try_it: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let _turn = info.queue.wait();
        let reclaimable = || {
            let sums = info.sums();
            // What was freed shows in no sum before its delayed refs ran.
            sums.promised + sums.reserved + sums.pinned + self.delayed.bytes()
        };
        for _ in 0..MOST_ROUNDS {
            if let Some(found) = try_it()? {
                return Ok(found);
            }
            pressure.write_back()?;
            if let Some(found) = try_it()? {
                return Ok(found);
            }
            if reclaimable() == 0 {
                break;
            }
            pressure.commit()?;
        }
        try_it()?.ok_or(Error::NoSpace)
    }

    fn try_metadata(&self, bytes: u64, urgent: bool) -> Option<MetadataReservation> {
        let info = &self.metadata;
        let global = info.sums().global;
        let keep = if urgent {
            global / URGENT_DIVISOR
        } else {
            global
        };
        if let Some(promise) = info.try_promise(bytes, 0, keep) {
            return Some(promise);
        }
        let beyond = self.beyond(info);
        info.try_promise(bytes, beyond, keep)
    }

    /// Bytes that could still become metadata chunks, with caution.
    fn beyond(&self, info: &SpaceInfo) -> u64 {
        let copies = info.groups.read().last().map(|group| group.flags);
        let copies = copies.and_then(copies_on_device).unwrap_or(1);
        self.devices.lock().unallocated() / copies / BEYOND_DIVISOR
    }

    /// Promises bytes of data (a multiple of the sector size). Hold no handle, and no lock above
    /// those of inodes.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of [`Pressure`].
    pub(crate) fn reserve_data(
        &self,
        pressure: &dyn Pressure,
        bytes: u64,
    ) -> Result<DataReservation> {
        if !self.data.queue.is_busy()
            && let Some(promise) = self.try_reserve_data(bytes)?
        {
            return Ok(promise);
        }
        for _ in 0..MOST_DELETIONS {
            let before = pressure.deleted_below();
            match self.with_pressure(pressure, &self.data, || self.try_reserve_data(bytes)) {
                // Without a turn in the queue: a deletion may need one.
                Err(Error::NoSpace) if pressure.settle_deletions(before) => {}
                other => return other,
            }
        }
        Err(Error::NoSpace)
    }

    /// As [`reserve_data`](Self::reserve_data), but takes what there is or can be allocated, and
    /// waits for nothing. May be called with a handle.
    ///
    /// # Errors
    /// Those of chunk allocation but for [`Error::NoSpace`].
    pub(crate) fn try_reserve_data(&self, bytes: u64) -> Result<Option<DataReservation>> {
        let info: &Arc<SpaceInfo> = &self.data;
        loop {
            let sums = info.sums();
            let keep = if self.mixed { sums.global } else { 0 };
            if let Some(promise) = info.try_promise(bytes, 0, keep) {
                return Ok(Some(promise));
            }
            match self.allocate_chunk(info, Some(sums.total)) {
                Ok(()) => {}
                Err(Error::NoSpace) => return Ok(None),
                Err(err) => return Err(err),
            }
        }
    }
}
