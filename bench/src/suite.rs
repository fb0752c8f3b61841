//! The cases of `suite`: all workloads, compared with other file systems.
//!
//! # How it works
//! A *group* is a set of workloads: some sizes, and the contestants that run each of them. The
//! *main* contestants run every size: Sapwood's two engines through FUSE, and the kernel's. The
//! *others* (in process, FUSE over the plain loop, xfs, fuse2fs, a control that shows the noise)
//! run only the representative sizes; with `thorough` they run every size. On all media but the
//! first, only the representative sizes run. The mechanisms of log and inode allocator, on and off,
//! are a group of their own.

mod small;

use std::path::PathBuf;

use sapwood::Kind;

use crate::contestant::{Contestant, Face};
use crate::peer::Peer;
use crate::policy::Policy;
use crate::runner::Case;
use crate::setup::Search;
use crate::workload::Workload;
use crate::workload::big::{Big, Cache};
use crate::workload::image::{self, Tree};
use crate::workload::task::Task;

/// A group of workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    /// Sequential and random writes with fsyncs by 1 to 64 jobs
    Fsync,
    /// Writes with fsyncs to files with 1, 10 and 100 xattrs
    Xattr,
    /// dbench with 1, 16 and 64 clients
    Dbench,
    /// Empty files, created and removed
    Create,
    /// Renames in a directory that was fsynced
    Renames,
    /// Making an image from a directory, and extracting it
    Image,
    /// Large files, read and written
    Big,
    /// stat of many files, git, tar, databases, a build
    Tasks,
    /// Very many small files: an archive, images of them, each operation of one client, git clone,
    /// packages like node_modules
    Small,
    /// An idle mount
    Idle,
    /// Mechanisms on and off
    Mechanisms,
}

/// The parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Suite {
    /// Groups; all if none is named.
    pub groups: Vec<Group>,
    /// Only these workloads, unless empty.
    pub workloads: Vec<Workload>,
    /// Only these contestants, unless empty.
    pub contestants: Vec<Contestant>,
    /// Directories for images.
    pub media: Vec<PathBuf>,
    /// Every contestant runs every size on every medium.
    pub thorough: bool,
    /// True for root: the kernel's peers need it.
    pub root: bool,
    /// Number of files of each worker that creates.
    pub files: u32,
    /// Number of files for `stat`.
    pub stat: u32,
    /// Number of small files of an archive.
    pub small: u32,
    /// Directory for images of a directory.
    pub tree: Tree,
}

/// A workload of a group.
struct Item {
    workload: Workload,
    /// It is representative of its group.
    stands: bool,
    /// It can run in process.
    library: bool,
    /// The contestants, if they are not the group's.
    who: Option<Vec<Contestant>>,
    /// Heading, if it is not the workload's.
    family: Option<&'static str>,
}

impl Item {
    fn new(workload: Workload, stands: bool) -> Self {
        Self {
            workload,
            stands,
            library: true,
            who: None,
            family: None,
        }
    }
}

const JOBS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

