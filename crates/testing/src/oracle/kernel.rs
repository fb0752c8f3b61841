//! Mounts by the kernel and loop devices, which end with their guards.

use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;
use tempfile::TempDir;

use super::{Kind, unmount};
use crate::{process, scratch};

/// A mount by the kernel, on a loop device of its own. Both end with this value.
#[derive(Debug)]
pub struct KernelMount {
    at: PathBuf,
    mounted: bool,
    /// The directory that was made for the mount.
    dir: Option<TempDir>,
}

impl KernelMount {
    /// Mounts an image with these options (`rw` for none), on a directory of its own.
    ///
    /// # Errors
    /// The output of mount(8).
    pub fn new(image: &Path, options: &str) -> Result<Self, String> {
        let dir = scratch::directory();
        let mut mount = Self::at(image, options, dir.path())?;
        mount.dir = Some(dir);
        Ok(mount)
    }

    /// Mounts an image on a directory, which is made if it is missing.
    ///
    /// # Errors
    /// The output of mount(8).
    pub fn at(image: &Path, options: &str, at: &Path) -> Result<Self, String> {
        let kind = Kind::of(image).name();
        Self::of_device(image, kind, &format!("loop,{options}"), at)
    }

    /// Mounts a block device with a file system of this type on a directory, which is made if it is
    /// missing.
    ///
    /// # Errors
    /// The output of mount(8).
    pub fn of_device(device: &Path, kind: &str, options: &str, at: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let mut mount = process::command("mount", &["-t", kind, "-o", options]);
        process::succeed(mount.arg(device).arg(at), process::ORDINARY)?;
        Ok(Self {
            at: at.to_owned(),
            mounted: true,
            dir: None,
        })
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// A path below the mount point.
    #[must_use]
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path().join(path)
    }

    /// Runs a shell script in the mount point; its output.
    ///
    /// # Panics
    /// With its output, if it fails.
    pub fn shell(&self, script: &str) -> String {
        // Syncs this mount only: the sync of another mount may take long, or never end.
        const SYNC: &str =
            "sync() { if [ $# = 0 ]; then command sync -f .; else command sync \"$@\"; fi; }";
        let dir = self.path().display();
        let script = format!("cd '{dir}' && set -e\n{SYNC}\n{script}");
        super::run("bash", &["-c", &script])
    }

    /// Unmounts; returns once the image is complete.
    ///
    /// # Errors
    /// The error of the unmount.
    pub fn unmount(mut self) -> Result<(), String> {
        self.end()
    }

    fn end(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        let ended = unmount(&self.at);
        if ended.is_err() {
            let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
            if let Some(dir) = self.dir.take() {
                detach(dir);
            }
        }
        ended
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if let Err(why) = self.end() {
            // A second panic while one unwinds would end the other tests.
            assert!(std::thread::panicking(), "{why}");
            eprintln!("{why}");
        }
    }
}

/// Detaches a mount, used or not. A directory that is still mounted is not deleted.
pub fn detach(dir: TempDir) {
    let _ = rustix::mount::unmount(dir.path(), UnmountFlags::DETACH);
    if !scratch::mounts_below(dir.path()).is_empty() {
        let path = dir.keep();
        eprintln!("{} is still mounted", path.display());
    }
}

/// A loop device over an image, detached in the end. Needs root.
#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// Made with these arguments of `losetup`.
    ///
    /// # Errors
    /// The output of `losetup`, for example if no loop device is free.
    pub fn new(image: &Path, args: &[&str]) -> Result<Self, String> {
        let mut losetup = process::command("losetup", &["--find", "--show"]);
        losetup.args(args).arg(image);
        let made = process::succeed(&mut losetup, process::ORDINARY)?;
        Ok(Self(made.trim().into()))
    }

    /// Its device node.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = process::run("losetup", &["-d".as_ref(), self.0.as_os_str()]);
    }
}
