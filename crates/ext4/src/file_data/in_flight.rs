//! Data in flight: taken from the dirty ranges, and not yet in the map.
//!
//! # How it works
//! An [`InFlight`] is a range of the file with its bytes. It begins when writeback takes a dirty
//! run and ends when the map leads to the written blocks. Until then reads are served from it.
//!
//! In-flight ranges of a file never overlap. Data that was written again while older bytes are in
//! flight stays dirty until those are complete, because both would go to the same blocks. A thread
//! that flushes therefore takes twice: data that it could not take at first is free after the first
//! wait.
//!
//! Ranges that change the map complete in the order in which they were taken, however their I/O
//! ends. So a growing file has no hole after a power cut where the I/O of an older part was not
//! done. A range that only overwrites completes at once.
//!
//! A thread that waits for all data in flight takes a *mark*, the number of the newest range.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use sapwood_base::Piece;

use crate::block_alloc::{self, Extent};
use crate::group::Groups;

/// The change of the map for a part of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing: its blocks have content already.
    None,
    /// The blocks become written ones.
    Convert,
    /// The blocks are new.
    Insert,
}

/// A part of a range whose blocks are side by side on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Blocks of the file.
    pub(crate) blocks: Range<u64>,
    /// First block on the device.
    pub(crate) physical: u64,
    /// The change of the map.
    pub(crate) change: Change,
}

impl Segment {
    /// Blocks on the device.
    pub(crate) fn extent(&self) -> Extent {
        Extent {
            start: self.physical,
            len: u32::try_from(self.blocks.end - self.blocks.start).unwrap_or(u32::MAX),
        }
    }

    /// Gives its blocks back if they are new. They are not claimed in the bitmap.
    pub(crate) fn cancel(&self, groups: &Groups) {
        if self.change == Change::Insert {
            block_alloc::cancel(groups, self.extent());
        }
    }
}

/// Place of a range on the device.
#[derive(Debug, Default)]
pub(crate) struct WritePlan {
    /// Segments in the order of the file, without gaps.
    pub(crate) segments: Vec<Segment>,
}

impl WritePlan {
    /// Whether the map has to change.
    pub(crate) fn changes_map(&self) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.change != Change::None)
    }
}

/// One range of a file in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// Names it; later ones have higher numbers.
    pub(crate) id: u64,
    /// Whole blocks, in bytes.
    pub(crate) range: Range<u64>,
    /// Number of its blocks that had a reservation when it was taken.
    pub(crate) delayed: u64,
    /// Blocks of it that the inode's block count includes by now.
    charged: AtomicU64,
    pieces: Vec<(u64, Piece)>,
    plan: OnceLock<WritePlan>,
    requests: AtomicUsize,
    failed: AtomicBool,
    refused: AtomicBool,
}

impl InFlight {
    /// Bytes of it.
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The bytes of a part of the range, in order.
    pub(crate) fn slices(&self, part: Range<u64>) -> Vec<&[u8]> {
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

    /// The number of delayed blocks among the next `blocks` that the map gets.
    pub(crate) fn uncharged(&self, blocks: u64) -> u64 {
        blocks.min(self.delayed - self.charged())
    }

    /// Records that the inode's block count includes `blocks` more of the delayed blocks.
    pub(crate) fn charge(&self, blocks: u64) {
        self.charged.fetch_add(blocks, Ordering::AcqRel);
    }

    /// Blocks that were delayed and are in the inode's block count.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Acquire).min(self.delayed)
    }

    /// Sets its place, and the number of its requests. Once.
    pub(crate) fn set_plan(&self, plan: WritePlan, requests: usize) {
        self.requests.store(requests, Ordering::Release);
        let first = self.plan.set(plan).is_ok();
        debug_assert!(first, "a flight was planned twice");
    }

    /// Its place, once that is decided.
    pub(crate) fn plan(&self) -> Option<&WritePlan> {
        self.plan.get()
    }

