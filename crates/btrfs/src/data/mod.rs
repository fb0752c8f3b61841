//! File data: from the bytes of a write to extents and checksums on disk, and back.
//!
//! # How it works
//! Each file has a [`FileData`]. Bytes go through it like this:
//!
//! ```text
//!  write      reserves space, copies into the dirty ranges                    (dirty)
//!  take       a dirty run becomes an entry among the flights                  (flight)
//!  prepare    inline? overwrite? compress? allocate -> ordered extents        (flush, inline,
//!                                                                              overwrite)
//!  I/O        checksums are computed once, bytes go to the device             (parts)
//!  complete   joins a transaction: old items out, new item and checksums in,  (complete)
//!             nbytes, size on disk
//! ```
//!
//! Reads look at the dirty ranges, then the flights, then the tree; an entry leaves the flights
//! only when the tree has it. Nothing of a file is locked over I/O but its `io` lock, which callers
//! hold: shared to read, exclusive to write, truncate, fallocate and clone. Writeback does not take
//! it. So a reader's range that is not in memory cannot change under it: a thread that could begin
//! to change it needs `io` exclusively. Completions change the items of other ranges of the file,
//! in steps that leave each of those findable at any time ([`items`]), one change at a time.
//!
//! Who changes items beside writeback (truncate, punch, clone, fallocate) first throws away or
//! flushes what is dirty in the range and waits until nothing there is in flight.
//!
//! Dirty bytes are bounded over all files: a writer that would exceed the bound starts writeback
//! and waits for room ([`writeback`]). It may hold `io`, as writeback never needs it.
//!
//! A failed write turns the mount read-only: the data is gone, `flush` says so. If only the host has no
//! space, the bytes become dirty again, the space in the file system is free and promised to them, and
//! nothing reaches the tree or the log. `flush` says so, and the next one tries again.
//!
//! [`writeback`]: self::writeback

mod ahead;
mod allocate;
pub(crate) mod checksum;
mod clone;
mod complete;
pub(crate) mod compress;
mod extent_map;
mod flight;
mod flush;
mod inline;
mod items;
mod ordered;
mod overwrite;
mod parts;
mod read;
mod seek;
#[cfg(test)]
mod tests;
mod truncate;
mod write;
mod writeback;

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Condvar;

pub(crate) use allocate::fallocate;
pub(crate) use clone::copy_range;
pub(crate) use extent_map::{Content, ExtentMap, ModifiedMap, Stored};
pub(crate) use flush::flush;
pub(crate) use inline::read_symlink;
pub(crate) use items::{drop_extents, preallocated_behind};
pub(crate) use ordered::{OrderedExtent, Target};
pub(crate) use read::read;
pub(crate) use seek::stretch;
pub(crate) use truncate::{delete_content, truncate};
pub(crate) use write::write;
#[allow(unused_imports, reason = "snapshots hold it")]
pub(crate) use writeback::FrozenOverwrites;
pub(crate) use writeback::Writeback;

use crate::engine::Engine;
use crate::lock::{Rank, RankedMutex};
use crate::ops::{Inode, InodeState};
use crate::space::{DataReservation, MetadataReservation};
use crate::{Error, Result};
use extent_map::{MapCache, ModifiedMaps};
use flight::{FlightId, Flights, cut};
use sapwood_base::{DirtyRanges, RangeSet, ReadAhead};

/// How long a flush waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: it only starts.
    None,
    /// Until the bytes are on the device (but not flushed to the medium).
    Io,
    /// Until the tree has them, in a transaction that need not be durable.
    Completion,
}

