//! Free space of one block group in memory, by offset and by size, and how it changed since its
//! stored form was written.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_base::RangeSet;

/// Free extents of a block group. Addresses and lengths are bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeSpace {
    /// start -> length
    by_start: BTreeMap<u64, u64>,
    /// (length, start)
    by_size: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl FreeSpace {
    /// No free space.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Sum of all free bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Length of the largest free extent.
    pub(crate) fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |(len, _)| *len)
    }

    /// Number of free extents.
    #[cfg(test)]
    pub(crate) fn extents(&self) -> usize {
        self.by_start.len()
    }

    /// All free extents `(start, length)`, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(start, len)| (*start, *len))
    }

    fn put(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_size.insert((len, start));
            self.bytes += len;
        }
    }

    fn cut(&mut self, start: u64) -> Option<u64> {
        let len = self.by_start.remove(&start)?;
        self.by_size.remove(&(len, start));
        self.bytes -= len;
        Some(len)
    }

    /// The free extent that contains `at`.
    fn around(&self, at: u64) -> Option<(u64, u64)> {
        let (&start, &len) = self.by_start.range(..=at).next_back()?;
        (at - start < len).then_some((start, len))
    }

    /// Marks `start..start + len` free. Returns false, without a change, if part of it is free
    /// already: a double free.
    #[must_use]
    pub(crate) fn add(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else {
            return false;
        };
        let before = self.by_start.range(..end).next_back();
        if before.is_some_and(|(from, size)| from + size > start && len > 0) {
            return false;
        }
        let (mut from, mut size) = (start, len);
        if let Some((&left, &left_len)) = self.by_start.range(..start).next_back()
            && left + left_len == start
        {
            self.cut(left);
            (from, size) = (left, left_len + len);
        }
        if let Some(right_len) = self.cut(end) {
            size += right_len;
        }
        self.put(from, size);
        true
    }

    /// Takes exactly `start..start + len`. Returns false, without a change, if not all of it is
    /// free.
    #[must_use]
    pub(crate) fn take(&mut self, start: u64, len: u64) -> bool {
        let Some((from, size)) = self.around(start) else {
            return false;
        };
        let skip = start - from;
        if size - skip < len {
            return false;
        }
        self.cut(from);
        self.put(from, skip);
        self.put(start + len, size - skip - len);
        true
    }

    /// Takes `len` bytes at a multiple of `align`: the first fit at or after `cursor`, otherwise
    /// the first fit from the start.
    pub(crate) fn take_aligned(&mut self, cursor: u64, len: u64, align: u64) -> Option<u64> {
        let fits = |(&start, &size): (&u64, &u64), from: u64| {
            let at = start.max(from).checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= start + size).then_some(at)
        };
        let inside = self.around(cursor).map_or(cursor, |(start, _)| start);
        let ahead = self.by_start.range(inside..);
        let found = ahead
            .filter_map(|extent| fits(extent, cursor))
            .next()
            .or_else(|| {
                let all = self.by_start.range(..=cursor);
                all.filter_map(|extent| fits(extent, 0)).next()
            })?;
        self.take(found, len).then_some(found)
    }

    /// Takes between `min` and `want` bytes for data, in multiples of `unit`: at `hint` if `want`
    /// bytes are free there, otherwise in the smallest free extent that holds `want`, otherwise as
    /// much as possible at `hint` or in the largest extent.
    pub(crate) fn take_range(
        &mut self,
        hint: u64,
        min: u64,
        want: u64,
        unit: u64,
    ) -> Option<(u64, u64)> {
        let at_hint = self
            .around(hint)
            .map_or(0, |(start, size)| size - (hint - start));
        let (start, len) = if at_hint >= want {
            (hint, want)
        } else if let Some(&(_, start)) = self.by_size.range((want, 0)..).next() {
            (start, want)
        } else {
            let &(size, start) = self.by_size.last()?;
            if at_hint >= min && at_hint >= size / 2 {
                (hint, at_hint)
            } else {
                (start, size)
            }
        };
        let len = len - len % unit;
        (len >= min && len > 0 && self.take(start, len)).then_some((start, len))
    }
}

/// Net change of a set of free ranges since its stored form was written: ranges that became free
/// and ranges that became used. A range that is freed and taken again leaves nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeDelta {
    freed: RangeSet,
    used: RangeSet,
}

