//! Data in flight: taken from the dirty ranges, and not yet in the tree.
//!
//! # How it works
//! An entry is a range of the file with its bytes. It begins when writeback takes a dirty run,
//! may be cut into several when extents are allocated for it, and ends when its file extent
//! item is in the tree. Until then reads are served from it. An entry of an encoded write has no
//! bytes: reads wait until it ends.
//!
//! Entries may overlap: data that was written again can be taken again while the older data is
//! still in flight. Two structures keep the order:
//! - The *cover* maps each byte to its newest entry; reads look only at it.
//! - An entry waits for the older ones that it overlaps (its *blockers*) before it may be
//!   completed, so that the tree sees them in the order in which they were written. Their I/O need
//!   not wait, because each goes to an extent of its own; an overwrite in place waits for its
//!   blockers first.
//!
//! Each range that writeback takes gets a new number, its *mark*; the parts of its entry keep it. A
//! thread that waits for all data in flight waits for the entries up to the newest mark.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::ordered::{InFlightId, OrderedExtent};
use super::slice::{Slice, cut};

/// One range in flight.
#[derive(Debug)]
struct InFlightRange {
    range: Range<u64>,
    mark: u64,
    data: Vec<Slice>,
    ordered: Option<Arc<OrderedExtent>>,
    io_done: bool,
    blockers: u32,
    dependents: Vec<InFlightId>,
    /// Waits for its blockers before its place is decided.
    parked: bool,
    /// The tree has it.
    inserted: bool,
}

/// Work that can continue because older data is no longer in flight.
#[derive(Debug)]
pub(crate) enum Ready {
    /// A parked entry can be decided.
    Parked(InFlightId),
    /// An ordered extent can be completed.
    Complete(Arc<OrderedExtent>),
}

/// All of a file's data in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    entries: BTreeMap<InFlightId, InFlightRange>,
    /// Start of a range -> its end and the newest entry there.
    cover: BTreeMap<u64, (u64, InFlightId)>,
    marks: BTreeSet<(u64, InFlightId)>,
    io_marks: BTreeSet<(u64, InFlightId)>,
    next: InFlightId,
    mark: u64,
    bytes: u64,
}

impl InFlight {
    /// Sum of all entries in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The newest mark.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// Whether an entry with a mark of at most `mark` has I/O that is not done.
    pub(crate) fn io_pending(&self, mark: u64) -> bool {
        self.io_marks
            .first()
            .is_some_and(|(first, _)| *first <= mark)
    }

    /// Whether an entry with a mark of at most `mark` is in flight.
    pub(crate) fn pending(&self, mark: u64) -> bool {
        self.marks.first().is_some_and(|(first, _)| *first <= mark)
    }

    /// Whether anything in `range` is in flight.
    pub(crate) fn overlaps(&self, range: Range<u64>) -> bool {
        self.covering(range).next().is_some()
    }

    fn covering(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, InFlightId)> {
        let first = self.cover.range(..=range.start).next_back();
        let first = first
            .filter(|(_, (end, _))| *end > range.start)
            .map_or(range.start, |(at, _)| *at);
        let end = if range.is_empty() { first } else { range.end };
        self.cover
            .range(first..end)
            .map(|(at, (end, id))| (*at..*end, *id))
    }

    /// Parts of `range` that are in flight, in order.
    pub(crate) fn covered(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let bounds = range.clone();
        self.covering(range)
            .map(move |(part, _)| part.start.max(bounds.start)..part.end.min(bounds.end))
    }

    /// Parts of `range` in which an entry is the newest in flight.
    pub(crate) fn newest(
        &self,
        id: InFlightId,
        range: Range<u64>,
    ) -> impl Iterator<Item = Range<u64>> {
        let bounds = range.clone();
        self.covering(range)
            .filter(move |(_, newest)| *newest == id)
            .map(move |(part, _)| part.start.max(bounds.start)..part.end.min(bounds.end))
    }

    fn uncover(&mut self, range: &Range<u64>) {
        for at in [range.start, range.end] {
            if let Some((_, (end, id))) = self.cover.range_mut(..at).next_back()
                && *end > at
            {
                let tail = (*end, *id);
                *end = at;
                self.cover.insert(at, tail);
            }
        }
        let inside: Vec<u64> = self.cover.range(range.clone()).map(|(at, _)| *at).collect();
        for at in inside {
            self.cover.remove(&at);
        }
    }

