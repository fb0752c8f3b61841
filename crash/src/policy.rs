//! [`Policy`]: with which mechanisms of the log the engine works.

use std::fmt;
use std::str::FromStr;

use sapwood_btrfs::{LogPolicy, Options};

use crate::base::options;

/// The log as it is, or with one mechanism as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// As it is.
    Now,
    /// No log: every fsync is a commit.
    NoLog,
    /// A log waits for the commit before it.
    NoOverlap,
    /// An fsync waits until the trees have the data.
    WaitForTrees,
    /// Attributes are logged always.
    AllXattrs,
    /// A rename logs all changes of the directory.
    WholeDirectories,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Now,
        Self::NoLog,
        Self::NoOverlap,
        Self::WaitForTrees,
        Self::AllXattrs,
        Self::WholeDirectories,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::NoLog => "no-log",
            Self::NoOverlap => "no-overlap",
            Self::WaitForTrees => "wait-for-trees",
            Self::AllXattrs => "all-xattrs",
            Self::WholeDirectories => "whole-directories",
        }
    }

    /// Mount options with it.
    #[must_use]
    pub fn options(self) -> Options {
        let mut log = LogPolicy::default();
        match self {
            Self::Now => {}
            Self::NoLog => log.enabled = false,
            Self::NoOverlap => log.overlap = false,
            Self::WaitForTrees => log.fast_wait = false,
            Self::AllXattrs => log.xattrs_when_changed = false,
            Self::WholeDirectories => log.single_names = false,
        }
        Options { log, ..options() }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("no policy is named {text:?}"))
    }
}
