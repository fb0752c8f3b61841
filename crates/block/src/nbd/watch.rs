//! [`Watch`]: ranges by which a new connection recognizes writes of another client.
//!
//! Every mount that writes changes certain sectors of the file system, such as its superblock. After
//! a lost connection the device compares these sectors with what it wrote there itself, before it
//! repeats any write: while the connection was lost, another machine may have taken the file system
//! over.
//!
//! A sector may hold the content from before this device opened, or any later write of it, because
//! the server may lose unflushed writes. Another machine never writes one of these contents again:
//! its superblock has a later generation or time.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use crate::SECTOR_SIZE;

const SECTOR: usize = SECTOR_SIZE as usize;
/// Contents that are kept for each sector: far more than a file system writes between two flushes.
const KEPT: usize = 256;

/// Watched sectors by their byte offset on the device, each with the hashes of all contents that the
/// server may hold.
#[derive(Debug, Default)]
pub(super) struct Watch {
    sectors: BTreeMap<u64, VecDeque<u64>>,
    hasher: RandomState,
}

impl Watch {
    /// Watches the sectors of `bytes`, the content of the device at `offset`, which is a multiple
    /// of the sector size. A sector that is watched already stays as it is.
    pub(super) fn add(&mut self, offset: u64, bytes: &[u8]) {
        let (sectors, _) = bytes.as_chunks::<SECTOR>();
        for (at, bytes) in (offset..).step_by(SECTOR).zip(sectors) {
            let hash = self.hasher.hash_one(bytes);
            let known = self.sectors.entry(at);
            known.or_insert_with(|| VecDeque::from([hash]));
        }
    }

    /// Records a write that is about to be sent. A sector of which it has only a part is no longer
    /// watched: a server that loses writes may combine the parts of several.
    pub(super) fn wrote(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset.saturating_add(bytes.len() as u64);
        let first = offset.saturating_sub(SECTOR_SIZE - 1);
        let touched = self.sectors.range_mut(first..end);
        let mut parts = Vec::new();
        for (&at, contents) in touched {
            let start = at
                .checked_sub(offset)
                .and_then(|from| usize::try_from(from).ok());
            let sector = start.and_then(|start| bytes.get(start..)?.first_chunk::<SECTOR>());
            let Some(sector) = sector else {
                parts.push(at);
                continue;
            };
            let hash = self.hasher.hash_one(sector);
            if contents.back() != Some(&hash) {
                contents.push_back(hash);
            }
            if contents.len() > KEPT {
                contents.pop_front();
            }
        }
        for at in parts {
            self.sectors.remove(&at);
        }
    }

    /// Watches no sector of a range that was discarded.
    pub(super) fn forget(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        self.sectors
            .retain(|at, _| at.saturating_add(SECTOR_SIZE) <= offset || *at >= end);
    }

    /// The ranges to read for [`is_own`](Self::is_own): offset and length in bytes.
    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for &at in self.sectors.keys() {
            match ranges.last_mut() {
                Some((start, len)) if *start + *len == at => *len += SECTOR_SIZE,
                _ => ranges.push((at, SECTOR_SIZE)),
            }
        }
        ranges
    }

    /// Whether every watched sector of a range holds a content that this device knows.
    pub(super) fn is_own(&self, offset: u64, bytes: &[u8]) -> bool {
        let (sectors, _) = bytes.as_chunks::<SECTOR>();
        let mut sectors = (offset..).step_by(SECTOR).zip(sectors);
        sectors.all(|(at, bytes)| {
            let hash = self.hasher.hash_one(bytes);
            let known = self.sectors.get(&at);
            known.is_none_or(|contents| contents.contains(&hash))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_contents_that_this_device_wrote_are_its_own() {
        let mut watch = Watch::default();
        let mut disk = vec![1; 4 * SECTOR];
        watch.add(SECTOR_SIZE, &disk[SECTOR..3 * SECTOR]);
        assert_eq!(watch.ranges(), [(SECTOR_SIZE, 2 * SECTOR_SIZE)]);
        let own = |watch: &Watch, disk: &[u8]| watch.is_own(SECTOR_SIZE, &disk[SECTOR..3 * SECTOR]);
        assert!(own(&watch, &disk));
        let old = disk.clone();
        disk[SECTOR..2 * SECTOR].fill(2);
        assert!(!own(&watch, &disk));
        watch.wrote(0, &disk[..2 * SECTOR]);
        assert!(own(&watch, &disk));
        assert!(own(&watch, &old), "an unflushed write was lost");
        // Writes next to them.
        watch.wrote(0, &[3; SECTOR]);
        watch.wrote(3 * SECTOR_SIZE, &[3; SECTOR]);
        watch.wrote(SECTOR_SIZE, &[]);
        assert!(own(&watch, &disk));
        disk[3 * SECTOR - 1] = 4;
        assert!(!own(&watch, &disk));
        // A part of the second, and a discard of a part of the first.
        watch.wrote(3 * SECTOR_SIZE - 1, &[4; 2]);
        assert_eq!(watch.ranges(), [(SECTOR_SIZE, SECTOR_SIZE)]);
        assert!(own(&watch, &disk));
        watch.forget(2 * SECTOR_SIZE - 1, 1);
        assert_eq!(watch.ranges(), []);
    }

    #[test]
    fn the_contents_of_a_sector_are_bounded() {
        let mut watch = Watch::default();
        watch.add(0, &[0; SECTOR]);
        for round in 0..2 * KEPT as u64 {
            let sector = [round.to_le_bytes(); SECTOR / 8];
            watch.wrote(0, sector.as_flattened());
        }
        assert_eq!(watch.sectors[&0].len(), KEPT);
    }
}