    fn add(&mut self, entry: InFlightRange) -> InFlightId {
        self.next += 1;
        let id = self.next;
        self.marks.insert((entry.mark, id));
        self.io_marks.insert((entry.mark, id));
        self.bytes += entry.range.end - entry.range.start;
        self.entries.insert(id, entry);
        id
    }

    /// Adds a range, newer than all entries. Without `data`: its bytes are only on their way to
    /// the device, in another form.
    pub(crate) fn insert(&mut self, range: Range<u64>, data: Vec<Slice>) -> InFlightId {
        let older: BTreeSet<InFlightId> = self.covering(range.clone()).map(|(_, id)| id).collect();
        self.mark += 1;
        let id = self.add(InFlightRange {
            range: range.clone(),
            mark: self.mark,
            data,
            ordered: None,
            io_done: false,
            blockers: older.len() as u32,
            dependents: Vec::new(),
            parked: false,
            inserted: false,
        });
        for older in older {
            if let Some(entry) = self.entries.get_mut(&older) {
                entry.dependents.push(id);
            }
        }
        self.uncover(&range);
        self.cover.insert(range.start, (range.end, id));
        id
    }

    /// Range and bytes of an entry.
    pub(crate) fn get(&self, id: InFlightId) -> Option<(Range<u64>, Vec<Slice>)> {
        let entry = self.entries.get(&id)?;
        Some((entry.range.clone(), entry.data.clone()))
    }

    /// Whether an entry has the bytes of its range.
    pub(crate) fn has_bytes(&self, id: InFlightId) -> bool {
        self.entries
            .get(&id)
            .is_some_and(|entry| !entry.data.is_empty())
    }

    /// Whether the newest entry somewhere in `range` has no bytes.
    pub(crate) fn lacks_bytes(&self, range: Range<u64>) -> bool {
        self.covering(range).any(|(_, id)| !self.has_bytes(id))
    }

