//! Oracles for tests: the kernel's btrfs on a loop device, `mkfs.btrfs` and `btrfs check`.
//!
//! A test that needs them is a [`Trial`] of a target with `harness = false`, made by [`oracle`]:
//! where root or a tool is missing it is listed as ignored, by its name. Tests of the standard
//! harness ask [`left_out`].
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock};

use libtest_mimic::{Failed, Trial};
use tempfile::TempDir;

/// What a test needs of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// `mkfs.btrfs`.
    Mkfs,
    /// `btrfs check`.
    Check,
    /// Root, a free loop device and the kernel's btrfs.
    Mount,
}

/// Why one of `needs` is not there.
pub fn missing(needs: &[Need]) -> Option<String> {
    static MOUNT: OnceLock<Option<String>> = OnceLock::new();
    needs.iter().find_map(|need| match need {
        Need::Mkfs => no_tool("mkfs.btrfs"),
        Need::Check => no_tool("btrfs"),
        Need::Mount => MOUNT.get_or_init(no_mount).clone(),
    })
}

/// Whether a part of the running test has to be left out. Says so once on standard error, by the
/// test's name, past the harness that keeps what passing tests say: `scripts/total` counts it.
pub fn left_out(part: &str, needs: &[Need]) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let Some(why) = missing(needs) else {
        return false;
    };
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    // The harness names its threads after the tests, behind which cargo puts a hash.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("tests");
    // On one thread the harness has begun a line.
    let line = format!("\nleft out: {program}::{test}: {part}: {why}\n");
    if SAID.lock().is_ok_and(|mut said| said.insert(line.clone())) {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    true
}

fn no_tool(name: &str) -> Option<String> {
    let found = Command::new(name).arg("--version").output().is_ok();
    (!found).then(|| format!("no {name}"))
}

fn no_mount() -> Option<String> {
    if let Some(why) = no_tool("mkfs.btrfs") {
        return Some(why);
    }
    let image = Image::new(128 << 20, &[]);
    Mount::try_new(image.path(), "ro").err()
}

/// A test that is ignored where something that it needs is missing.
pub fn oracle(
    name: impl Into<String>,
    needs: &'static [Need],
    test: impl FnOnce() + Send + 'static,
) -> Trial {
    let run = move || -> Result<(), Failed> {
        test();
        Ok(())
    };
    Trial::test(name, run).with_ignored_flag(missing(needs).is_some())
}

/// Runs a command that has to succeed; its standard output.
///
/// # Panics
/// With what it said, if it fails.
pub fn run(program: &str, args: &[impl AsRef<OsStr>]) -> String {
    match try_run(program, args) {
        Ok(output) => output,
        Err(why) => panic!("{why}"),
    }
}

/// Runs a command: its standard output, or what it said if it failed.
pub fn try_run(program: &str, args: &[impl AsRef<OsStr>]) -> Result<String, String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|err| format!("{program}: {err}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Output {
        status,
        stdout,
        stderr,
    } = &output;
    if status.success() {
        return Ok(text(stdout));
    }
    let args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
    Err(format!(
        "{program} {args:?}: {status}\n{}{}",
        text(stdout),
        text(stderr)
    ))
}

/// An image file in a directory of its own that goes away with it.
#[derive(Debug)]
pub struct Image {
    dir: TempDir,
    path: PathBuf,
}

impl Image {
    /// A sparse file of `size` bytes, all zero.
    pub fn blank(size: u64) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("sapwood-test-")
            .tempdir()
            .unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(size).unwrap();
        Self { dir, path }
    }

    /// A btrfs of `size` bytes, made by `mkfs.btrfs` with these arguments.
    pub fn new(size: u64, args: &[&str]) -> Self {
        let image = Self::blank(size);
        let mut all: Vec<&OsStr> = vec!["-q".as_ref(), "-f".as_ref()];
        all.extend(args.iter().map(AsRef::<OsStr>::as_ref));
        all.push(image.path.as_ref());
        run("mkfs.btrfs", &all);
        image
    }

    /// An image with these bytes (of a memory device).
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let image = Self::blank(0);
        fs::write(&image.path, bytes).unwrap();
        image
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts it by the kernel, read-write.
    pub fn mount(&self) -> Mount {
        self.mount_with("rw")
    }

    /// Mounts it by the kernel with these options.
    pub fn mount_with(&self, options: &str) -> Mount {
        match Mount::try_new(&self.path, options) {
            Ok(mount) => mount,
            Err(why) => panic!("{why}"),
        }
    }

    /// `btrfs check --check-data-csum`.
    ///
    /// # Panics
    /// With its findings, if there are any.
    pub fn check(&self) {
        if let Err(why) = self.try_check() {
            panic!("{why}");
        }
    }

    /// `btrfs check --check-data-csum`: what it found.
    pub fn try_check(&self) -> Result<(), String> {
        let args: [&OsStr; 4] = [
            "check".as_ref(),
            "--readonly".as_ref(),
            "--check-data-csum".as_ref(),
            self.path.as_ref(),
        ];
        let output = Command::new("btrfs").args(args).output();
        let output = output.map_err(|err| format!("btrfs check: {err}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        // It reports some findings (of the free-space tree, say) with a good exit code.
        let bad = [
            "ERROR",
            "error:",
            "mismatch",
            "cache and super generation don't match",
        ];
        if output.status.success() && !bad.iter().any(|bad| said.contains(bad)) {
            return Ok(());
        }
        Err(format!("btrfs check: {}\n{said}", output.status))
    }

    /// `btrfs inspect-internal dump-tree`, of one tree (`root`, `5`) or of all.
    pub fn dump(&self, tree: Option<&str>) -> String {
        let mut args: Vec<&OsStr> = vec!["inspect-internal".as_ref(), "dump-tree".as_ref()];
        if let Some(tree) = tree {
            args.extend([OsStr::new("-t"), OsStr::new(tree)]);
        }
        args.push(self.path.as_ref());
        run("btrfs", &args)
    }
}

/// A mount by the kernel, on a loop device of its own; both go away with it.
#[derive(Debug)]
pub struct Mount {
    dir: Option<TempDir>,
}

impl Mount {
    fn try_new(image: &Path, options: &str) -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("sapwood-mnt-").tempdir();
        let dir = dir.map_err(|err| err.to_string())?;
        let options = format!("loop,{options}");
        let args: [&OsStr; 6] = [
            "-t".as_ref(),
            "btrfs".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            image.as_ref(),
            dir.path().as_ref(),
        ];
        try_run("mount", &args)?;
        Ok(Self { dir: Some(dir) })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    /// A path below the mount point.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path().join(path)
    }

    /// Runs a shell script in the mount point; its output.
    pub fn shell(&self, script: &str) -> String {
        // Of this mount only: a machine may have others that take long, or never end.
        const SYNC: &str =
            "sync() { if [ $# = 0 ]; then command sync -f .; else command sync \"$@\"; fi; }";
        let dir = self.path().display();
        let script = format!("cd '{dir}' && set -e\n{SYNC}\n{script}");
        run("bash", &["-c", &script])
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        let unmounted = sapwood_testing::unmount(dir.path());
        if let Err(why) = unmounted {
            // What is still mounted must not be deleted with the directory.
            let path = dir.keep();
            let _ = try_run("umount", &[OsStr::new("-l"), path.as_ref()]);
            let _ = fs::remove_dir(&path);
            assert!(std::thread::panicking(), "{why}");
        }
    }
}
