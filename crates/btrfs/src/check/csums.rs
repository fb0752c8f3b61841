//! Checks the checksum tree: its items, and the extents that it has checksums for.

use std::collections::HashSet;

use sapwood_btrfs_format::{Block, FileExtent, kind, objectid};

use super::finding::Finding;
use super::free_space::{Runs, difference, join};
use super::inodes::{Unwritten, summed_range};
use super::state::Check;
use super::walk::{Leaves, Walk, entries};

/// Ranges that have checksums: half-open, ascending, not adjacent.
#[derive(Default)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn add(&mut self, start: u64, end: u64) -> Option<u64> {
        match self.0.last_mut() {
            Some(last) if start < last.1 => {
                let before = last.1;
                last.1 = last.1.max(end);
                return Some(before);
            }
            Some(last) if start == last.1 => last.1 = end,
            _ => self.0.push((start, end)),
        }
        None
    }

    /// Whether all of a range has checksums.
    pub(super) fn cover(&self, start: u64, end: u64) -> bool {
        let next = self.0.partition_point(|(at, _)| *at <= start);
        let run = next.checked_sub(1).and_then(|n| self.0.get(n));
        run.is_some_and(|(_, to)| end <= *to)
    }

    /// Whether any of a range has checksums.
    pub(super) fn touch(&self, start: u64, end: u64) -> bool {
        let next = self.0.partition_point(|(_, to)| *to <= start);
        self.0.get(next).is_some_and(|(at, _)| *at < end)
    }

    /// The parts of a range that have checksums.
    fn within(&self, start: u64, end: u64) -> Runs {
        let first = self.0.partition_point(|(_, to)| *to <= start);
        let runs = self.0.iter().skip(first).take_while(|(at, _)| *at < end);
        runs.map(|(at, to)| (start.max(*at), end.min(*to)))
            .collect()
    }

    /// All ranges, ascending.
    pub(super) fn runs(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Bytes that have checksums.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }
}

impl Check<'_> {
    /// Walks the checksum tree.
    pub(super) fn csum_tree(&mut self) {
        let tree = objectid::CSUM_TREE;
        let Some(root) = self.tree(tree) else {
            return;
        };
        let sectorsize = self.sectorsize();
        let size = self.sb.checksum_kind().map_or(1, |kind| kind.size()) as u64;
        self.walk(&Walk::own(tree), &root, &mut |check, block| {
            for (key, data) in entries(block) {
                if key.kind != kind::EXTENT_CSUM {
                    check.unexpected(tree, block, key);
                    continue;
                }
                let start = key.offset;
                let len = (data.len() as u64 / size).saturating_mul(sectorsize);
                let before = check.checksums.add(start, start.saturating_add(len));
                if let Some(end) = before {
                    check.found(Finding::ChecksumOverlap { start, end });
                }
            }
        });
    }

    /// Checksums must be within data extents.
    pub(super) fn compare_checksums(&mut self) {
        if self.has_hole(objectid::EXTENT_TREE) {
            return;
        }
        let data = join(self.extents.data());
        for (start, end) in difference(&self.checksums.0, &data) {
            self.found(Finding::ChecksumStray {
                start,
                len: end - start,
            });
        }
        self.compare_unwritten();
    }

    /// Data that is allocated but not written must have no checksums. It may be shared with a file
    /// extent through which it was written.
    fn compare_unwritten(&mut self) {
        let doubtful = std::mem::take(&mut self.inodes.unwritten);
        if doubtful.is_empty() || self.uses_incomplete {
            return;
        }
        let written = self.written(&doubtful);
        for ((tree, inode, offset), from, end) in doubtful {
            let summed = self.checksums.within(from, end);
            if !difference(&summed, &written).is_empty() {
                self.found(Finding::ChecksumUnwritten {
                    tree,
                    inode,
                    offset,
                    bytenr: from,
                    len: end - from,
                });
            }
        }
    }

    /// The parts of these ranges that are written according to a file extent.
    fn written(&self, of: &[Unwritten]) -> Runs {
        let wanted = join(sorted(of.iter().map(|(_, from, end)| (*from, *end))));
        let mut found = Runs::new();
        let mut seen = HashSet::new();
        for (tree, root, _) in self.all_roots() {
            let mut leaves = Leaves::new(tree, root);
            leaves.pass_over(std::mem::take(&mut seen));
            while let Some(bytes) = leaves.next(self) {
                let Ok(block) = Block::new(&bytes) else {
                    continue;
                };
                for (_, data) in entries(&block).filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
                    if let Ok(FileExtent::Regular(extent)) = FileExtent::parse(data) {
                        let (from, end) = summed_range(&extent);
                        let next = wanted.partition_point(|(_, to)| *to <= from);
                        let fits = wanted.get(next).is_some_and(|(at, _)| *at < end);
                        found.extend((fits && !extent.is_hole()).then_some((from, end)));
                    }
                }
            }
            seen = leaves.seen();
        }
        join(sorted(found))
    }
}

fn sorted(runs: impl IntoIterator<Item = (u64, u64)>) -> Runs {
    let mut runs: Runs = runs.into_iter().collect();
    runs.sort_unstable();
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_and_touch() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.add(10, 20), None);
        assert_eq!(ranges.add(20, 30), None);
        assert_eq!(ranges.add(40, 50), None);
        assert_eq!(ranges.add(45, 60), Some(50));
        assert!(ranges.cover(10, 30) && ranges.cover(15, 16) && ranges.cover(40, 60));
        assert!(!ranges.cover(9, 11) && !ranges.cover(25, 41) && !ranges.cover(30, 31));
        assert!(ranges.touch(29, 31) && ranges.touch(0, 11));
        assert!(!ranges.touch(30, 40) && !ranges.touch(60, 70));
        assert_eq!(ranges.bytes(), 40);
    }
}
