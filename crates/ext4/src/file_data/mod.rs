//! Data of one file in memory: dirty ranges, and ranges in flight.
//!
//! Only the state. [`data`](crate::data) has the operations.

mod in_flight;

use std::ops::Range;

use parking_lot::Condvar;
use sapwood_base::{DirtyRanges, RangeSet, ReadAhead};

use crate::block_alloc::Reservation;
use crate::lock::{Rank, RankedMutex};
use crate::{Error, Result};
use in_flight::InFlightSet;
pub(crate) use in_flight::{Change, InFlight, Segment, WritePlan};

/// Data of one file in memory.
#[derive(Debug)]
pub(crate) struct FileData {
    /// Dirty and in-flight ranges.
    pub(crate) state: RankedMutex<State>,
    /// Notified when anything changes that a thread may wait for.
    pub(crate) changed: Condvar,
}

/// State under the lock of a [`FileData`].
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Written by callers, and not taken for writeback.
    pub(crate) dirty: DirtyRanges,
    /// Taken for writeback, and not in the map yet.
    pub(crate) in_flight: InFlightSet,
    /// Dirty blocks with a reservation: they were holes when they were written.
    pub(crate) delayed: RangeSet,
    /// Blocks promised to them.
    pub(crate) promised: Option<Reservation>,
    /// The map has no block from here on. `None`: not known.
    pub(crate) hole_from: Option<u64>,
    /// End of the file's newest extent: block of the file, block of the device.
    pub(crate) hint: Option<(u64, u64)>,
    /// Number of failed writes, and the number that a flush has reported.
    pub(crate) failures: u64,
    pub(crate) failures_told: u64,
    /// Number of writes for which the host had no space.
    pub(crate) refusals: u64,
    /// Number of ranges that only overwrote blocks, and how many of them a flush of the device
    /// followed.
    pub(crate) overwrites: u64,
    pub(crate) overwrites_synced: u64,
    /// State of read-ahead.
    pub(crate) ahead: ReadAhead,
}

impl State {
    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.dirty.bytes() + self.in_flight.bytes()
    }

    /// Makes the bytes of an in-flight range dirty again, except bytes that were written again
    /// since. Returns their number.
    pub(crate) fn put_back(&mut self, io: &InFlight) -> u64 {
        let before = self.dirty.bytes();
        for gap in self.dirty.gaps(io.range.clone()) {
            let mut at = gap.start;
            for slice in io.slices(gap) {
                self.dirty.write(at, &slice.into());
                at += slice.len() as u64;
            }
        }
        let plan = io.plan().into_iter();
        let new = plan.flat_map(|plan| &plan.segments);
        for segment in new.filter(|segment| segment.change == Change::Insert) {
            self.delayed
                .insert(segment.blocks.start, segment.blocks.end);
        }
        self.dirty.bytes() - before
    }

    /// Blocks that will be allocated for dirty and in-flight data.
    pub(crate) fn delayed_blocks(&self) -> u64 {
        self.delayed.bytes() + self.in_flight.delayed()
    }

    /// Releases promises for blocks that are allocated now, or need none.
    pub(crate) fn unpromise(&mut self, blocks: u64) {
        if self.bytes() == 0 && self.delayed.is_empty() {
            self.promised = None;
        } else if let Some(promised) = &mut self.promised {
            promised.give_back(blocks);
        }
    }
}

impl FileData {
    /// A file without data in memory.
    pub(crate) fn new(ino: u32) -> Self {
        let key = (u64::from(ino), 0);
        Self {
            state: RankedMutex::with_key(Rank::FileDataState, key, State::default()),
            changed: Condvar::new(),
        }
    }

    /// Bytes in memory that are not on disk yet, dirty or in flight.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.state.lock().bytes()
    }

    /// Whether eviction loses nothing: no data, no failures that no flush has reported, no
    /// overwrites that wait for a flush of the device.
    pub(crate) fn may_leave(&self) -> bool {
        let state = self.state.lock();
        let told = state.failures == state.failures_told;
        let synced = state.overwrites == state.overwrites_synced;
        state.bytes() == 0 && told && synced
    }

    /// Bytes that it holds on the heap, without the data.
    pub(crate) fn footprint(&self) -> usize {
        /// Nodes of the maps of a file with data in memory.
        const NODES: usize = 1200;
        let state = self.state.lock();
        usize::from(state.bytes() > 0) * NODES
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty.bytes()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().bytes() == 0
    }

    pub(crate) fn set_hint(&self, logical: u64, physical: u64) {
        self.state.lock().hint = Some((logical, physical));
    }

    /// Best place of new blocks at `block` of the file, if known without a search.
    pub(crate) fn hint(&self, block: u64) -> Option<u64> {
        let hint = self.state.lock().hint;
        hint.filter(|(logical, _)| *logical == block)
            .map(|(_, physical)| physical)
    }

    /// Forgets the end of the map: a thread outside of writeback adds blocks.
    pub(crate) fn forget_shape(&self) {
        let mut state = self.state.lock();
        state.hole_from = None;
        state.hint = None;
    }

    /// Waits until nothing in `range` is in flight. Dirty data stays.
    pub(crate) fn wait_not_in_flight(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        while state.in_flight.overlaps(range.clone()) {
            state.wait(&self.changed);
        }
    }

    /// Whether nothing in `range` is dirty.
    pub(crate) fn is_clean(&self, range: Range<u64>) -> bool {
        let state = self.state.lock();
        state.dirty.covered(range).next().is_none()
    }

    /// Waits for the data that is in flight now.
    pub(crate) fn wait_in_flight(&self) {
        let mut state = self.state.lock();
        let mark = state.in_flight.mark();
        while state.in_flight.pending(mark) {
            state.wait(&self.changed);
        }
    }

    /// Number of writes for which the host had no space.
    pub(crate) fn refusals(&self) -> u64 {
        self.state.lock().refusals
    }

    /// An error if a write failed that no flush of the file has reported, or if the host refused a
    /// write since `refusals` were counted. The failure stays unreported: a thread that writes back
    /// all files must not hide a failure from the fsync of the file.
    pub(crate) fn check_written(&self, ino: u32, refusals: u64) -> Result<()> {
        let state = self.state.lock();
        if state.failures == state.failures_told {
            let refused = state.refusals != refusals;
            return (!refused).then_some(()).ok_or(Error::NoSpace);
        }
        Err(Error::WriteFailed(ino))
    }

    /// Records that a flush has reported all failures so far.
    pub(crate) fn failures_reported(&self) {
        let mut state = self.state.lock();
        state.failures_told = state.failures;
    }

    /// Number of overwrites in place whose I/O is done.
    pub(crate) fn overwrites(&self) -> u64 {
        self.state.lock().overwrites
    }

    /// Whether data was overwritten in place since the device was last flushed for this file.
    pub(crate) fn owes_flush(&self) -> bool {
        let state = self.state.lock();
        state.overwrites != state.overwrites_synced
    }

    /// Records that the device was flushed after this many overwrites.
    pub(crate) fn overwrites_synced(&self, overwrites: u64) {
        let mut state = self.state.lock();
        state.overwrites_synced = state.overwrites_synced.max(overwrites);
    }
}
