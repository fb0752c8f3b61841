//! The workloads.

pub mod big;
mod commits;
pub mod create;
mod dbench;
mod fio;
pub mod image;
pub mod image_small;
mod library;
mod processes;
mod renames;
mod shape;
pub(crate) mod small_files;
pub mod task;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sapwood_vfs::FileSystem;

use crate::contestant::{Contestant, Standing};
use crate::figures::Seen;
use crate::policy::Policy;
use crate::tool::Tool;
use crate::{Error, Result};
use big::Big;
use image::Tree;
use task::Task;

/// The file system of a workload.
#[derive(Clone)]
pub enum Place {
    /// Root directory of a mount.
    Directory(PathBuf),
    /// In process.
    Library(Arc<dyn FileSystem>),
}

/// A workload and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Clients that mix metadata, writes and flushes.
    Dbench {
        /// Number of clients.
        clients: u32,
    },
    /// 8 jobs of random 64 KiB writes, each with fsync, on files with attributes.
    Xattr {
        /// Attributes of 50 bytes on each file.
        count: u32,
    },
    /// Sequential 64 KiB writes, fsync after each.
    Sequential {
        /// Writers, each with its own file.
        jobs: u32,
    },
    /// Random 4 KiB writes, fsync after every 16th.
    Random {
        /// Writers, each with its own file.
        jobs: u32,
    },
    /// Writers of 4 KiB with fsync after each, while the file system commits all the time.
    Commits {
        /// Writers.
        writers: u32,
    },
    /// Renames in a directory that was fsynced.
    Renames {
        /// Number of files.
        count: u32,
        /// True for an fsync of the directory after every 100th rename.
        fsyncs: bool,
    },
    /// Workers create and then remove empty files, each in a directory of its own.
    Create {
        /// Number of processes or threads.
        workers: u32,
        /// Number of files of each worker.
        files: u32,
    },
    /// A large file, read or written.
    Big(Big),
    /// An image of a directory.
    Image {
        /// Directory.
        tree: Tree,
    },
    /// An image of many small files.
    ImageSmall {
        /// Number of files.
        files: u32,
    },
    /// A task of a user.
    Task(Task),
}

/// Default number of files of each worker that creates.
const CREATED: u32 = 1000;

/// Attributes and jobs of the workload that has both.
const XATTR_JOBS: u32 = 8;

