//! The free blocks of one group in memory, as chunks of powers of two.
//!
//! # How it works
//! A *chunk* of order `k` is `1 << k` blocks that begin at a multiple of that. A free chunk is as
//! large as can be: two free halves of one chunk are always that chunk. So the order of the largest
//! free chunk is known without a search, and a search for `n` blocks looks at one bit per chunk of
//! the fitting order. One more bit per block marks free blocks, for runs that begin at a given
//! block.
//!
//! Taking blocks splits the chunks that they are in; giving them back merges halves upwards. Both
//! cost the number of chunks touched times the number of orders, and do not depend on the size of
//! the group (`behaves_as_a_plain_bitmap`, `halves_are_always_merged`).
//!
//! Numbers of blocks count from the first block of the group.

use sapwood_ext4_format::bitmap;

/// Chunks of one order that are free, each as large as can be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Order {
    chunks: Vec<u8>,
    count: u32,
}

impl Order {
    fn insert(&mut self, index: u32) {
        if !bitmap::set_bit(&mut self.chunks, index) {
            self.count += 1;
        }
    }

    /// Takes the chunk out, if it is there.
    fn remove(&mut self, index: u32) -> bool {
        let was = bitmap::clear_bit(&mut self.chunks, index);
        self.count -= u32::from(was);
        was
    }

    /// First free chunk from `from` on, or else the first of all.
    fn first(&self, from: u32) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let end = (self.chunks.len() as u32).saturating_mul(8);
        bitmap::find_next_set(&self.chunks, from, end)
            .or_else(|| bitmap::find_next_set(&self.chunks, 0, from))
    }
}

/// Free blocks of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Buddy {
    blocks: u32,
    free: u32,
    /// A set bit is a block in use, as on disk.
    used: Vec<u8>,
    orders: Vec<Order>,
}

/// Blocks side by side on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block.
    pub(crate) start: u64,
    /// Blocks.
    pub(crate) len: u32,
}

/// Blocks side by side in a group: first, number.
pub(crate) type Piece = (u32, u32);

/// The largest chunks that make up a run, as order and index.
fn chunks(start: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let order = at.trailing_zeros().min((end - at).ilog2());
        let chunk = (order, at >> order);
        at += 1 << order;
        Some(chunk)
    })
}

impl Buddy {
    /// All `blocks` blocks in use.
    pub(crate) fn full(blocks: u32) -> Self {
        let bytes = |bits: u32| vec![0; (bits as usize).div_ceil(64) * 8];
        let mut used = bytes(blocks);
        used.fill(0xff);
        let orders = (0..=blocks.max(1).ilog2())
            .map(|order| Order {
                chunks: bytes((blocks >> order) + 1),
                count: 0,
            })
            .collect();
        Self {
            blocks,
            free: 0,
            used,
            orders,
        }
    }

    /// The buddy of a block bitmap with `blocks` bits.
    pub(crate) fn from_bitmap(bytes: &[u8], blocks: u32) -> Self {
        let mut buddy = Self::full(blocks);
        let mut at = 0;
        while let Some(start) = bitmap::find_next_zero(bytes, at, blocks) {
            let end = bitmap::find_next_set(bytes, start, blocks).unwrap_or(blocks);
            bitmap::clear_range(&mut buddy.used, start, end);
            buddy.free += end - start;
            // A run with used blocks at both ends has no half whose other half is free.
            for (order, index) in chunks(start, end) {
                buddy.orders[order as usize].insert(index);
            }
            at = end;
        }
        buddy
    }

    /// Adds used blocks at the end, up to `blocks` in all.
    pub(crate) fn extend(&mut self, blocks: u32) {
        if blocks > self.blocks {
            let mut used = std::mem::take(&mut self.used);
            used.resize((blocks as usize).div_ceil(64) * 8, 0xff);
            *self = Self::from_bitmap(&used, blocks);
        }
    }

    /// Free blocks.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Order of the largest free chunk.
    pub(crate) fn largest(&self) -> Option<u32> {
        let order = self.orders.iter().rposition(|order| order.count > 0)?;
        u32::try_from(order).ok()
    }