    /// A request of it ended; true for the last.
    pub(crate) fn request_done(&self, good: bool) -> bool {
        if !good {
            self.failed.store(true, Ordering::Release);
        }
        self.requests.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether its bytes are lost.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Records that the host has no space for the bytes: they must be written later.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::Release);
    }

    /// Records that refused bytes cannot be kept after all.
    pub(crate) fn give_up(&self) {
        self.refused.store(false, Ordering::Release);
    }

    /// Whether the only thing that failed is that the host has no space.
    pub(crate) fn refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    /// Records that the bytes are lost.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }
}

#[derive(Debug)]
struct InFlightRange {
    io: Arc<InFlight>,
    /// The I/O is done, with or without an error.
    io_done: bool,
}

/// All of a file's data in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlightSet {
    entries: BTreeMap<u64, InFlightRange>,
    /// Start of a range -> its end and number.
    by_start: BTreeMap<u64, (u64, u64)>,
    newest: u64,
    bytes: u64,
    /// Delayed blocks of all ranges, whether the inode's block count has them or not.
    delayed: u64,
    /// A thread puts ranges into the map, until no ready range is left.
    completing: bool,
}

impl InFlightSet {
    /// Sum of all ranges in flight, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Delayed blocks of all ranges in flight, including blocks that are charged to the inode
    /// already.
    pub(crate) fn delayed(&self) -> u64 {
        self.delayed
    }

    /// True if nothing is in flight.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of the newest range.
    pub(crate) fn mark(&self) -> u64 {
        self.newest
    }

