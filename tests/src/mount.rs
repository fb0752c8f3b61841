//! Mounts by the kernel and by Sapwood, which their guards remove.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use sapwood_testing::oracle::{KernelMount, detach};
use tempfile::TempDir;

use crate::{process, scratch};

/// How long a mount may take to come up, and a daemon to end.
const PATIENCE: Duration = Duration::from_secs(300);

/// Shell commands for a new, private mount namespace: they detach its copies of Sapwood's mounts,
/// except the one on `$kept`. The daemon of each copied mount would wait until the namespace ends,
/// and `sapwood umount` in another test with it.
pub const DETACH_COPIES: &str = r#"
findmnt -rno TARGET -t fuse.sapwood,fuseblk.sapwood | while read -r copy; do
    test "$copy" = "$kept" || umount -il "$copy" 2>/dev/null || true
done
"#;

/// Something mounted on a directory.
pub trait Mounted: Send {
    /// The mount point.
    fn path(&self) -> &Path;

    /// Unmounts; returns once the image is complete.
    ///
    /// # Errors
    /// The error, as far as it can be known.
    fn unmount(self: Box<Self>) -> Result<(), String>;

    /// The daemon's process id, if there is one.
    fn daemon(&self) -> Option<u32> {
        None
    }
}

/// The driver of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The kernel's driver, over a loop device.
    Kernel,
    /// `sapwood mount`.
    Sapwood,
}

impl Driver {
    /// Mounts an image with these options (`rw` for none).
    ///
    /// # Errors
    /// The output of the failed program.
    pub fn mount(self, image: &Path, options: &str) -> Result<Box<dyn Mounted>, String> {
        Ok(match self {
            // The loop device of a Sapwood mount disappears with the last mount namespace that has
            // a copy of the mount.
            Self::Kernel => Box::new(patiently(
                || KernelMount::new(image, options),
                |why| why.contains("overlapping loop device"),
            )?),
            Self::Sapwood => Box::new(SapwoodMount::new(image, options)?),
        })
    }
}

/// The `sapwood` binary: `SAPWOOD_BIN`, or the one in the directory of this test.
///
/// # Panics
/// If it cannot be built.
pub fn sapwood() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("SAPWOOD_BIN") {
            return given.into();
        }
        let release = !cfg!(debug_assertions);
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "--package", "sapwood-cli"]);
        build.args(release.then_some("--release"));
        build.current_dir(workspace());
        process::succeed(&mut build, Duration::from_secs(1800)).unwrap();
        // This test is target/PROFILE/deps/NAME-HASH.
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("sapwood")
    })
}

/// The root of the source tree.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The directory for external programs, which are kept from one run to the next.
#[must_use]
pub fn cache() -> PathBuf {
    let given = std::env::var_os("SAPWOOD_CACHE").map(PathBuf::from);
    let dir = given.unwrap_or_else(|| workspace().join("target/test-cache"));
    fs::create_dir_all(&dir).unwrap();
    dir
}

impl Mounted for KernelMount {
    fn path(&self) -> &Path {
        self.path()
    }

    fn unmount(self: Box<Self>) -> Result<(), String> {
        (*self).unmount()
    }
}