    /// Free blocks from `start` on, `max` at most; 0 if that one is in use.
    pub(crate) fn run_at(&self, start: u32, max: u32) -> u32 {
        let end = self.blocks.min(start.saturating_add(max));
        let stop = bitmap::find_next_set(&self.used, start, end).unwrap_or(end);
        stop.saturating_sub(start)
    }

    /// The first `len` free blocks side by side from `from` on.
    pub(crate) fn first_fit(&self, from: u32, len: u32) -> Option<Piece> {
        let mut at = from;
        while let Some(start) = bitmap::find_next_zero(&self.used, at, self.blocks) {
            let run = self.run_at(start, len);
            if run == len {
                return Some((start, len));
            }
            at = start + run.max(1);
        }
        None
    }

    /// A free chunk of at least `order`, and of the least order that is free, the next from `from`
    /// on, with the free blocks after it: `max` blocks at most.
    pub(crate) fn chunk(&self, order: u32, from: u32, max: u32) -> Option<Piece> {
        let orders = self.orders.iter().enumerate().skip(order as usize);
        for (order, chunks) in orders {
            let Some(index) = chunks.first(from >> order) else {
                continue;
            };
            let start = index << order;
            return Some((start, self.run_at(start, max)));
        }
        None
    }

    /// Marks free blocks as used. False, and nothing is changed, unless all of them are free.
    pub(crate) fn take(&mut self, start: u32, len: u32) -> bool {
        if len == 0 || self.run_at(start, len) != len {
            return false;
        }
        let end = start + len;
        let mut at = start;
        while at < end {
            let Some((order, index)) = self.chunk_of(at) else {
                return false;
            };
            self.orders[order as usize].remove(index);
            let (first, last) = (index << order, (index + 1) << order);
            for (order, index) in chunks(first, at).chain(chunks(end, last)) {
                self.orders[order as usize].insert(index);
            }
            at = last;
        }
        bitmap::set_range(&mut self.used, start, end);
        self.free -= len;
        true
    }

    /// Marks used blocks as free. False, and nothing is changed, unless all of them are used.
    pub(crate) fn give(&mut self, start: u32, len: u32) -> bool {
        let Some(end) = start.checked_add(len).filter(|end| *end <= self.blocks) else {
            return false;
        };
        if len == 0 || bitmap::count_zero(&self.used, start, end) != 0 {
            return false;
        }
        bitmap::clear_range(&mut self.used, start, end);
        self.free += len;
        for (order, index) in chunks(start, end) {
            self.merge(order, index);
        }
        true
    }

    /// The free chunk that a free block is in.
    fn chunk_of(&self, block: u32) -> Option<(u32, u32)> {
        let mut orders = (0u32..).zip(&self.orders);
        let (order, _) =
            orders.find(|(order, chunks)| bitmap::test_bit(&chunks.chunks, block >> order))?;
        Some((order, block >> order))
    }

