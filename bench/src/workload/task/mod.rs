//! Tasks of users, from begin to end.
//!
//! The input of a task is made anew for each run, from a fixed seed, in a directory outside of the
//! contestant's file system.

pub(crate) mod client;
mod git;
mod idle;
mod material;
mod measured;
mod modules;
mod postgres;
mod rust;
mod small;
mod sqlite;
mod stat;

use sapwood_testing::machine;

use super::Place;
use crate::contestant::Standing;
use crate::figures::Seen;
use crate::metric::{Metric, Source};
use crate::{Error, Result};

/// A task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// `stat` of many files, in directories of 1000.
    Stat {
        /// Number of files.
        files: u32,
    },
    /// An archive of many small files is unpacked; they are listed, read and removed.
    Small {
        /// Number of files.
        files: u32,
    },
    /// Operations of one client, each timed alone.
    Client {
        /// Number of files of each operation.
        files: u32,
    },
    /// `git clone` of a local repository of many small files, and `rm -rf` of the clone.
    GitMany {
        /// Number of files.
        files: u32,
    },
    /// Packages of small files, written under temporary names and renamed, and removed.
    Modules {
        /// Number of files.
        files: u32,
    },
    /// `git clone` of a local repository.
    GitClone,
    /// `tar x`, and `rm -r` of the result.
    Untar,
    /// A Rust program with some crates, built.
    RustBuild,
    /// Transactions of SQLite, one after another.
    Sqlite,
    /// Transactions of PostgreSQL by 4 clients.
    Postgres,
    /// No operations: measures the wake-ups and the memory of the process that serves the mount.
    Idle,
}

impl Task {
    /// All tasks except those that have a size.
    pub const PLAIN: [Self; 6] = [
        Self::GitClone,
        Self::Untar,
        Self::RustBuild,
        Self::Sqlite,
        Self::Postgres,
        Self::Idle,
    ];

    /// Name on the command line.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Stat { files } => format!("stat-{files}"),
            Self::Small { files } => format!("small-{files}"),
            Self::Client { files } => format!("client-{files}"),
            Self::GitMany { files } => format!("git-clone-{files}"),
            Self::Modules { files } => format!("node-modules-{files}"),
            Self::GitClone => "git-clone".to_owned(),
            Self::Untar => "untar".to_owned(),
            Self::RustBuild => "rust-build".to_owned(),
            Self::Sqlite => "sqlite".to_owned(),
            Self::Postgres => "postgres".to_owned(),
            Self::Idle => "idle".to_owned(),
        }
    }

    /// The program that it needs.
    #[must_use]
    pub fn program(&self) -> Option<&'static str> {
        match self {
            Self::Stat { .. } | Self::Client { .. } | Self::Modules { .. } | Self::Idle => None,
            Self::GitClone | Self::GitMany { .. } => Some("git"),
            Self::Untar | Self::Small { .. } => Some("tar"),
            Self::RustBuild => Some("cargo"),
            Self::Sqlite => Some("sqlite3"),
            // It may be outside of the search path; see `postgres::programs`.
            Self::Postgres => Some("setpriv"),
        }
    }

    /// The reason why it cannot run on this machine, if there is one.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        match self {
            Self::Postgres if postgres::programs().is_none() => {
                Some("PostgreSQL is not installed".to_owned())
            }
            Self::Postgres if !machine::is_root() => {
                Some("PostgreSQL is run as its own user, which needs root".to_owned())
            }
            _ => None,
        }
    }

    /// Its figures, the most important first.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        const TIME: Metric = Metric::low("time", "s", Source::More("s"));
        const DURABLE: Metric = Metric::low("until durable", "s", Source::More("durable_s"));
        const REMOVE: Metric = Metric::low("rm -rf", "s", Source::More("remove_s"));
        const SERVED: [Metric; 3] = [
            Metric::low("requests per file", "", Source::More("requests")),
            Metric::low("switches per file", "", Source::More("switches")),
            Metric::low("processor time per file", "µs", Source::More("cpu_us")),
        ];
        let served = |own: &[Metric]| [own, &SERVED].concat();
        match self {
            Self::Stat { .. } => vec![
                Metric::high("nothing cached", "files/s", Source::Rate),
                Metric::high("once more", "files/s", Source::More("warm")),
            ],
            Self::Small { .. } => served(&[
                Metric::low("tar xf", "s", Source::More("s")),
                DURABLE,
                Metric::low("find, nothing cached", "s", Source::More("find_s")),
                Metric::low("read 20,000", "s", Source::More("read_s")),
                REMOVE,
                Metric::low(
                    "sapwood untar through the daemon, or tar",
                    "s",
                    Source::More("untar_s"),
                ),
                Metric::low(
                    "sapwood untar without a mount, or tar until durable",
                    "s",
                    Source::More("untar_offline_s"),
                ),
                Metric::low(
                    "sapwood cp -a without a mount, or cp -a until durable",
                    "s",
                    Source::More("cp_offline_s"),
                ),
            ]),
            Self::Client { .. } => vec![
                Metric::low("all operations on a file", "µs", Source::More("free_us")),
                Metric::low(
                    "the same, client bound to a processor",
                    "µs",
                    Source::More("bound_us"),
                ),
            ],
            Self::GitMany { .. } => served(&[
                TIME,
                DURABLE,
                Metric::low("git status after it", "s", Source::More("status_s")),
                REMOVE,
            ]),
            Self::Modules { .. } => served(&[TIME, DURABLE, REMOVE]),
            Self::GitClone => vec![
                TIME,
                Metric::low("git status after it", "s", Source::More("status_s")),
            ],
            Self::Untar => vec![TIME, Metric::low("rm -r", "s", Source::More("remove_s"))],
            Self::RustBuild => vec![TIME],
            Self::Sqlite => vec![
                Metric::high("with a rollback journal", "transactions/s", Source::Rate),
                Metric::high(
                    "with a write-ahead log",
                    "transactions/s",
                    Source::More("wal"),
                ),
            ],
            Self::Postgres => vec![Metric::high("pgbench", "transactions/s", Source::Rate)],
            Self::Idle => vec![
                Metric::low("wake-ups", "1/s", Source::Rate),
                Metric::low("resident", "MiB", Source::More("resident_mib")),
            ],
        }
    }

    /// Runs it; fails in process.
    #[must_use]
    pub fn has_library(&self) -> bool {
        matches!(self, Self::Stat { .. })
    }
}

pub(super) fn run(standing: &mut Standing, task: Task, seconds: u64) -> Result<Seen> {
    let directory = || match standing.place()? {
        Place::Directory(dir) => Ok(dir),
        Place::Library(_) => Err(Error::Refused(format!("{} needs a mount", task.name()))),
    };
    match task {
        Task::Stat { files } => stat::run(standing, files),
        Task::Small { files } => small::run(&directory()?, standing, files),
        Task::Client { files } => client::run(&directory()?, standing, files),
        Task::GitMany { files } => git::clone_many(&directory()?, standing, files),
        Task::Modules { files } => modules::run(&directory()?, standing, files),
        Task::GitClone => git::clone(&directory()?, standing),
        Task::Untar => git::untar(&directory()?, standing),
        Task::RustBuild => rust::run(&directory()?, standing),
        Task::Sqlite => sqlite::run(&directory()?, standing, seconds),
        Task::Postgres => postgres::run(&directory()?, standing, seconds),
        Task::Idle => idle::run(&directory()?, standing, seconds),
    }
}
