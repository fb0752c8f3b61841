//! [`Engine`]: whose crashes are explored: how it is made, mounted and checked, and who else can
//! judge an image of it. All that differs between the engines is behind this.

mod btrfs;
mod ext4;

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_vfs::FileSystem;

use crate::base::BaseKind;
use crate::op::Op;
use crate::policy::Policy;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Engine {
    /// btrfs.
    #[default]
    Btrfs,
    /// ext4.
    Ext4,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Btrfs, Self::Ext4];

    /// Its name, which mount(8) takes too.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Ext4 => "ext4",
        }
    }

    /// The base that most workloads start from.
    #[must_use]
    pub fn standard(self) -> BaseKind {
        match self {
            Self::Btrfs => BaseKind::Standard,
            Self::Ext4 => BaseKind::Ext4,
        }
    }

    /// The same, with nothing in it.
    #[must_use]
    pub fn empty(self) -> BaseKind {
        match self {
            Self::Btrfs => BaseKind::Empty,
            Self::Ext4 => BaseKind::Ext4Empty,
        }
    }

    /// The bases from which every single operation is tried.
    #[must_use]
    pub fn bases(self) -> Vec<BaseKind> {
        let of_engine = |kind: &BaseKind| kind.engine() == self && *kind != self.empty();
        BaseKind::ALL.into_iter().filter(of_engine).collect()
    }

    /// Whether the engine has such an operation at all.
    #[must_use]
    pub fn can(self, op: &Op) -> bool {
        match self {
            Self::Btrfs => true,
            Self::Ext4 => ext4::can(op),
        }
    }

    /// An empty file system of this kind on a device of `size` bytes.
    ///
    /// # Errors
    /// What kept it from being made.
    pub(crate) fn format(self, kind: BaseKind, size: u64) -> Result<MemoryDevice, String> {
        match self {
            Self::Btrfs => btrfs::format(kind, size),
            Self::Ext4 => ext4::format(kind, size),
        }
    }

    /// Mounts, without background threads, so that nothing happens but what is asked for.
    ///
    /// # Errors
    /// What the engine says; a policy that is another engine's.
    pub fn open(
        self,
        device: Arc<dyn Device>,
        policy: Policy,
        threads: usize,
    ) -> Result<Arc<dyn FileSystem>, String> {
        match self {
            Self::Btrfs => btrfs::open(device, policy, threads),
            Self::Ext4 => ext4::open(device, policy, threads),
        }
    }

    /// Our own check, data and all.
    ///
    /// # Errors
    /// The first finding.
    pub fn check(self, device: &Arc<dyn Device>) -> Result<(), String> {
        match self {
            Self::Btrfs => btrfs::check(&**device),
            Self::Ext4 => ext4::check(device),
        }
    }

    /// Bytes of the superblock that a mount reads and has to be whole, as first and last plus one:
    /// if it is torn, nobody can mount the device. `None` if there is a second copy.
    #[must_use]
    pub fn only_super(self, device_size: u64) -> Option<(u64, u64)> {
        match self {
            Self::Btrfs => btrfs::only_super(device_size),
            Self::Ext4 => Some(ext4::SUPER),
        }
    }

    /// Whether an image needs a log to be replayed.
    #[must_use]
    pub fn has_log(self, image: &MemoryDevice) -> bool {
        match self {
            Self::Btrfs => btrfs::has_log(image),
            Self::Ext4 => ext4::has_log(image),
        }
    }

    /// The other program that checks images, with its arguments.
    #[must_use]
    pub fn tool(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs check",
            Self::Ext4 => "e2fsck -fn",
        }
    }

    /// Has that program check an image.
    ///
    /// # Errors
    /// What it found.
    pub(crate) fn tool_check(self, file: &Path) -> Result<(), String> {
        match self {
            Self::Btrfs => btrfs::tool_check(file),
            Self::Ext4 => ext4::tool_check(file),
        }
    }

    /// The image as that program understands it, where it is known to differ from what a kernel
    /// and we read in it; `None` if there is no difference.
    pub(crate) fn as_the_tool_reads_it(self, image: &MemoryDevice) -> Option<MemoryDevice> {
        match self {
            Self::Btrfs => None,
            Self::Ext4 => ext4::without_torn_commits(image),
        }
    }

    /// Whether that program is known to leave out all of the image's log, so that what it makes of the
    /// image is some older state.
    pub(crate) fn tool_leaves_out_the_log(self, image: &MemoryDevice) -> bool {
        match self {
            Self::Btrfs => false,
            Self::Ext4 => ext4::has_stale_fast_commits(image),
        }
    }

    /// Has that program recover an image as a mount would; `None` if it cannot do that.
    pub(crate) fn tool_recovery(self, file: &Path) -> Option<Result<(), String>> {
        match self {
            Self::Btrfs => None,
            Self::Ext4 => Some(ext4::tool_recovery(file)),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|engine| engine.name() == text);
        found.ok_or_else(|| format!("no engine is named {text:?}"))
    }
}

/// Runs a program; its exit code (`None`: ended by a signal) and all that it said.
fn run(mut command: Command) -> Result<(Option<i32>, String), String> {
    let output = command
        .output()
        .map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    Ok((output.status.code(), said))
}
