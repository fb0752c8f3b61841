//! Compares the free-space tree with the space that the extents leave free.

use std::collections::BTreeMap;

use sapwood_btrfs_format::{CompatRo, FreeSpaceFlags, FreeSpaceInfo, Key, kind, objectid};

use super::finding::Finding;
use super::state::Check;
use super::walk::{Walk, entries};

/// Half-open ranges of addresses, ascending.
pub(super) type Runs = Vec<(u64, u64)>;

struct Info {
    end: u64,
    count: u32,
    bitmaps: bool,
}

/// Contents of the free-space tree.
#[derive(Default)]
pub(super) struct FreeItems {
    /// Info items, keyed by the start of their block group.
    infos: BTreeMap<u64, Info>,
    runs: Runs,
}

impl FreeItems {
    /// The block group of an address, from the items so far: a group's info item precedes its other
    /// items.
    fn info_of(&self, at: u64) -> Option<&Info> {
        let (_, info) = self.infos.range(..=at).next_back()?;
        (at < info.end).then_some(info)
    }

    fn add_bitmap(&mut self, key: &Key, bits: &[u8], sectorsize: u64) {
        let count = (key.offset / sectorsize).min(bits.len() as u64 * 8);
        // A run may continue from the previous bitmap, but not from another block group.
        let group = self
            .infos
            .range(..=key.objectid)
            .next_back()
            .map_or(0, |(at, _)| *at);
        let is_set = |n: u64| {
            bits.get((n / 8) as usize)
                .is_some_and(|b| b >> (n % 8) & 1 == 1)
        };
        let mut n = 0;
        while n < count {
            let from = n;
            while n < count && is_set(n) {
                n += 1;
            }
            if n > from {
                let at = |n: u64| key.objectid.saturating_add(n.saturating_mul(sectorsize));
                self.add_run(at(from), at(n), Some(group));
            }
            n += 1;
        }
    }

    fn add_run(&mut self, start: u64, end: u64, join_from: Option<u64>) {
        match self.runs.last_mut() {
            Some(last) if last.1 == start && join_from.is_some_and(|from| from <= last.0) => {
                last.1 = end;
            }
            _ => self.runs.push((start, end)),
        }
    }
}

/// The parts of `a` that are not in `b`; both ascending.
pub(super) fn difference(a: &[(u64, u64)], b: &[(u64, u64)]) -> Runs {
    let mut out = Runs::new();
    let mut first = 0;
    for &(start, end) in a {
        let mut at = start;
        while b.get(first).is_some_and(|(_, end)| *end <= at) {
            first += 1;
        }
        for &(from, to) in b.iter().skip(first).take_while(|(from, _)| *from < end) {
            if from > at {
                out.push((at, from));
            }
            at = at.max(to);
        }
        if at < end {
            out.push((at, end));
        }
    }
    out
}

