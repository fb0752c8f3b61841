//! Other file systems: the kernel's on a loop device, and fuse2fs.
//!
//! The kernel's btrfs is mounted with `-o ssd`. Otherwise it treats a loop device as a rotating
//! disk and waits a timer tick in each log of several writers, which would make it an easy peer. It
//! is also mounted with `nodiscard`, the default of the other peers, so that a written-out image
//! stays allocated. ext4 is mounted with `noinit_itable`, so that no kernel thread zeroes inode
//! tables during the measurement of another contestant.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sapwood_fuse::mounted_on;
use sapwood_testing::oracle::{self, Loop};

use crate::error::{io_error, run_program};
use crate::{Error, Result};

/// The other file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The kernel's btrfs.
    Btrfs,
    /// The kernel's ext4.
    Ext4,
    /// The kernel's xfs.
    Xfs,
    /// fuse2fs of e2fsprogs.
    Fuse2fs,
}

impl Peer {
    /// All peers.
    pub const ALL: [Self; 4] = [Self::Btrfs, Self::Ext4, Self::Xfs, Self::Fuse2fs];

    /// Name on the command line and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "kernel-btrfs",
            Self::Ext4 => "kernel-ext4",
            Self::Xfs => "kernel-xfs",
            Self::Fuse2fs => "fuse2fs",
        }
    }

    /// Programs that it needs.
    #[must_use]
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Btrfs | Self::Ext4 => &["losetup"],
            Self::Xfs => &["losetup", "mkfs.xfs"],
            Self::Fuse2fs => &["fuse2fs", "fusermount3"],
        }
    }

    /// Mount options; `commit` in seconds if the file system has such an option.
    #[must_use]
    pub fn options(self, commit: Option<u64>) -> String {
        let base = match self {
            Self::Btrfs => "ssd,nodiscard",
            Self::Ext4 => "noinit_itable",
            Self::Xfs => return "defaults".to_owned(),
            Self::Fuse2fs => return "defaults".to_owned(),
        };
        match commit {
            Some(seconds) => format!("{base},commit={seconds}"),
            None => base.to_owned(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mounted image of a peer. Dropping it unmounts.
#[derive(Debug)]
pub(crate) enum PeerMount {
    Kernel(KernelMount),
    Fuse2fs(Fuse2fs),
}

impl PeerMount {
    /// Mounts `image` on `dir`; `others`: users other than root may use it.
    pub(crate) fn start(
        peer: Peer,
        image: &Path,
        dir: &Path,
        commit: Option<u64>,
        others: bool,
    ) -> Result<Self> {
        let kernel = |kind| {
            let options = peer.options(commit);
            KernelMount::start(kind, &options, image, dir).map(Self::Kernel)
        };
        match peer {
            Peer::Btrfs => kernel("btrfs"),
            Peer::Ext4 => kernel("ext4"),
            Peer::Xfs => kernel("xfs"),
            Peer::Fuse2fs => Fuse2fs::start(image, dir, others).map(Self::Fuse2fs),
        }
    }

    /// Its mount point.
    pub(crate) fn dir(&self) -> &Path {
        match self {
            Self::Kernel(mount) => mount.mount.path(),
            Self::Fuse2fs(mount) => &mount.dir,
        }
    }

    /// The process that serves it, if there is one.
    pub(crate) fn process(&self) -> Option<u32> {
        match self {
            Self::Kernel(_) => None,
            Self::Fuse2fs(mount) => Some(mount.child.id()),
        }
    }

    /// Unmounts.
    pub(crate) fn stop(self) -> Result<()> {
        match self {
            Self::Kernel(kernel) => {
                let ended = kernel.mount.unmount();
                ended.map_err(|why| program_error("umount", why))
            }
            Self::Fuse2fs(mut mount) => mount.end(),
        }
    }
}

/// On a loop device, which is detached when this value is dropped.
#[derive(Debug)]
pub(crate) struct KernelMount {
    // Dropped before the loop device.
    mount: oracle::KernelMount,
    _device: Loop,
}

impl KernelMount {
    /// Attaches and mounts; bypasses the host's page cache if the host's file system supports that.
    fn start(kind: &str, options: &str, image: &Path, dir: &Path) -> Result<Self> {
        let device = Loop::new(image, &["--direct-io=on"]).or_else(|_| Loop::new(image, &[]));
        let device = device.map_err(|why| program_error("losetup", why))?;
        let mount = oracle::KernelMount::of_device(device.path(), kind, options, dir);
        Ok(Self {
            mount: mount.map_err(|why| program_error("mount", why))?,
            _device: device,
        })
    }
}

/// Served by a child.
#[derive(Debug)]
pub(crate) struct Fuse2fs {
    child: Child,
    dir: PathBuf,
    ended: bool,
}

/// Time limit for the mount.
const MOUNT_TIME: Duration = Duration::from_secs(20);

impl Fuse2fs {
    fn start(image: &Path, dir: &Path, others: bool) -> Result<Self> {
        let mut command = Command::new("fuse2fs");
        // In the foreground, so that the parent can wait for its end.
        command.arg("-f");
        if others {
            command.args(["-o", "allow_other"]);
        }
        command.arg(image).arg(dir);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io_error("fuse2fs"))?;
        let mut mount = Self {
            child,
            dir: dir.to_owned(),
            ended: false,
        };
        let began = Instant::now();
        while mounted_on(dir).is_none() {
            let gone = mount.child.try_wait().map_err(io_error("fuse2fs"))?;
            if gone.is_some() || began.elapsed() > MOUNT_TIME {
                let why = "it did not mount".to_owned();
                return Err(program_error("fuse2fs", why));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(mount)
    }

    /// Unmounts and waits until it has written its cached data.
    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        if mounted_on(&self.dir).is_some() {
            let mut command = Command::new("fusermount3");
            if let Err(error) = run_program(command.arg("-u").arg(&self.dir)) {
                // Otherwise it would serve for ever.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return Err(error);
            }
        } else {
            let _ = self.child.kill();
        }
        let status = self.child.wait().map_err(io_error("fuse2fs"))?;
        if status.success() {
            Ok(())
        } else {
            Err(program_error("fuse2fs", status.to_string()))
        }
    }
}

impl Drop for Fuse2fs {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("left behind: {error}");
        }
    }
}

fn program_error(program: &str, why: String) -> Error {
    let program = program.to_owned();
    Error::Program { program, why }
}