/// Data of one file in memory.
#[derive(Debug)]
pub(crate) struct FileData {
    state: RankedMutex<State>,
    /// Held by the thread that changes the file's items.
    items: RankedMutex<()>,
    /// Anything that a thread may wait for.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    dirty: DirtyRanges,
    flights: Flights,
    /// What the tree has beyond the size on disk, and keeps while newer data of it is in memory.
    in_tree: RangeSet,
    maps: MapCache,
    modified: ModifiedMaps,
    /// Space promised to what is dirty or not allocated yet.
    promised: Option<Arc<DataReservation>>,
    /// Metadata promised to the completions to come.
    promised_metadata: Option<Arc<MetadataReservation>>,
    /// Where the file's last extent ended.
    hint: u64,
    /// Number of failed writes, and how many of them a flush has told of.
    failures: u64,
    failures_told: u64,
    /// How often the host had no space for what was to be written.
    refusals: u64,
    /// Where the last read ended, and how far was asked for ahead of it.
    ahead: ReadAhead,
}

impl State {
    /// Bytes in memory.
    fn bytes(&self) -> u64 {
        self.dirty.bytes() + self.flights.bytes()
    }

    /// Makes the bytes of an entry dirty again, but for those that were written again since. Returns how
    /// many.
    fn put_back(&mut self, id: FlightId) -> u64 {
        let Some((range, data)) = self.flights.get(id) else {
            return 0;
        };
        let before = self.dirty.bytes();
        let shown: Vec<_> = self.flights.newest(id, range.clone()).collect();
        for gap in shown
            .into_iter()
            .flat_map(|part| self.dirty.gaps(part))
            .collect::<Vec<_>>()
        {
            let mut at = gap.start;
            for slice in cut(&data, gap.start - range.start..gap.end - range.start) {
                self.dirty.write(at, slice.bytes());
                at += slice.bytes().len() as u64;
            }
        }
        self.dirty.bytes() - before
    }

    /// First byte at or behind `offset` that is in memory and not in the tree.
    fn first_behind(&self, offset: u64) -> Option<u64> {
        let dirty = self.dirty.covered(offset..u64::MAX).next();
        let flight = self.flights.first_behind(offset);
        dirty.map(|part| part.start).into_iter().chain(flight).min()
    }

    /// First byte at or after `offset` that the tree does not have. Newer data in memory does not
    /// count where the tree has older data: an overwrite takes nothing away that was synced.
    fn first_missing(&self, offset: u64) -> Option<u64> {
        let mut at = offset;
        loop {
            let missing = self.first_behind(at)?;
            let kept = self.in_tree.within(missing, missing.saturating_add(1));
            if kept.is_empty() || sapwood_fault::planted(54) {
                return Some(missing);
            }
            let gap = self.in_tree.gaps(missing, u64::MAX);
            at = gap.first().map(|(start, _)| *start)?;
        }
    }

    /// The part of the metadata promised that `bytes` of all bytes in memory have.
    fn share_of_metadata(&self, bytes: u64) -> Option<MetadataReservation> {
        let promised = self.promised_metadata.as_ref()?;
        let all = self.bytes().max(1);
        let share = u128::from(promised.bytes()) * u128::from(bytes.min(all)) / u128::from(all);
        Some(promised.split(share as u64))
    }
}

impl FileData {
    /// Nothing in memory.
    pub(crate) fn new(root: u64, objectid: u64, _state: &InodeState) -> Self {
        Self {
            state: RankedMutex::with_key(Rank::FileDataState, (root, objectid), State::default()),
            items: RankedMutex::with_key(Rank::FileDataFlush, (root, objectid), ()),
            changed: Condvar::new(),
        }
    }

