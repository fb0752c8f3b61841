//! Images: made by the kernel's tools or by ours, checked by both.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::mount::sapwood;
use crate::{process, scratch};

/// Which program makes the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Maker {
    /// `mkfs.btrfs`.
    #[default]
    Kernel,
    /// `sapwood mkfs`.
    Sapwood,
}

/// How to make a file system. The defaults are those of `mkfs.btrfs`.
#[derive(Debug, Clone)]
pub struct Mkfs {
    /// By what.
    pub maker: Maker,
    /// Bytes of the (sparse) image.
    pub size: u64,
    /// Arguments.
    pub args: Vec<String>,
}

impl Default for Mkfs {
    fn default() -> Self {
        Self {
            maker: Maker::Kernel,
            size: 1 << 30,
            args: Vec::new(),
        }
    }
}

impl Mkfs {
    /// With these arguments, separated by blanks.
    #[must_use]
    pub fn with(args: &str) -> Self {
        let args = args.split_whitespace().map(str::to_owned).collect();
        Self {
            args,
            ..Self::default()
        }
    }

    /// By `sapwood mkfs`, with these arguments.
    #[must_use]
    pub fn ours(args: &str) -> Self {
        Self {
            maker: Maker::Sapwood,
            ..Self::with(args)
        }
    }

    /// With another size.
    #[must_use]
    pub fn sized(self, size: u64) -> Self {
        Self { size, ..self }
    }
}

/// An image file in a directory of its own that goes away with it.
#[derive(Debug)]
pub struct Image {
    dir: TempDir,
    path: PathBuf,
}

impl Image {
    /// A sparse file of `size` bytes, all zero.
    #[must_use]
    pub fn blank(size: u64) -> Self {
        let dir = scratch::directory();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(size).unwrap();
        Self { dir, path }
    }

    /// A btrfs as `how` says.
    ///
    /// # Errors
    /// What the program said.
    pub fn new(how: &Mkfs) -> Result<Self, String> {
        let image = Self::blank(how.size);
        let mut command = match how.maker {
            Maker::Kernel => {
                let mut command = Command::new("mkfs.btrfs");
                command.args(["-q", "-f"]);
                command
            }
            Maker::Sapwood => {
                let mut command = Command::new(sapwood());
                command.args(["mkfs", "--quiet", "--force"]);
                command
            }
        };
        command.args(&how.args).arg(&image.path);
        // mkfs.btrfs looks at all loop devices, and fails if one goes away meanwhile.
        for _ in 0..5 {
            match process::succeed(&mut command, process::ORDINARY) {
                Err(why) if why.contains("cannot check mount status") => {}
                result => return result.map(|_| image),
            }
        }
        process::succeed(&mut command, process::ORDINARY).map(|_| image)
    }

    /// A btrfs made by `mkfs.btrfs`, whoever `how` says.
    ///
    /// # Errors
    /// What it said.
    pub fn by_kernel(how: &Mkfs) -> Result<Self, String> {
        Self::new(&Mkfs {
            maker: Maker::Kernel,
            ..how.clone()
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file beside it.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `btrfs check --check-data-csum`, unmounted.
    ///
    /// # Errors
    /// With what it found.
    pub fn check_by_kernel(&self) -> Result<(), String> {
        let mut command = Command::new("btrfs");
        command
            .args(["check", "--readonly", "--check-data-csum"])
            .arg(&self.path);
        let said = process::finish(&mut command, Duration::from_secs(600))?;
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
        Err(format!(
            "btrfs check: {}\n{}",
            said.status,
            process::tail(&all)
        ))
    }

    /// `sapwood check --check-data-csum`, unmounted.
    ///
    /// # Errors
    /// With what it found.
    pub fn check_by_us(&self) -> Result<(), String> {
        let mut command = Command::new(sapwood());
        command
            .args(["check", "--check-data-csum", "--quiet"])
            .arg(&self.path);
        process::succeed(&mut command, Duration::from_secs(600)).map(drop)
    }

    /// Both.
    ///
    /// # Errors
    /// With what was found.
    pub fn check(&self) -> Result<(), String> {
        self.check_by_kernel()?;
        self.check_by_us()
    }
}
