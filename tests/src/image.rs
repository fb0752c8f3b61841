//! Images of both formats: made by the usual tools or by Sapwood, checked by both.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sapwood::Kind;
use sapwood_testing::oracle::{self, KernelMount};
use tempfile::TempDir;

use crate::mount::sapwood;
use crate::{process, scratch};

/// The program that makes the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Maker {
    /// `mkfs.btrfs` or `mke2fs`.
    #[default]
    Kernel,
    /// `sapwood mkfs`.
    Sapwood,
}

/// Parameters of a new file system. The defaults are the tool's.
#[derive(Debug, Clone)]
pub struct Mkfs {
    /// The format.
    pub kind: Kind,
    /// The maker.
    pub maker: Maker,
    /// Bytes of the (sparse) image.
    pub size: u64,
    /// Arguments.
    pub args: Vec<String>,
    /// A later change: a program and its arguments, before the image.
    pub then: Vec<Vec<String>>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Default for Mkfs {
    fn default() -> Self {
        Self {
            kind: Kind::Btrfs,
            maker: Maker::Kernel,
            size: 1 << 30,
            args: Vec::new(),
            then: Vec::new(),
        }
    }
}

impl Mkfs {
    /// With these arguments, separated by blanks.
    #[must_use]
    pub fn with(args: &str) -> Self {
        Self {
            args: words(args),
            ..Self::default()
        }
    }

    /// ext4 by `mke2fs`, with these arguments; `-t ext2` or `-t ext3` may be among them.
    #[must_use]
    pub fn ext4(args: &str) -> Self {
        Self {
            kind: Kind::Ext4,
            ..Self::with(args)
        }
    }

    /// Changed afterwards by a command, whose last argument is the image.
    #[must_use]
    pub fn then(mut self, command: &[&str]) -> Self {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        self.then.push(command);
        self
    }

    /// By `sapwood mkfs`, with these arguments.
    #[must_use]
    pub fn ours(args: &str) -> Self {
        Self {
            maker: Maker::Sapwood,
            ..Self::with(args)
        }
    }

    /// The same by `sapwood mkfs`.
    #[must_use]
    pub fn by_us(self) -> Self {
        Self {
            maker: Maker::Sapwood,
            ..self
        }
    }

    fn command(&self) -> Command {
        let (program, args): (&OsStr, &[&str]) = match (self.maker, self.kind) {
            (Maker::Kernel, Kind::Btrfs) => ("mkfs.btrfs".as_ref(), &["-q", "-f"]),
            (Maker::Kernel, Kind::Ext4) => ("mke2fs".as_ref(), &["-q", "-F"]),
            (Maker::Sapwood, _) => (sapwood().as_ref(), &["mkfs", "--quiet", "--force"]),
        };
        let mut command = Command::new(program);
        command.args(args);
        let typed = self.args.iter().any(|arg| arg == "-t");
        if !typed && (self.maker == Maker::Sapwood || self.kind == Kind::Ext4) {
            command.args(["-t", self.kind.name()]);
        }
        command.args(&self.args);
        command
    }

    /// With another size.
    #[must_use]
    pub fn sized(self, size: u64) -> Self {
        Self { size, ..self }
    }
}

/// An image file in a directory of its own, which is removed with this value.
#[derive(Debug)]
pub struct TempImage {
    dir: TempDir,
    path: PathBuf,
    kind: Kind,
}

impl TempImage {
    /// A sparse file of `size` bytes, all zero, in which there will be a btrfs.
    #[must_use]
    pub fn blank(size: u64) -> Self {
        let dir = scratch::directory();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(size).unwrap();
        let kind = Kind::Btrfs;
        Self { dir, path, kind }
    }

    /// A file system made with `how`.
    ///
    /// # Errors
    /// The output of the failed program.
    pub fn new(how: &Mkfs) -> Result<Self, String> {
        let image = Self {
            kind: how.kind,
            ..Self::blank(how.size)
        };
        oracle::make(how.command().arg(&image.path))?;
        for words in &how.then {
            let mut command = process::command(&words[0], &words[1..]);
            process::succeed(command.arg(&image.path), process::ORDINARY)?;
        }
        Ok(image)
    }

    /// A file system made by the usual tool, ignoring the maker in `how`.
    ///
    /// # Errors
    /// The output of the failed program.
    pub fn by_kernel(how: &Mkfs) -> Result<Self, String> {
        Self::new(&Mkfs {
            maker: Maker::Kernel,
            ..how.clone()
        })
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file next to it.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The format of its file system.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A copy of the file's current content.
    ///
    /// # Errors
    /// The output of `cp`.
    pub fn copy(&self) -> Result<Self, String> {
        let copy = Self {
            kind: self.kind,
            ..Self::blank(0)
        };
        let args = ["--sparse=always".as_ref(), self.path(), copy.path()];
        process::run("cp", &args).map(|_| copy)
    }

    /// `btrfs check --check-data-csum` or `e2fsck -fn`, unmounted.
    ///
    /// # Errors
    /// The findings.
    pub fn check_by_kernel(&self) -> Result<(), String> {
        let kind = match self.kind {
            Kind::Btrfs => oracle::Kind::Btrfs,
            Kind::Ext4 => oracle::Kind::Ext4,
        };
        kind.check(&self.path)
    }

    /// `sapwood check`, of btrfs with its data, unmounted.
    ///
    /// # Errors
    /// The findings.
    pub fn check_by_us(&self) -> Result<(), String> {
        let mut command = Command::new(sapwood());
        command.args(["check", "--quiet"]).arg(&self.path);
        if self.kind == Kind::Btrfs {
            command.arg("--check-data-csum");
        }
        process::succeed(&mut command, Duration::from_secs(600)).map(drop)
    }

    /// Runs both checks on an image whose mount ended in a crash. `e2fsck -n` does not read past
    /// the journal, so it checks two copies: one recovered by the kernel and one by `e2fsck`.
    ///
    /// # Errors
    /// The findings.
    pub fn check_after_crash(&self) -> Result<(), String> {
        self.check_by_us()?;
        if self.kind == Kind::Btrfs {
            return self.check_by_kernel();
        }
        let by_kernel = self.copy()?;
        KernelMount::new(by_kernel.path(), "rw")?.unmount()?;
        by_kernel.check()?;
        let by_tool = self.copy()?;
        let mut preen = process::command("e2fsck", &["-f", "-p"]);
        let said = process::finish(preen.arg(by_tool.path()), process::ORDINARY)?;
        match said.status.code() {
            // 1: the journal was replayed, or orphans were deleted.
            Some(0 | 1) => by_tool.check(),
            _ => Err(format!("e2fsck -fp: {}\n{}", said.status, said.all())),
        }
    }

    /// Runs both checks.
    ///
    /// # Errors
    /// The findings.
    pub fn check(&self) -> Result<(), String> {
        self.check_by_kernel()?;
        self.check_by_us()
    }
}
