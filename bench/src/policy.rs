//! The mechanisms of the log that are in use, by name.

use std::fmt;
use std::str::FromStr;

use sapwood_btrfs::{Groups, LogPolicy};

/// A named [`LogPolicy`], or no log at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// All mechanisms.
    On,
    /// A log waits for the previous commit at its beginning.
    NoOverlap,
    /// An fsync waits until the trees have its data.
    NoFastWait,
    /// Attributes are logged in each fsync.
    NoXattrs,
    /// A rename logs all changes in the directory.
    NoSingleNames,
    /// An fsync also updates names of other inodes.
    NoGroups,
    /// The five policies above together.
    AllOff,
    /// No log: each fsync commits the transaction.
    NoLog,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 8] = [
        Self::On,
        Self::NoOverlap,
        Self::NoFastWait,
        Self::NoXattrs,
        Self::NoSingleNames,
        Self::NoGroups,
        Self::AllOff,
        Self::NoLog,
    ];

    /// Name on the command line and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::NoOverlap => "overlap-off",
            Self::NoFastWait => "fast_wait-off",
            Self::NoXattrs => "xattrs_when_changed-off",
            Self::NoSingleNames => "single_names-off",
            Self::NoGroups => "groups-off",
            Self::AllOff => "all-off",
            Self::NoLog => "no-log",
        }
    }

    /// True if an fsync writes the log.
    #[must_use]
    pub fn tree_log(self) -> bool {
        self != Self::NoLog
    }

    /// The log options of the engine.
    #[must_use]
    pub fn switches(self) -> LogPolicy {
        let all = self == Self::AllOff;
        LogPolicy {
            overlap: !all && self != Self::NoOverlap,
            fast_wait: !all && self != Self::NoFastWait,
            xattrs_when_changed: !all && self != Self::NoXattrs,
            single_names: !all && self != Self::NoSingleNames,
            groups: if all || self == Self::NoGroups {
                Groups::Never
            } else {
                Groups::default()
            },
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
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no such policy; there are {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_switches_what_its_name_says() {
        let on = LogPolicy::default();
        assert_eq!(Policy::On.switches(), on);
        for policy in Policy::ALL {
            assert_eq!(policy.tree_log(), policy != Policy::NoLog);
        }
        for (policy, expected) in [
            (
                Policy::NoOverlap,
                LogPolicy {
                    overlap: false,
                    ..on
                },
            ),
            (
                Policy::NoFastWait,
                LogPolicy {
                    fast_wait: false,
                    ..on
                },
            ),
            (
                Policy::NoXattrs,
                LogPolicy {
                    xattrs_when_changed: false,
                    ..on
                },
            ),
            (
                Policy::NoSingleNames,
                LogPolicy {
                    single_names: false,
                    ..on
                },
            ),
            (
                Policy::NoGroups,
                LogPolicy {
                    groups: Groups::Never,
                    ..on
                },
            ),
        ] {
            assert_eq!(policy.switches(), expected, "{policy}");
        }
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("of".parse::<Policy>().is_err());
    }
}