impl Suite {
    /// All rows.
    #[must_use]
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (number, medium) in self.media.iter().enumerate() {
            for item in self.items() {
                if number > 0 && !self.thorough && !(item.stands && item.who.is_none()) {
                    continue;
                }
                let contestants = self.contestants(&item, number > 0);
                if contestants.is_empty() {
                    continue;
                }
                cases.push(Case {
                    workload: item.workload,
                    face: "",
                    family: item.family,
                    medium: medium.clone(),
                    contestants,
                });
            }
        }
        cases
    }

    /// The parts that cannot run here, with the reason.
    #[must_use]
    pub fn left_out(&self) -> Vec<(String, String)> {
        let missing = |item: Item| -> Vec<(String, String)> {
            if let Workload::Task(task) = item.workload {
                let why = task.missing().into_iter();
                return why.map(|why| (item.workload.to_string(), why)).collect();
            }
            let who = item.who.iter().flatten();
            let tools = who.filter_map(|one| match one {
                Contestant::Tool(tool) if self.wants(one) => Some((tool.name(), tool.missing()?)),
                _ => None,
            });
            let named = |(tool, why)| (format!("{tool} of {}", item.workload), why);
            tools.map(named).collect()
        };
        self.chosen().flat_map(missing).collect()
    }

    /// True unless only other contestants are chosen.
    fn wants(&self, one: &Contestant) -> bool {
        self.contestants.is_empty() || self.contestants.contains(one)
    }

    fn chosen(&self) -> impl Iterator<Item = Item> {
        use clap::ValueEnum;
        let groups = match (self.groups.is_empty(), self.workloads.is_empty()) {
            (true, true) => Group::value_variants(),
            _ => &self.groups,
        };
        let of_groups = groups.iter().flat_map(|group| self.group(*group));
        let named = self.workloads.iter().map(|workload| Item {
            library: library(workload),
            who: match workload {
                Workload::Image { .. } => Some(image::contestants()),
                Workload::Task(Task::Idle) => Some(served()),
                _ => small::contestants(workload),
            },
            ..Item::new(*workload, true)
        });
        of_groups.chain(named)
    }

    fn items(&self) -> impl Iterator<Item = Item> {
        self.chosen().filter(|item| match item.workload {
            Workload::Task(task) => task.missing().is_none(),
            _ => true,
        })
    }

    fn group(&self, group: Group) -> Vec<Item> {
        let each = |sizes: &[u32], stands: u32, of: &dyn Fn(u32) -> Workload| -> Vec<Item> {
            let item = |size: &u32| Item::new(of(*size), *size == stands);
            sizes.iter().map(item).collect()
        };
        match group {
            Group::Fsync => {
                let mut all = each(&JOBS, 8, &|jobs| Workload::Sequential { jobs });
                all.extend(each(&JOBS, 8, &|jobs| Workload::Random { jobs }));
                all
            }
            Group::Xattr => each(&[1, 10, 100], 1, &|count| Workload::Xattr { count }),
            Group::Dbench => {
                let mut all = each(&[1, 16, 64], 64, &|clients| Workload::Dbench { clients });
                all.iter_mut().for_each(|item| item.library = false);
                all
            }
            Group::Create => {
                let all: &[u32] = if self.thorough {
                    &[1, 2, 4, 8, 16, 32, 48, 64]
                } else {
                    &[1, 8, 48, 64]
                };
                let files = self.files;
                each(all, 48, &|workers| Workload::Create { workers, files })
            }
            Group::Renames => {
                let counts = [1000, 2000, 5000, 10_000, 50_000];
                let of = |fsyncs| move |count| Workload::Renames { count, fsyncs };
                let mut all = each(&counts, 10_000, &of(false));
                all.extend(each(&counts, 10_000, &of(true)));
                all
            }
            Group::Image => vec![Item {
                who: Some(image::contestants()),
                ..Item::new(Workload::Image { tree: self.tree }, true)
            }],
            Group::Big => Big::ALL.map(big).into(),
            Group::Tasks => {
                let stat = Task::Stat { files: self.stat };
                let plain = Task::PLAIN.into_iter().filter(|task| *task != Task::Idle);
                let tasks = std::iter::once(stat).chain(plain);
                tasks.map(Workload::Task).map(task).collect()
            }
            Group::Small => small::items(self.small),
            Group::Idle => vec![Item {
                who: Some(served()),
                ..task(Workload::Task(Task::Idle))
            }],
            Group::Mechanisms => self.mechanisms(),
        }
    }

    /// Each mechanism with the workload for which it was invented, and all together.
    fn mechanisms(&self) -> Vec<Item> {
        use Policy::{AllOff, NoFastWait, NoOverlap, NoSingleNames, NoXattrs, On};
        let log = |workload: Workload, policies: &[Policy]| {
            let of = |policy: &Policy| Contestant::btrfs(Face::Library, *policy);
            (workload, policies.iter().map(of).collect::<Vec<_>>())
        };
        let renames = |count| Workload::Renames {
            count,
            fsyncs: true,
        };
        let mut all = vec![
            log(Workload::Commits { writers: 8 }, &[On, NoOverlap, AllOff]),
            log(Workload::Sequential { jobs: 8 }, &[On, NoFastWait, AllOff]),
            log(Workload::Random { jobs: 8 }, &[On, NoFastWait, AllOff]),
            log(Workload::Xattr { count: 100 }, &[On, NoXattrs, AllOff]),
            log(renames(1000), &[On, NoSingleNames, AllOff]),
            // More renames take minutes without the mechanism.
            log(renames(4000), &[On, NoSingleNames, AllOff]),
        ];
        let mut clients = log(Workload::Dbench { clients: 64 }, &[]);
        clients.1 = Policy::ALL
            .into_iter()
            .filter(|policy| *policy != Policy::NoLog)
            .map(|policy| Contestant::btrfs(Face::Fuse, policy))
            .collect();
        all.push(clients);
        let create = Workload::Create {
            workers: 48,
            files: self.files,
        };
        all.push((
            create,
            Search::ALL
                .map(|search| Contestant::ext4(Face::Library, search))
                .into(),
        ));
        let item = |(workload, who): (Workload, Vec<Contestant>)| Item {
            who: Some(who),
            family: Some(off_family(&workload)),
            ..Item::new(workload, false)
        };
        all.into_iter().map(item).collect()
    }

    fn contestants(&self, item: &Item, later_medium: bool) -> Vec<(String, Contestant)> {
        let others = self.thorough || (item.stands && !later_medium);
        let all = match &item.who {
            Some(who) => who.clone(),
            None => {
                let mut all: Vec<_> = MAIN.iter().map(|one| one()).collect();
                if others || matches!(item.workload, Workload::Create { .. }) {
                    all.extend([in_process(Kind::Btrfs), in_process(Kind::Ext4)]);
                }
                if others {
                    all.extend(OTHERS.iter().map(|one| one()));
                }
                all
            }
        };
        let direct = matches!(
            item.workload,
            Workload::Big(Big {
                cache: Cache::Direct,
                ..
            })
        );
        let library = item.library && !direct;
        let chosen = |one: &Contestant| {
            let possible = (library || !one.in_process())
                && !too_many_xattrs(item.workload, one)
                && !is_missing(one);
            self.wants(one) && possible && (self.root || !needs_root(one))
        };
        let named = |one: Contestant| (one.to_string(), one);
        all.into_iter().filter(chosen).map(named).collect()
    }
}

