//! [`Policy`]: how the engine makes changes durable.

use std::fmt;
use std::str::FromStr;

use crate::engine::Format;

/// A way to make changes durable: by default, or by a mount option, or as under load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The engine without changes.
    #[default]
    Now,
    /// No log: every fsync is a commit.
    NoLog,
    /// Each fsync is next to another one, so it logs only the pending names of its inode.
    Busy,
    /// Data goes through the journal.
    DataJournal,
    /// Fast commits also contain changes that e2fsck does not replay correctly.
    FullFastCommits,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 5] = [
        Self::Now,
        Self::NoLog,
        Self::Busy,
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
            Self::Busy => "busy",
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
