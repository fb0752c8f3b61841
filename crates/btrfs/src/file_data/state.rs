//! State of a file in memory: dirty ranges, data in flight, extent maps, promised space.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Condvar;
use sapwood_base::{DirtyRanges, RangeSet, ReadAhead};

use super::extent_map::{ExtentMap, MapCache};
use super::in_flight::InFlight;
use super::modified::{ModifiedMap, ModifiedMaps};
use super::ordered::InFlightId;
use super::slice::cut;
use crate::lock::{Rank, RankedMutex};
use crate::quota::QuotaHold;
use crate::space::{DataReservation, MetadataReservation};

/// Data of one file in memory.
#[derive(Debug)]
pub(crate) struct FileData {
    pub(crate) state: RankedMutex<DataState>,
    /// Held by the thread that changes the file's items.
    pub(crate) items: RankedMutex<()>,
    /// Notified when anything changes that a thread may wait for.
    pub(crate) changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct DataState {
    pub(crate) dirty: DirtyRanges,
    pub(crate) in_flight: InFlight,
    /// Ranges in the tree beyond the size on disk, kept while newer data of them is in memory.
    pub(crate) in_tree: RangeSet,
    pub(crate) maps: MapCache,
    pub(crate) modified: ModifiedMaps,
    /// Space promised to data that is dirty or not allocated yet.
    pub(crate) promised: Option<Arc<DataReservation>>,
    /// The same bytes, reserved against the limits of quotas.
    pub(crate) quota: Option<QuotaHold>,
    /// Metadata promised to the completions to come.
    pub(crate) promised_metadata: Option<Arc<MetadataReservation>>,
    /// End of the file's last extent.
    pub(crate) hint: u64,
    /// Number of failed writes, and the number that a flush has reported.
    pub(crate) failures: u64,
    pub(crate) failures_told: u64,
    /// Number of writes for which the host had no space.
    pub(crate) refusals: u64,
    /// State of read-ahead.
    pub(crate) ahead: ReadAhead,
}

impl DataState {
    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.dirty.bytes() + self.in_flight.bytes()
    }

    /// Keeps a reservation until no bytes are in memory.
    pub(crate) fn hold_quota(&mut self, quota: Option<QuotaHold>) {
        match (&mut self.quota, quota) {
            (Some(own), Some(more)) => own.merge(more),
            (None, Some(more)) => self.quota = Some(more),
            (_, None) => {}
        }
    }

    /// Makes the bytes of an entry dirty again, except bytes that were written again since. Returns
    /// their number.
    pub(crate) fn put_back(&mut self, id: InFlightId) -> u64 {
        let Some((range, data)) = self.in_flight.get(id) else {
            return 0;
        };
        let before = self.dirty.bytes();
        let shown: Vec<_> = self.in_flight.newest(id, range.clone()).collect();
        for gap in shown
            .into_iter()
            .flat_map(|part| self.dirty.gaps(part))
            .collect::<Vec<_>>()
        {
            let mut at = gap.start;
            for slice in cut(&data, gap.start - range.start..gap.end - range.start) {
                self.dirty.write(at, &slice.bytes().into());
                at += slice.bytes().len() as u64;
            }
        }
        self.dirty.bytes() - before
    }

    /// First byte at or after `offset` that is in memory and not in the tree.
    pub(crate) fn first_behind(&self, offset: u64) -> Option<u64> {
        let dirty = self.dirty.covered(offset..u64::MAX).next();
        let in_flight = self.in_flight.first_behind(offset);
        dirty
            .map(|part| part.start)
            .into_iter()
            .chain(in_flight)
            .min()
    }

    /// First byte at or after `offset` that the tree does not have. Newer data in memory does not
    /// count where the tree has older data: an overwrite takes nothing away that was synced.
    pub(crate) fn first_missing(&self, offset: u64) -> Option<u64> {
        let mut at = offset;
        loop {
            let missing = self.first_behind(at)?;
            let kept = self.in_tree.within(missing, missing.saturating_add(1));
            if kept.is_empty() {
                return Some(missing);
            }
            let gap = self.in_tree.gaps(missing, u64::MAX);
            at = gap.first().map(|(start, _)| *start)?;
        }
    }

    /// The share of the promised metadata that belongs to `bytes` of the bytes in memory.
    pub(crate) fn share_of_metadata(&self, bytes: u64) -> Option<MetadataReservation> {
        let promised = self.promised_metadata.as_ref()?;
        let all = self.bytes().max(1);
        let share = u128::from(promised.bytes()) * u128::from(bytes.min(all)) / u128::from(all);
        Some(promised.split(share as u64))
    }
}

impl FileData {
    /// A file without data in memory.
    pub(crate) fn new(root: u64, objectid: u64) -> Self {
        Self {
            state: RankedMutex::with_key(
                Rank::FileDataState,
                (root, objectid),
                DataState::default(),
            ),
            items: RankedMutex::with_key(Rank::FileDataFlush, (root, objectid), ()),
            changed: Condvar::new(),
        }
    }

    /// Bytes in memory that are not on disk yet, dirty or in flight.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.state.lock().bytes()
    }

    /// Bytes that it holds on the heap, without the data.
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

    /// The extents that the log of the running transaction lacks, in the order of the file. Marks
    /// them as logged. Takes only holes before `end`.
    pub(crate) fn take_unlogged(&self, transid: u64, end: u64) -> Vec<ModifiedMap> {
        let mut state = self.state.lock();
        state.modified.prune(transid.saturating_sub(1));
        state.modified.take_unlogged(transid, end)
    }

    /// Whether a write failed that no flush has reported.
    pub(crate) fn has_untold_failure(&self) -> bool {
        let state = self.state.lock();
        state.failures != state.failures_told
    }

    /// The ordered extents in flight, oldest first.
    #[cfg(test)]
    pub(crate) fn ordered(&self) -> Vec<Arc<super::ordered::OrderedExtent>> {
        self.state.lock().in_flight.ordered().cloned().collect()
    }

    /// Gives back space that was promised to bytes that turned out to need less, or none.
    pub(crate) fn unpromise(&self, bytes: u64) {
        if let Some(promised) = &self.state.lock().promised {
            promised.give_back(bytes);
        }
    }

    /// Records that a range has this content since `transid`.
    pub(crate) fn note_change(&self, map: ExtentMap, transid: u64) {
        self.state.lock().modified.set(map, Some(transid), None);
    }

    /// Waits until the I/O of the current in-flight data is done, or until the tree has it
    /// (`complete`).
    pub(crate) fn wait_in_flight(&self, complete: bool) {
        let mut state = self.state.lock();
        let mark = state.in_flight.mark();
        while if complete {
            state.in_flight.pending(mark)
        } else {
            state.in_flight.io_pending(mark)
        } {
            state.wait(&self.changed);
        }
    }

    /// Number of writes for which the host had no space.
    pub(crate) fn refusals(&self) -> u64 {
        self.state.lock().refusals
    }

    /// Records that a flush has reported all failures so far.
    pub(crate) fn failures_reported(&self) {
        let mut state = self.state.lock();
        state.failures_told = state.failures;
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

    /// Bytes that are dirty.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty.bytes()
    }

    /// Whether nothing is dirty or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.dirty.is_empty() && state.in_flight.is_empty()
    }
}
