//! Data in flight: taken from the dirty ranges, and not yet in the map.
//!
//! # How it works
//! A flight is a range of the file with its bytes. It begins when writeback takes a dirty run and ends when
//! the map leads to what was written. Until then reads are served from it.
//!
//! Flights of a file never overlap: what was written again while its older bytes are on their way
//! stays dirty until those landed, since both would go to the same blocks. A thread that flushes
//! therefore takes twice: what it could not take at first is free once the flights of then have
//! landed.
//!
//! Flights that change the map land in the order in which they were taken, however their I/O ends:
//! a file that grows then has no hole after a power cut where an older part was still under way.
//! What only overwrites lands at once.
//!
//! A thread that wants to wait for all that is in flight takes a *mark*, the number of the newest
//! flight.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::plan::Plan;

/// One range of a file in flight.
#[derive(Debug)]
pub(super) struct Flight {
    /// Names it; later ones have higher numbers.
    pub(super) id: u64,
    /// Whole blocks, in bytes.
    pub(super) range: Range<u64>,
    /// Blocks of it that were reserved for.
    pub(super) delayed: u64,
    /// Those of them that the inode's block count has by now.
    charged: AtomicU64,
    pieces: Vec<(u64, Vec<u8>)>,
    plan: OnceLock<Plan>,
    requests: AtomicUsize,
    failed: AtomicBool,
    refused: AtomicBool,
}

impl Flight {
    /// Bytes of it.
    pub(super) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The bytes of a part of the range, in order.
    pub(super) fn slices(&self, part: Range<u64>) -> Vec<&[u8]> {
        let first = self
            .pieces
            .partition_point(|(at, piece)| at + piece.len() as u64 <= part.start);
        let rest = self.pieces.get(first..).unwrap_or_default();
        rest.iter()
            .take_while(|(at, _)| *at < part.end)
            .map(|(at, piece)| {
                let from = part.start.saturating_sub(*at) as usize;
                let to = (part.end - at).min(piece.len() as u64) as usize;
                piece.get(from..to).unwrap_or_default()
            })
            .collect()
    }

    /// Copies the bytes of a part of the range, zeros where it has none.
    fn copy(&self, part: Range<u64>, buf: &mut [u8]) {
        let mut rest = buf;
        for slice in self.slices(part) {
            let len = slice.len().min(rest.len());
            let (front, back) = rest.split_at_mut(len);
            front.copy_from_slice(slice.get(..len).unwrap_or_default());
            rest = back;
        }
    }

    /// How many of the next `blocks` that the map gets were delayed.
    pub(super) fn uncharged(&self, blocks: u64) -> u64 {
        blocks.min(self.delayed - self.charged())
    }

    /// Records that the inode's block count has `blocks` more of those that were delayed.
    pub(super) fn charge(&self, blocks: u64) {
        self.charged.fetch_add(blocks, Ordering::AcqRel);
    }

    /// Blocks that were delayed and are in the inode's block count.
    pub(super) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Acquire).min(self.delayed)
    }

    /// Notes where it goes, and in how many requests. Once.
    pub(super) fn set_plan(&self, plan: Plan, requests: usize) {
        self.requests.store(requests, Ordering::Release);
        let first = self.plan.set(plan).is_ok();
        debug_assert!(first, "a flight was planned twice");
    }

    /// Where it goes, once that is decided.
    pub(super) fn plan(&self) -> Option<&Plan> {
        self.plan.get()
    }

    /// A request of it ended; true for the last.
    pub(super) fn request_done(&self, good: bool) -> bool {
        if !good {
            self.failed.store(true, Ordering::Release);
        }
        self.requests.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether its bytes are lost.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The host has no space for its bytes: they are to be written later.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::Release);
    }

    /// They cannot be kept after all.
    pub(super) fn give_up(&self) {
        self.refused.store(false, Ordering::Release);
    }

    /// Whether the only thing that failed is that the host has no space.
    pub(super) fn refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    /// Its bytes are lost.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }
}

#[derive(Debug)]
struct Entry {
    flight: Arc<Flight>,
    /// Its I/O is done, good or bad.
    io_done: bool,
}

