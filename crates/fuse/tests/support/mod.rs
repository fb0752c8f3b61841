//! A mounted `MemoryFs` that is unmounted with its guard, and the machinery that skips tests by
//! name where the machine cannot run them.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod confined;

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use sapwood_fuse::{Access, Choice, MountOptions, Session, mount};
use sapwood_testing::MemoryFs;
pub(crate) use sapwood_testing::machine::{self, Need, Outcome};
use sapwood_vfs::FileSystem;

/// A `MemoryFs` mounted on a directory of its own.
pub(crate) struct Mounted {
    pub(crate) fs: Arc<MemoryFs>,
    pub(crate) session: Session,
    dir: tempfile::TempDir,
}

impl Mounted {
    pub(crate) fn new() -> Result<Self, Failed> {
        Self::with(&MountOptions::default())
    }

    pub(crate) fn with(options: &MountOptions) -> Result<Self, Failed> {
        let dir = tempfile::Builder::new().prefix("sapwood-fuse-").tempdir()?;
        let fs = Arc::new(MemoryFs::new());
        let options = MountOptions {
            io_uring: TRANSPORT.get(),
            writeback_cache: WRITEBACK.get(),
            ..options.clone()
        };
        let session = mount(Arc::clone(&fs) as Arc<dyn FileSystem>, dir.path(), &options)?;
        Ok(Self { fs, session, dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.session.unmount() {
            eprintln!("unmounting: {error}");
            detach(self.dir.path());
        }
    }
}

/// A mount that other users may use, too.
pub(crate) fn for_all() -> Result<Mounted, Failed> {
    let mounted = Mounted::with(&MountOptions {
        access: Access::All,
        ..MountOptions::default()
    })?;
    std::fs::set_permissions(mounted.dir(), std::fs::Permissions::from_mode(0o777))?;
    Ok(mounted)
}

/// Runs a shell line as the user and group 1234.
pub(crate) fn as_other(line: &str, dir: &Path) -> std::io::Result<std::process::Output> {
    Command::new("setpriv")
        .args([
            "--reuid=1234",
            "--regid=1234",
            "--clear-groups",
            "sh",
            "-c",
            line,
        ])
        .current_dir(dir)
        .output()
}

/// Detaches a mount, used or not, if there is one.
pub(crate) fn detach(dir: &Path) {
    let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
}

/// Detaches a directory's mount when dropped: for mounts that another process made.
pub(crate) struct Detached(pub(crate) tempfile::TempDir);

impl Detached {
    pub(crate) fn new() -> Result<Self, Failed> {
        let dir = tempfile::Builder::new().prefix("sapwood-fuse-").tempdir()?;
        Ok(Self(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        detach(self.0.path());
    }
}

thread_local! {
    /// The transport of the trials being listed, and of the mounts of the running one.
    static TRANSPORT: Cell<Choice> = const { Cell::new(Choice::Auto) };
    /// Whether the kernel collects writes in their mounts.
    static WRITEBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the kernel collects writes in this trial's mounts.
pub(crate) fn writes_back() -> bool {
    WRITEBACK.get()
}

/// A test that needs FUSE, `needs`, and the requirements of its transport.
pub(crate) fn trial(name: &str, needs: &[Need], run: fn() -> Outcome) -> Trial {
    let (transport, writeback) = (TRANSPORT.get(), WRITEBACK.get());
    let kind = match (transport, writeback) {
        (Choice::Auto, _) => "",
        (Choice::On, false) => "io_uring",
        (Choice::On, true) => "io_uring, writeback cache",
        (Choice::Off, false) => "/dev/fuse",
        (Choice::Off, true) => "/dev/fuse, writeback cache",
    };
    let rings = Need::Other(|| (!machine::has_rings()).then(|| "no FUSE over io_uring".to_owned()));
    let rings = (transport == Choice::On).then_some(rings);
    let needs = needs.iter().copied().chain(rings);
    let needs: Vec<Need> = [Need::Fuse].into_iter().chain(needs).collect();
    let run = move || {
        TRANSPORT.set(transport);
        WRITEBACK.set(writeback);
        run()
    };
    machine::trial(name, &needs, run).with_kind(kind)
}

/// The trials of `list`, once for each transport, with and without the kernel's write-back cache.
pub(crate) fn over_all(list: fn() -> Vec<Trial>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for transport in [Choice::Off, Choice::On] {
        for writeback in [false, true] {
            TRANSPORT.set(transport);
            WRITEBACK.set(writeback);
            trials.extend(list());
        }
    }
    TRANSPORT.set(Choice::Auto);
    WRITEBACK.set(false);
    trials
}

pub(crate) fn run(trials: Vec<Trial>) {
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Runs a program. If it fails, its output is the failure.
pub(crate) fn shell(program: &str, args: &[&std::ffi::OsStr]) -> Result<String, Failed> {
    let output = Command::new(program).args(args).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("{program} {args:?}: {}: {words}", output.status).into())
    }
}

/// Waits for an effect that the kernel makes after it has answered. Fails after ten seconds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Outcome {
    let begun = std::time::Instant::now();
    while !holds() {
        if begun.elapsed() > std::time::Duration::from_secs(10) {
            return Err(format!("not so after ten seconds: {what}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Fails unless `result` is the error `errno`.
pub(crate) fn expect_errno<T>(result: std::io::Result<T>, errno: i32) -> Outcome {
    match result {
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => Err(format!("expected errno {errno}, got {error}").into()),
        Ok(_) => Err(format!("expected errno {errno}, got success").into()),
    }
}

/// Fails with both values unless they are equal.
#[macro_export]
macro_rules! same {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) if *left == *right => {}
            (left, right) => {
                let what = stringify!($left);
                let at = line!();
                let text = format!("{what} = {left:?}, expected {right:?} (line {at})");
                return Err(text.into());
            }
        }
    };
}

/// Fails unless the condition holds.
#[macro_export]
macro_rules! holds {
    ($condition:expr) => {
        if !$condition {
            return Err(format!("not so: {} (line {})", stringify!($condition), line!()).into());
        }
    };
}