/// Retries for a moment while a mount is busy: a process that another thread has just forked has
/// this process's open files until it executes its program.
fn patiently<T, E>(
    mut unmount: impl FnMut() -> Result<T, E>,
    busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match unmount() {
            Err(error) if busy(&error) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// A mount by `sapwood mount --foreground`, whose process ends with the guard.
#[derive(Debug)]
pub struct SapwoodMount {
    dir: Option<TempDir>,
    daemon: Child,
    ended: Option<ExitStatus>,
    log: PathBuf,
}

impl SapwoodMount {
    /// Mounts an image.
    ///
    /// # Errors
    /// The daemon's output, or that it did not start.
    pub fn new(image: &Path, options: &str) -> Result<Self, String> {
        Self::with(image, options, &mut Command::new(sapwood()))
    }

    /// A mount by a command that runs the binary within another program.
    ///
    /// # Errors
    /// The daemon's output, or that it did not start.
    pub fn with(image: &Path, options: &str, command: &mut Command) -> Result<Self, String> {
        Self::start(image, image, options, command)
    }

    /// A mount of an `image` that a server has, by its `operand`.
    ///
    /// # Errors
    /// The daemon's output, or that it did not start.
    pub fn served(operand: &Path, image: &Path, options: &str) -> Result<Self, String> {
        Self::start(operand, image, options, &mut Command::new(sapwood()))
    }

    fn start(
        operand: &Path,
        image: &Path,
        options: &str,
        command: &mut Command,
    ) -> Result<Self, String> {
        let dir = scratch::directory();
        let log = log_beside(image);
        let file = File::create(&log).map_err(|error| error.to_string())?;
        let again = file.try_clone().map_err(|error| error.to_string())?;
        command
            .args(["mount", "--foreground", "-o", options])
            .args([operand, dir.path()]);
        command.env("RUST_BACKTRACE", "1");
        command
            .stdin(Stdio::null())
            .stdout(again)
            .stderr(file)
            .process_group(0);
        let daemon = command
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        let mut mount = Self {
            dir: Some(dir),
            daemon,
            ended: None,
            log,
        };
        mount.wait_until_up()?;
        Ok(mount)
    }

    fn wait_until_up(&mut self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok(Some(status)) = self.daemon.try_wait() {
                self.ended = Some(status);
                return Err(format!("sapwood mount: {status}\n{}", self.said()));
            }
            let dir = self.path();
            // A new mount does not answer at once: the root must exist, too.
            if scratch::mounts_below(dir).iter().any(|point| point == dir)
                && fs::metadata(dir).is_ok()
            {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(format!(
                    "sapwood mount: not up after {PATIENCE:?}\n{}",
                    self.said()
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The daemon's output.
    #[must_use]
    pub fn said(&self) -> String {
        process::tail(&String::from_utf8_lossy(
            &fs::read(&self.log).unwrap_or_default(),
        ))
    }

    /// The daemon's peak resident memory in bytes.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        peak_memory(self.daemon.id())
    }

    /// Kills the daemon as a crash would (SIGKILL), and removes the dead mount. Returns the
    /// daemon's output.
    pub fn kill(mut self) -> String {
        let said = self.kill_daemon();
        self.stop();
        said
    }

    /// Kills the daemon with `SIGKILL` and keeps the dead mount, so that a process that works in it
    /// sees the mount's end and not an empty directory. Returns the daemon's output.
    pub fn kill_daemon(&mut self) -> String {
        if self.ended.is_none() {
            let _ = self.daemon.kill();
            self.ended = self.daemon.wait().ok();
        }
        self.said()
    }

    /// Sends the daemon `SIGTERM`, as at a shutdown of the system.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn tell_to_end(&self) -> Result<(), String> {
        let number = i32::try_from(self.daemon.id()).ok();
        let process = number.and_then(rustix::process::Pid::from_raw);
        let process = process.ok_or("no process")?;
        rustix::process::kill_process(process, rustix::process::Signal::TERM)
            .map_err(|error| format!("{error}\n{}", self.said()))
    }

    /// Removes the mount of a killed daemon, with `sapwood umount`.
    ///
    /// # Errors
    /// The command's output, or that a file system is still mounted.
    pub fn cleaned(mut self) -> Result<(), String> {
        let mut umount = Command::new(sapwood());
        umount.arg("umount").arg(self.path());
        process::succeed(&mut umount, PATIENCE)?;
        let clean = scratch::mounts_below(self.path()).is_empty();
        self.stop();
        if clean {
            Ok(())
        } else {
            Err("the dead mount stays".to_owned())
        }
    }

    fn stop(&mut self) {
        self.kill_daemon();
        if let Some(dir) = self.dir.take() {
            detach(dir);
        }
    }

    /// Waits for the daemon of a mount that is unmounted already.
    ///
    /// # Errors
    /// The daemon's output, or that it did not end.
    pub fn unmounted(mut self) -> Result<(), String> {
        self.ended()
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let ask = || rustix::mount::unmount(dir.path(), UnmountFlags::empty());
        let asked = patiently(ask, |error| *error == rustix::io::Errno::BUSY);
        if let Err(error) = asked {
            let said = self.said();
            self.stop();
            return Err(format!("unmounting: {error}\n{said}"));
        }
        self.ended()
    }

    fn ended(&mut self) -> Result<(), String> {
        let ended = process::wait(&mut self.daemon, PATIENCE);
        let said = self.said();
        self.ended = ended;
        self.stop();
        match ended {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("sapwood mount ended with {status}\n{said}")),
            None => Err(format!(
                "sapwood mount: not done after {PATIENCE:?}\n{said}"
            )),
        }
    }
}

/// The most resident memory that a process has had, in bytes; 0 if there is no such process.
#[must_use]
pub fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn log_beside(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(".log");
    name.into()
}

impl Mounted for SapwoodMount {
    fn path(&self) -> &Path {
        self.dir.as_ref().map(TempDir::path).unwrap()
    }

    fn unmount(mut self: Box<Self>) -> Result<(), String> {
        self.end()
    }

    fn daemon(&self) -> Option<u32> {
        Some(self.daemon.id())
    }
}

impl Drop for SapwoodMount {
    fn drop(&mut self) {
        if self.dir.is_some() && std::thread::panicking() {
            eprintln!("{}", self.said());
        }
        if let Err(why) = self.end() {
            eprintln!("{why}");
        }
        self.stop();
    }
}