    /// Whether a range up to `mark` is not complete.
    pub(crate) fn pending(&self, mark: u64) -> bool {
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
    pub(crate) fn overlaps(&self, range: Range<u64>) -> bool {
        self.touching(range).next().is_some()
    }

    /// Parts of `range` that are in flight, in order.
    pub(crate) fn covered(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let bounds = range.clone();
        self.touching(range)
            .map(move |(part, _)| part.start.max(bounds.start)..part.end.min(bounds.end))
    }

    /// Parts of `range` that are not in flight, in order.
    pub(crate) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
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

    /// Adds a range with its bytes. It overlaps with no other range in flight.
    pub(crate) fn insert(
        &mut self,
        range: Range<u64>,
        pieces: Vec<(u64, Piece)>,
        delayed: u64,
    ) -> Arc<InFlight> {
        debug_assert!(!self.overlaps(range.clone()));
        self.newest += 1;
        let id = self.newest;
        self.bytes += range.end - range.start;
        self.delayed += delayed;
        self.by_start.insert(range.start, (range.end, id));
        let io = Arc::new(InFlight {
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
        let entry = InFlightRange {
            io: Arc::clone(&io),
            io_done: false,
        };
        self.entries.insert(id, entry);
        io
    }

    /// Copies the in-flight bytes of `buf.len()` bytes at `offset` into `buf`.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        let wanted = offset..offset + buf.len() as u64;
        for (shown, id) in self.touching(wanted.clone()) {
            let from = shown.start.max(wanted.start);
            let to = shown.end.min(wanted.end);
            let target = buf.get_mut((from - offset) as usize..(to - offset) as usize);
            if let (Some(entry), Some(target)) = (self.entries.get(&id), target) {
                entry.io.copy(from..to, target);
            }
        }
    }

    /// Records that the I/O of a range is done. True if the caller must complete ready ranges, with
    /// [`next_ready`](Self::next_ready) until there are none.
    pub(crate) fn io_done(&mut self, id: u64) -> bool {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.io_done = true;
        }
        let ready = self
            .entries
            .values()
            .next()
            .is_some_and(|entry| entry.io_done);
        ready && !std::mem::replace(&mut self.completing, true)
    }

    /// Whether some range whose I/O is done cannot complete yet.
    #[cfg(test)]
    pub(crate) fn is_waiting(&self) -> bool {
        self.entries.values().any(|entry| entry.io_done)
    }

    /// The ranges to insert into the map next, in order, at most `max`. Empty: the completion is
    /// done.
    pub(crate) fn next_ready(&mut self, max: usize) -> Vec<Arc<InFlight>> {
        let ready: Vec<_> = self
            .entries
            .values()
            .take_while(|entry| entry.io_done)
            .take(max)
            .map(|entry| Arc::clone(&entry.io))
            .collect();
        if ready.is_empty() {
            self.completing = false;
        }
        ready
    }

    /// Removes a range. True if the caller must complete ranges that only waited for it.
    pub(crate) fn remove(&mut self, io: &InFlight) -> bool {
        if self.entries.remove(&io.id).is_some() {
            self.by_start.remove(&io.range.start);
            self.bytes -= io.len();
            self.delayed -= io.delayed;
        }
        if self.entries.is_empty() {
            // An emptied map would keep a node allocated.
            self.entries = BTreeMap::new();
            self.by_start = BTreeMap::new();
        }
        let ready = self
            .entries
            .values()
            .next()
            .is_some_and(|entry| entry.io_done);
        ready && !std::mem::replace(&mut self.completing, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(at: u64, byte: u8, len: usize) -> Vec<(u64, Piece)> {
        let half = len / 2;
        vec![
            (at, vec![byte; half].into()),
            (at + half as u64, vec![byte + 1; len - half].into()),
        ]
    }

    #[test]
    fn reads_are_served_from_it() {
        let mut ios = InFlightSet::default();
        let a = ios.insert(4..8, pieces(4, b'a', 4), 0);
        ios.insert(10..12, pieces(10, b'x', 2), 0);
        let mut buf = [b'.'; 12];
        ios.read(1, &mut buf);
        assert_eq!(&buf, b"...aabb..xy.");
        let mut part = [b'.'; 2];
        ios.read(5, &mut part);
        assert_eq!(&part, b"ab");
        assert_eq!(ios.gaps(0..14), [0..4, 8..10, 12..14]);
        assert_eq!(ios.gaps(5..11), vec![8..10; 1]);
        assert_eq!(a.slices(5..7), [b"a", b"b"]);
        assert!(ios.overlaps(7..9) && !ios.overlaps(8..10));
        assert_eq!(ios.bytes(), 6);
        ios.remove(&a);
        assert_eq!(ios.bytes(), 2);
        assert!(!ios.overlaps(0..10));
    }

    #[test]
    fn ranges_complete_in_the_order_of_taking() {
        let mut ios = InFlightSet::default();
        let first = ios.insert(0..4, pieces(0, b'a', 4), 0);
        let second = ios.insert(8..12, pieces(8, b'c', 4), 0);
        let mark = ios.mark();
        let third = ios.insert(4..8, pieces(4, b'e', 4), 0);
        assert!(!ios.io_done(second.id), "the first is under way");
        assert!(ios.io_done(first.id));
        let ids = |ready: Vec<Arc<InFlight>>| ready.iter().map(|f| f.id).collect::<Vec<_>>();
        assert_eq!(ids(ios.next_ready(8)), [first.id, second.id]);
        assert!(!ios.io_done(third.id), "a thread completes already");
        assert!(!ios.remove(&first) && ios.pending(mark));
        assert!(!ios.remove(&second) && !ios.pending(mark));
        assert_eq!(ids(ios.next_ready(8)), [third.id]);
        ios.remove(&third);
        assert!(ios.next_ready(8).is_empty() && ios.is_empty());
        let next = ios.insert(0..4, pieces(0, b'a', 4), 0);
        assert!(ios.io_done(next.id), "no thread completes any more");
    }

    #[test]
    fn one_that_ends_on_its_own_lets_others_go_on() {
        let mut ios = InFlightSet::default();
        let first = ios.insert(0..4, pieces(0, b'a', 4), 0);
        let second = ios.insert(8..12, pieces(8, b'c', 4), 0);
        assert!(!ios.io_done(second.id));
        assert!(ios.remove(&first));
        assert_eq!(ios.next_ready(1).len(), 1);
    }

    #[test]
    fn the_last_request_ends_it() {
        let mut ios = InFlightSet::default();
        let io = ios.insert(0..4, pieces(0, b'a', 4), 1);
        io.set_plan(WritePlan::default(), 2);
        assert!(!io.request_done(false));
        assert!(io.request_done(true) && io.failed());
    }
}