/// ext4 keeps an inode's attributes in one block; a hundred attributes of the workload need two.
fn too_many_xattrs(workload: Workload, contestant: &Contestant) -> bool {
    let ext4 = match contestant {
        Contestant::Sapwood { setup, .. } => setup.kind == Kind::Ext4,
        Contestant::Peer(peer) => matches!(peer, Peer::Ext4 | Peer::Fuse2fs),
        Contestant::Tool(_) => false,
    };
    ext4 && matches!(workload, Workload::Xattr { count: 50.. })
}

fn is_missing(contestant: &Contestant) -> bool {
    matches!(contestant, Contestant::Tool(tool) if tool.missing().is_some())
}

fn needs_root(contestant: &Contestant) -> bool {
    match contestant {
        Contestant::Peer(_) => true,
        Contestant::Tool(tool) => tool.needs_root(),
        Contestant::Sapwood { .. } => false,
    }
}

fn in_process(kind: Kind) -> Contestant {
    Contestant::ours(kind, Face::Library)
}

const MAIN: [fn() -> Contestant; 4] = [
    || Contestant::ours(Kind::Btrfs, Face::Fuse),
    || Contestant::ours(Kind::Ext4, Face::Fuse),
    || Contestant::Peer(Peer::Btrfs),
    || Contestant::Peer(Peer::Ext4),
];

const OTHERS: [fn() -> Contestant; 5] = [
    || Contestant::plain_loop(Kind::Btrfs),
    || Contestant::plain_loop(Kind::Ext4),
    || Contestant::Peer(Peer::Xfs),
    || Contestant::Peer(Peer::Fuse2fs),
    || Contestant::ours(Kind::Btrfs, Face::Fuse).again(),
];

/// Contestants with a process that serves them.
fn served() -> Vec<Contestant> {
    let ours = Kind::ALL.into_iter();
    let ours = ours.flat_map(|kind| {
        [
            Contestant::ours(kind, Face::Fuse),
            Contestant::plain_loop(kind),
        ]
    });
    ours.chain([Contestant::Peer(Peer::Fuse2fs)]).collect()
}

fn library(workload: &Workload) -> bool {
    match workload {
        Workload::Dbench { .. } | Workload::Image { .. } | Workload::ImageSmall { .. } => false,
        Workload::Task(task) => task.has_library(),
        _ => true,
    }
}

fn task(workload: Workload) -> Item {
    Item {
        library: library(&workload),
        ..Item::new(workload, false)
    }
}

fn big(big: Big) -> Item {
    let stands = !big.random && big.cache != Cache::Direct;
    Item::new(Workload::Big(big), stands)
}

