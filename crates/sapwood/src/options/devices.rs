//! The devices of a btrfs over several devices.

use std::path::{Path, PathBuf};

use super::Options;
use crate::Kind;

impl Options {
    /// Opens a btrfs although devices are missing, as far as the profiles of its data and metadata
    /// allow (`degraded`).
    #[must_use]
    pub fn degraded(mut self) -> Self {
        self.record(Some(Kind::Btrfs), "degraded".to_owned());
        self.btrfs.degraded = true;
        self
    }

    /// Whether devices of a btrfs may be missing.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.btrfs.degraded
    }

    /// Adds a device of a btrfs over several devices (`device=PATH`). The image itself is one of
    /// its devices, and is not added.
    pub fn add_device(&mut self, path: impl AsRef<Path>) {
        let path = path.as_ref().to_owned();
        let option = format!("device={}", path.display());
        self.record(Some(Kind::Btrfs), option);
        self.devices.push(path);
    }

    /// Looks for the other devices of a btrfs over several devices in a directory, not below it.
    /// Files and block devices there belong to it if their superblock has the same file system id.
    pub fn scan(&mut self, directory: impl AsRef<Path>) {
        self.scanned.push(directory.as_ref().to_owned());
    }

    /// The directories of [`scan`](Self::scan).
    pub(crate) fn scanned(&self) -> &[PathBuf] {
        &self.scanned
    }

    /// The devices of [`add_device`](Self::add_device).
    #[must_use]
    pub fn devices(&self) -> &[PathBuf] {
        &self.devices
    }

    /// The same options for an image that is the whole of its operand. `devices` replace the paths
    /// of the further devices.
    pub(crate) fn of_whole(mut self, devices: Vec<PathBuf>) -> Self {
        (self.mount.offset, self.mount.length) = (None, None);
        self.mount.partition = None;
        (self.mount.format, self.mount.backing_files) = (None, false);
        self.devices = devices;
        self.scanned.clear();
        self
    }
}