    /// Parks an entry if older data in its range is still in flight. Returns whether it did;
    /// [`remove`](Self::remove) then reports the entry once no older data is in flight.
    pub(crate) fn park_if_blocked(&mut self, id: InFlightId) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        entry.parked = entry.blockers > 0;
        entry.parked
    }

    /// Cuts an entry whose I/O has not begun at the given offsets; returns all parts.
    pub(crate) fn split(&mut self, id: InFlightId, at: &[u64]) -> Vec<InFlightId> {
        if at.is_empty() {
            return vec![id];
        }
        let Some(whole) = self.entries.remove(&id) else {
            return Vec::new();
        };
        self.marks.remove(&(whole.mark, id));
        self.io_marks.remove(&(whole.mark, id));
        self.bytes -= whole.range.end - whole.range.start;
        let mut ids = Vec::new();
        let mut start = whole.range.start;
        for end in at.iter().copied().chain([whole.range.end]) {
            let range = start..end;
            let within = range.start - whole.range.start..range.end - whole.range.start;
            ids.push(self.add(InFlightRange {
                data: cut(&whole.data, within),
                range: range.clone(),
                mark: whole.mark,
                ordered: None,
                io_done: false,
                blockers: 0,
                dependents: Vec::new(),
                parked: false,
                inserted: false,
            }));
            start = end;
        }
        self.rewire(id, &whole, &ids);
        self.recover(id, &whole.range, &ids);
        ids
    }

    /// Puts the parts of `whole` in its place among blockers and dependents.
    fn rewire(&mut self, id: InFlightId, whole: &InFlightRange, ids: &[InFlightId]) {
        let touches = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        let parts: Vec<(InFlightId, Range<u64>)> = ids
            .iter()
            .filter_map(|id| Some((*id, self.entries.get(id)?.range.clone())))
            .collect();
        for dependent in &whole.dependents {
            let Some(newer) = self.entries.get_mut(dependent) else {
                continue;
            };
            newer.blockers -= 1;
            let range = newer.range.clone();
            let blockers: Vec<InFlightId> = parts
                .iter()
                .filter(|(_, part)| touches(part, &range))
                .map(|(id, _)| *id)
                .collect();
            newer.blockers += blockers.len() as u32;
            for blocker in blockers {
                if let Some(part) = self.entries.get_mut(&blocker) {
                    part.dependents.push(*dependent);
                }
            }
        }
        if whole.blockers == 0 {
            return;
        }
        let mut added: Vec<InFlightId> = Vec::new();
        for older in self
            .entries
            .values_mut()
            .filter(|older| older.dependents.contains(&id))
        {
            older.dependents.retain(|dependent| *dependent != id);
            for (part, range) in &parts {
                if touches(&older.range, range) {
                    older.dependents.push(*part);
                    added.push(*part);
                }
            }
        }
        for part in added {
            if let Some(part) = self.entries.get_mut(&part) {
                part.blockers += 1;
            }
        }
    }

    /// Puts the parts of an entry in its place in the cover.
    fn recover(&mut self, id: InFlightId, range: &Range<u64>, ids: &[InFlightId]) {
        let mine: Vec<Range<u64>> = self
            .covering(range.clone())
            .filter(|(_, owner)| *owner == id)
            .map(|(part, _)| part)
            .collect();
        for shown in mine {
            self.cover.remove(&shown.start);
            for part in ids {
                let Some(entry) = self.entries.get(part) else {
                    continue;
                };
                let start = entry.range.start.max(shown.start);
                let end = entry.range.end.min(shown.end);
                if start < end {
                    self.cover.insert(start, (end, *part));
                }
            }
        }
    }

    /// Sets the ordered extent of an entry.
    pub(crate) fn set_ordered(&mut self, id: InFlightId, ordered: Arc<OrderedExtent>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.ordered = Some(ordered);
        }
    }

    /// Records that the I/O of an entry is done; true if it may be completed now.
    pub(crate) fn io_done(&mut self, id: InFlightId) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        entry.io_done = true;
        self.io_marks.remove(&(entry.mark, id));
        entry.blockers == 0
    }

    /// The I/O of an entry failed; true if it may be ended now. Until then it counts as pending.
    pub(crate) fn io_failed(&mut self, id: InFlightId) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else {
            return false;
        };
        entry.io_done = true;
        entry.blockers == 0
    }

    /// Whether all I/O of an entry is done.
    #[cfg(test)]
    pub(crate) fn is_io_done(&self, id: InFlightId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.io_done)
    }

    /// Ends an entry. Returns the newer ones that waited for it and may continue now.
    pub(crate) fn remove(&mut self, id: InFlightId) -> Vec<Ready> {
        let Some(entry) = self.entries.remove(&id) else {
            return Vec::new();
        };
        self.marks.remove(&(entry.mark, id));
        self.io_marks.remove(&(entry.mark, id));
        self.bytes -= entry.range.end - entry.range.start;
        let mine: Vec<u64> = self
            .covering(entry.range.clone())
            .filter(|(_, owner)| *owner == id)
            .map(|(part, _)| part.start)
            .collect();
        for at in mine {
            self.cover.remove(&at);
        }
        if self.entries.is_empty() {
            // An emptied map would keep a node allocated.
            self.entries = BTreeMap::new();
            self.cover = BTreeMap::new();
            self.marks = BTreeSet::new();
            self.io_marks = BTreeSet::new();
        }
        let mut ready = Vec::new();
        for dependent in entry.dependents {
            if let Some(newer) = self.entries.get_mut(&dependent) {
                newer.blockers -= 1;
                if newer.blockers > 0 {
                    continue;
                }
                if std::mem::take(&mut newer.parked) {
                    ready.push(Ready::Parked(dependent));
                } else if newer.io_done {
                    ready.extend(newer.ordered.clone().map(Ready::Complete));
                }
            }
        }
        ready
    }

    /// Copies the in-flight bytes of `buf.len()` bytes at `offset` into `buf`.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        let wanted = offset..offset + buf.len() as u64;
        for (shown, id) in self.covering(wanted.clone()) {
            let Some(entry) = self.entries.get(&id) else {
                continue;
            };
            let from = shown.start.max(wanted.start);
            let to = shown.end.min(wanted.end);
            let mut at = (from - offset) as usize;
            for slice in cut(
                &entry.data,
                from - entry.range.start..to - entry.range.start,
            ) {
                let bytes = slice.bytes();
                if let Some(target) = buf.get_mut(at..at + bytes.len()) {
                    target.copy_from_slice(bytes);
                }
                at += bytes.len();
            }
        }
    }

    /// Records that the tree has the data of an entry.
    pub(crate) fn set_inserted(&mut self, id: InFlightId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.inserted = true;
        }
    }

    /// First byte at or after `offset` that is in flight and that the tree does not have.
    pub(crate) fn first_behind(&self, offset: u64) -> Option<u64> {
        let missing = |id: &InFlightId| self.entries.get(id).is_some_and(|entry| !entry.inserted);
        let mut behind = self
            .covering(offset..u64::MAX)
            .filter(|(_, id)| missing(id));
        behind.next().map(|(part, _)| part.start.max(offset))
    }

    /// The ordered extents in flight, oldest first.
    #[cfg(test)]
    pub(crate) fn ordered(&self) -> impl Iterator<Item = &Arc<OrderedExtent>> {
        self.entries
            .values()
            .filter_map(|entry| entry.ordered.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(byte: u8, len: usize) -> Vec<Slice> {
        vec![
            Slice::new(vec![byte; len / 2].into()),
            Slice::new(vec![byte; len - len / 2].into()),
        ]
    }

    fn blocked(in_flight: &InFlight, id: InFlightId) -> bool {
        in_flight.entries[&id].blockers > 0
    }

    fn shown(in_flight: &InFlight, range: Range<u64>) -> Vec<u8> {
        let mut buf = vec![b'.'; (range.end - range.start) as usize];
        in_flight.read(range.start, &mut buf);
        buf
    }

    #[test]
    fn older_data_is_not_the_newest_where_it_was_taken_again() {
        let mut in_flight = InFlight::default();
        let old = in_flight.insert(0..8, slices(b'a', 8));
        let new = in_flight.insert(4..6, slices(b'b', 2));
        let parts = |id| in_flight.newest(id, 0..8).collect::<Vec<_>>();
        assert_eq!(parts(old), [0..4, 6..8]);
        assert_eq!(parts(new), vec![4..6]);
    }

    #[test]
    fn the_newest_is_read() {
        let mut in_flight = InFlight::default();
        let a = in_flight.insert(0..8, slices(b'a', 8));
        let b = in_flight.insert(4..6, slices(b'b', 2));
        assert_eq!(shown(&in_flight, 0..10), b"aaaabbaa..");
        assert!(blocked(&in_flight, b) && !blocked(&in_flight, a));
        let parts = in_flight.split(a, &[2, 5]);
        assert_eq!(shown(&in_flight, 0..10), b"aaaabbaa..");
        assert_eq!(in_flight.bytes(), 10);
        assert!(!in_flight.io_done(b));
        for part in parts {
            assert!(blocked(&in_flight, b));
            assert!(in_flight.io_done(part));
            in_flight.remove(part);
        }
        assert!(!blocked(&in_flight, b));
        assert_eq!(shown(&in_flight, 0..10), b"....bb....");
        in_flight.remove(b);
        assert!(in_flight.is_empty() && in_flight.cover.is_empty() && in_flight.bytes() == 0);
    }

    #[test]
    fn parts_of_a_newer_one_wait_for_what_they_overlap() {
        let mut in_flight = InFlight::default();
        let a = in_flight.insert(0..4, slices(b'a', 4));
        let b = in_flight.insert(2..8, slices(b'b', 6));
        let parts = in_flight.split(b, &[4]);
        assert!(blocked(&in_flight, parts[0]) && !blocked(&in_flight, parts[1]));
        assert!(in_flight.park_if_blocked(parts[0]));
        let ready = in_flight.remove(a);
        assert!(matches!(ready[..], [Ready::Parked(id)] if id == parts[0]));
        assert!(!blocked(&in_flight, parts[0]));
        assert_eq!(shown(&in_flight, 0..8), b"..bbbbbb");
    }

    #[test]
    fn marks_name_what_was_there() {
        let mut in_flight = InFlight::default();
        let a = in_flight.insert(0..4, slices(b'a', 4));
        let mark = in_flight.mark();
        let b = in_flight.insert(8..12, slices(b'b', 4));
        assert!(in_flight.io_pending(mark) && in_flight.pending(mark));
        in_flight.io_done(a);
        assert!(!in_flight.io_pending(mark) && in_flight.pending(mark));
        assert!(in_flight.io_pending(in_flight.mark()));
        in_flight.remove(a);
        assert!(!in_flight.pending(mark));
        assert_eq!(in_flight.first_behind(0), Some(8));
        in_flight.set_inserted(b);
        assert_eq!(in_flight.first_behind(0), None);
    }
}
