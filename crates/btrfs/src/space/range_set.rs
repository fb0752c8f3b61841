//! A set of byte ranges, kept disjoint and merged.

use std::collections::BTreeMap;

/// Disjoint, merged half-open ranges `start..end` of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// start -> end
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Nothing in it.
    pub(crate) const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
        }
    }

    /// Adds `start..end`; what was in it already stays.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
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

    /// Removes what lies in `start..end`; returns the number of bytes that were in the set.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> u64 {
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
        gone
    }

    /// Whole ranges of the set that touch `start..end` in at least one byte.
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
    pub(crate) fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let cut = |(from, to): (u64, u64)| (from.max(start), to.min(end));
        self.overlapping(start, end).into_iter().map(cut).collect()
    }

    /// The parts of `start..end` that are not in the set.
    pub(crate) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
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
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&from, &to)| (from, to))
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Sum of the ranges' bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|(from, to)| to - from).sum()
    }
}

/// Net change of a set of free ranges since its stored form was written: what became free and
/// what became used. A range that goes back and forth leaves nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeDelta {
    freed: RangeSet,
    used: RangeSet,
}

impl RangeDelta {
    /// Notes that `start..end` is free now.
    pub(crate) fn free(&mut self, start: u64, end: u64) {
        Self::apply(&mut self.used, &mut self.freed, start, end);
    }

    /// Notes that `start..end` is in use now.
    pub(crate) fn take(&mut self, start: u64, end: u64) {
        Self::apply(&mut self.freed, &mut self.used, start, end);
    }

    fn apply(cancels: &mut RangeSet, adds: &mut RangeSet, start: u64, end: u64) {
        for (from, to) in cancels.gaps(start, end) {
            adds.insert(from, to);
        }
        cancels.remove(start, end);
    }

    /// Ranges that became free.
    pub(crate) fn freed(&self) -> &RangeSet {
        &self.freed
    }

    /// Ranges that came into use.
    pub(crate) fn used(&self) -> &RangeSet {
        &self.used
    }

    /// Whether nothing changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.freed.is_empty() && self.used.is_empty()
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

        #[test]
        fn delta_leads_from_old_to_new(old in prop::collection::vec(any::<bool>(), SIZE),
                                       steps in prop::collection::vec((0..SIZE, 0..SIZE), 1..60)) {
            let mut now = old.clone();
            let mut delta = RangeDelta::default();
            for (a, b) in steps {
                let (from, to) = (a.min(b), a.max(b));
                // Only uniform ranges can be allocated or freed.
                if from == to || now[from..to].iter().any(|free| *free != now[from]) {
                    continue;
                }
                if now[from] {
                    delta.take(from as u64, to as u64);
                } else {
                    delta.free(from as u64, to as u64);
                }
                let flipped = !now[from];
                now[from..to].fill(flipped);
            }
            let freed: Vec<_> = (0..SIZE).map(|at| now[at] && !old[at]).collect();
            let used: Vec<_> = (0..SIZE).map(|at| !now[at] && old[at]).collect();
            prop_assert_eq!(delta.freed().iter().collect::<Vec<_>>(), model_ranges(&freed));
            prop_assert_eq!(delta.used().iter().collect::<Vec<_>>(), model_ranges(&used));
        }
    }
}
