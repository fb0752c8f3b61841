//! The crashes of a recording that are checked, and the text of a crash.
//!
//! # How it works
//! For each flush epoch, these crashes are checked:
//!
//! - *prefixes*: every crash point, with all writes that had begun;
//! - *singles*: at the end of the epoch, each volatile write lost;
//! - *pairs*: at the end of the epoch, each two volatile writes lost;
//! - *random*: at random crash points, each write arrives, is lost or is torn by chance;
//! - *torn*: each write torn while it was in flight, and torn while all other writes of the epoch
//!   arrive.
//!
//! A [`Depth`] bounds all but the prefixes and singles.
//!
//! A file system with one copy of the superblock cannot be mounted after that copy is torn. On such
//! a file system, a superblock is written whole or not at all.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use fastrand::Rng;
use sapwood_testing::{Action, CrashPlan, RecordLog, Step, Torn};

/// The number of crashes per epoch that are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Pairs; if there are more, a random choice of this many.
    pub pairs: usize,
    /// Random plans.
    pub random: usize,
    /// Ways to tear each write; each way is used twice.
    pub torn: usize,
}

impl Depth {
    /// All crashes whose number the number of writes bounds.
    pub const FULL: Self = Self {
        pairs: 2000,
        random: 40,
        torn: 4,
    };
    /// The depth for one of very many workloads.
    pub const BRIEF: Self = Self {
        pairs: 30,
        random: 6,
        torn: 1,
    };
}

/// The crashes to check, in order of their crash points.
#[must_use]
pub fn cuts(
    log: &RecordLog,
    only_super: Option<(u64, u64)>,
    depth: Depth,
    seed: u64,
) -> Vec<CrashPlan> {
    let mut random = Rng::with_seed(seed);
    let mut plans: Vec<CrashPlan> = log.crash_points().into_iter().map(CrashPlan::at).collect();
    for epoch in log.epochs() {
        let lost = &epoch.volatile;
        let at = |lost: &[usize]| CrashPlan::at(epoch.end).without(lost.iter().copied());
        plans.extend(lost.iter().map(|one| at(&[*one])));
        plans.extend(
            pairs(lost, depth.pairs, &mut random)
                .iter()
                .map(|pair| at(pair)),
        );
        if lost.is_empty() {
            continue;
        }
        for _ in 0..depth.random {
            let point = random.usize(epoch.start..=epoch.end);
            plans.push(log.random_plan(point, random.u64(..)));
        }
    }
    torn(log, depth.torn, &mut random, &mut plans);
    if let Some(only_super) = only_super {
        for plan in &mut plans {
            plan.torn
                .retain(|entry, _| !overlaps(log, *entry, only_super));
        }
    }
    plans.sort_by_key(|plan| plan.at);
    plans
}

/// True if a crash tears a write of this byte range.
#[must_use]
pub fn tears(log: &RecordLog, plan: &CrashPlan, range: (u64, u64)) -> bool {
    let mut torn = plan.torn.keys();
    torn.any(|entry| overlaps(log, *entry, range))
}

fn overlaps(log: &RecordLog, entry: usize, (begin, end): (u64, u64)) -> bool {
    let range = log
        .entries()
        .get(entry)
        .and_then(|entry| entry.action.range());
    range.is_some_and(|(offset, len)| offset < end && begin < offset + len)
}

/// All pairs, or a random choice of this many.
fn pairs(all: &[usize], most: usize, random: &mut Rng) -> Vec<[usize; 2]> {
    let count = all.len() * all.len().saturating_sub(1) / 2;
    let mut pairs = Vec::with_capacity(count.min(most));
    if count <= most {
        for (number, a) in all.iter().enumerate() {
            pairs.extend(all.iter().skip(number + 1).map(|b| [*a, *b]));
        }
        return pairs;
    }
    let mut chosen = BTreeSet::new();
    while chosen.len() < most {
        let (a, b) = (random.usize(..all.len()), random.usize(..all.len()));
        if a < b {
            chosen.insert([all[a], all[b]]);
        }
    }
    pairs.extend(chosen);
    pairs
}

/// Tears each write while it is in flight, and at the end of its epoch.
fn torn(log: &RecordLog, ways: usize, random: &mut Rng, plans: &mut Vec<CrashPlan>) {
    let ends: Vec<(usize, usize)> = log
        .epochs()
        .into_iter()
        .flat_map(|epoch| {
            epoch
                .volatile
                .into_iter()
                .map(move |entry| (entry, epoch.end))
        })
        .collect();
    for (step, what) in log.steps().iter().enumerate() {
        let Step::Begin(entry) = what else { continue };
        let Action::Write { offset, data, .. } = &log.entries()[*entry].action else {
            continue;
        };
        let sectors = Torn::sectors_of(*offset, data.len() as u64).max(1);
        let later = ends
            .iter()
            .filter(|(other, _)| other == entry)
            .map(|(_, end)| *end);
        for at in [step + 1].into_iter().chain(later.max()) {
            for way in 0..ways {
                let torn = match way % 2 {
                    0 => Torn::Prefix(random.u64(0..sectors)),
                    _ => Torn::Sectors((0..sectors).filter(|_| random.bool()).collect()),
                };
                plans.push(CrashPlan::at(at).tearing(*entry, torn));
            }
        }
    }
}

/// The text of a crash: the crash point, `-N` for each lost write, and `~NpM` or `~NsM.M` for a
/// torn write, whose first `M` sectors, or these sectors, arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut(pub CrashPlan);

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.at)?;
        for lost in &self.0.drop {
            write!(f, "-{lost}")?;
        }
        for (entry, torn) in &self.0.torn {
            match torn {
                Torn::Prefix(count) => write!(f, "~{entry}p{count}")?,
                Torn::Sectors(sectors) => {
                    let sectors: Vec<String> = sectors.iter().map(ToString::to_string).collect();
                    write!(f, "~{entry}s{}", sectors.join("."))?;
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("not a cut: {text:?}");
        let (head, tears) = match text.split_once('~') {
            Some((head, tears)) => (head, tears.split('~').collect()),
            None => (text, Vec::new()),
        };
        let mut numbers = head
            .split('-')
            .map(|word| word.parse::<usize>().map_err(|_| bad()));
        let mut plan = CrashPlan::at(numbers.next().ok_or_else(bad)??);
        for lost in numbers {
            plan.drop.insert(lost?);
        }
        for tear in tears {
            let kind = tear.find(['p', 's']).ok_or_else(bad)?;
            let (entry, rest) = tear.split_at(kind);
            let entry = entry.parse().map_err(|_| bad())?;
            let list = &rest[1..];
            let torn = if rest.starts_with('p') {
                Torn::Prefix(list.parse().map_err(|_| bad())?)
            } else {
                let sectors = list.split('.').filter(|word| !word.is_empty());
                let sectors: Result<Vec<u64>, _> = sectors.map(str::parse).collect();
                Torn::Sectors(sectors.map_err(|_| bad())?)
            };
            plan.torn.insert(entry, torn);
        }
        Ok(Self(plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        for text in ["17", "17-3-4", "17-3~5p2", "9~1s0.2~4s"] {
            let cut: Cut = text.parse().unwrap();
            assert_eq!(cut.to_string(), text);
        }
        for bad in ["", "x", "1-", "1~2", "1~2q3"] {
            assert!(bad.parse::<Cut>().is_err(), "{bad}");
        }
    }
}
