//! [`Subject`]: every kind of workload that can run and crash.

use std::fmt;
use std::str::FromStr;

use crate::again::{self, Again};
use crate::engine::Format;
use crate::race::{self, Race};
use crate::record::{Recording, Setting, Workload};
use crate::reshape::{self, Reshape};
use crate::threads::{self, Threads};
use sapwood_testing::op::Op;

/// A workload of one of these kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// One operation after another.
    Sequence(Workload),
    /// Several threads, each in a directory of its own.
    Threads(Threads),
    /// Several threads on the same names.
    Race(Race),
    /// A workload on the state that a crash of another one left.
    Again(Again),
    /// A change of the size, or of what the device holds, without a mount.
    Reshape(Reshape),
    /// One operation after another, with all free space discarded before each.
    Trims(Workload),
}

/// First word of the text of [`Subject::Trims`].
const TRIMS: &str = "trims:";

impl From<Workload> for Subject {
    fn from(workload: Workload) -> Self {
        Self::Sequence(workload)
    }
}

impl From<Threads> for Subject {
    fn from(threads: Threads) -> Self {
        Self::Threads(threads)
    }
}

impl From<Race> for Subject {
    fn from(race: Race) -> Self {
        Self::Race(race)
    }
}

impl From<Again> for Subject {
    fn from(again: Again) -> Self {
        Self::Again(again)
    }
}

impl From<Reshape> for Subject {
    fn from(reshape: Reshape) -> Self {
        Self::Reshape(reshape)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequence(workload) => workload.fmt(f),
            Self::Threads(threads) => threads.fmt(f),
            Self::Race(race) => race.fmt(f),
            Self::Again(again) => again.fmt(f),
            Self::Reshape(reshape) => reshape.fmt(f),
            Self::Trims(workload) => write!(f, "{TRIMS} {workload}"),
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let begins = |prefix| text.trim().starts_with(prefix);
        if begins(threads::PREFIX) {
            text.parse().map(Self::Threads)
        } else if begins(race::PREFIX) {
            text.parse().map(Self::Race)
        } else if begins(again::PREFIX) {
            text.parse().map(Self::Again)
        } else if begins(reshape::PREFIX) {
            text.parse().map(Self::Reshape)
        } else if let Some(rest) = text.trim().strip_prefix(TRIMS) {
            rest.parse().map(Self::Trims)
        } else {
            text.parse().map(Self::Sequence)
        }
    }
}

impl Subject {
    /// The engine that it runs on.
    #[must_use]
    pub fn engine(&self) -> Format {
        match self {
            Self::Sequence(workload) | Self::Trims(workload) => workload.base.engine(),
            Self::Threads(threads) => threads.engine,
            Self::Race(race) => race.base.engine(),
            Self::Again(again) => again.first.base.engine(),
            Self::Reshape(reshape) => reshape.first.base.engine(),
        }
    }

    /// Runs the workload.
    ///
    /// # Errors
    /// As [`Recording::run`].
    pub fn run(&self, setting: &Setting) -> Result<Recording, String> {
        match self {
            Self::Sequence(workload) => Recording::run(workload, setting),
            Self::Threads(threads) => threads.run(setting),
            Self::Race(race) => race.run(setting),
            Self::Again(again) => again.run(setting),
            Self::Reshape(reshape) => reshape.run(setting),
            Self::Trims(workload) => {
                let setting = Setting {
                    trims: true,
                    ..setting.clone()
                };
                Recording::run(workload, &setting)
            }
        }
    }

    /// Its operations, without an order if there are several threads.
    #[must_use]
    pub fn ops(&self) -> Vec<Op> {
        match self {
            Self::Sequence(workload) | Self::Trims(workload) => workload.ops.clone(),
            Self::Threads(threads) => {
                let plans = (0..threads.lanes).filter_map(|lane| threads.plan(lane).ok());
                plans.flatten().collect()
            }
            Self::Race(race) => race.plans.concat(),
            Self::Again(again) => [again.first.ops.as_slice(), &again.ops].concat(),
            Self::Reshape(reshape) => reshape.first.ops.clone(),
        }
    }

    /// Number of runs without a failure that count as a pass: a race does not show in every run.
    #[must_use]
    pub fn attempts(&self) -> usize {
        match self {
            Self::Sequence(_) | Self::Again(_) | Self::Reshape(_) | Self::Trims(_) => 1,
            Self::Threads(_) | Self::Race(_) => 30,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_with_their_engine() {
        for (text, engine) in [
            ("std: creat A/x; fsync A/x", Format::Btrfs),
            ("ext4: creat A/x; fsync A/x", Format::Ext4),
            ("threads: 7 2 9", Format::Btrfs),
            ("threads: ext4 7 2 9", Format::Ext4),
            ("race: std: creat A/x; fsync @0 | unlink A/x", Format::Btrfs),
            ("again: ext4: creat A/x @ 17-3 => fsync A/x", Format::Ext4),
            ("trims: std: creat A/x; fsync A/x", Format::Btrfs),
            ("reshape: ext4: creat A/x => trim", Format::Ext4),
            (
                "reshape: std: creat A/x @ 17-3 => resize 99; resize min",
                Format::Btrfs,
            ),
        ] {
            let subject: Subject = text.parse().unwrap();
            assert_eq!(
                (subject.to_string().as_str(), subject.engine()),
                (text, engine)
            );
        }
        for bad in [
            "threads: ext5 7 2 9",
            "threads:",
            "race: std",
            "race: std: creat A/x | fly",
            "again: std: creat A/x => fsync A/x",
            "again: std: creat A/x @ 17",
            "threads: ext4 7 2",
            "reshape: std: creat A/x",
            "reshape: std: creat A/x => grow",
            "reshape: std: creat A/x => ",
            "none: sync",
        ] {
            assert!(bad.parse::<Subject>().is_err(), "{bad}");
        }
    }
}
