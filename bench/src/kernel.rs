//! The kernel's btrfs as a peer, on a loop device.
//!
//! It is mounted with `-o ssd`: it takes a loop device for a rotating disk otherwise and waits a
//! timer tick in each log of several writers, which would make it an easy peer.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::error::run_program;

/// A mounted image. Dropping it unmounts and gives the loop device back.
#[derive(Debug)]
pub(crate) struct KernelMount {
    device: String,
    dir: PathBuf,
    mounted: bool,
}

impl KernelMount {
    /// Attaches and mounts; goes around the host's page cache where its file system can.
    pub(crate) fn start(image: &Path, dir: &Path, commit: u64) -> Result<Self> {
        let attach = |direct: bool| {
            let mut command = Command::new("losetup");
            command.args(["--find", "--show"]);
            if direct {
                command.arg("--direct-io=on");
            }
            run_program(command.arg(image))
        };
        let device = attach(true).or_else(|_| attach(false))?;
        let mut mount = Self {
            device: device.trim().to_owned(),
            dir: dir.to_owned(),
            mounted: false,
        };
        let mut command = Command::new("mount");
        let options = format!("ssd,commit={commit}");
        command.args(["-t", "btrfs", "-o", &options, &mount.device]);
        run_program(command.arg(dir))?;
        mount.mounted = true;
        Ok(mount)
    }

    /// Unmounts and detaches.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::take(&mut self.mounted) {
            run_program(Command::new("umount").arg(&self.dir))?;
        }
        let device = std::mem::take(&mut self.device);
        if !device.is_empty() {
            run_program(Command::new("losetup").arg("--detach").arg(device))?;
        }
        Ok(())
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("left behind: {error}");
        }
    }
}