impl Workload {
    /// All rows about the log, in the order of the report.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let jobs = || (0..7).map(|power| 1 << power);
        let counts = [1000, 2000, 5000, 10_000];
        let mut all: Vec<Self> = [1, 16, 64].map(|clients| Self::Dbench { clients }).into();
        all.extend([1, 8].map(|writers| Self::Commits { writers }));
        all.extend([1, 10, 100].map(|count| Self::Xattr { count }));
        all.extend(jobs().map(|jobs| Self::Sequential { jobs }));
        all.extend(jobs().map(|jobs| Self::Random { jobs }));
        for fsyncs in [false, true] {
            all.extend(counts.map(|count| Self::Renames { count, fsyncs }));
        }
        all
    }

    /// The unit that its rate counts per second.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Renames { .. } => "renames/s",
            Self::Create { .. } => "creates/s",
            Self::Image { .. } | Self::ImageSmall { .. } | Self::Task(_) => "1/s",
            Self::Commits { .. } => "fsyncs/s",
            _ => "MiB/s",
        }
    }

    /// The policies whose effect it shows.
    #[must_use]
    pub fn policies(&self) -> Vec<Policy> {
        use Policy::{AllOff, NoFastWait, NoGroups, NoLog, NoOverlap, NoSingleNames, NoXattrs, On};
        match self {
            Self::Dbench { .. } => vec![On, NoOverlap, NoFastWait, NoGroups, AllOff, NoLog],
            Self::Commits { .. } => vec![On, NoOverlap, AllOff, NoLog],
            Self::Xattr { .. } => vec![On, NoXattrs, AllOff, NoLog],
            Self::Sequential { .. } | Self::Random { .. } => {
                vec![On, NoFastWait, NoOverlap, AllOff, NoLog]
            }
            Self::Renames { .. } => vec![On, NoSingleNames, AllOff, NoLog],
            // Not about the log.
            Self::Create { .. }
            | Self::Big(_)
            | Self::Image { .. }
            | Self::ImageSmall { .. }
            | Self::Task(_) => vec![On],
        }
    }

    /// True if it runs for a given time, rather than until its work is done.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        matches!(
            self,
            Self::Dbench { .. }
                | Self::Xattr { .. }
                | Self::Sequential { .. }
                | Self::Random { .. }
                | Self::Commits { .. }
        )
    }

    /// Programs that it needs for a run in a directory.
    #[must_use]
    pub fn program(&self) -> Option<&'static str> {
        match self {
            Self::Dbench { .. } => Some("dbench"),
            Self::Renames { .. } | Self::Commits { .. } | Self::Create { .. } => None,
            Self::Image { .. } => Some("cp"),
            Self::ImageSmall { .. } => Some("tar"),
            Self::Task(task) => task.program(),
            _ => Some("fio"),
        }
    }

    /// True if `contestant` runs the command `sapwood` in it.
    #[must_use]
    pub fn needs_command(&self, contestant: &Contestant) -> bool {
        match contestant {
            Contestant::Tool(Tool::Sapwood(_) | Tool::SapwoodTar(_) | Tool::SapwoodZstd) => true,
            Contestant::Sapwood { .. } => matches!(self, Self::Task(Task::Small { .. })),
            Contestant::Tool(_) | Contestant::Peer(_) => false,
        }
    }

    /// Runs it. The workload calls [`Standing::begin`] after all preparation, before the measured
    /// part.
    ///
    /// # Errors
    /// An error of the file system or the load generator.
    pub fn run(&self, standing: &mut Standing, seconds: u64) -> Result<Seen> {
        match *self {
            Self::Create { workers, files } => return create::run(standing, workers, files),
            Self::Big(big) => return big::run(standing, big),
            Self::Task(task) => return task::run(standing, task, seconds),
            _ => {}
        }
        let time = Duration::from_secs(seconds);
        let place = standing.place()?;
        let mut settle = || standing.begin();
        match (*self, &place) {
            (Self::Dbench { clients }, Place::Directory(dir)) => {
                settle()?;
                dbench::run(dir, clients, seconds)
            }
            (Self::Dbench { clients }, Place::Library(fs)) => {
                library::mixed(fs, clients, time, &mut settle)
            }
            (Self::Renames { count, fsyncs }, place) => {
                renames::run(place, count, fsyncs.then_some(100), &mut settle)
            }
            (Self::Commits { writers }, place) => commits::run(place, writers, time, &mut settle),
            (_, Place::Directory(dir)) => fio::run(dir, &self.writes()?, seconds, &mut settle),
            (_, Place::Library(fs)) => library::writes(fs, &self.writes()?, time, &mut settle),
        }
    }

    /// The pattern of a workload that writes files.
    fn writes(&self) -> Result<Writes> {
        let writes = match *self {
            Self::Xattr { count } => Writes {
                jobs: XATTR_JOBS,
                block: 64 << 10,
                random: true,
                fsync_every: 1,
                xattrs: count,
            },
            Self::Sequential { jobs } => Writes {
                jobs,
                block: 64 << 10,
                random: false,
                fsync_every: 1,
                xattrs: 0,
            },
            Self::Random { jobs } => Writes {
                jobs,
                block: 4 << 10,
                random: true,
                fsync_every: 16,
                xattrs: 0,
            },
            _ => return Err(Error::Refused(format!("{self} does not only write"))),
        };
        Ok(writes)
    }
}

/// Writers of one file each.
#[derive(Debug, Clone, Copy)]
struct Writes {
    jobs: u32,
    /// Bytes of one write.
    block: u64,
    /// True for random offsets, false for sequential ones.
    random: bool,
    /// Number of writes between two fsyncs.
    fsync_every: u32,
    /// Attributes of 50 bytes on each file.
    xattrs: u32,
}

/// Bytes of all files together.
const FILES: u64 = 2 << 30;

impl Writes {
    /// Bytes of each file.
    fn size(&self) -> u64 {
        (FILES / u64::from(self.jobs)).min(256 << 20)
    }

    fn file(&self, job: u32) -> String {
        format!("job.{job}")
    }