    /// Bytes in memory that are not on disk yet, dirty or in flight.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.state.lock().bytes()
    }

    /// Bytes that its structures take beside its fields, but for the data.
    pub(crate) fn footprint(&self) -> usize {
        /// Nodes of the maps of a file with data in memory.
        const NODES: usize = 2400;
        let state = self.state.lock();
        let busy = usize::from(state.bytes() > 0) * NODES;
        busy + state.maps.footprint() + state.modified.footprint()
    }

    /// The extent maps that changed in transactions after `durable` or that are in flight, in the
    /// order of the file.
    #[cfg(test)]
    pub(crate) fn modified(&self, durable: u64) -> Vec<ModifiedMap> {
        let mut state = self.state.lock();
        state.modified.prune(durable);
        state.modified.iter().cloned().collect()
    }

    /// Whether extents changed after transaction `durable`, or are in flight.
    pub(crate) fn has_changed(&self, durable: u64) -> bool {
        self.state.lock().modified.has_changed(durable)
    }

    /// Whether the log of the running transaction lacks an extent.
    pub(crate) fn has_unlogged(&self, transid: u64) -> bool {
        self.state.lock().modified.has_unlogged(transid)
    }

    /// The extents that the log of the running transaction lacks, in the order of the file. It
    /// counts as having them from now on. Of holes it has only what is before `end`.
    pub(crate) fn take_unlogged(&self, transid: u64, end: u64) -> Vec<ModifiedMap> {
        let mut state = self.state.lock();
        state.modified.prune(transid.saturating_sub(1));
        state.modified.take_unlogged(transid, end)
    }

    /// Whether a write failed and no flush has told of it.
    pub(crate) fn has_untold_failure(&self) -> bool {
        let state = self.state.lock();
        state.failures != state.failures_told
    }

    /// The ordered extents in flight, oldest first.
    pub(crate) fn ordered(&self) -> Vec<Arc<OrderedExtent>> {
        self.state.lock().flights.ordered().cloned().collect()
    }

    /// Gives space back that was promised to bytes that need none, or less.
    fn unpromise(&self, bytes: u64) {
        if let Some(promised) = &self.state.lock().promised {
            promised.give_back(bytes);
        }
    }

    /// Notes that a range has this content since `transid`.
    fn note_change(&self, map: ExtentMap, transid: u64) {
        self.state.lock().modified.set(map, Some(transid), None);
    }

    /// Waits until nothing in `range` is in flight. What is dirty stays.
    fn wait_landed(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        while state.flights.overlaps(range.clone()) {
            state.wait(&self.changed);
        }
    }
}

/// Writes back all of a file and waits until the tree has it, so that a commit makes it durable.
///
/// # Errors
/// As [`flush`].
pub(crate) fn flush_complete(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    flush(engine, inode, 0..u64::MAX, Wait::Completion)
}

/// The same for all files.
///
/// # Errors
/// As [`flush`], of one of them.
pub(crate) fn flush_all(engine: &Arc<Engine>) -> Result<()> {
    engine.writeback.flush_all(engine, Wait::Completion)
}

/// Throws away what is dirty in `range` (whole sectors) and waits until nothing of it is in
/// flight. The caller holds `io` exclusively.
fn discard(engine: &Arc<Engine>, inode: &Arc<Inode>, range: Range<u64>) {
    loop {
        let bytes = {
            let mut state = inode.data.state.lock();
            let before = state.dirty.bytes();
            let taken = state.dirty.take(range.clone());
            let bytes = before - state.dirty.bytes();
            if let Some(promised) = &state.promised {
                promised.give_back(bytes);
            }
            drop(taken);
            if state.bytes() == 0 {
                state.promised_metadata = None;
            }
            bytes
        };
        engine.writeback.leave(bytes);
        engine.writeback.settle(inode);
        inode.data.wait_landed(&range);
        // What could not be written became dirty again.
        let state = inode.data.state.lock();
        if state.dirty.covered(range.clone()).next().is_none() {
            return;
        }
    }
}

/// Start of the sector that `offset` lies in.
fn sector_floor(engine: &Engine, offset: u64) -> u64 {
    offset - offset % u64::from(engine.sectorsize)
}

/// End of the sectors that `end` bytes take.
fn sector_ceil(engine: &Engine, end: u64) -> u64 {
    end.checked_next_multiple_of(engine.sectorsize.into())
        .unwrap_or(sector_floor(engine, u64::MAX))
}

/// An error that names the file and says what is wrong with its items.
fn damaged(inode: &Inode, offset: u64, reason: &'static str) -> Error {
    Error::FileExtent {
        root: inode.root.id(),
        objectid: inode.objectid,
        offset,
        reason,
    }
}

/// Refuses changes if the mount takes none.
fn check(engine: &Engine) -> Result<()> {
    Ok(engine.health.check()?)
}
