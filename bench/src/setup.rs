//! The setup of Sapwood for a run: engine, mechanisms, transport.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sapwood::Kind;
use sapwood_ext4::AllocPolicy;
use sapwood_fuse::Choice;

use crate::policy::Policy;

/// A named [`AllocPolicy`]: how ext4 searches for a free inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// Both mechanisms.
    On,
    /// After a lost race the search starts again without the lock.
    Restart,
    /// All threads begin their search at the same position.
    Together,
    /// Both switched off.
    AllOff,
}

impl Search {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::On, Self::Restart, Self::Together, Self::AllOff];

    /// Name on the command line and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Restart => "locked_search-off",
            Self::Together => "spread-off",
            Self::AllOff => "all-off",
        }
    }

    /// The allocation options of the engine.
    #[must_use]
    pub fn switches(self) -> AllocPolicy {
        AllocPolicy {
            search_again_locked: matches!(self, Self::On | Self::Together),
            spread: matches!(self, Self::On | Self::Restart),
        }
    }
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Search {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|search| search.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no such policy of ext4; there are {names}")
        })
    }
}

/// The options with which Sapwood is opened or mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Engine.
    pub kind: Kind,
    /// Mechanisms of the log of btrfs.
    pub log: Policy,
    /// Policy of ext4's inode search.
    pub search: Search,
    /// Seconds from the first change of a transaction to its commit; by default the engine's own.
    pub commit: Option<u64>,
    /// Number of request threads of a mount; 0: the mount's default.
    pub fuse_threads: usize,
    /// Let users other than root use a mount.
    pub others: bool,
    /// Transport of a mount.
    pub io_uring: Choice,
    /// The mount has `no_default_permissions`, for one trusted user.
    pub trusted: bool,
}

impl Setup {
    /// The defaults of users.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            log: Policy::On,
            search: Search::On,
            commit: None,
            fuse_threads: 0,
            others: false,
            io_uring: Choice::Auto,
            trusted: false,
        }
    }

    /// Options for btrfs.
    pub(crate) fn btrfs(&self) -> sapwood_btrfs::Options {
        let mut options = sapwood_btrfs::Options {
            tree_log: self.log.tree_log(),
            log: self.log.switches(),
            ..sapwood_btrfs::Options::default()
        };
        if let Some(seconds) = self.commit {
            options.commit_interval = Duration::from_secs(seconds);
        }
        options
    }

    /// Options for ext4.
    pub(crate) fn ext4(&self) -> sapwood_ext4::Options {
        let mut options = sapwood_ext4::Options {
            alloc: self.search.switches(),
            ..sapwood_ext4::Options::default()
        };
        if let Some(seconds) = self.commit {
            options.commit_interval = Duration::from_secs(seconds);
        }
        options
    }

    /// Arguments with which `serve` has the same setup.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut all = vec![
            format!("--kind={}", self.kind),
            format!("--log-policy={}", self.log),
            format!("--search={}", self.search),
            format!("--fuse-threads={}", self.fuse_threads),
            format!("--io-uring={}", transport_name(self.io_uring)),
        ];
        all.extend(self.others.then(|| "--others".to_owned()));
        all.extend(self.trusted.then(|| "--trusted".to_owned()));
        all.extend(self.commit.map(|seconds| format!("--commit={seconds}")));
        all
    }
}

fn transport_name(io_uring: Choice) -> &'static str {
    match io_uring {
        Choice::Auto => "auto",
        Choice::On => "on",
        Choice::Off => "off",
    }
}

/// Parses a transport of the command line.
///
/// # Errors
/// No transport has this name.
pub fn parse_transport(text: &str) -> Result<Choice, String> {
    text.parse()
        .map_err(|()| "it is auto, on or off".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_search_switches_what_its_name_says() {
        assert_eq!(Search::On.switches(), AllocPolicy::default());
        let restart = Search::Restart.switches();
        assert!(!restart.search_again_locked && restart.spread);
        let together = Search::Together.switches();
        assert!(together.search_again_locked && !together.spread);
        let off = Search::AllOff.switches();
        assert!(!off.search_again_locked && !off.spread);
        for search in Search::ALL {
            assert_eq!(search.name().parse(), Ok(search));
        }
        assert!("of".parse::<Search>().is_err());
    }

    #[test]
    fn policies_and_times_reach_the_engines() {
        let setup = Setup {
            log: Policy::NoOverlap,
            search: Search::Together,
            commit: Some(7),
            ..Setup::new(Kind::Ext4)
        };
        assert!(!setup.btrfs().log.overlap && !setup.ext4().alloc.spread);
        let seven = Duration::from_secs(7);
        assert_eq!(setup.btrfs().commit_interval, seven);
        assert_eq!(setup.ext4().commit_interval, seven);
        let no_log = Setup {
            log: Policy::NoLog,
            ..Setup::new(Kind::Btrfs)
        };
        assert!(!no_log.btrfs().tree_log);
        let plain = Setup::new(Kind::Btrfs);
        assert_eq!(plain.btrfs(), sapwood_btrfs::Options::default());
        assert_eq!(plain.ext4(), sapwood_ext4::Options::default());
        for (text, expected) in [
            ("auto", Choice::Auto),
            ("on", Choice::On),
            ("off", Choice::Off),
        ] {
            assert_eq!(parse_transport(text), Ok(expected));
            assert_eq!(transport_name(expected), text);
        }
    }
}
