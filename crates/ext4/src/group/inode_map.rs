//! Inodes in use of a group, in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sapwood_ext4_format::bitmap;

/// Inodes in a word of an [`InodeMap`].
pub(crate) const WORD: u32 = u64::BITS;

/// A copy of a group's inode bitmap in words that a search reads without any lock. The bitmap's
/// buffer is locked, and perhaps copied, for each change, so a search that locked it would block
/// other threads. Changed together with the buffer, by the holder of the group's lock.
#[derive(Debug)]
pub(crate) struct InodeMap {
    used: Vec<AtomicU64>,
    /// See [`Recent`]; without words if nothing asks for recently deleted inodes.
    recent: Vec<AtomicU64>,
    inodes: u32,
    /// All words before this one are full. It changes under the group's lock.
    full_below: AtomicU32,
}

/// Inodes of a group that were deleted lately: index and second. The oldest first. Guarded by
/// the group's lock.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<(u32, u64)>);

impl InodeMap {
    /// The map of a bitmap block, whose first `inodes` bits count.
    pub(crate) fn new(bytes: &[u8], inodes: u32) -> Self {
        let words = inodes.div_ceil(WORD);
        let used = (0..words).map(|word| {
            let bits = (0..WORD).filter(|bit| {
                let index = word * WORD + bit;
                index >= inodes || bitmap::test_bit(bytes, index)
            });
            AtomicU64::new(bits.fold(0, |used, bit| used | 1 << bit))
        });
        Self {
            used: used.collect(),
            recent: (0..words).map(|_| AtomicU64::new(0)).collect(),
            inodes,
            full_below: AtomicU32::new(0),
        }
    }

    /// Start of the search for the smallest free inode: all before it are in use.
    pub(crate) fn lowest(&self) -> u32 {
        self.full_below.load(Ordering::Relaxed) * WORD
    }

    /// Free inodes.
    pub(crate) fn free(&self) -> u32 {
        let words = self.used.iter();
        words
            .map(|word| word.load(Ordering::Relaxed).count_zeros())
            .sum()
    }

    /// The last inode in use.
    pub(crate) fn highest(&self) -> Option<u32> {
        (0..self.inodes).rev().find(|index| self.is_used(*index))
    }

    /// Whether the inode is in use; one that does not exist is.
    pub(crate) fn is_used(&self, index: u32) -> bool {
        self.used(index / WORD) >> (index % WORD) & 1 == 1
    }

    /// Inodes `index * 64 ..` of the group; a set bit is one in use, or one that does not exist.
    pub(crate) fn used(&self, index: u32) -> u64 {
        let word = self.used.get(index as usize);
        word.map_or(!0, |word| word.load(Ordering::Acquire))
    }

    /// Bits of these inodes that were deleted recently.
    pub(crate) fn recent(&self, index: u32) -> u64 {
        let word = self.recent.get(index as usize);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Records a change of the bitmap. The group's lock is held.
    pub(crate) fn set(&self, index: u32, used: bool) {
        change(&self.used, index, used);
        if !used {
            self.full_below.fetch_min(index / WORD, Ordering::Relaxed);
            return;
        }
        let first = self.full_below.load(Ordering::Relaxed);
        let rest = self.used.iter().skip(first as usize);
        let full = rest.take_while(|word| word.load(Ordering::Relaxed) == !0);
        let full_below = first + full.count() as u32;
        self.full_below.store(full_below, Ordering::Relaxed);
    }

    /// Records a deletion. The group's lock is held, which guards `recent`.
    pub(crate) fn deleted(&self, recent: &mut Recent, index: u32, now: u64) {
        recent.0.push_back((index, now));
        change(&self.recent, index, true);
    }

    /// Forgets deletions that are older than `seconds`. The group's lock is held.
    pub(crate) fn forget_older(&self, recent: &mut Recent, now: u64, seconds: u64) {
        while let Some((index, deleted)) = recent.0.front().copied() {
            if now.saturating_sub(deleted) < seconds {
                return;
            }
            recent.0.pop_front();
            if !recent.0.iter().any(|(other, _)| *other == index) {
                change(&self.recent, index, false);
            }
        }
    }
}

fn change(words: &[AtomicU64], index: u32, set: bool) {
    let bit = 1 << (index % WORD);
    if let Some(word) = words.get((index / WORD) as usize) {
        if set {
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }
}
