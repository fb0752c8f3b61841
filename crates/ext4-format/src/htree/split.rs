//! Split of a leaf by hash.

use super::HtreeError;
use crate::dir::{DirError, DirFormat};

/// Result of splitting a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafSplit {
    /// Hash for the new block in the parent: its lowest, with bit 0 set if the old block's highest
    /// hash is the same.
    pub hash: u32,
    /// Entries left in the old block.
    pub kept: usize,
    /// Entries moved to the new one.
    pub moved: usize,
}

/// An entry for which a leaf is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Major hash of its name.
    pub hash: u32,
    /// Bytes it needs, see [`DirFormat::entry_size`].
    pub size: usize,
}

/// An entry of the leaf: hash, offset, bytes.
type Item = (u32, usize, usize);

impl DirFormat {
    /// Moves the entries with the higher hashes, about half of the bytes, from a leaf into the new
    /// leaf `other`. Afterwards only the last entry of each has slack. `hash` computes the major
    /// hash of a name.
    pub fn split_leaf(
        &self,
        block: &mut [u8],
        other: &mut [u8],
        hash: impl FnMut(&[u8]) -> u32,
    ) -> Result<LeafSplit, HtreeError> {
        self.split_at(block, other, hash, split_point)
    }

    /// As [`DirFormat::split_leaf`], but the leaf that `incoming` belongs to then has room for it.
    /// Of all splits, the one is chosen whose fuller leaf, including `incoming`, is the least full.
    pub fn split_leaf_for(
        &self,
        block: &mut [u8],
        other: &mut [u8],
        hash: impl FnMut(&[u8]) -> u32,
        incoming: Incoming,
    ) -> Result<LeafSplit, HtreeError> {
        self.split_at(block, other, hash, |map| split_point_for(map, incoming))
    }

    fn split_at(
        &self,
        block: &mut [u8],
        other: &mut [u8],
        mut hash: impl FnMut(&[u8]) -> u32,
        point: impl FnOnce(&[Item]) -> Option<usize>,
    ) -> Result<LeafSplit, HtreeError> {
        let old = block.to_vec();
        let mut map = Vec::new();
        for entry in self.entries(&old) {
            let entry = entry?;
            if entry.inode != 0 {
                let major = entry
                    .hash
                    .map_or_else(|| hash(entry.name), |(major, _)| major);
                map.push((major, entry.offset, self.entry_size(entry.name)));
            }
        }
        map.sort_unstable();
        let at = point(&map).ok_or(HtreeError::NoSplit { names: map.len() })?;
        let (low, high) = map.split_at(at);
        let places = |part: &[Item]| -> Vec<(usize, usize)> {
            part.iter()
                .map(|&(_, offset, size)| (offset, size))
                .collect()
        };
        if other.len() != self.block_size {
            return Err(DirError::Size {
                found: other.len(),
                expected: self.block_size,
            }
            .into());
        }
        self.rebuild(other, &old, &places(high))?;
        self.rebuild(block, &old, &places(low))?;
        Ok(LeafSplit {
            hash: split_hash(&map, at),
            kept: low.len(),
            moved: high.len(),
        })
    }
}

/// Hash for the new leaf in the parent if entries from `at` on move; there are entries on both
/// sides of `at`.
fn split_hash(map: &[Item], at: usize) -> u32 {
    let (last, first) = (map[at - 1].0, map[at].0);
    if last == first { first | 1 } else { first }
}

/// The split whose fuller leaf is the least full, counting the new entry. Of equal splits the one
/// that moves less.
fn split_point_for(map: &[Item], incoming: Incoming) -> Option<usize> {
    let total: usize = map.iter().map(|&(_, _, size)| size).sum();
    let mut kept = 0;
    let mut best = None;
    for at in 1..map.len() {
        kept += map[at - 1].2;
        let (mut low, mut high) = (kept, total - kept);
        if incoming.hash >= split_hash(map, at) {
            high += incoming.size;
        } else {
            low += incoming.size;
        }
        let fuller = low.max(high);
        if best.is_none_or(|(least, _)| fuller <= least) {
            best = Some((fuller, at));
        }
    }
    best.map(|(_, at)| at)
}

/// Index of the first entry to move: the highest hashes up to half of the bytes in use, with at
/// least one entry on each side.
fn split_point(map: &[Item]) -> Option<usize> {
    if map.len() < 2 {
        return None;
    }
    let total: usize = map.iter().map(|&(_, _, size)| size).sum();
    let (mut at, mut moved) = (map.len(), 0);
    while at > 1 {
        let size = map[at - 1].2;
        if at < map.len() && moved + size > total / 2 {
            break;
        }
        moved += size;
        at -= 1;
    }
    Some(at)
}