/// All of a file's data in flight.
#[derive(Debug, Default)]
pub(super) struct Flights {
    entries: BTreeMap<u64, Entry>,
    /// Start of a range -> its end and the flight.
    by_start: BTreeMap<u64, (u64, u64)>,
    newest: u64,
    bytes: u64,
    /// Delayed blocks of all flights, whether the inode's block count has them or not.
    delayed: u64,
    /// A thread brings flights into the map, and does so until none is left that is ready.
    landing: bool,
}

impl Flights {
    /// Sum of all flights, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Delayed blocks of all flights, those that are charged to the inode already included.
    pub(super) fn delayed(&self) -> u64 {
        self.delayed
    }

    /// True if nothing is in flight.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of the newest flight.
    pub(super) fn mark(&self) -> u64 {
        self.newest
    }

    /// Whether a flight up to `mark` has not landed.
    pub(super) fn pending(&self, mark: u64) -> bool {
        self.entries.keys().next().is_some_and(|id| *id <= mark)
    }

    fn touching(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        let first = self
            .by_start
            .range(..=range.start)
            .next_back()
            .filter(|(_, (end, _))| *end > range.start)
            .map_or(range.start, |(start, _)| *start);
        let end = if range.is_empty() { first } else { range.end };
        self.by_start
            .range(first..end)
            .map(|(start, (end, id))| (*start..*end, *id))
    }

    /// Whether anything in `range` is in flight.
    pub(super) fn overlaps(&self, range: Range<u64>) -> bool {
        self.touching(range).next().is_some()
    }

    /// Parts of `range` that are in flight, in order.
    pub(super) fn covered(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let bounds = range.clone();
        self.touching(range)
            .map(move |(part, _)| part.start.max(bounds.start)..part.end.min(bounds.end))
    }

    /// Parts of `range` that are not in flight, in order.
    pub(super) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for part in self.covered(range.clone()) {
            if part.start > at {
                gaps.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Takes a range in that overlaps with nothing in flight, with its bytes.
    pub(super) fn insert(
        &mut self,
        range: Range<u64>,
        pieces: Vec<(u64, Vec<u8>)>,
        delayed: u64,
    ) -> Arc<Flight> {
        debug_assert!(!self.overlaps(range.clone()));
        self.newest += 1;
        let id = self.newest;
        self.bytes += range.end - range.start;
        self.delayed += delayed;
        self.by_start.insert(range.start, (range.end, id));
        let flight = Arc::new(Flight {
            id,
            range,
            delayed,
            charged: AtomicU64::new(0),
            pieces,
            plan: OnceLock::new(),
            requests: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        });
        let entry = Entry {
            flight: Arc::clone(&flight),
            io_done: false,
        };
        self.entries.insert(id, entry);
        flight
    }

    /// Copies what is in flight of `buf.len()` bytes at `offset` into `buf`.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) {
        let wanted = offset..offset + buf.len() as u64;
        for (shown, id) in self.touching(wanted.clone()) {
            let from = shown.start.max(wanted.start);
            let to = shown.end.min(wanted.end);
            let target = buf.get_mut((from - offset) as usize..(to - offset) as usize);
            if let (Some(entry), Some(target)) = (self.entries.get(&id), target) {
                entry.flight.copy(from..to, target);
            }
        }
    }

    /// Notes that the I/O of a flight is done. True if the caller is to bring into the map what is ready, with
    /// [`next_ready`](Self::next_ready) until that has no more.
    pub(super) fn io_done(&mut self, id: u64) -> bool {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.io_done = true;
        }
        let ready = self
            .entries
            .values()
            .next()
            .is_some_and(|entry| entry.io_done);
        ready && !std::mem::replace(&mut self.landing, true)
    }

    /// Whether the I/O of a flight is done that cannot land yet.
    #[cfg(test)]
    pub(super) fn is_waiting(&self) -> bool {
        self.entries.values().any(|entry| entry.io_done)
    }

