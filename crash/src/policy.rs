//! [`Policy`]: which mechanisms the engine uses.

use std::fmt;
use std::str::FromStr;

use crate::engine::Format;

/// All mechanisms, or all except one, or one that is off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The engine without changes.
    #[default]
    Now,
    /// No log: every fsync is a commit.
    NoLog,
    /// A log waits for the previous commit.
    NoOverlap,
    /// An fsync waits until the trees have the data.
    WaitForTrees,
    /// Attributes are always logged.
    AllXattrs,
    /// A rename logs all changes of the directory.
    WholeDirectories,
    /// An fsync updates only those names that belong to its inode.
    Groups,
    /// Data goes through the journal.
    DataJournal,
    /// Fast commits also contain changes that e2fsck does not replay correctly.
    FullFastCommits,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 9] = [
        Self::Now,
        Self::NoLog,
        Self::NoOverlap,
        Self::WaitForTrees,
        Self::AllXattrs,
        Self::WholeDirectories,
        Self::Groups,
        Self::DataJournal,
        Self::FullFastCommits,
    ];

    /// True if the engine has the policy.
    #[must_use]
    pub fn fits(self, engine: Format) -> bool {
        match self {
            Self::Now => true,
            Self::DataJournal | Self::FullFastCommits => engine == Format::Ext4,
            _ => engine == Format::Btrfs,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::NoLog => "no-log",
            Self::NoOverlap => "no-overlap",
            Self::WaitForTrees => "wait-for-trees",
            Self::AllXattrs => "all-xattrs",
            Self::WholeDirectories => "whole-directories",
            Self::Groups => "groups",
            Self::DataJournal => "data-journal",
            Self::FullFastCommits => "full-fast-commits",
        }
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