    /// Names and values of the attributes.
    fn attributes(&self) -> impl Iterator<Item = (String, [u8; 50])> {
        (0..self.xattrs).map(|number| (format!("user.attribute-{number}"), [b'x'; 50]))
    }
}

fn panicked() -> Error {
    Error::Serve("a thread panicked".to_owned())
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dbench { clients } => write!(f, "dbench-{clients}"),
            Self::Commits { writers } => write!(f, "commits-{writers}"),
            Self::Xattr { count } => write!(f, "xattr-{count}"),
            Self::Sequential { jobs } => write!(f, "seq-{jobs}"),
            Self::Random { jobs } => write!(f, "rand-{jobs}"),
            Self::Renames { count, fsyncs } => {
                let kind = if *fsyncs { "renames-fsync" } else { "renames" };
                write!(f, "{kind}-{count}")
            }
            Self::Create { workers, files } => write!(f, "create-{workers}x{files}"),
            Self::Big(big) => f.write_str(&big.name()),
            Self::Image { tree } => write!(f, "image-{}", tree.name()),
            Self::ImageSmall { files } => write!(f, "image-small-{files}"),
            Self::Task(task) => f.write_str(&task.name()),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let plain = Big::ALL.map(Self::Big).into_iter();
        let plain = plain.chain(Tree::ALL.map(|tree| Self::Image { tree }));
        let mut plain = plain.chain(Task::PLAIN.map(Self::Task));
        if let Some(found) = plain.find(|workload| workload.to_string() == text) {
            return Ok(found);
        }
        let wrong = || {
            "a workload is dbench-N, commits-N, xattr-N, seq-N, rand-N, renames-N, renames-fsync-N, \
             create-N, create-NxFILES, stat-N, small-N, client-N, git-clone-N, node-modules-N, \
             image-small-N, {write,read}-{seq,rand}[-cold,-warm,-direct], \
             image-{include,share,usr}, git-clone, untar, rust-build, sqlite, postgres or idle"
        };
        let (kind, size) = text.rsplit_once('-').ok_or_else(wrong)?;
        let (size, files) = match size.split_once('x') {
            Some((size, files)) if kind == "create" => (size, files.parse().map_err(|_| wrong())?),
            _ => (size, CREATED),
        };
        let size: u32 = size.parse().map_err(|_| wrong())?;
        if size == 0 || size > 1_000_000 || files == 0 {
            return Err(format!("{size} is no size for a workload"));
        }
        Ok(match kind {
            "dbench" => Self::Dbench { clients: size },
            "commits" => Self::Commits { writers: size },
            "xattr" => Self::Xattr { count: size },
            "seq" => Self::Sequential { jobs: size },
            "rand" => Self::Random { jobs: size },
            "renames" | "renames-fsync" => Self::Renames {
                count: size,
                fsyncs: kind == "renames-fsync",
            },
            "stat" => Self::Task(Task::Stat { files: size }),
            "small" => Self::Task(Task::Small { files: size }),
            "client" => Self::Task(Task::Client { files: size }),
            "git-clone" => Self::Task(Task::GitMany { files: size }),
            "node-modules" => Self::Task(Task::Modules { files: size }),
            "image-small" => Self::ImageSmall { files: size },
            "create" => Self::Create {
                workers: size,
                files,
            },
            _ => return Err(wrong().to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let create = Workload::Create {
            workers: 48,
            files: 30_000,
        };
        assert_eq!(create.to_string(), "create-48x30000");
        let stat = Workload::Task(Task::Stat { files: 7 });
        let small = Workload::Task(Task::Small { files: 100_000 });
        let files = 2000;
        let tasks = [
            Task::Client { files },
            Task::GitMany { files },
            Task::Modules { files },
            Task::GitClone,
            Task::Idle,
        ];
        let more = [create, stat, small, Workload::ImageSmall { files }].into_iter();
        let more = more.chain(tasks.map(Workload::Task));
        let more = more.chain(Big::ALL.map(Workload::Big));
        let more = more.chain(Tree::ALL.map(|tree| Workload::Image { tree }));
        for workload in Workload::all().into_iter().chain(more) {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        for wrong in [
            "dbench",
            "seq-0",
            "seq-x",
            "seq-3x4",
            "create-3x0",
            "walk-3",
            "image-small",
            "node-modules-0",
            "",
        ] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
    }
}
