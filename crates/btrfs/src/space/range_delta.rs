//! Net change of a set of ranges.

use sapwood_base::RangeSet;

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
