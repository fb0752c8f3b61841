//! A fresh file system on an image, mounted by us, for a program to work in.

use std::fs::File;
use std::path::{Path, PathBuf};

use sapwood::{Kind, Options};
use sapwood_testing::tree::{Detail, Tree};

use crate::compare::{Compare, compare};
use crate::image::{Mkfs, TempImage};
use crate::mount::{Driver, Mounted};
use crate::subvolumes;

/// The driver under test: `sapwood`, or, to prove the tests themselves, the kernel
/// (`SAPWOOD_TEST_DRIVER=kernel`).
#[must_use]
pub fn ours() -> Driver {
    match std::env::var("SAPWOOD_TEST_DRIVER").as_deref() {
        Ok("kernel") => Driver::Kernel,
        _ => Driver::Sapwood,
    }
}

/// Checks an unmounted image with the usual tool, and with Sapwood's unless the kernel is tested
/// alone.
///
/// # Errors
/// The findings.
pub fn check(image: &TempImage) -> Result<(), String> {
    match ours() {
        Driver::Kernel => image.check_by_kernel(),
        Driver::Sapwood => image.check(),
    }
}

/// Lists the files of an image, through a read-only mount.
///
/// # Errors
/// The unreadable file.
pub fn list(image: &TempImage, driver: Driver) -> Result<Tree, String> {
    let mount = driver.mount(image.path(), "ro")?;
    let listing = Tree::of_mount(mount.path(), Detail::Sums)?;
    mount.unmount()?;
    Ok(listing)
}

/// Lists the files of an image through the library, without a mount.
///
/// # Errors
/// It cannot be opened or read.
pub fn list_by_library(image: &TempImage) -> Result<Tree, String> {
    let fs = sapwood::internal::image::open(image.path(), &Options::new().read_only(true));
    let fs = fs.map_err(|error| error.to_string())?;
    let listing = Tree::of(&*fs, Detail::Sums);
    fs.unmount().map_err(|error| error.to_string())?;
    listing
}

/// A mounted file system of its own.
pub struct Volume {
    // Unmounted before its image is removed.
    mount: Option<Box<dyn Mounted>>,
    image: TempImage,
    options: String,
}

impl Volume {
    /// Makes a volume with `how` and has `driver` mount it with these options.
    ///
    /// # Errors
    /// The output of the failed program.
    pub fn with(how: &Mkfs, options: &str, driver: Driver) -> Result<Self, String> {
        let image = TempImage::new(how)?;
        let mount = Some(driver.mount(image.path(), options)?);
        Ok(Self {
            mount,
            image,
            options: options.to_owned(),
        })
    }

    /// The mount point.
    ///
    /// # Panics
    /// If it is not mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mount.as_ref().expect("is mounted").path()
    }

    /// A place below the mount point.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &TempImage {
        &self.image
    }

    /// The mount options.
    #[must_use]
    pub fn options(&self) -> &str {
        &self.options
    }

    /// The daemon's process id, if a daemon serves it.
    #[must_use]
    pub fn daemon(&self) -> Option<u32> {
        self.mount.as_ref().and_then(|mount| mount.daemon())
    }

    /// Makes everything in it durable.
    ///
    /// # Errors
    /// The driver's error.
    pub fn sync(&self) -> Result<(), String> {
        match (ours(), self.image.kind()) {
            (Driver::Kernel, Kind::Ext4) => {
                let root = File::open(self.path()).map_err(|error| error.to_string())?;
                rustix::fs::syncfs(root).map_err(|error| error.to_string())
            }
            (driver, _) => subvolumes::sync(driver, self.path()),
        }
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// The error of a step.
    pub fn unmount(&mut self) -> Result<(), String> {
        self.mount.take().map_or(Ok(()), Mounted::unmount)
    }

    /// Unmounts and mounts it again.
    ///
    /// # Errors
    /// The error of a step.
    pub fn remount(&mut self) -> Result<(), String> {
        self.unmount()?;
        self.mount = Some(ours().mount(self.image.path(), &self.options)?);
        Ok(())
    }

    /// Unmounts and checks it.
    ///
    /// # Errors
    /// The error of a step, or the findings.
    pub fn finish(mut self) -> Result<(), String> {
        self.unmount()?;
        check(&self.image)
    }

    /// Unmounts and checks it; returns its tree, which the kernel and Sapwood must see alike.
    ///
    /// # Errors
    /// The error of a step, the findings, or the differences.
    pub fn finish_and_compare(mut self) -> Result<Tree, String> {
        let listing = Tree::of_mount(self.path(), Detail::Sums)?;
        self.unmount()?;
        check(&self.image)?;
        let found = list(&self.image, Driver::Kernel)?;
        compare(&listing, &found, Compare::Live)
            .map_err(|why| format!("the kernel reads: {why}"))?;
        Ok(listing)
    }
}
