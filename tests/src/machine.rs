//! What the machine can do, and tests that are left out by name where it cannot.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::image::{Image, Mkfs};
use crate::mount::{self, KernelMount};
use crate::{process, scratch};

/// What a test returns; `?` works on anything that can be shown.
pub type Outcome = Result<(), Failed>;

/// What a test needs of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Root, a free loop device, the kernel's btrfs and its programs.
    Kernel,
    /// The same of ext4.
    KernelExt4,
    /// Root.
    Root,
    /// Root and `/dev/fuse`.
    Fuse,
    /// Root, loop devices, and a kernel that passes `sync` to a mount of type `fuseblk`.
    FuseBlk,
    /// Control groups that limit memory, and the right to make one.
    MemoryGroup,
    /// A program.
    Program(&'static str),
    /// A program that `scripts/test-programs` installs.
    Cached(&'static str),
    /// PostgreSQL's server, as Debian installs it.
    Postgres,
    /// This source tree's history.
    History,
    /// A long test: only with `SAPWOOD_FULL=1`.
    Full,
}

/// True if the long versions of tests were asked for.
#[must_use]
pub fn full() -> bool {
    std::env::var_os("SAPWOOD_FULL").is_some_and(|value| value == "1")
}

/// Why one of `needs` is not there.
#[must_use]
pub fn missing(needs: &[Need]) -> Option<String> {
    type Known = OnceLock<Option<String>>;
    static KERNEL: Known = OnceLock::new();
    static KERNEL_EXT4: Known = OnceLock::new();
    needs.iter().find_map(|need| match need {
        Need::Kernel => KERNEL.get_or_init(no_btrfs).clone(),
        Need::KernelExt4 => KERNEL_EXT4.get_or_init(no_ext4).clone(),
        Need::Root | Need::Fuse if !rustix::process::geteuid().is_root() => {
            Some("not root".to_owned())
        }
        Need::Root => None,
        Need::Fuse => (!Path::new("/dev/fuse").exists()).then(|| "no /dev/fuse".to_owned()),
        Need::FuseBlk => (!sapwood_fuse::offers_fuseblk()).then(|| "no fuseblk".to_owned()),
        Need::MemoryGroup => memory_groups()
            .is_none()
            .then(|| "no control groups for memory".to_owned()),
        Need::Program(name) => (!installed(name)).then(|| format!("no {name}")),
        Need::Cached(name) => (!cached(name).is_file()).then(|| format!("no {name}")),
        Need::Postgres => postgres_programs()
            .is_none()
            .then(|| "no PostgreSQL".to_owned()),
        Need::History => {
            let there = mount::workspace().join(".git").exists();
            (!there).then(|| "no history".to_owned())
        }
        Need::Full => (!full()).then(|| "SAPWOOD_FULL is not 1".to_owned()),
    })
}

/// Where control groups that limit memory can be made, and the file that has a group's limit.
#[must_use]
pub fn memory_groups() -> Option<(PathBuf, &'static str)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let first = Path::new("/sys/fs/cgroup/memory");
    if first.join("memory.limit_in_bytes").exists() {
        return Some((first.to_owned(), "memory.limit_in_bytes"));
    }
    let second = Path::new("/sys/fs/cgroup");
    let passed_on = std::fs::read_to_string(second.join("cgroup.subtree_control")).ok()?;
    let memory = passed_on.split_whitespace().any(|name| name == "memory");
    memory.then(|| (second.to_owned(), "memory.max"))
}

/// Where a program is that `scripts/test-programs` installs.
#[must_use]
pub fn cached(program: &str) -> PathBuf {
    mount::cache().join("bin").join(program)
}

/// True if a program is in the search path.
#[must_use]
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.into_iter().any(|dir| dir.join(program).is_file())
}

/// Where Debian has put the programs of the newest installed PostgreSQL: they are not in the
/// search path.
#[must_use]
pub fn postgres_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let versions = versions.flatten().filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let programs = entry.path().join("bin");
        let all = ["initdb", "postgres", "psql", "pg_isready", "pg_amcheck"];
        let there = all.iter().all(|program| programs.join(program).is_file());
        there.then_some((number, programs))
    });
    versions.max().map(|(_, programs)| programs)
}

fn no_btrfs() -> Option<String> {
    no_kernel(&["mkfs.btrfs", "btrfs", "mount"], &Mkfs::default())
}

fn no_ext4() -> Option<String> {
    no_kernel(
        &["mke2fs", "e2fsck", "tune2fs", "debugfs", "mount"],
        &Mkfs::ext4(""),
    )
}

fn no_kernel(tools: &[&str], mkfs: &Mkfs) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    if let Some(tool) = tools.iter().find(|tool| !installed(tool)) {
        return Some(format!("no {tool}"));
    }
    let image = match Image::by_kernel(mkfs) {
        Ok(image) => image,
        Err(why) => return Some(why),
    };
    KernelMount::new(image.path(), "ro").err()
}

/// A test that is ignored, with the reason on standard error, where something is missing.
pub fn trial(
    name: impl Into<String>,
    needs: &[Need],
    run: impl FnOnce() -> Outcome + Send + 'static,
) -> Trial {
    let name = name.into();
    let why = missing(needs);
    if let Some(why) = &why {
        eprintln!("{name} is left out: {why}");
    }
    Trial::test(name, run).with_ignored_flag(why.is_some())
}

/// Runs the tests of a binary, on this many threads unless told otherwise.
pub fn run(threads: usize, trials: impl FnOnce() -> Vec<Trial>) {
    let mut arguments = Arguments::from_args();
    // Most of the time goes into waiting for the disk.
    arguments.test_threads = arguments.test_threads.or(Some(threads));
    scratch::sweep();
    process::lift_file_limit();
    libtest_mimic::run(&arguments, trials()).exit();
}
