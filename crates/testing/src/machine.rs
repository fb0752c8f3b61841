//! The abilities of the machine. Tests that need a missing one are skipped by name.
//!
//! A test of a target with `harness = false` is a [`trial`]: where something that it needs is
//! missing, it is listed as ignored. A test of the standard harness asks [`left_out`], and a test
//! with an optional part asks [`part_left_out`]; both print a line that `scripts/total` counts.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::oracle::{KernelMount, Kind, Loop, TempImage};
use crate::{process, scratch};

/// The result of a test; `?` works on any error that can be displayed.
pub type Outcome = Result<(), Failed>;

/// A requirement of a test on the machine.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// Root.
    Root,
    /// Root and `/dev/fuse`, and a build with mounts.
    Fuse,
    /// A part of the build for Linux that its portable twin lacks, by name.
    Linux(&'static str),
    /// A file of this name, which this process may open.
    File(&'static str),
    /// Root and a free loop device.
    Loop,
    /// Root, a free loop device, the kernel's file system of this kind, and its programs.
    Kernel(Kind),
    /// A program in the search path.
    Program(&'static str),
    /// A long test: only with `SAPWOOD_FULL=1`.
    Full,
    /// Something else: the reason why it is missing.
    Other(fn() -> Option<String>),
}

/// Whether the crates are built for systems other than Linux (`make portable` does so on Linux).
pub const PORTABLE: bool = cfg!(not(all(target_os = "linux", not(sapwood_portable))));
/// Mounts by Sapwood.
pub const MOUNTS: Need = Need::Linux("mounts");
/// Images on block devices.
pub const BLOCK_DEVICES: Need = Need::Linux("block devices");
/// Discarded space that is given back to the host.
pub const DISCARDS: Need = Need::Linux("discards");
/// New files without a name, of which SIGKILL leaves nothing.
pub const UNNAMED_FILES: Need = Need::Linux("files without a name");
/// Streams that are received into directories of the host.
pub const RECEIVED_DIRECTORIES: Need = Need::Linux("streams into directories");
/// The user of an image that is in use, by name.
pub const HOLDERS: Need = Need::Linux("the user of an image");

/// The programs of e2fsprogs that most tests of ext4 use.
pub const E2FSPROGS: [Need; 4] = [
    Need::Program("mke2fs"),
    Need::Program("e2fsck"),
    Need::Program("dumpe2fs"),
    Need::Program("debugfs"),
];

/// Whether the long versions of tests are asked for.
#[must_use]
pub fn full() -> bool {
    std::env::var_os("SAPWOOD_FULL").is_some_and(|value| value == "1")
}

/// The distance between the cases of a long list that a test tries: `usual`, or every case with
/// `SAPWOOD_FULL=1`.
#[must_use]
pub fn step(usual: usize) -> usize {
    if full() { 1 } else { usual }
}

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a program is in the search path.
#[must_use]
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// The directory of these programs of the newest installed PostgreSQL. Debian does not put it into
/// the search path.
#[must_use]
pub fn postgres(programs: &[&str]) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let versions = versions.flatten().filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let dir = entry.path().join("bin");
        let there = programs.iter().all(|program| dir.join(program).is_file());
        there.then_some((number, dir))
    });
    versions.max().map(|(_, dir)| dir)
}

/// Why the first of `needs` that is missing is missing.
#[must_use]
pub fn missing(needs: &[Need]) -> Option<String> {
    type Known = OnceLock<Option<String>>;
    static LOOP: Known = OnceLock::new();
    static BTRFS: Known = OnceLock::new();
    static EXT4: Known = OnceLock::new();
    let no = |there: bool, what: &str| (!there).then(|| format!("no {what}"));
    needs.iter().find_map(|need| match need {
        Need::Root => (!is_root()).then(|| "not root".to_owned()),
        Need::Fuse => missing(&[MOUNTS, Need::Root, Need::File("/dev/fuse")]),
        Need::Linux(part) => PORTABLE.then(|| format!("{part}: not in the portable build")),
        Need::File(path) => no(std::fs::File::open(path).is_ok(), path),
        Need::Loop => LOOP.get_or_init(no_loop).clone(),
        Need::Kernel(Kind::Btrfs) => BTRFS.get_or_init(|| no_kernel(Kind::Btrfs)).clone(),
        Need::Kernel(Kind::Ext4) => EXT4.get_or_init(|| no_kernel(Kind::Ext4)).clone(),
        Need::Program(name) => no(installed(name), name),
        Need::Full => (!full()).then(|| "SAPWOOD_FULL is not 1".to_owned()),
        Need::Other(why) => why(),
    })
}

