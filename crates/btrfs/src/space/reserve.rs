//! Reservations: the only place that returns `ENOSPC`.
//!
//! # How it works
//! An operation states how many items it changes. For each item, a path from root to leaf may be
//! copied, and every block of it split. The end of its handle releases the unused rest; by then the
//! share of its delayed refs has moved to the heads. Metadata may be promised beyond its groups as
//! long as unallocated device space could hold it; data never.
//!
//! Under pressure, a thread takes these steps in order:
//! 1. allocate a chunk
//! 2. write back dirty data, whose reservations are larger than needed
//! 3. commit, which frees pinned space
//!
//! Such a thread waits in a [queue](super::queue), so that later threads cannot take the space
//! that the first one frees. A reservation of data also waits for deletions in progress, because
//! the sums do not include the space of an unlinked file before its deletion.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::devices::Layout;
use super::info::{DataReservation, MetadataReservation, SpaceInfo};
use super::state::Space;
use crate::error::{Error, Result};

/// Rounds of write-back and commit after which there is no space.
const MOST_ROUNDS: usize = 4;
/// Number of times that a reservation of data waits for deletions.
const MOST_DELETIONS: usize = 8;
/// Divisor of the unallocated space that metadata may be promised.
const BEYOND_DIVISOR: u64 = 2;
/// Divisor of the global reserve that urgent operations leave.
const URGENT_DIVISOR: u64 = 4;

/// Ways to make space. Each may wait, and must be called without a handle.
pub(crate) trait Pressure {
    /// Writes back dirty data and waits for its completion.
    ///
    /// # Errors
    /// The errors of the write-back.
    fn write_back(&self) -> Result<()>;
    /// Commits the running transaction and waits until the space that it freed is free.
    ///
    /// # Errors
    /// The errors of the commit.
    fn commit(&self) -> Result<()>;
}

impl Space {
    /// Bytes that a change of `items` items may need.
    pub(crate) fn metadata_cost(&self, items: u64) -> u64 {
        let levels = u64::from(self.height.load(Ordering::Relaxed)) + 1;
        items * levels.clamp(2, 8) * 2 * self.nodesize
    }

    /// Promises metadata for `items` items. `urgent`: for operations that free space; they may use
    /// part of the global reserve. The caller holds no handle, and no lock that ranks above inode
    /// locks.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the errors of [`Pressure`].
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

    /// Makes space until `try_it` succeeds.
    fn with_pressure<T>(
        &self,
        pressure: &dyn Pressure,
        info: &SpaceInfo,
        mut try_it: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let _turn = info.queue.wait();
        let reclaimable = || {
            let sums = info.sums();
            // Freed space enters the sums only when its delayed refs run.
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

    /// Bytes that could still become metadata chunks, estimated cautiously.
    fn beyond(&self, info: &SpaceInfo) -> u64 {
        let flags = self.chunk_flags(info);
        let room = self.room(&self.devices.lock(), flags);
        room / Layout::of(flags).copies / BEYOND_DIVISOR
    }

    /// Promises bytes of data (a multiple of the sector size). The caller holds no handle, and no
    /// lock that ranks above inode locks.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the errors of [`Pressure`].
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
            let before = self.deletions.ended_below();
            match self.with_pressure(pressure, &self.data, || self.try_reserve_data(bytes)) {
                // Outside the queue, because a deletion may need to wait in it.
                Err(Error::NoSpace) if self.deletions.settle(before) => {}
                other => return other,
            }
        }
        Err(Error::NoSpace)
    }

    /// Like [`reserve_data`](Self::reserve_data), but takes only space that is free or can be
    /// allocated, and does not wait. May be called with a handle.
    ///
    /// # Errors
    /// Errors of chunk allocation except [`Error::NoSpace`].
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
