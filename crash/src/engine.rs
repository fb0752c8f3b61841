//! [`Format`]: the engine under test. It makes, mounts and checks file systems of the engine, and
//! names the other program that can check an image. All differences between the engines are behind
//! this type.

mod btrfs;
mod ext4;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::op::Op;
use sapwood_testing::oracle::Kind;
use sapwood_vfs::FileSystem;

use crate::base::BaseKind;
use crate::policy::Policy;

/// The engines under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Format {
    /// btrfs.
    #[default]
    Btrfs,
    /// ext4.
    Ext4,
}

impl Format {
    /// All engines.
    pub const ALL: [Self; 2] = [Self::Btrfs, Self::Ext4];

    /// Its name, which mount(8) accepts too.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.kind().name()
    }

    /// Its kind of file system, as the kernel and the tools know it.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Btrfs => Kind::Btrfs,
            Self::Ext4 => Kind::Ext4,
        }
    }

    /// The base of most workloads.
    #[must_use]
    pub fn standard(self) -> BaseKind {
        match self {
            Self::Btrfs => BaseKind::Standard,
            Self::Ext4 => BaseKind::Ext4,
        }
    }

    /// The same base without files.
    #[must_use]
    pub fn empty(self) -> BaseKind {
        match self {
            Self::Btrfs => BaseKind::Empty,
            Self::Ext4 => BaseKind::Ext4Empty,
        }
    }

    /// The bases on which every single operation is tried.
    #[must_use]
    pub fn bases(self) -> Vec<BaseKind> {
        let of_engine = |kind: &BaseKind| kind.engine() == self && *kind != self.empty();
        BaseKind::ALL.into_iter().filter(of_engine).collect()
    }

    /// True if the engine supports the operation on any base.
    #[must_use]
    pub fn can(self, op: &Op) -> bool {
        match self {
            // A file that is created and then written can be seen without content.
            Self::Btrfs => !matches!(op, Op::Filled { .. }),
            Self::Ext4 => ext4::can(op),
        }
    }

    /// An empty file system of this kind on a device of `size` bytes.
    ///
    /// # Errors
    /// The reason why it cannot be made.
    pub(crate) fn format(self, kind: BaseKind, size: u64) -> Result<MemoryDevice, String> {
        match self {
            Self::Btrfs => btrfs::format(kind, size),
            Self::Ext4 => ext4::format(kind, size),
        }
    }

    /// Mounts without background threads, so that only the operations of the workload change the
    /// device.
    ///
    /// # Errors
    /// The error of the engine, or a policy that belongs to another engine.
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

    /// Bytes of the file system on a device.
    ///
    /// # Errors
    /// It has no superblock.
    pub fn size(self, device: &dyn Device) -> Result<u64, String> {
        match self {
            Self::Btrfs => btrfs::size(device),
            Self::Ext4 => ext4::size(device),
        }
    }

    /// Changes the size of the file system on a device; `None` is the smallest size. The inner
    /// error is a refusal: there is no room.
    ///
    /// # Errors
    /// Any other error.
    pub(crate) fn resize(
        self,
        device: &Arc<dyn Device>,
        size: Option<u64>,
    ) -> Result<Result<u64, String>, String> {
        match self {
            Self::Btrfs => btrfs::resize(device, size),
            Self::Ext4 => ext4::resize(device, size),
        }
    }

    /// Our own check, with the data.
    ///
    /// # Errors
    /// The first finding.
    pub fn check(self, device: &Arc<dyn Device>) -> Result<(), String> {
        match self {
            Self::Btrfs => btrfs::check(&**device),
            Self::Ext4 => ext4::check(device),
        }
    }

    /// Byte range of the superblock that must be whole for a mount: if it is torn, the device
    /// cannot be mounted. `None` if there is a second copy.
    #[must_use]
    pub fn only_super(self, device_size: u64) -> Option<(u64, u64)> {
        match self {
            Self::Btrfs => btrfs::only_super(device_size),
            Self::Ext4 => Some(ext4::SUPER),
        }
    }

    /// Byte range of the superblock that the kernel reads. It does not mount by a copy.
    #[must_use]
    pub fn first_super(self) -> (u64, u64) {
        match self {
            Self::Btrfs => btrfs::SUPER,
            Self::Ext4 => ext4::SUPER,
        }
    }

    /// True if the log of an image must be replayed.
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

    /// Checks an image with that program.
    ///
    /// # Errors
    /// Its findings.
    pub(crate) fn tool_check(self, file: &Path) -> Result<(), String> {
        self.kind().check(file)
    }

    /// The image as that program reads it, if this is known to differ from the kernel's and our
    /// reading; `None` if there is no difference.
    pub(crate) fn as_the_tool_reads_it(self, image: &MemoryDevice) -> Option<MemoryDevice> {
        match self {
            Self::Btrfs => None,
            Self::Ext4 => ext4::without_torn_commits(image),
        }
    }

    /// True if that program is known to ignore the whole log of the image, so that its result is an
    /// older state.
    pub(crate) fn tool_leaves_out_the_log(self, image: &MemoryDevice) -> bool {
        match self {
            Self::Btrfs => false,
            Self::Ext4 => ext4::has_stale_fast_commits(image),
        }
    }

    /// Recovers an image with that program as a mount would do; `None` if the program cannot do
    /// that.
    pub(crate) fn tool_recovery(self, file: &Path) -> Option<Result<(), String>> {
        match self {
            Self::Btrfs => None,
            Self::Ext4 => Some(ext4::tool_recovery(file)),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|engine| engine.name() == text);
        found.ok_or_else(|| format!("no engine is named {text:?}"))
    }
}
