//! Ends a FUSE mount with the rights of this process: by the system call, or by `fusermount3`.

use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use sapwood_block::mount_table::mounted_on;

pub(crate) const FUSERMOUNT: &str = "fusermount3";

/// Why a directory could not be unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnmountError {
    /// It is not a FUSE mount.
    #[error("{} is not the mount point of a FUSE file system", .0.display())]
    NotMounted(PathBuf),
    /// Files are open there, or it is the working directory of a process.
    #[error("{} is in use", .0.display())]
    Busy(PathBuf),
    /// It is the mount of another user.
    #[error("{}: not permitted: it is the mount of another user", .0.display())]
    Denied(PathBuf),
    /// The kernel or `fusermount3` refused.
    #[error("cannot unmount {}: {reason}", path.display())]
    Failed {
        /// The mount point.
        path: PathBuf,
        /// Their message.
        reason: String,
    },
}

impl UnmountError {
    /// The bytes on the broker's socket: a kind, and the reason of a failure.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (kind, reason) = match self {
            Self::NotMounted(_) => (b'n', ""),
            Self::Busy(_) => (b'b', ""),
            Self::Denied(_) => (b'd', ""),
            Self::Failed { reason, .. } => (b'f', &**reason),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(reason.as_bytes());
        bytes
    }

    pub(crate) fn of_bytes(kind: u8, reason: &[u8], path: &Path) -> Self {
        let path = path.to_owned();
        match kind {
            b'n' => Self::NotMounted(path),
            b'b' => Self::Busy(path),
            b'd' => Self::Denied(path),
            _ => Self::Failed {
                path,
                reason: String::from_utf8_lossy(reason).into_owned(),
            },
        }
    }
}

/// Unmounts the FUSE mount on `dir`, whichever process serves it, or detaches it while it is in
/// use, if `lazily`. On return the kernel has written back its dirty pages; the daemon may still be
/// making them durable.
///
/// # Errors
/// See the variants of [`UnmountError`].
pub fn unmount(dir: &Path, lazily: bool) -> Result<(), UnmountError> {
    // A mount whose daemon has died cannot be resolved, but the parent of its directory can.
    let path = dir.canonicalize().or_else(|_| resolve_parent(dir));
    match path {
        Ok(path) if mounted_by_fuse(&path) => detach(&path, lazily),
        _ => Err(UnmountError::NotMounted(dir.to_path_buf())),
    }
}

fn resolve_parent(dir: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(dir)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Err(ErrorKind::NotFound.into()),
    }
}

/// Detaches a mount that no thread serves. Ends the connection first: otherwise the kernel would
/// wait for an answer to its last request.
pub(crate) fn abort(path: &Path) -> Result<(), UnmountError> {
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH;
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(_) => detach(path, true),
    }
}

/// Has the kernel write back its dirty pages, and detaches a mount that is in use.
pub(crate) fn detach_busy(path: &Path) -> Result<(), UnmountError> {
    let root = std::fs::File::open(path);
    if let Ok(root) = &root {
        write_back(root);
    }
    detach(path, true)?;
    if let Ok(root) = root {
        // Writes back everything up to the detach. The open root itself keeps the mount alive, so
        // it must be closed before the wait for the end.
        write_back(&root);
        drop(root);
    }
    Ok(())
}

fn write_back(root: &std::fs::File) {
    if let Err(error) = rustix::fs::syncfs(root) {
        log::warn!("writing back before detaching: {error}");
    }
}

/// Unmounts. If `lazily`, detaches instead: the name disappears now, and the mount ends when its
/// last user does.
pub(crate) fn detach(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazily);
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy(path.to_path_buf())),
        Err(Errno::PERM) => detach_with_fusermount(path, lazily),
        Err(Errno::INVAL | Errno::NOENT) => Err(UnmountError::NotMounted(path.to_path_buf())),
        Err(error) => Err(UnmountError::Failed {
            path: path.to_path_buf(),
            reason: io::Error::from(error).to_string(),
        }),
    }
}

fn detach_with_fusermount(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let output = Command::new(FUSERMOUNT)
        .args(if lazily {
            &["-u", "-z"][..]
        } else {
            &["-u"][..]
        })
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output();
    // It knows only the mounts of the user that calls it.
    let is_there = mounted_by_fuse(path);
    let path = path.to_path_buf();
    let words = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(UnmountError::Denied(path));
        }
        Err(error) => error.to_string(),
    };
    Err(if words.contains("busy") {
        UnmountError::Busy(path)
    } else if words.contains("not permitted") || (words.contains("not found in") && is_there) {
        UnmountError::Denied(path)
    } else if words.contains("not found in") {
        UnmountError::NotMounted(path)
    } else {
        UnmountError::Failed {
            path,
            reason: words,
        }
    })
}

/// Whether the topmost mount at `path` is one of FUSE.
pub(crate) fn mounted_by_fuse(path: &Path) -> bool {
    let kind = mounted_on(path).map(|entry| entry.kind);
    kind.is_some_and(|kind| {
        let name = kind.as_bytes().split(|&byte| byte == b'.').next();
        matches!(name, Some(b"fuse" | b"fuseblk"))
    })
}
