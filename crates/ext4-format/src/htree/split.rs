//! Split of a leaf by hash.

use super::HtreeError;
use crate::dir::{DirError, DirFormat};

/// What came of a leaf's split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafSplit {
    /// Hash under which the new block is to be named: its lowest, with bit 0 set if the old block's highest is the same.
    pub hash: u32,
    /// Entries left in the old block.
    pub kept: usize,
    /// Entries moved to the new one.
    pub moved: usize,
}

impl DirFormat {
    /// Moves the entries with the higher hashes, about half of the bytes, from a leaf into the new leaf `other`; both are
    /// without slack then but for their last entry. `hash` gives the major hash of a name.
    pub fn split_leaf(
        &self,
        block: &mut [u8],
        other: &mut [u8],
        mut hash: impl FnMut(&[u8]) -> u32,
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
        map.sort_by_key(|&(hash, offset, _)| (hash, offset));
        let at = split_point(&map).ok_or(HtreeError::NoSplit { names: map.len() })?;
        let (low, high) = map.split_at(at);
        let (last, first) = (low[at - 1].0, high[0].0);
        let places = |part: &[(u32, usize, usize)]| -> Vec<(usize, usize)> {
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
        let hash = if last == first { first | 1 } else { first };
        Ok(LeafSplit {
            hash,
            kept: low.len(),
            moved: high.len(),
        })
    }
}

/// Index of the first entry to move: entries from the top up to half of the bytes in use, at least one on either side.
fn split_point(map: &[(u32, usize, usize)]) -> Option<usize> {
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
