//! [`LayoutMap`]: where the blocks of a journal are on the device.

use crate::format::LayoutRun;
use crate::{Error, Result};

/// The blocks of a journal as runs, without holes from its first block on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutMap {
    runs: Vec<LayoutRun>,
    len: u64,
}

impl LayoutMap {
    /// A map of runs in the order of their logical blocks, on a device of `device_blocks` blocks.
    ///
    /// # Errors
    /// [`Error::Layout`] if there is a hole, or if a run overlaps another or the device's end.
    pub fn new(runs: Vec<LayoutRun>, device_blocks: u64) -> Result<Self> {
        let mut len = 0;
        for run in &runs {
            let end = run.physical.checked_add(run.len);
            let fits = run.len > 0 && end.is_some_and(|end| end <= device_blocks);
            if run.logical != len || !fits {
                return Err(Error::Layout(*run));
            }
            // No overflow: the device has more blocks than any sum of disjoint runs; others are
            // refused below.
            len = run.logical.saturating_add(run.len);
        }
        let mut sorted = runs.clone();
        sorted.sort_by_key(|run| run.physical);
        for pair in sorted.windows(2) {
            if pair[0].physical + pair[0].len > pair[1].physical {
                return Err(Error::Layout(pair[1]));
            }
        }
        Ok(Self { runs, len })
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.len
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[LayoutRun] {
        &self.runs
    }

    /// The device block of a journal block, and how many blocks from there on are contiguous.
    #[must_use]
    pub fn find(&self, logical: u64) -> Option<(u64, u64)> {
        let after = self.runs.partition_point(|run| run.logical <= logical);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let skip = logical - run.logical;
        let left = run.len.checked_sub(skip).filter(|left| *left > 0)?;
        Some((run.physical + skip, left))
    }

    /// Whether a block of the device belongs to the journal.
    #[must_use]
    pub fn holds(&self, physical: u64) -> bool {
        let inside = |run: &LayoutRun| (run.physical..run.physical + run.len).contains(&physical);
        self.runs.iter().any(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(logical: u64, physical: u64, len: u64) -> LayoutRun {
        LayoutRun {
            logical,
            physical,
            len,
        }
    }

    #[test]
    fn find_gives_the_device_block_and_the_run_length() {
        let map = LayoutMap::new(vec![run(0, 10, 5), run(5, 2, 3)], 20).unwrap();
        assert_eq!(map.blocks(), 8);
        assert_eq!(map.find(0), Some((10, 5)));
        assert_eq!(map.find(4), Some((14, 1)));
        assert_eq!(map.find(5), Some((2, 3)));
        assert_eq!(map.find(8), None);
        assert!(map.holds(14) && map.holds(4) && !map.holds(5) && !map.holds(15));
    }

    #[test]
    fn impossible_layouts_are_refused() {
        for runs in [
            vec![run(1, 10, 5)],
            vec![run(0, 10, 5), run(6, 2, 3)],
            vec![run(0, 10, 11)],
            vec![run(0, u64::MAX, 2)],
            vec![run(0, 10, 5), run(5, 14, 3)],
            vec![run(0, 10, 0)],
        ] {
            assert!(matches!(LayoutMap::new(runs, 20), Err(Error::Layout(_))));
        }
    }
}
