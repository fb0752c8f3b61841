//! Dirty ranges of one file: data that was written and is not in flight to the device yet.
//!
//! # How it works
//! A map from file offset to pieces of bytes. Pieces never overlap. They begin and end at sector
//! boundaries, because a caller that writes part of a sector supplies the rest of it first. A write
//! overwrites dirty bytes in place and fills the gaps with new pieces. A short write that begins
//! where a piece ends extends that piece, up to [`MAX_PIECE`], so that a small append costs only its
//! copy.
//! Contiguous pieces form a *run*, which is what writeback takes.
//!
//! The test compares it with a model: an array of optional bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::piece::{LEAST, Piece, WriteData};

/// Largest size to which a piece grows, in bytes.
pub const MAX_PIECE: usize = 1 << 20;

/// Bytes of a write that becomes a piece of its own: growing a piece costs a copy of it.
const LONG: usize = LEAST;

/// Dirty data of one file, by file offset.
#[derive(Debug, Default)]
pub struct DirtyRanges {
    pieces: BTreeMap<u64, Piece>,
    bytes: u64,
}

impl DirtyRanges {
    /// Sum of all pieces, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if nothing is dirty.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The pieces that overlap `range`, in order, with their offsets.
    fn touching(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Piece)> {
        let first = self
            .pieces
            .range(..=range.start)
            .next_back()
            .filter(|(at, piece)| **at + piece.len() as u64 > range.start)
            .map_or(range.start, |(at, _)| *at);
        let end = if range.is_empty() { first } else { range.end };
        self.pieces
            .range(first..end)
            .map(|(at, piece)| (*at, piece))
    }

    /// Parts of `range` that are not dirty, in order.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (start, piece) in self.touching(range.clone()) {
            if start > at {
                gaps.push(at..start);
            }
            at = at.max(start + piece.len() as u64);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Parts of `range` that are dirty, in order. Contiguous parts may be separate items.
    pub fn covered(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let bounds = range.clone();
        self.touching(range.clone())
            .map(move |(at, piece)| at.max(bounds.start)..(at + piece.len() as u64).min(bounds.end))
    }

    /// Whether the byte at `offset` is dirty.
    pub fn contains(&self, offset: u64) -> bool {
        self.touching(offset..offset.saturating_add(1))
            .next()
            .is_some()
    }

    /// Writes `data` at `offset`. Parts of it that were not dirty before must be whole sectors.
    pub fn write(&mut self, offset: u64, data: &WriteData<'_>) {
        let range = offset..offset + data.len() as u64;
        let gaps = self.gaps(range.clone());
        if let WriteData::Shared(bytes) = data
            && (LONG..=MAX_PIECE).contains(&bytes.len())
            && *gaps == [range.clone()]
        {
            self.bytes += bytes.len() as u64;
            self.pieces.insert(offset, bytes.clone().into());
            return;
        }
        let starts: Vec<u64> = self.touching(range.clone()).map(|(at, _)| at).collect();
        for at in starts {
            let Some(piece) = self.pieces.get_mut(&at) else {
                continue;
            };
            let from = at.max(range.start);
            let to = (at + piece.len() as u64).min(range.end);
            let target = piece.get_mut((from - at) as usize..(to - at) as usize);
            let source = data.get((from - offset) as usize..(to - offset) as usize);
            if let (Some(target), Some(source)) = (target, source) {
                target.copy_from_slice(source);
            }
        }
        for gap in gaps {
            let bytes = data.get((gap.start - offset) as usize..(gap.end - offset) as usize);
            self.fill(gap.start, bytes.unwrap_or_default());
        }
    }

    /// Adds `data` where nothing is dirty.
    fn fill(&mut self, offset: u64, data: &[u8]) {
        self.bytes += data.len() as u64;
        let mut at = offset;
        let mut rest = data;
        let before = self.pieces.range_mut(..offset).next_back();
        let extends =
            |start: u64, piece: &Piece| data.len() < LONG && start + piece.len() as u64 == offset;
        if let Some((start, piece)) = before.filter(|(start, piece)| extends(**start, piece)) {
            debug_assert!(*start < offset);
            let room = MAX_PIECE.saturating_sub(piece.len()).min(rest.len());
            let (front, back) = rest.split_at(room);
            piece.extend_from_slice(front);
            at += front.len() as u64;
            rest = back;
        }
        for chunk in rest.chunks(MAX_PIECE) {
            self.pieces.insert(at, Piece::copy_of(chunk));
            at += chunk.len() as u64;
        }
    }

