//! Images in files, made by `mkfs.btrfs` or of a device's content.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{KernelMount, Kind, run};
use crate::scratch;

/// An image file in a directory of its own, which is removed with this value.
#[derive(Debug)]
pub struct TempImage {
    dir: TempDir,
    path: PathBuf,
}

impl TempImage {
    /// A sparse file of `size` bytes, all zero.
    #[must_use]
    pub fn blank(size: u64) -> Self {
        let dir = scratch::directory();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(size).unwrap();
        Self { dir, path }
    }

    /// A btrfs of `size` bytes, made by `mkfs.btrfs` with these arguments.
    #[must_use]
    pub fn new(size: u64, args: &[&str]) -> Self {
        let image = Self::blank(size);
        let made = Kind::Btrfs.format(&image.path, args);
        made.unwrap_or_else(|why| panic!("{why}"));
        image
    }

    /// An image with these bytes (of a memory device).
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let image = Self::blank(0);
        fs::write(&image.path, bytes).unwrap();
        image
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file next to it.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Mounts it by the kernel, read-write.
    #[must_use]
    pub fn mount(&self) -> KernelMount {
        self.mount_with("rw")
    }

    /// Mounts it by the kernel with these options.
    #[must_use]
    pub fn mount_with(&self, options: &str) -> KernelMount {
        KernelMount::new(&self.path, options).unwrap_or_else(|why| panic!("{why}"))
    }

    /// `btrfs check --check-data-csum`.
    ///
    /// # Panics
    /// With its findings, if there are any.
    pub fn check(&self) {
        self.try_check().unwrap_or_else(|why| panic!("{why}"));
    }

    /// `btrfs check --check-data-csum`.
    ///
    /// # Errors
    /// Its findings.
    pub fn try_check(&self) -> Result<(), String> {
        Kind::Btrfs.check(&self.path)
    }

    /// `btrfs inspect-internal dump-tree`, of one tree (`root`, `5`) or of all.
    #[must_use]
    pub fn dump(&self, tree: Option<&str>) -> String {
        let mut args = vec!["inspect-internal".as_ref(), "dump-tree".as_ref()];
        if let Some(tree) = tree {
            args.extend(["-t".as_ref(), tree.as_ref() as &std::ffi::OsStr]);
        }
        args.push(self.path.as_ref());
        run("btrfs", &args)
    }
}
