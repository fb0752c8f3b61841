//! Properties of a workload for the runner and the reports.

use std::time::Duration;

use super::Workload;
use super::image::Tree;
use super::task::Task;
use crate::contestant::Room;
use crate::metric::{Metric, Source};

impl Workload {
    /// Rows of one family are in one table.
    #[must_use]
    pub fn family(&self) -> &'static str {
        match self {
            Self::Dbench { .. } => "dbench, clients",
            Self::Xattr { .. } => "8 jobs, random 64 KiB writes, fsync after each; xattrs per file",
            Self::Sequential { .. } => "sequential 64 KiB writes, fsync after each; jobs",
            Self::Random { .. } => "random 4 KiB writes, fsync after every 16th; jobs",
            Self::Commits { .. } => "4 KiB writes with fsync beside commits; writers",
            Self::Renames { fsyncs: false, .. } => "renames in a fsynced directory; files",
            Self::Renames { fsyncs: true, .. } => {
                "renames, fsync of the directory every 100; files"
            }
            Self::Create { .. } => "empty files created and removed; workers with a directory each",
            Self::Big(big) if big.write => "a big file, written and made durable",
            Self::Big(_) => "a big file, read",
            Self::Image { .. } => "an image of a directory, and out again",
            Self::Task(Task::Stat { .. }) => "stat of very many files; files",
            Self::Task(Task::Small { .. }) => {
                "an archive of small files, unpacked by one client; files"
            }
            Self::ImageSmall { .. } => "an image of many small files; files",
            Self::Task(Task::Client { .. }) => "one client, each operation on new files; files",
            Self::Task(Task::GitMany { .. }) => "git clone of many small files, and rm -rf; files",
            Self::Task(Task::Modules { .. }) => {
                "packages like node_modules, written and renamed; files"
            }
            Self::Task(Task::GitClone) => "git clone of a local repository",
            Self::Task(Task::Untar) => "tar x, and rm -r",
            Self::Task(Task::RustBuild) => "a Rust build",
            Self::Task(Task::Sqlite) => "SQLite, one transaction after the other",
            Self::Task(Task::Postgres) => "PostgreSQL, pgbench with 4 clients",
            Self::Task(Task::Idle) => "a mount that nobody uses",
        }
    }

    /// What distinguishes it from the other rows of its family.
    #[must_use]
    pub fn size(&self) -> String {
        match self {
            Self::Dbench { clients } => clients.to_string(),
            Self::Xattr { count } => count.to_string(),
            Self::Sequential { jobs } | Self::Random { jobs } => jobs.to_string(),
            Self::Commits { writers } => writers.to_string(),
            Self::Renames { count, .. } => count.to_string(),
            Self::Create { workers, .. } => workers.to_string(),
            Self::ImageSmall { files }
            | Self::Task(
                Task::Stat { files }
                | Task::Small { files }
                | Task::Client { files }
                | Task::GitMany { files }
                | Task::Modules { files },
            ) => files.to_string(),
            Self::Big(_) | Self::Image { .. } | Self::Task(_) => self.to_string(),
        }
    }

    /// Its figures, the most important first.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        const FSYNC: [Metric; 3] = [
            Metric::low("fsync, half take at most", "ms", Source::FsyncP50),
            Metric::low("fsync, 99 of 100 take at most", "ms", Source::FsyncP99),
            Metric::low("fsync, longest", "ms", Source::FsyncMax),
        ];
        match self {
            Self::Dbench { .. } => vec![
                Metric::high("throughput", "MiB/s", Source::Rate),
                Metric::low("longest operation", "ms", Source::Slowest),
            ],
            Self::Renames { .. } => vec![
                Metric::low("time", "ms", Source::More("ms")),
                Metric::low("time of one", "µs", Source::More("us_each")),
            ],
            Self::Create { .. } => vec![
                Metric::high("creates", "1/s", Source::Rate),
                Metric::high("removes", "1/s", Source::More("removes")),
                Metric::low("lost races per create", "", Source::LostRaces),
            ],
            Self::Big(_) => vec![Metric::high("bandwidth", "MiB/s", Source::Rate)],
            Self::Image { .. } => vec![
                Metric::low("time to make it", "s", Source::More("s")),
                Metric::low("time to take all out", "s", Source::More("out_s")),
                Metric::low("peak memory", "MiB", Source::More("peak_mib")),
            ],
            Self::ImageSmall { .. } => vec![
                Metric::low("time", "s", Source::More("s")),
                Metric::low("peak memory", "MiB", Source::More("peak_mib")),
                Metric::low("processor time of the program", "s", Source::More("cpu_s")),
                Metric::low("size", "MiB", Source::More("size_mib")),
            ],
            Self::Task(task) => task.metrics(),
            Self::Commits { .. } => {
                let mut all = vec![Metric::high("fsyncs", "1/s", Source::Rate)];
                all.extend(FSYNC);
                all
            }
            Self::Xattr { .. } | Self::Sequential { .. } | Self::Random { .. } => {
                let mut all = vec![Metric::high("bandwidth", "MiB/s", Source::Rate)];
                all.extend(FSYNC);
                all
            }
        }
    }

    /// Its approximate time; `seconds` is the length of a timed workload.
    #[must_use]
    pub fn estimate(&self, seconds: u64) -> Duration {
        match self {
            // Two phases, and a shorter run of both before, for a contestant of average speed.
            Self::Create { workers, files } => {
                let count = u64::from(*workers) * u64::from(*files);
                Duration::from_millis(500 + count / 15)
            }
            Self::Renames { count, .. } => Duration::from_millis(500 + u64::from(*count) / 5),
            Self::Big(_) => Duration::from_secs(4),
            Self::Image { tree } => Duration::from_secs(match tree {
                Tree::Include => 4,
                Tree::Share => 36,
                Tree::Usr => 100,
            }),
            Self::ImageSmall { files } => Duration::from_secs(2 + u64::from(*files) / 10_000),
            Self::Task(task) => Duration::from_secs(match task {
                Task::Stat { files } => 1 + u64::from(*files) / 5000,
                Task::Small { files } => 6 + u64::from(*files) / 1500,
                Task::Client { files } => 2 + u64::from(*files) / 2000,
                Task::GitMany { files } | Task::Modules { files } => 2 + u64::from(*files) / 3000,
                Task::Idle => seconds.max(5) + 7,
                Task::Postgres => seconds + 6,
                Task::Sqlite => 2 * seconds,
                Task::GitClone | Task::Untar | Task::RustBuild => 4,
            }),
            Self::Dbench { .. } => Duration::from_secs(seconds.max(5)),
            _ => Duration::from_secs(seconds),
        }
    }

    /// Its requirements for the image.
    #[must_use]
    pub fn room(&self) -> Room {
        let default = Room::default();
        match self {
            Self::Create { workers, files } => {
                // A group that has been full is not used again before its transaction is durable;
                // and the last free inodes take a long search.
                default.with_inodes(u64::from(*workers) * (u64::from(*files) + 1) * 5 / 4)
            }
            Self::ImageSmall { files } => super::image_small::room(*files),
            Self::Task(
                Task::Stat { files }
                | Task::Small { files }
                | Task::Client { files }
                | Task::GitMany { files }
                | Task::Modules { files },
            ) => default.with_inodes(u64::from(*files) * 5 / 4),
            // A database server runs as another user.
            Self::Task(Task::Postgres) => Room {
                others: true,
                ..default
            },
            Self::Image { tree } => tree.room(),
            _ => default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_files_get_inodes_enough() {
        let few = Workload::Create {
            workers: 2,
            files: 100,
        };
        assert_eq!(few.room(), Room::default());
        let many = Workload::Create {
            workers: 48,
            files: 30_000,
        };
        assert!(many.room().inodes > 1_440_000);
        let stat = |files| Workload::Task(Task::Stat { files }).room();
        assert_eq!(stat(20_000), Room::default());
        assert!(stat(1_000_000).inodes > 1_000_000);
        assert!(Workload::Task(Task::Postgres).room().others && !many.room().others);
        assert!(many.estimate(3) > few.estimate(3));
    }
}
