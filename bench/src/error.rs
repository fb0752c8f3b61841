//! Errors of a run.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// The reason why a run failed, as one line for users.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An I/O error outside of the file systems.
    #[error("{what}: {source}")]
    Io {
        /// The attempted action.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program}: {why}")]
    Program {
        /// Its name.
        program: String,
        /// Its exit status and the end of its output.
        why: String,
    },
    /// The output of a program has an unexpected form.
    #[error("the output of {program} has no {what}")]
    Output {
        /// Its name.
        program: &'static str,
        /// The missing part.
        what: &'static str,
    },
    /// The btrfs engine.
    #[error("{0}")]
    Btrfs(#[from] sapwood_btrfs::Error),
    /// The ext4 engine.
    #[error("{0}")]
    Ext4(#[from] sapwood_ext4::Error),
    /// An operation of the engine.
    #[error("{0}")]
    Operation(#[from] sapwood_vfs::Error),
    /// The image.
    #[error("{0}")]
    Device(#[from] sapwood_block::Error),
    /// A new btrfs.
    #[error("{0}")]
    MkfsBtrfs(#[from] sapwood_btrfs::mkfs::MkfsError),
    /// A new ext4.
    #[error("{0}")]
    MkfsExt4(#[from] sapwood_ext4::mkfs::MkfsError),
    /// The mount.
    #[error("{0}")]
    Mount(#[from] sapwood_fuse::MountError),
    /// The unmount.
    #[error("{0}")]
    Unmount(#[from] sapwood_fuse::UnmountError),
    /// The child that serves the mount ended, or its output is not statistics.
    #[error("the process that serves the mount: {0}")]
    Serve(String),
    /// A combination of options that is not supported.
    #[error("{0}")]
    Refused(String),
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Turns an I/O error into [`Error::Io`], with the attempted action.
pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// As [`io_error`], for an action on a path.
pub(crate) fn on(path: &Path) -> impl FnOnce(io::Error) -> Error {
    io_error(path.display().to_string())
}

/// Calls `syncfs(2)` for the file system at `dir`.
///
/// # Errors
/// It cannot be opened, or the file system's.
pub(crate) fn syncfs(dir: &Path) -> Result<()> {
    let root = File::open(dir).map_err(on(dir))?;
    rustix::fs::syncfs(&root).map_err(|errno| on(dir)(errno.into()))
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// It could not be started or failed.
pub(crate) fn run_program(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(io_error(program.clone()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.trim().lines().last().unwrap_or("said nothing");
    let why = format!("{}: {last}", output.status);
    Err(Error::Program { program, why })
}
