//! A set of byte ranges, kept disjoint and merged.

use std::collections::BTreeMap;

/// Disjoint, merged half-open ranges `start..end` of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// start -> end
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// An empty set.
    pub const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
        }
    }

    /// Adds `start..end`. Ranges that are in the set already stay.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.ranges.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.ranges.insert(start, end);
    }

    /// Removes all bytes in `start..end` from the set. Returns the number of bytes removed.
    pub fn remove(&mut self, start: u64, end: u64) -> u64 {
        let mut gone = 0;
        for (from, to) in self.overlapping(start, end) {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, start);
            }
            if to > end {
                self.ranges.insert(end, to);
            }
            gone += to.min(end) - from.max(start);
        }
        if self.ranges.is_empty() {
            // An emptied map would keep a node allocated.
            self.ranges = BTreeMap::new();
        }
        gone
    }

    /// Whole ranges of the set that overlap `start..end`.
    fn overlapping(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if start >= end {
            return Vec::new();
        }
        let mut found: Vec<_> = self
            .ranges
            .range(..end)
            .rev()
            .map(|(&from, &to)| (from, to))
            .take_while(|&(_, to)| to > start)
            .collect();
        found.reverse();
        found
    }

    /// The parts of `start..end` that are in the set.
    pub fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let cut = |(from, to): (u64, u64)| (from.max(start), to.min(end));
        self.overlapping(start, end).into_iter().map(cut).collect()
    }

    /// The parts of `start..end` that are not in the set.
    pub fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut at = start;
        let mut gaps = Vec::new();
        for (from, to) in self.within(start, end) {
            if from > at {
                gaps.push((at, from));
            }
            at = to;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// All ranges `(start, end)`, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&from, &to)| (from, to))
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Sum of the ranges' bytes.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(from, to)| to - from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 64;

    fn model_ranges(model: &[bool]) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for (at, _) in model.iter().enumerate().filter(|(_, set)| **set) {
            let at = at as u64;
            match out.last_mut() {
                Some(last) if last.1 == at => last.1 = at + 1,
                _ => out.push((at, at + 1)),
            }
        }
        out
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut set = RangeSet::new();
        set.insert(0, 10);
        set.insert(10, 20);
        assert_eq!((set.len(), set.bytes()), (1, 20));
    }

    proptest! {
        #[test]
        fn set_equals_model(steps in prop::collection::vec((any::<bool>(), 0..SIZE, 0..SIZE), 1..60)) {
            let mut set = RangeSet::new();
            let mut model = [false; SIZE];
            for (add, a, b) in steps {
                let (from, to) = (a.min(b), a.max(b));
                let before = model[from..to].iter().filter(|set| **set).count() as u64;
                if add {
                    set.insert(from as u64, to as u64);
                } else {
                    prop_assert_eq!(set.remove(from as u64, to as u64), before);
                }
                model[from..to].fill(add);
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), model_ranges(&model));
            }
            let gaps: u64 = set.gaps(3, 40).iter().map(|(a, b)| b - a).sum();
            prop_assert_eq!(gaps, model[3..40].iter().filter(|set| !**set).count() as u64);
        }
    }
}