    /// The flights that are to be brought into the map next, in order, at most `max`. Empty: it is done.
    pub(super) fn next_ready(&mut self, max: usize) -> Vec<Arc<Flight>> {
        let ready: Vec<_> = self
            .entries
            .values()
            .take_while(|entry| entry.io_done)
            .take(max)
            .map(|entry| Arc::clone(&entry.flight))
            .collect();
        if ready.is_empty() {
            self.landing = false;
        }
        ready
    }

    /// Ends a flight. True if the caller is to bring into the map what only waited for it.
    pub(super) fn remove(&mut self, flight: &Flight) -> bool {
        if self.entries.remove(&flight.id).is_some() {
            self.by_start.remove(&flight.range.start);
            self.bytes -= flight.len();
            self.delayed -= flight.delayed;
        }
        if self.entries.is_empty() {
            // Emptied maps keep a node each.
            self.entries = BTreeMap::new();
            self.by_start = BTreeMap::new();
        }
        let ready = self
            .entries
            .values()
            .next()
            .is_some_and(|entry| entry.io_done);
        ready && !std::mem::replace(&mut self.landing, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(at: u64, byte: u8, len: usize) -> Vec<(u64, Vec<u8>)> {
        let half = len / 2;
        vec![
            (at, vec![byte; half]),
            (at + half as u64, vec![byte + 1; len - half]),
        ]
    }

    #[test]
    fn reads_are_served_from_it() {
        let mut flights = Flights::default();
        let a = flights.insert(4..8, pieces(4, b'a', 4), 0);
        flights.insert(10..12, pieces(10, b'x', 2), 0);
        let mut buf = [b'.'; 12];
        flights.read(1, &mut buf);
        assert_eq!(&buf, b"...aabb..xy.");
        let mut part = [b'.'; 2];
        flights.read(5, &mut part);
        assert_eq!(&part, b"ab");
        assert_eq!(flights.gaps(0..14), [0..4, 8..10, 12..14]);
        assert_eq!(flights.gaps(5..11), vec![8..10; 1]);
        assert_eq!(a.slices(5..7), [b"a", b"b"]);
        assert!(flights.overlaps(7..9) && !flights.overlaps(8..10));
        assert_eq!(flights.bytes(), 6);
        flights.remove(&a);
        assert_eq!(flights.bytes(), 2);
        assert!(!flights.overlaps(0..10));
    }

    #[test]
    fn they_land_in_the_order_of_taking() {
        let mut flights = Flights::default();
        let first = flights.insert(0..4, pieces(0, b'a', 4), 0);
        let second = flights.insert(8..12, pieces(8, b'c', 4), 0);
        let mark = flights.mark();
        let third = flights.insert(4..8, pieces(4, b'e', 4), 0);
        assert!(!flights.io_done(second.id), "the first is under way");
        assert!(flights.io_done(first.id));
        let ids = |ready: Vec<Arc<Flight>>| ready.iter().map(|f| f.id).collect::<Vec<_>>();
        assert_eq!(ids(flights.next_ready(8)), [first.id, second.id]);
        assert!(!flights.io_done(third.id), "somebody is at it");
        assert!(!flights.remove(&first) && flights.pending(mark));
        assert!(!flights.remove(&second) && !flights.pending(mark));
        assert_eq!(ids(flights.next_ready(8)), [third.id]);
        flights.remove(&third);
        assert!(flights.next_ready(8).is_empty() && flights.is_empty());
        let next = flights.insert(0..4, pieces(0, b'a', 4), 0);
        assert!(flights.io_done(next.id), "nobody is at it any more");
    }

    #[test]
    fn one_that_ends_on_its_own_lets_others_go_on() {
        let mut flights = Flights::default();
        let first = flights.insert(0..4, pieces(0, b'a', 4), 0);
        let second = flights.insert(8..12, pieces(8, b'c', 4), 0);
        assert!(!flights.io_done(second.id));
        assert!(flights.remove(&first));
        assert_eq!(flights.next_ready(1).len(), 1);
    }

    #[test]
    fn the_last_request_ends_it() {
        let mut flights = Flights::default();
        let flight = flights.insert(0..4, pieces(0, b'a', 4), 1);
        flight.set_plan(Plan::default(), 2);
        assert!(!flight.request_done(false));
        assert!(flight.request_done(true) && flight.failed());
    }
}
