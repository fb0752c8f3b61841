//! The ways to have a file system that are compared.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::FileDevice;
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_fuse::control;
use sapwood_vfs::FileSystem;

use crate::error::{io_error, on};
use crate::figures::Counted;
use crate::kernel::KernelMount;
use crate::policy::Policy;
use crate::serve::{Opened, Served, Setup};
use crate::workload::Place;
use crate::{Error, Result};

/// Size of an image in bytes; it is sparse.
pub const IMAGE_SIZE: u64 = 8 << 30;

/// How Sapwood is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Face {
    /// Through a FUSE mount.
    Fuse,
    /// In process.
    Library,
}

/// A way to have a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contestant {
    /// Ours.
    Sapwood {
        /// How it is used.
        face: Face,
        /// Mechanisms of its log.
        policy: Policy,
        /// Runs only to show how much a contestant differs from itself.
        control: bool,
    },
    /// The kernel's btrfs with `-o ssd`.
    Kernel,
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sapwood { control: true, .. } => f.write_str("on (control)"),
            Self::Sapwood { policy, .. } => write!(f, "{policy}"),
            Self::Kernel => f.write_str("kernel -o ssd"),
        }
    }
}

/// A contestant at work on an image of its own, which goes with it.
pub struct Standing {
    inner: Inner,
    /// Holds the image and the mount point; dropped after the mount.
    _home: tempfile::TempDir,
}

enum Inner {
    Served(Served),
    Opened(Opened),
    Kernel(KernelMount, PathBuf),
}

impl Standing {
    /// Makes a fresh image in `medium` and starts the contestant on it.
    ///
    /// # Errors
    /// Image or mount.
    pub fn start(
        contestant: Contestant,
        medium: &Path,
        commit: u64,
        fuse_threads: usize,
    ) -> Result<Self> {
        let home = tempfile::Builder::new()
            .prefix("sapwood-bench-")
            .tempdir_in(medium)
            .map_err(on(medium))?;
        let (image, dir) = (home.path().join("image"), home.path().join("mount"));
        std::fs::create_dir(&dir).map_err(on(&dir))?;
        let device = FileDevice::create(&image, IMAGE_SIZE)?;
        mkfs(&device, &MkfsOptions::default())?;
        drop(device);
        let inner = match contestant {
            Contestant::Sapwood { face, policy, .. } => {
                let setup = Setup {
                    policy,
                    commit,
                    fuse_threads,
                };
                match face {
                    Face::Fuse => Inner::Served(Served::start(&image, &dir, setup)?),
                    Face::Library => Inner::Opened(Opened::open(&image, setup)?),
                }
            }
            Contestant::Kernel => Inner::Kernel(KernelMount::start(&image, &dir, commit)?, dir),
        };
        Ok(Self { inner, _home: home })
    }

    /// Where a workload finds its file system.
    #[must_use]
    pub fn place(&self) -> Place {
        match &self.inner {
            Inner::Served(served) => Place::Directory(served.dir().to_owned()),
            Inner::Kernel(_, dir) => Place::Directory(dir.clone()),
            Inner::Opened(opened) => Place::Library(Arc::clone(&opened.fs) as Arc<dyn FileSystem>),
        }
    }

    /// Counters; the kernel has none.
    ///
    /// # Errors
    /// The child is gone.
    pub fn counted(&mut self) -> Result<Option<Counted>> {
        match &mut self.inner {
            Inner::Served(served) => served.counted().map(Some),
            Inner::Opened(opened) => opened.counted().map(Some),
            Inner::Kernel(..) => Ok(None),
        }
    }

    /// Makes everything durable, so that what was prepared costs the measured part nothing.
    ///
    /// # Errors
    /// The file system's.
    pub fn settle(&self) -> Result<()> {
        match &self.inner {
            Inner::Opened(opened) => Ok(opened.fs.sync()?),
            // The kernel passes `syncfs` on to its own file systems only.
            Inner::Served(served) => control::sync(served.dir()).map_err(on(served.dir())),
            Inner::Kernel(_, dir) => {
                let root = File::open(dir).map_err(on(dir))?;
                rustix::fs::syncfs(&root).map_err(|errno| io_error("syncfs")(errno.into()))
            }
        }
    }

    /// Unmounts.
    ///
    /// # Errors
    /// The file system's.
    pub fn stop(self) -> Result<()> {
        match self.inner {
            Inner::Served(served) => served.stop(),
            Inner::Kernel(mount, _) => mount.stop(),
            Inner::Opened(opened) => Ok(opened.fs.unmount()?),
        }
    }
}

impl Contestant {
    /// # Errors
    /// The kernel can be asked by root only.
    pub fn check(self) -> Result<()> {
        if self == Self::Kernel && !rustix::process::geteuid().is_root() {
            let why = "the kernel as a peer needs root".to_owned();
            return Err(Error::Refused(why));
        }
        Ok(())
    }
}
