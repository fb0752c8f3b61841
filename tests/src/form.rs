//! Forms of file systems that programs work in, of both engines.

use libtest_mimic::Trial;
use sapwood::Kind;

use crate::image::Mkfs;
use crate::machine::{Need, Outcome, trial};
use crate::volume::{Volume, ours};

/// How a file system is made and mounted.
#[derive(Debug, Clone)]
pub struct Form {
    /// Name in tests.
    pub name: &'static str,
    /// How it is made.
    pub mkfs: Mkfs,
    /// Mount options.
    pub options: &'static str,
}

impl Form {
    /// A btrfs as `mkfs.btrfs` makes it with these arguments.
    #[must_use]
    pub fn btrfs(name: &'static str, args: &str, options: &'static str) -> Self {
        let mkfs = Mkfs::with(args);
        Self {
            name,
            mkfs,
            options,
        }
    }

    /// An ext4 as `mke2fs` makes it with these arguments.
    #[must_use]
    pub fn ext4(name: &'static str, args: &str, options: &'static str) -> Self {
        let mkfs = Mkfs::ext4(args);
        Self {
            name,
            mkfs,
            options,
        }
    }

    /// The default of the usual tool, mounted without options.
    #[must_use]
    pub fn plain(kind: Kind) -> Self {
        match kind {
            Kind::Btrfs => Self::btrfs("plain", "", "rw"),
            Kind::Ext4 => Self::ext4("plain", "", "rw"),
        }
    }

    /// The default form of each kind.
    #[must_use]
    pub fn plain_ones() -> [Self; 2] {
        [Kind::Btrfs, Kind::Ext4].map(Self::plain)
    }

    /// The format.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.mkfs.kind
    }

    /// A fresh one of `size` bytes, mounted by us.
    ///
    /// # Errors
    /// The output of the failed program.
    pub fn volume(&self, size: u64) -> Result<Volume, String> {
        Volume::with(&self.mkfs.clone().sized(size), self.options, ours())
    }

    /// A test that mounts it, and that needs this besides. Its name begins with the engine's if
    /// that is not btrfs.
    pub fn trial(
        &self,
        name: impl AsRef<str>,
        needs: &[Need],
        run: impl FnOnce(&Self) -> Outcome + Send + 'static,
    ) -> Trial {
        let (kernel, engine) = match self.kind() {
            Kind::Btrfs => (crate::machine::KERNEL, ""),
            Kind::Ext4 => (crate::machine::KERNEL_EXT4, "ext4::"),
        };
        let needs = [&[kernel, Need::Fuse], needs].concat();
        let form = self.clone();
        let name = format!("{engine}{}", name.as_ref());
        trial(name, &needs, move || run(&form))
    }
}
