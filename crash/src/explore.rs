//! [`explore`]: one workload, all its crashes.

use sapwood_block::{CrashPlan, Device};

use crate::cut::{Cut, Depth, cuts};
use crate::judge::{Failure, Judge, Tally};
use crate::record::{Recording, Setting, Workload};

/// A failure with all that is needed to see it again.
#[derive(Debug, Clone)]
pub struct Found {
    /// What ran.
    pub workload: Workload,
    /// What was wrong, and where.
    pub failure: Failure,
}

impl Found {
    /// The text that replays it: the workload, and the cut behind `@`.
    #[must_use]
    pub fn id(&self) -> String {
        match &self.failure.cut {
            Some(cut) => format!("{} @ {cut}", self.workload),
            None => self.workload.to_string(),
        }
    }
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "FAILED {}", self.id())?;
        for line in &self.failure.wrong {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}

/// Reads a text that [`Found::id`] made.
///
/// # Errors
/// What is wrong with it.
pub fn parse_id(text: &str) -> Result<(Workload, Option<Cut>), String> {
    match text.rsplit_once(" @ ") {
        Some((workload, cut)) => Ok((workload.parse()?, Some(cut.trim().parse()?))),
        None => Ok((text.parse()?, None)),
    }
}

/// A seed that the workload decides, so that its text alone replays it.
#[must_use]
pub fn seed_of(workload: &Workload) -> u64 {
    xxhash_rust::xxh64::xxh64(workload.to_string().as_bytes(), 7)
}

/// Runs a workload and judges its crashes, until one fails.
///
/// # Errors
/// The first failure; the tally counts what was done so far.
pub fn explore(workload: &Workload, setting: &Setting, depth: Depth) -> (Tally, Result<(), Found>) {
    explore_with(workload, setting, depth, &mut |_, _| Ok(()))
}

/// As [`explore`]; `more` sees the judge when all crashes are judged.
///
/// # Errors
/// As [`explore`].
pub fn explore_with(
    workload: &Workload,
    setting: &Setting,
    depth: Depth,
    more: &mut dyn FnMut(&Recording, &mut Judge<'_>) -> Result<(), Failure>,
) -> (Tally, Result<(), Found>) {
    let found = |failure: Failure| Found {
        workload: workload.clone(),
        failure,
    };
    let broken = |why: String| {
        found(Failure {
            cut: None,
            wrong: vec![why],
        })
    };
    let recording = match Recording::run(workload, setting) {
        Ok(recording) => recording,
        Err(why) => return (Tally::default(), Err(broken(why))),
    };
    let mut judge = match Judge::new(&recording) {
        Ok(judge) => judge,
        Err(why) => return (Tally::default(), Err(broken(why))),
    };
    let plans = cuts(
        &recording.log,
        recording.base.size(),
        depth,
        seed_of(workload),
    );
    let result = plans.iter().try_for_each(|plan| judge.judge(plan));
    let result = result.and_then(|()| more(&recording, &mut judge));
    (judge.tally, result.map_err(found))
}

/// Judges one crash of a workload, or all of them if there is no cut.
///
/// # Errors
/// The failure.
pub fn replay(
    workload: &Workload,
    cut: Option<&CrashPlan>,
    setting: &Setting,
) -> Result<(), Found> {
    let Some(plan) = cut else {
        return explore(workload, setting, Depth::FULL).1;
    };
    let found = |failure: Failure| Found {
        workload: workload.clone(),
        failure,
    };
    let broken = |why: String| {
        found(Failure {
            cut: None,
            wrong: vec![why],
        })
    };
    let recording = Recording::run(workload, setting).map_err(broken)?;
    let mut judge = Judge::new(&recording).map_err(broken)?;
    judge.judge(plan).map_err(found)
}
