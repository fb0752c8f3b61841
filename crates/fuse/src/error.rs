//! Errors of mounting, each with a message of one line.

use std::io;
use std::path::PathBuf;

/// Why a file system could not be mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// There is nothing at the mount point.
    #[error("mount point {} does not exist", .0.display())]
    MissingMountPoint(PathBuf),
    /// The mount point is not a directory.
    #[error("mount point {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// The mount point cannot be reached or written by the caller.
    #[error("no permission for mount point {}", .0.display())]
    MountPointDenied(PathBuf),
    /// FUSE has mounted something there already, or the kernel reports it busy.
    #[error("mount point {} is busy: something is mounted there already", .0.display())]
    Busy(PathBuf),
    /// A mount whose daemon has died is still there.
    #[error(
        "mount point {path} is held by a dead mount: `sapwood umount {path}` clears it away",
        path = .0.display()
    )]
    Stale(PathBuf),
    /// `/dev/fuse` is missing.
    #[error("/dev/fuse is missing: is the kernel module `fuse` loaded?")]
    NoDevice,
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open /dev/fuse: {0}")]
    Device(#[source] io::Error),
    /// `fusermount3` is not installed.
    #[error("fusermount3 is missing: install the package fuse3, or mount as root")]
    NoFusermount,
    /// `fusermount3` refused, with its message.
    #[error("fusermount3 refused: {0}")]
    Fusermount(String),
    /// An ordinary user needs the administrator's permission for `allow_other` and `allow_root`.
    #[error("allow_other and allow_root need `user_allow_other` in /etc/fuse.conf")]
    AllowOther,
    /// A mount of type `fuseblk` was required, but failed.
    #[error("cannot mount with fuseblk=on: {0}")]
    Block(#[source] io::Error),
    /// The kernel refused.
    #[error("cannot mount on {}: {source}", path.display())]
    Kernel {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The broker of a confined daemon could not mount, with the message of another variant.
    #[error("{0}")]
    Broker(String),
    /// The sandbox of the daemon was required, but failed.
    #[error("cannot mount with sandbox=on: {0}")]
    Sandbox(#[source] crate::sandbox::SandboxError),
    /// The kernel and the daemon share no protocol version, or no thread could be started.
    #[error("cannot start the FUSE session: {0}")]
    Session(#[source] io::Error),
}
