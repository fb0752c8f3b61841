//! [`explore`]: runs one workload and checks all its crashes.

use sapwood_testing::CrashPlan;

use crate::again::THEN;
use crate::cut::{Cut, Depth, cuts};
use crate::judge::{Failure, Judge, Tally};
use crate::record::{Recording, Setting};
use crate::subject::Subject;

/// A failure, with everything that is needed to reproduce it.
#[derive(Debug, Clone)]
pub struct Found {
    /// The workload.
    pub subject: Subject,
    /// The first failure, and its crash.
    pub failure: Box<Failure>,
}

impl Found {
    /// The id that reproduces the failure: the text of the workload, `@`, and the text of the
    /// crash.
    #[must_use]
    pub fn id(&self) -> String {
        match &self.failure.cut {
            Some(cut) => format!("{} @ {cut}", self.subject),
            None => self.subject.to_string(),
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

/// Parses an id of [`Found::id`].
///
/// # Errors
/// A description of the mistake.
pub fn parse_id(text: &str) -> Result<(Subject, Option<Cut>), String> {
    let cut = text.rsplit_once(" @ ");
    // The crash of the first generation is not the end of the workload.
    match cut.filter(|(_, cut)| !cut.contains(THEN.trim())) {
        Some((workload, cut)) => Ok((workload.parse()?, Some(cut.trim().parse()?))),
        None => Ok((text.parse()?, None)),
    }
}

/// A seed computed from the workload, so that its text alone reproduces a run.
#[must_use]
pub fn seed_of(subject: &Subject) -> u64 {
    xxhash_rust::xxh64::xxh64(subject.to_string().as_bytes(), 7)
}

/// Runs a workload and checks its crashes until one fails.
///
/// # Errors
/// The first failure; the tally has the counters so far.
pub fn explore(subject: &Subject, setting: &Setting, depth: Depth) -> (Tally, Result<(), Found>) {
    explore_with(subject, setting, depth, &mut |_, _| Ok(()))
}

/// Like [`explore`]; `more` gets the judge after all crashes are checked.
///
/// # Errors
/// The first failure.
pub fn explore_with(
    subject: &Subject,
    setting: &Setting,
    depth: Depth,
    more: &mut dyn FnMut(&Recording, &mut Judge<'_>) -> Result<(), Failure>,
) -> (Tally, Result<(), Found>) {
    let found = |failure: Failure| Found {
        subject: subject.clone(),
        failure: Box::new(failure),
    };
    let broken = |why: String| found(Failure::without_crash(why));
    let recording = match subject.run(setting) {
        Ok(recording) => recording,
        Err(why) => return (Tally::default(), Err(broken(why))),
    };
    let mut judge = match Judge::new(&recording) {
        Ok(judge) => judge,
        Err(why) => return (Tally::default(), Err(broken(why))),
    };
    let plans = cuts(
        &recording.log,
        recording.engine.only_super(recording.least_size()),
        depth,
        seed_of(subject),
    );
    let result = plans.iter().try_for_each(|plan| judge.judge(plan));
    let result = result.and_then(|()| more(&recording, &mut judge));
    (judge.tally, result.map_err(found))
}

/// Checks one crash of a workload, or all of them without a cut. For threads it always checks all,
/// because no two runs write the same.
///
/// # Errors
/// The failure.
pub fn replay(subject: &Subject, cut: Option<&CrashPlan>, setting: &Setting) -> Result<(), Found> {
    let plan = match (cut, subject) {
        (Some(plan), Subject::Sequence(_) | Subject::Again(_)) => plan,
        (Some(plan), Subject::Reshape(_) | Subject::Trims(_)) => plan,
        _ => {
            let mut attempts = 0..subject.attempts();
            return attempts.try_for_each(|_| explore(subject, setting, Depth::FULL).1);
        }
    };
    let found = |failure: Failure| Found {
        subject: subject.clone(),
        failure: Box::new(failure),
    };
    let broken = |why: String| found(Failure::without_crash(why));
    let recording = subject.run(setting).map_err(broken)?;
    let mut judge = Judge::new(&recording).map_err(broken)?;
    judge.judge(plan).map_err(found)
}