fn no_loop() -> Option<String> {
    if let Some(why) = missing(&[Need::Root, Need::Program("losetup")]) {
        return Some(why);
    }
    Loop::new(TempImage::blank(1 << 20).path(), &[]).err()
}

fn no_kernel(kind: Kind) -> Option<String> {
    let programs: &[&str] = match kind {
        Kind::Btrfs => &["mkfs.btrfs", "btrfs", "mount", "umount"],
        Kind::Ext4 => &["mke2fs", "e2fsck", "tune2fs", "debugfs", "mount", "umount"],
    };
    let programs = programs.iter().map(|name| Need::Program(name));
    let needs: Vec<Need> = [Need::Root].into_iter().chain(programs).collect();
    missing(&needs).or_else(|| {
        let image = TempImage::blank(128 << 20);
        let made = kind.format(image.path(), &[]);
        made.and_then(|()| KernelMount::new(image.path(), "ro"))
            .err()
    })
}

/// Whether the running test of the standard harness has to be left out.
#[must_use]
pub fn left_out(needs: &[Need]) -> bool {
    missing(needs).is_some_and(|why| {
        note(None, &why);
        true
    })
}

/// Whether a part of the running test has to be left out.
#[must_use]
pub fn part_left_out(part: &str, needs: &[Need]) -> bool {
    missing(needs).is_some_and(|why| {
        note(Some(part), &why);
        true
    })
}

/// Prints once, past the harness, which keeps the output of tests that pass, that the running test
/// or a part of it is left out.
pub fn note(part: Option<&str>, why: &str) {
    static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    // Cargo appends a hash to the name.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    // The harness names its threads after the tests.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("tests");
    let part = part.map(|part| format!("{part}: ")).unwrap_or_default();
    // On one thread the harness has begun a line.
    let line = format!("\nleft out: {program}::{test}: {part}{why}\n");
    let new = NOTED
        .lock()
        .is_ok_and(|mut noted| noted.insert(line.clone()));
    if new {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// The end of the body of a [`trial`]: nothing, for a body that panics on failure, or an
/// [`Outcome`].
pub trait Ends {
    /// The result for the harness.
    ///
    /// # Errors
    /// The failure.
    fn outcome(self) -> Outcome;
}

impl Ends for () {
    fn outcome(self) -> Outcome {
        Ok(())
    }
}

impl Ends for Outcome {
    fn outcome(self) -> Outcome {
        self
    }
}

/// A test that is ignored, with the reason on standard error, where something is missing.
pub fn trial<E: Ends>(
    name: impl Into<String>,
    needs: &[Need],
    run: impl FnOnce() -> E + Send + 'static,
) -> Trial {
    let name = name.into();
    let why = missing(needs);
    if let Some(why) = &why {
        eprintln!("{name} is left out: {why}");
    }
    Trial::test(name, || run().outcome()).with_ignored_flag(why.is_some())
}

/// The tests of these modules, from the function `trials` of each. The kind of a test is its
/// module, so lists and filters have `[module] test`.
#[macro_export]
macro_rules! trials_of {
    ($($module:ident),* $(,)?) => {{
        let mut trials = Vec::new();
        $(
            let of_module = $module::trials().into_iter();
            trials.extend(of_module.map(|trial| trial.with_kind(stringify!($module))));
        )*
        trials
    }};
}

/// Runs the tests of a binary, on this many threads unless an argument says otherwise.
pub fn run(threads: usize, trials: impl FnOnce() -> Vec<Trial>) {
    let mut arguments = Arguments::from_args();
    // Most of the time goes into waiting for the disk.
    arguments.test_threads = arguments.test_threads.or(Some(threads));
    scratch::sweep();
    process::lift_file_limit();
    libtest_mimic::run(&arguments, trials()).exit();
}

/// Where control groups that limit memory can be made, and the file that has a group's limit.
#[must_use]
pub fn memory_groups() -> Option<(PathBuf, &'static str)> {
    if !is_root() {
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

/// The kernel's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel offers FUSE over io_uring.
#[must_use]
pub fn has_rings() -> bool {
    std::fs::read_to_string(SWITCH).is_ok_and(|value| value.starts_with('Y'))
}

/// Restores the kernel's switch for FUSE over io_uring when dropped.
#[derive(Debug)]
pub struct SwitchedOn(());

impl SwitchedOn {
    /// Turns FUSE over io_uring on, if the kernel has it and it is off. `None` if there is nothing
    /// to restore.
    #[must_use]
    pub fn new() -> Option<Self> {
        let off = Path::new(SWITCH).exists() && !has_rings();
        (off && std::fs::write(SWITCH, "Y").is_ok()).then(|| Self(()))
    }
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(SWITCH, "N") {
            eprintln!("{SWITCH}: {error}");
        }
    }
}