    /// Inserts a free chunk, together with its other half if that is free, and so on.
    fn merge(&mut self, mut order: u32, mut index: u32) {
        // The sibling of an incomplete last chunk has blocks that do not exist, which are never
        // free.
        while self.orders.len() > order as usize + 1
            && self.orders[order as usize].remove(index ^ 1)
        {
            order += 1;
            index /= 2;
        }
        self.orders[order as usize].insert(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The expected state of a buddy, block by block.
    struct Plain(Vec<bool>);

    impl Plain {
        fn bitmap(&self) -> Vec<u8> {
            let mut bytes = vec![0xff; self.0.len().div_ceil(8)];
            for (bit, free) in (0..).zip(&self.0) {
                if *free {
                    bitmap::clear_bit(&mut bytes, bit);
                }
            }
            bytes
        }

        fn all(&self, start: u32, len: u32, free: bool) -> bool {
            let range = start as usize..(start + len) as usize;
            len > 0
                && self
                    .0
                    .get(range)
                    .is_some_and(|r| r.iter().all(|f| *f == free))
        }

        fn set(&mut self, start: u32, len: u32, free: bool) {
            self.0[start as usize..(start + len) as usize].fill(free);
        }

        fn run_at(&self, start: u32) -> u32 {
            let rest = self.0.get(start as usize..).unwrap_or_default();
            rest.iter().take_while(|free| **free).count() as u32
        }

        /// Order of the largest aligned free chunk.
        fn largest(&self) -> Option<u32> {
            (0..=self.0.len().ilog2()).rev().find(|order| {
                let size = 1usize << order;
                self.0.chunks_exact(size).any(|c| c.iter().all(|f| *f))
            })
        }
    }

    #[test]
    fn a_group_that_is_no_power_of_two() {
        let mut buddy = Buddy::full(100);
        assert_eq!((buddy.free(), buddy.largest()), (0, None));
        assert!(buddy.give(0, 100));
        assert!(!buddy.give(99, 1));
        assert!(!buddy.give(100, 1));
        assert_eq!((buddy.free(), buddy.largest()), (100, Some(6)));
        assert_eq!(buddy, Buddy::from_bitmap(&[0; 13], 100));
        assert_eq!(buddy.run_at(64, 1000), 36);
        assert!(buddy.take(99, 1));
        assert!(!buddy.take(98, 2));
        assert!(!buddy.take(100, 1));
        assert_eq!(buddy.first_fit(90, 9), Some((90, 9)));
        assert_eq!(buddy.first_fit(90, 10), None);
    }

    #[test]
    fn a_group_that_becomes_longer_keeps_what_is_free() {
        for (before, after) in [(100, 101), (64, 65), (1, 700), (63, 64), (100, 8192)] {
            let mut buddy = Buddy::full(before);
            assert!(buddy.give(0, before));
            buddy.extend(after);
            assert_eq!(buddy.run_at(0, u32::MAX), before);
            assert!(buddy.give(before, after - before));
            let bytes = vec![0; (after as usize).div_ceil(8)];
            assert_eq!(buddy, Buddy::from_bitmap(&bytes, after));
            buddy.extend(before);
            assert_eq!(buddy.free(), after);
        }
    }

    #[test]
    fn halves_are_always_merged() {
        let mut buddy = Buddy::full(64);
        for block in (0..64).step_by(2).chain((1..64).step_by(2)) {
            assert!(buddy.give(block, 1));
        }
        assert_eq!(buddy.largest(), Some(6));
        assert_eq!(buddy, Buddy::from_bitmap(&[0; 8], 64));
    }

    #[test]
    fn the_chunk_that_fits_best_is_taken() {
        let mut buddy = Buddy::full(256);
        assert!(buddy.give(0, 64));
        assert!(buddy.give(128, 8));
        // 8 blocks fit the small chunk, wherever the search starts.
        assert_eq!(buddy.chunk(3, 0, 8), Some((128, 8)));
        assert_eq!(buddy.chunk(3, 200, 8), Some((128, 8)));
        assert_eq!(buddy.chunk(4, 0, 20), Some((0, 20)));
        assert_eq!(buddy.chunk(7, 0, 128), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn behaves_as_a_plain_bitmap(
            blocks in 1u32..700,
            ops in prop::collection::vec((any::<bool>(), 0u32..700, 1u32..200), 1..80),
        ) {
            let mut plain = Plain(vec![false; blocks as usize]);
            let mut buddy = Buddy::full(blocks);
            for (free, start, len) in ops {
                let possible = plain.all(start, len, !free);
                let done = if free { buddy.give(start, len) } else { buddy.take(start, len) };
                prop_assert_eq!(done, possible);
                if possible {
                    plain.set(start, len, free);
                }
                // Whatever the way there, the state is the one that the bitmap gives.
                prop_assert_eq!(&buddy, &Buddy::from_bitmap(&plain.bitmap(), blocks));
                prop_assert_eq!(buddy.free() as usize, plain.0.iter().filter(|f| **f).count());
                prop_assert_eq!(buddy.largest(), plain.largest());
                prop_assert_eq!(buddy.run_at(start, blocks), plain.run_at(start));
                let fit = (start..blocks).find(|at| plain.run_at(*at) >= len);
                prop_assert_eq!(buddy.first_fit(start, len), fit.map(|at| (at, len)));
                match buddy.chunk(len.ilog2(), start.min(blocks), len) {
                    Some((at, run)) => {
                        prop_assert!(plain.all(at, run, true));
                        prop_assert!(run >= 1 << len.ilog2());
                    }
                    None => prop_assert!(plain.largest().is_none_or(|l| l < len.ilog2())),
                }
            }
        }
    }
}