    /// Copies the dirty bytes of the `buf.len()` bytes at `offset` into `buf`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let range = offset..offset + buf.len() as u64;
        for (at, piece) in self.touching(range.clone()) {
            let from = at.max(range.start);
            let to = (at + piece.len() as u64).min(range.end);
            let source = piece.get((from - at) as usize..(to - at) as usize);
            let target = buf.get_mut((from - offset) as usize..(to - offset) as usize);
            if let (Some(target), Some(source)) = (target, source) {
                target.copy_from_slice(source);
            }
        }
    }

    /// Splits the piece that contains `offset`.
    fn split(&mut self, offset: u64) {
        let Some((at, piece)) = self.pieces.range_mut(..offset).next_back() else {
            return;
        };
        let within = (offset - *at) as usize;
        if within < piece.len() {
            let back = piece.split_off(within);
            self.pieces.insert(offset, back);
        }
    }

    /// Removes and returns all dirty bytes in `range`, in order.
    pub fn take(&mut self, range: Range<u64>) -> Vec<(u64, Piece)> {
        if range.is_empty() {
            return Vec::new();
        }
        self.split(range.start);
        self.split(range.end);
        let mut rest = self.pieces.split_off(&range.start);
        let mut after = rest.split_off(&range.end);
        self.pieces.append(&mut after);
        if self.pieces.is_empty() {
            // An emptied map would keep a node allocated.
            self.pieces = BTreeMap::new();
        }
        self.bytes -= rest.values().map(|piece| piece.len() as u64).sum::<u64>();
        rest.into_iter().collect()
    }

    /// The first run of contiguous pieces that begins at or after `from` (or contains it) and
    /// before `to`, limited to that range and to `max` bytes.
    pub fn run(&self, from: u64, to: u64, max: u64) -> Option<Range<u64>> {
        let mut run: Option<Range<u64>> = None;
        for part in self.covered(from..to) {
            match &mut run {
                None => run = Some(part),
                Some(run) if run.end == part.start => run.end = part.end,
                Some(_) => break,
            }
            if run.as_ref().is_some_and(|run| run.end - run.start >= max) {
                break;
            }
        }
        run.map(|run| run.start..run.end.min(run.start + max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECTOR: u64 = 16;
    const SIZE: usize = 640;

    #[derive(Debug, Clone)]
    enum Op {
        Write(u64, usize, u8),
        Take(u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..39u64, 1..10usize, any::<u8>()).prop_map(|(at, n, b)| Op::Write(at, n, b)),
            1 => (0..40u64, 0..40u64).prop_map(|(a, b)| Op::Take(a.min(b), a.max(b))),
        ]
    }

    fn modelled(model: &[Option<u8>], range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps: Vec<Range<u64>> = Vec::new();
        for at in range {
            if model[at as usize].is_some() {
                continue;
            }
            match gaps.last_mut() {
                Some(gap) if gap.end == at => gap.end += 1,
                _ => gaps.push(at..at + 1),
            }
        }
        gaps
    }

    proptest! {
        #[test]
        fn dirty_ranges_equal_an_array(ops in prop::collection::vec(op(), 1..60)) {
            let mut model = vec![None; SIZE];
            let mut dirty = DirtyRanges::default();
            for op in ops {
                match op {
                    Op::Write(sector, sectors, byte) => {
                        let at = sector * SECTOR;
                        let len = (sectors * SECTOR as usize).min(SIZE - at as usize);
                        let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                        dirty.write(at, &data[..].into());
                        for (i, b) in data.iter().enumerate() {
                            model[at as usize + i] = Some(*b);
                        }
                    }
                    Op::Take(from, to) => {
                        let range = from * SECTOR..to * SECTOR;
                        let first = dirty.run(range.start, range.end, 48);
                        let taken = dirty.take(range.clone());
                        prop_assert_eq!(first.as_ref().map(|r| r.start), taken.first().map(|t| t.0));
                        prop_assert!(first.is_none_or(|r| r.end - r.start <= 48));
                        for (at, piece) in taken {
                            for (i, b) in piece.iter().enumerate() {
                                prop_assert_eq!(model[at as usize + i].take(), Some(*b));
                            }
                        }
                        prop_assert!(model[range.start as usize..range.end as usize].iter().all(Option::is_none));
                    }
                }
                prop_assert_eq!(dirty.bytes() as usize, model.iter().flatten().count());
            }
            prop_assert_eq!(dirty.gaps(0..SIZE as u64), modelled(&model, 0..SIZE as u64));
            prop_assert_eq!(dirty.gaps(100..500), modelled(&model, 100..500));
            let mut buf = vec![0; 333];
            dirty.read(77, &mut buf);
            for (i, b) in buf.iter().enumerate() {
                prop_assert_eq!(*b, model[77 + i].unwrap_or(0));
                prop_assert_eq!(dirty.contains(77 + i as u64), model[77 + i].is_some());
            }
        }
    }

    #[test]
    fn taking_part_of_a_piece_leaves_the_rest() {
        let mut dirty = DirtyRanges::default();
        dirty.write(0, &[1; 3072][..].into());
        assert_eq!(dirty.take(1024..2048), [(1024, vec![1; 1024].into())]);
        assert_eq!(dirty.bytes(), 2048);
        assert!(dirty.contains(0) && !dirty.contains(1024) && dirty.contains(2048));
    }

    #[test]
    fn appends_make_one_long_piece() {
        let mut dirty = DirtyRanges::default();
        for i in 0..512u64 {
            dirty.write(i * 4096, &[i as u8; 4096][..].into());
        }
        assert_eq!(dirty.pieces.len(), 2);
        assert_eq!(dirty.run(0, u64::MAX, u64::MAX), Some(0..2 << 20));
    }
}
