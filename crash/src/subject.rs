//! [`Subject`]: anything that can be run and crashed.

use std::fmt;
use std::str::FromStr;

use crate::engine::Engine;
use crate::op::Op;
use crate::record::{Recording, Setting, Workload};
use crate::threads::{self, Threads};

/// A workload of one kind or another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// One operation after another.
    Sequence(Workload),
    /// Several threads.
    Threads(Threads),
}

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

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequence(workload) => workload.fmt(f),
            Self::Threads(threads) => threads.fmt(f),
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().starts_with(threads::PREFIX) {
            text.parse().map(Self::Threads)
        } else {
            text.parse().map(Self::Sequence)
        }
    }
}

impl Subject {
    /// On which engine it runs.
    #[must_use]
    pub fn engine(&self) -> Engine {
        match self {
            Self::Sequence(workload) => workload.base.engine(),
            Self::Threads(threads) => threads.engine,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// As [`Recording::run`].
    pub fn run(&self, setting: &Setting) -> Result<Recording, String> {
        match self {
            Self::Sequence(workload) => Recording::run(workload, setting),
            Self::Threads(threads) => threads.run(setting),
        }
    }

    /// What it does, in no order if there are several threads.
    #[must_use]
    pub fn ops(&self) -> Vec<Op> {
        match self {
            Self::Sequence(workload) => workload.ops.clone(),
            Self::Threads(threads) => {
                let plans = (0..threads.lanes).filter_map(|lane| threads.plan(lane).ok());
                plans.flatten().collect()
            }
        }
    }

    /// Runs after which one may say that it does not fail: a race does not show every time.
    #[must_use]
    pub fn attempts(&self) -> usize {
        match self {
            Self::Sequence(_) => 1,
            Self::Threads(_) => 30,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_with_their_engine() {
        for (text, engine) in [
            ("std: creat A/x; fsync A/x", Engine::Btrfs),
            ("ext4: creat A/x; fsync A/x", Engine::Ext4),
            ("threads: 7 2 9", Engine::Btrfs),
            ("threads: ext4 7 2 9", Engine::Ext4),
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
            "threads: ext4 7 2",
            "none: sync",
        ] {
            assert!(bad.parse::<Subject>().is_err(), "{bad}");
        }
    }
}