/// Joins ranges that touch or overlap.
pub(super) fn join(runs: impl IntoIterator<Item = (u64, u64)>) -> Runs {
    let mut out = Runs::new();
    for (start, end) in runs {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

/// The part of ascending ranges that begins within `start..end`.
fn within(runs: &[(u64, u64)], start: u64, end: u64) -> &[(u64, u64)] {
    let from = runs.partition_point(|(at, _)| *at < start);
    let to = runs.partition_point(|(at, _)| *at < end);
    runs.get(from..to).unwrap_or_default()
}

impl Check<'_> {
    /// Walks the free-space tree, if there is one.
    pub(super) fn free_space_tree(&mut self) {
        let tree = objectid::FREE_SPACE_TREE;
        if !self.sb.compat_ro().contains(CompatRo::FREE_SPACE_TREE) {
            return;
        }
        let Some(root) = self.tree(tree) else {
            return;
        };
        self.walk(&Walk::own(tree), &root, &mut |check, block| {
            for (key, data) in entries(block) {
                match key.kind {
                    kind::FREE_SPACE_INFO => check.free_info(&key, data),
                    kind::FREE_SPACE_EXTENT | kind::FREE_SPACE_BITMAP => {
                        check.free_item(key, data);
                    }
                    _ => check.unexpected(tree, block, key),
                }
            }
        });
    }

    fn free_info(&mut self, key: &Key, data: &[u8]) {
        if let Ok(item) = FreeSpaceInfo::read(data) {
            let bitmaps = item.info_flags().contains(FreeSpaceFlags::USING_BITMAPS);
            let end = key.objectid.saturating_add(key.offset);
            let info = Info {
                end,
                count: item.extent_count.get(),
                bitmaps,
            };
            self.free.infos.insert(key.objectid, info);
        }
    }

    fn free_item(&mut self, key: Key, data: &[u8]) {
        let sectorsize = self.sectorsize();
        let is_bitmap = key.kind == kind::FREE_SPACE_BITMAP;
        match self.free.info_of(key.objectid).map(|i| i.bitmaps) {
            None => self.found(Finding::FreeSpaceOutside { key }),
            Some(bitmaps) if bitmaps != is_bitmap => self.found(Finding::FreeSpaceForm { key }),
            Some(_) => {}
        }
        if is_bitmap {
            self.free.add_bitmap(&key, data, sectorsize);
        } else {
            self.free
                .add_run(key.objectid, key.objectid.saturating_add(key.offset), None);
        }
    }

    /// Compares the free-space tree with the space that the listed extents (ascending) leave free.
    pub(super) fn compare_free_space(&mut self, extents: &[(u64, u64)]) {
        let features = CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        let trees = [
            objectid::EXTENT_TREE,
            objectid::FREE_SPACE_TREE,
            self.group_tree(),
        ];
        let holes = trees.into_iter().any(|tree| self.has_hole(tree));
        if !self.sb.compat_ro().contains(features) || holes {
            return;
        }
        let used = join(
            extents
                .iter()
                .map(|(at, len)| (*at, at.saturating_add(*len))),
        );
        let groups = self.groups.ranges();
        let infos: Vec<_> = self
            .free
            .infos
            .iter()
            .map(|(at, i)| (*at, i.end, i.count))
            .collect();
        for (group, end, _) in &infos {
            if !groups.contains(&(*group, *end)) {
                self.found(Finding::FreeSpaceInfoStray { group: *group });
            }
        }
        for (group, end) in groups {
            let Some((.., count)) = infos.iter().find(|i| (i.0, i.1) == (group, end)) else {
                self.found(Finding::FreeSpaceInfoMissing { group });
                continue;
            };
            let runs = within(&self.free.runs, group, end).to_vec();
            let expected = runs.len() as u64;
            if u64::from(*count) != expected {
                self.found(Finding::FreeSpaceCount {
                    group,
                    found: *count,
                    expected,
                });
            }
            let listed = join(runs);
            // An extent may extend into the group from before it, which is another finding.
            let free = difference(&[(group, end)], &used);
            for (start, end) in difference(&free, &listed) {
                self.found(Finding::FreeSpaceMissing {
                    start,
                    len: end - start,
                });
            }
            for (start, end) in difference(&listed, &free) {
                self.found(Finding::FreeSpaceUsed {
                    start,
                    len: end - start,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_of_ranges() {
        let a = [(0, 10), (20, 30), (40, 50)];
        let b = [(2, 4), (8, 22), (25, 26), (60, 70)];
        assert_eq!(
            difference(&a, &b),
            [(0, 2), (4, 8), (22, 25), (26, 30), (40, 50)]
        );
        assert_eq!(difference(&a, &[]), a);
        assert_eq!(difference(&a, &[(0, 100)]), []);
        assert_eq!(join([(0, 2), (2, 4), (3, 9), (10, 11)]), [(0, 9), (10, 11)]);
    }

    #[test]
    fn bitmaps_join_across_items_but_not_across_groups() {
        let mut items = FreeItems::default();
        let info = |end: u64| Info {
            end: end * 4096,
            count: 0,
            bitmaps: true,
        };
        let key = |at: u64| Key::new(at * 4096, kind::FREE_SPACE_BITMAP, 8 * 4096);
        items.infos.insert(0, info(16));
        items.add_bitmap(&key(0), &[0b1100_0110], 4096);
        items.add_bitmap(&key(8), &[0b1000_0001], 4096);
        items.infos.insert(16 * 4096, info(24));
        items.add_bitmap(&key(16), &[1], 4096);
        let sectors: Runs = items
            .runs
            .iter()
            .map(|(a, b)| (a / 4096, b / 4096))
            .collect();
        assert_eq!(sectors, [(1, 3), (6, 9), (15, 16), (16, 17)]);
    }
}
