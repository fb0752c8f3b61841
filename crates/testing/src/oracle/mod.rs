//! The kernel and its tools as oracles: images in files, `btrfs check` and `e2fsck`, mounts on loop
//! devices that go away with their guards.

mod btrfs;
pub mod ext4;
mod kernel;
mod unmount;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sapwood_block::MemoryDevice;
use tempfile::TempDir;

pub use self::btrfs::TempImage;
pub use self::kernel::{KernelMount, Loop, detach};
pub use self::unmount::unmount;
use crate::process;

/// How long a check may take.
const CHECK: Duration = Duration::from_secs(600);

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// btrfs.
    Btrfs,
    /// ext4, ext3 and ext2.
    Ext4,
}

impl Kind {
    /// Its name, as mount(8) takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Ext4 => "ext4",
        }
    }

    /// The kind of an image; btrfs if it is none, so that a mount of it names the error.
    #[must_use]
    pub fn of(image: &Path) -> Self {
        use std::os::unix::fs::FileExt;
        let mut magic = [0; 2];
        let file = std::fs::File::open(image);
        match file.and_then(|file| file.read_exact_at(&mut magic, 1080)) {
            Ok(()) if magic == [0x53, 0xef] => Self::Ext4,
            _ => Self::Btrfs,
        }
    }

    /// Makes a file system in a file, with these arguments of `mkfs.btrfs` or `mke2fs`.
    ///
    /// # Errors
    /// The output of the program.
    pub fn format(self, image: &Path, args: &[&str]) -> Result<(), String> {
        let mut command = match self {
            Self::Btrfs => process::command("mkfs.btrfs", &["-q", "-f"]),
            Self::Ext4 => process::command("mke2fs", &["-q", "-F"]),
        };
        if self == Self::Ext4 && !args.contains(&"-t") {
            command.args(["-t", "ext4"]);
        }
        make(command.args(args).arg(image))
    }

    /// `btrfs check --check-data-csum` or `e2fsck -fn` of an unmounted image.
    ///
    /// # Errors
    /// The findings.
    pub fn check(self, image: &Path) -> Result<(), String> {
        match self {
            Self::Btrfs => check_btrfs(image),
            Self::Ext4 => {
                let mut command = process::command("e2fsck", &["-f", "-n"]);
                process::succeed(command.arg(image), CHECK).map(drop)
            }
        }
    }
}

fn check_btrfs(image: &Path) -> Result<(), String> {
    let args = ["check", "--readonly", "--check-data-csum"];
    let said = process::finish(process::command("btrfs", &args).arg(image), CHECK)?;
    // It reports some findings (of the free-space tree, say) with a good exit code.
    let bad = [
        "ERROR",
        "error:",
        "mismatch",
        "super generation don't match",
    ];
    let all = said.all();
    if said.status.success() && !bad.iter().any(|bad| all.contains(bad)) {
        return Ok(());
    }
    let tail = process::tail(&all);
    Err(format!("btrfs check: {}\n{tail}", said.status))
}

/// Runs a command that makes a file system.
///
/// # Errors
/// The output of the program.
pub fn make(command: &mut Command) -> Result<(), String> {
    // mkfs.btrfs looks at all loop devices, and fails if one goes away meanwhile.
    for _ in 0..5 {
        match process::succeed(command, process::ORDINARY) {
            Err(why) if why.contains("cannot check mount status") => {}
            result => return result.map(drop),
        }
    }
    process::succeed(command, process::ORDINARY).map(drop)
}

/// Runs a command that has to succeed; its standard output.
///
/// # Panics
/// With its output, if it fails.
pub fn run(program: &str, args: &[impl AsRef<std::ffi::OsStr>]) -> String {
    process::run(program, args).unwrap_or_else(|why| panic!("{why}"))
}

/// A device's content in a file, for the tools.
#[derive(Debug)]
pub struct Saved {
    dir: TempDir,
}

impl Saved {
    /// A copy of what the device has now.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[must_use]
    pub fn new(device: &MemoryDevice) -> Self {
        let dir = crate::scratch::directory();
        let saved = Self { dir };
        device.save(saved.path()).unwrap();
        saved
    }

    /// The image.
    #[must_use]
    pub fn path(&self) -> std::path::PathBuf {
        self.beside("image")
    }

    /// A file beside it.
    #[must_use]
    pub fn beside(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// What the file holds now.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn load(&self) -> std::sync::Arc<MemoryDevice> {
        std::sync::Arc::new(MemoryDevice::load(self.path()).unwrap())
    }

    /// Whether `e2fsck -fn` finds nothing, and its output.
    ///
    /// # Panics
    /// If it cannot run.
    #[must_use]
    pub fn e2fsck(&self) -> (bool, String) {
        let mut command = process::command("e2fsck", &["-fn"]);
        let said = process::finish(command.arg(self.path()), CHECK).unwrap();
        (said.status.success(), said.stdout)
    }

    /// Runs commands of `debugfs`, one per line, on the image. Returns its output: `debugfs` exits
    /// with 0 even when a command fails.
    ///
    /// # Panics
    /// With its output, if it fails or cannot open the image.
    pub fn debugfs(&self, commands: &str) -> String {
        let list = self.beside("commands");
        std::fs::write(&list, commands).unwrap();
        let mut debugfs = process::command("debugfs", &["-w", "-f"]);
        let command = debugfs.arg(list).arg(self.path());
        let said = process::finish(command, process::ORDINARY).unwrap();
        let output = said.all();
        let opened = !output.contains("Filesystem not open");
        assert!(said.status.success() && opened, "{}: {output}", said.status);
        output
    }
}
