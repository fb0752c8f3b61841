//! A figure of a run, its unit, and whether a higher or a lower value is better.

use serde::{Deserialize, Serialize};

use crate::figures::Figures;
use crate::runner::Entry;
use crate::statistics::{Ratio, Spread};

/// Source of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The workload's rate.
    Rate,
    /// Half of the fsyncs took at most this long; in milliseconds as all latencies.
    FsyncP50,
    /// 99 of 100 fsyncs took at most this long.
    FsyncP99,
    /// The longest fsync.
    FsyncMax,
    /// The longest operation.
    Slowest,
    /// Lost races of the inode allocator per allocated inode.
    LostRaces,
    /// An additional figure of the workload, by name.
    More(&'static str),
}

/// A figure in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// Name.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Less is better.
    pub lower: bool,
    /// Source of the value.
    pub source: Source,
}

impl Metric {
    /// The workload's rate, for a ratio, which has no unit.
    pub const RATE: Self = Self::high("rate", "", Source::Rate);

    /// A figure of which a higher value is better.
    #[must_use]
    pub const fn high(name: &'static str, unit: &'static str, source: Source) -> Self {
        Self {
            name,
            unit,
            lower: false,
            source,
        }
    }

    /// A figure of which a lower value is better.
    #[must_use]
    pub const fn low(name: &'static str, unit: &'static str, source: Source) -> Self {
        Self {
            name,
            unit,
            lower: true,
            source,
        }
    }

    /// Its value in a run.
    #[must_use]
    pub fn of(&self, figures: &Figures) -> Option<f64> {
        let seen = &figures.seen;
        match self.source {
            Source::Rate => Some(seen.rate),
            Source::FsyncP50 => Some(seen.fsync?.p50 / 1000.0),
            Source::FsyncP99 => Some(seen.fsync?.p99 / 1000.0),
            Source::FsyncMax => Some(seen.fsync?.max / 1000.0),
            Source::Slowest => seen.slowest_ms,
            Source::LostRaces => {
                let counted = figures.counted.as_ref()?;
                let given = counted.inode_alloc_given;
                (given > 0).then(|| counted.inode_alloc_lost_races as f64 / given as f64)
            }
            Source::More(name) => seen.more.get(name).copied(),
        }
    }

    /// Over the rounds that have the figure.
    #[must_use]
    pub fn spread(&self, entry: &Entry) -> Option<Spread> {
        Spread::of(entry.runs.iter().flatten().filter_map(|run| self.of(run)))
    }

    /// How many times as good `entry` is as `base`, from pairs of one round. Above 1 it is better,
    /// also for a figure of which a lower value is better.
    #[must_use]
    pub fn ratio(&self, entry: &Entry, base: &Entry) -> Option<Ratio> {
        let pairs = entry.runs.iter().zip(&base.runs);
        let both = pairs.filter_map(|(one, other)| {
            let (one, other) = (self.of(one.as_ref()?)?, self.of(other.as_ref()?)?);
            Some(if self.lower {
                (other, one)
            } else {
                (one, other)
            })
        });
        Ratio::of(&both.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Counted, Seen};

    fn entry(rates: &[f64]) -> Entry {
        let run = |rate: &f64| {
            Some(Figures {
                seen: Seen::rate(*rate).with("removes", rate * 2.0),
                counted: Some(Counted {
                    inode_alloc_given: 10,
                    inode_alloc_lost_races: 5,
                    ..Counted::default()
                }),
                free_cpu: 1.0,
            })
        };
        Entry {
            name: "x".to_owned(),
            runs: rates.iter().map(run).collect(),
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_ratio_above_one_is_better_whichever_end_is_good() {
        let (one, other) = (entry(&[2.0, 2.0]), entry(&[1.0, 1.0]));
        let rate = Metric::high("rate", "1/s", Source::Rate);
        assert!((rate.ratio(&one, &other).unwrap().value - 2.0).abs() < 1e-9);
        let time = Metric::low("time", "s", Source::Rate);
        assert!((time.ratio(&one, &other).unwrap().value - 0.5).abs() < 1e-9);
    }

    #[test]
    fn figures_are_found_by_their_source() {
        let one = entry(&[2.0, 4.0, 3.0]);
        let spread = |source| Metric::high("x", "", source).spread(&one);
        assert_eq!(spread(Source::Rate).unwrap().median, 3.0);
        assert_eq!(spread(Source::More("removes")).unwrap().max, 8.0);
        assert_eq!(spread(Source::LostRaces).unwrap().median, 0.5);
        assert_eq!(spread(Source::FsyncP50), None);
        assert_eq!(spread(Source::More("nothing")), None);
    }
}
