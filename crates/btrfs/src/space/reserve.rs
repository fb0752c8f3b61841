//! Reservations: `ENOSPC` comes here or nowhere.
//!
//! # How it works
//! An operation says how many items it changes. For each a path from root to leaf may be copied
//! and every block of it split. What it does not use goes back when its handle ends; what its
//! delayed refs need has moved to the heads by then. Metadata may be promised beyond its groups
//! as long as unallocated device space could hold it; data never. Under pressure, in this order:
//! allocate a chunk, write back dirty data (whose promises are larger than what it needs), commit
//! (which frees what is pinned).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::chunk_size::copies_on_device;
use super::info::{DataReservation, MetadataReservation, SpaceInfo};
use super::state::Space;
use crate::error::{Error, Result};

/// Levels that are reckoned with while no tree is higher.
const MIN_LEVELS: u64 = 4;
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
}

#[derive(Clone, Copy, Debug)]
enum Step {
    WriteBack,
    Commit,
}

impl Space {
    /// Bytes that changing `items` items may need.
    pub(crate) fn metadata_cost(&self, items: u64) -> u64 {
        let levels = u64::from(self.height.load(Ordering::Relaxed)) + 1;
        items * levels.clamp(MIN_LEVELS, 8) * 2 * self.nodesize
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
        if let Some(promise) = self.try_metadata(bytes, false) {
            return Ok(promise);
        }
        for step in [Step::WriteBack, Step::Commit, Step::Commit] {
            if urgent && let Some(promise) = self.try_metadata(bytes, true) {
                return Ok(promise);
            }
            if self.relieve(pressure, step, &self.metadata)?
                && let Some(promise) = self.try_metadata(bytes, false)
            {
                return Ok(promise);
            }
        }
        self.try_metadata(bytes, urgent).ok_or(Error::NoSpace)
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

    /// Takes one step to make room; `false` if it has nothing to work on.
    fn relieve(&self, pressure: &dyn Pressure, step: Step, info: &SpaceInfo) -> Result<bool> {
        match step {
            Step::WriteBack => pressure.write_back()?,
            Step::Commit => {
                let sums = info.sums();
                if sums.pinned == 0 && sums.reserved == 0 && self.delayed.bytes() == 0 {
                    return Ok(false);
                }
                pressure.commit()?;
            }
        }
        Ok(true)
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
        if let Some(promise) = self.try_reserve_data(bytes)? {
            return Ok(promise);
        }
        for step in [Step::WriteBack, Step::Commit, Step::Commit] {
            if self.relieve(pressure, step, &self.data)?
                && let Some(promise) = self.try_reserve_data(bytes)?
            {
                return Ok(promise);
            }
        }
        Err(Error::NoSpace)
    }

    /// An empty promise of data, to merge others into.
    pub(crate) fn no_data(&self) -> DataReservation {
        self.data.promise(0)
    }

    /// An empty promise of metadata, to merge others into.
    pub(crate) fn no_metadata(&self) -> MetadataReservation {
        self.metadata.promise(0)
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