impl RangeDelta {
    /// Records that `start..end` is free now.
    pub(crate) fn free(&mut self, start: u64, end: u64) {
        Self::apply(&mut self.used, &mut self.freed, start, end);
    }

    /// Records that `start..end` is in use now.
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

    /// Ranges that became used.
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
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 128;

    fn check(space: &FreeSpace, model: &[bool]) {
        let mut seen = vec![false; SIZE as usize];
        let mut last_end = None;
        for (start, len) in space.iter() {
            assert!(
                len > 0 && last_end.is_none_or(|end| end < start),
                "unmerged"
            );
            seen[start as usize..(start + len) as usize].fill(true);
            last_end = Some(start + len);
        }
        assert_eq!(seen, model);
        assert_eq!(
            space.bytes(),
            model.iter().filter(|free| **free).count() as u64
        );
        let sizes: u64 = space.by_size.iter().map(|(len, _)| *len).sum();
        assert_eq!(sizes, space.bytes());
        assert_eq!(space.by_size.len(), space.extents());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64, u64),
        Take(u64, u64),
        Aligned(u64, u64),
        Range(u64, u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = 0..SIZE - 16;
        prop_oneof![
            (at.clone(), 1..16u64).prop_map(|(a, b)| Step::Add(a, b)),
            (at.clone(), 1..16u64).prop_map(|(a, b)| Step::Take(a, b)),
            (at.clone(), 1..9u64).prop_map(|(a, b)| Step::Aligned(a, b)),
            (at, 1..8u64, 0..24u64).prop_map(|(a, b, c)| Step::Range(a, b, b + c)),
        ]
    }

    proptest! {
        #[test]
        fn equals_a_model(steps in prop::collection::vec(step(), 1..120)) {
            let mut space = FreeSpace::new();
            let mut model = vec![false; SIZE as usize];
            for step in steps {
                match step {
                    Step::Add(at, len) => {
                        let part = &mut model[at as usize..(at + len) as usize];
                        let fits = part.iter().all(|free| !free);
                        prop_assert_eq!(space.add(at, len), fits);
                        if fits {
                            part.fill(true);
                        }
                    }
                    Step::Take(at, len) => {
                        let part = &mut model[at as usize..(at + len) as usize];
                        let fits = part.iter().all(|free| *free);
                        prop_assert_eq!(space.take(at, len), fits);
                        if fits {
                            part.fill(false);
                        }
                    }
                    Step::Aligned(cursor, len) => {
                        let possible = (0..=SIZE - len).step_by(4).any(|at| {
                            model[at as usize..(at + len) as usize].iter().all(|free| *free)
                        });
                        let got = space.take_aligned(cursor, len, 4);
                        prop_assert_eq!(got.is_some(), possible);
                        if let Some(at) = got {
                            prop_assert_eq!(at % 4, 0);
                            let part = &mut model[at as usize..(at + len) as usize];
                            prop_assert!(part.iter().all(|free| *free));
                            part.fill(false);
                        }
                    }
                    Step::Range(hint, min, want) => {
                        let largest = space.largest();
                        let got = space.take_range(hint, min, want, 1);
                        prop_assert_eq!(got.is_some(), largest >= min);
                        if let Some((at, len)) = got {
                            prop_assert!(len >= min && len <= want);
                            let part = &mut model[at as usize..(at + len) as usize];
                            prop_assert!(part.iter().all(|free| *free));
                            part.fill(false);
                        }
                    }
                }
                check(&space, &model);
            }
        }
    }

    const SECTORS: usize = 64;

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
        fn delta_leads_from_old_to_new(old in prop::collection::vec(any::<bool>(), SECTORS),
                                       steps in prop::collection::vec((0..SECTORS, 0..SECTORS), 1..60)) {
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
            let freed: Vec<_> = (0..SECTORS).map(|at| now[at] && !old[at]).collect();
            let used: Vec<_> = (0..SECTORS).map(|at| !now[at] && old[at]).collect();
            prop_assert_eq!(delta.freed().iter().collect::<Vec<_>>(), model_ranges(&freed));
            prop_assert_eq!(delta.used().iter().collect::<Vec<_>>(), model_ranges(&used));
        }
    }
}