/// Heading of a workload with mechanisms switched off.
fn off_family(workload: &Workload) -> &'static str {
    match workload {
        Workload::Commits { .. } => "mechanisms off: fsyncs beside commits; writers",
        Workload::Sequential { .. } => {
            "mechanisms off: sequential 64 KiB writes, fsync after each; jobs"
        }
        Workload::Random { .. } => {
            "mechanisms off: random 4 KiB writes, fsync after every 16th; jobs"
        }
        Workload::Xattr { .. } => "mechanisms off: 8 jobs, fsync after each write; xattrs per file",
        Workload::Renames { .. } => {
            "mechanisms off: renames, fsync of the directory every 100; files"
        }
        Workload::Dbench { .. } => "mechanisms off: dbench; clients",
        _ => "mechanisms off: empty files; workers",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn suite() -> Suite {
        Suite {
            groups: Vec::new(),
            workloads: Vec::new(),
            contestants: Vec::new(),
            media: vec!["/disk".into(), "/memory".into()],
            thorough: false,
            root: true,
            files: 100,
            stat: 1000,
            small: 1000,
            tree: Tree::Include,
        }
    }

    pub(crate) fn names(case: &Case) -> Vec<&str> {
        case.contestants
            .iter()
            .map(|(name, _)| name.as_str())
            .collect()
    }

    #[test]
    fn all_fsync_rows_run_with_main_contestants_and_one_with_everybody() {
        let suite = Suite {
            groups: vec![Group::Fsync],
            ..suite()
        };
        let cases = suite.cases();
        let on = |dir: &str| {
            cases
                .iter()
                .filter(|case| case.medium == std::path::Path::new(dir))
                .count()
        };
        assert_eq!((on("/disk"), on("/memory")), (14, 2));
        let main = ["btrfs-fuse", "ext4-fuse", "kernel-btrfs", "kernel-ext4"];
        assert_eq!(names(&cases[0]), main);
        let eight = cases
            .iter()
            .find(|case| case.workload.to_string() == "seq-8")
            .unwrap();
        assert_eq!(eight.contestants.len(), 11);
        assert!(names(eight).contains(&"btrfs-fuse+control"));
    }

    #[test]
    fn mechanisms_run_beside_themselves_switched_on() {
        let suite = Suite {
            groups: vec![Group::Mechanisms],
            ..suite()
        };
        for case in suite.cases() {
            let names = names(&case);
            assert!(!names[0].contains(':') && names[1..].iter().all(|name| name.contains(':')));
            assert!(case.family.is_some());
        }
    }

    #[test]
    fn programs_that_make_images_make_images() {
        for (groups, workloads) in [
            (vec![Group::Image], Vec::new()),
            (Vec::new(), vec!["image-include".parse().unwrap()]),
        ] {
            let suite = Suite {
                groups,
                workloads,
                ..suite()
            };
            let cases = suite.cases();
            let names = names(&cases[0]);
            for tool in ["sapwood-mkfs-ext4", "mkfs.btrfs", "mke2fs", "btrfs-fuse"] {
                assert!(names.contains(&tool), "{names:?}");
            }
        }
    }

    #[test]
    fn ext4_is_not_asked_for_more_than_it_can_hold() {
        let suite = Suite {
            groups: vec![Group::Xattr],
            thorough: true,
            ..suite()
        };
        let cases = suite.cases();
        let of = |name: &str| cases.iter().find(|case| case.workload.to_string() == name);
        assert!(names(of("xattr-10").unwrap()).contains(&"kernel-ext4"));
        let hundred = names(of("xattr-100").unwrap());
        assert!(hundred.contains(&"kernel-btrfs") && hundred.contains(&"kernel-xfs"));
        assert!(
            !hundred
                .iter()
                .any(|name| name.contains("ext4") || *name == "fuse2fs")
        );
    }

    #[test]
    fn it_can_be_cut() {
        let cut = Suite {
            workloads: vec!["seq-4".parse().unwrap()],
            contestants: vec!["ext4-lib".parse().unwrap()],
            media: vec!["/disk".into()],
            ..suite()
        };
        let cases = cut.cases();
        assert_eq!(cases.len(), 1);
        assert_eq!(names(&cases[0]), ["ext4-lib"]);
        let poor = Suite {
            root: false,
            groups: vec![Group::Image, Group::Dbench],
            ..suite()
        };
        for case in poor.cases() {
            assert!(
                case.contestants.iter().all(|(_, one)| !needs_root(one)),
                "{case:?}"
            );
        }
    }

    #[test]
    fn nothing_is_asked_in_process_that_needs_a_mount() {
        let all = Suite {
            thorough: true,
            ..suite()
        };
        for case in all.cases() {
            let in_process = case.contestants.iter().any(|(_, one)| one.in_process());
            let needs = match case.workload {
                Workload::Dbench { .. } => true,
                Workload::Task(task) => !task.has_library(),
                _ => false,
            };
            assert!(!(in_process && needs), "{case:?}");
        }
    }
}
