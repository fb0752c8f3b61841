//! What the runner and the reports ask of a workload.

use std::time::Duration;

use super::Workload;
use crate::contestant::Room;
use crate::metric::{Metric, Source};

impl Workload {
    /// Rows of one family stand in one table.
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
        }
    }

    /// What tells it from others of its family.
    #[must_use]
    pub fn size(&self) -> String {
        match self {
            Self::Dbench { clients } => clients.to_string(),
            Self::Xattr { count } => count.to_string(),
            Self::Sequential { jobs } | Self::Random { jobs } => jobs.to_string(),
            Self::Commits { writers } => writers.to_string(),
            Self::Renames { count, .. } => count.to_string(),
            Self::Create { workers, .. } => workers.to_string(),
        }
    }

    /// What is shown of it, the most important first.
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

    /// About how long it takes; `seconds`: what a timed one is told.
    #[must_use]
    pub fn estimate(&self, seconds: u64) -> Duration {
        match self {
            // Two phases, and a shorter run of both before; by a contestant of middling speed.
            Self::Create { workers, files } => {
                let count = u64::from(*workers) * u64::from(*files);
                Duration::from_millis(500 + count / 15)
            }
            Self::Renames { count, .. } => Duration::from_millis(500 + u64::from(*count) / 5),
            _ => Duration::from_secs(seconds),
        }
    }

    /// What it asks of its image.
    #[must_use]
    pub fn room(&self) -> Room {
        let default = Room::default();
        match self {
            Self::Create { workers, files } => {
                // A group that has been full is not used again before its transaction is durable;
                // and few want to be the last to find an inode.
                let needed = u64::from(*workers) * (u64::from(*files) + 1) * 5 / 4;
                // What `mke2fs` gives a file system of this size.
                let usual = default.bytes / 16384;
                Room {
                    inodes: if needed > usual { needed } else { 0 },
                    ..default
                }
            }
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
        assert!(many.estimate(3) > few.estimate(3));
    }
}
