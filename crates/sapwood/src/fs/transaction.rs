//! Many changes that become durable together.
//!
//! ```no_run
//! let mut fs = sapwood::open("disk.img")?;
//! fs.transaction(|tx| {
//!     tx.write("etc/hostname", "box\n")?;
//!     tx.remove_file("etc/hostname.old")
//! })?;
//! fs.close()?;
//! # Ok::<(), sapwood::Error>(())
//! ```
//!
//! # How it works
//! The changes run in an engine of their own, on a staged device. The device keeps the superblock
//! of a btrfs in memory, and of an ext4 every change to a block in use. At the end the changes are
//! applied by the format's own means: one superblock of btrfs, or one transaction of ext4's
//! journal. So the kernel, too, finds all of them or none after a power cut
//! (`sapwood_btrfs::Staging`, `sapwood_ext4::Staging`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, StagedDevice};

use super::file_system::FileSystem;
use crate::error::Result;
use crate::image::{self, OpenError, OpenFiles};
use crate::vfs::Credentials;
use crate::{Error, Kind, Options};

/// Most bytes of changes in memory.
const REHEARSED: u64 = 1 << 30;

/// Errors of a transaction; the image is as before.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// Files of the image, or clones of it, are open.
    #[error("{}: files of the image are open, or clones of the file system exist", .0.display())]
    InUse(PathBuf),
    /// It was opened for reading.
    #[error("{}: opened read-only", .0.display())]
    ReadOnly(PathBuf),
    /// The changes cannot be applied to a btrfs together.
    #[error("{}", image::named(path, source))]
    Btrfs {
        /// Image.
        path: PathBuf,
        /// The reason.
        source: Box<sapwood_btrfs::StagingError>,
    },
    /// The changes cannot be applied to an ext4 together.
    #[error("{}", image::named(path, source))]
    Ext4 {
        /// Image.
        path: PathBuf,
        /// The reason.
        source: Box<sapwood_ext4::StagingError>,
    },
}

impl TransactionError {
    /// Whether the image may have all of the changes, or has them now or after the next open: the
    /// device failed during the commit or after it.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        use sapwood_ext4::StagingError;

        let Self::Ext4 { source, .. } = self else {
            return false;
        };
        matches!(
            **source,
            StagingError::Undecided(_) | StagingError::Committed(_) | StagingError::NotGivenBack(_)
        )
    }
}

impl FileSystem {
    /// Runs `work` on the file system. If it succeeds, all of its changes are durable when this
    /// returns. After an error, a panic or a power cut none of them exists, and the image is as
    /// before. `work` sees its own changes.
    ///
    /// On ext4 the overwritten blocks must fit into the journal; new files are written directly. On
    /// btrfs the old and the new state are on disk until the end, and the file system must be on
    /// one device.
    ///
    /// # Errors
    /// An error of `work`. Files or clones of this file system are open
    /// ([`ErrorKind::ResourceBusy`](crate::ErrorKind::ResourceBusy)); it is read-only; no space
    /// ([`ErrorKind::StorageFull`](crate::ErrorKind::StorageFull)); the device. If the
    /// device of an ext4 fails after the commit, the error says so, and the next open for writing
    /// completes the changes. If the image cannot be opened again after the changes became durable,
    /// this and every later operation fails.
    pub fn transaction<T, E: From<Error>>(
        &mut self,
        work: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let options = self.options().clone();
        self.transaction_as(&options, work)
    }

    /// Like [`transaction`](Self::transaction); reading changes no access times.
    pub(crate) fn transaction_without_atime<T, E: From<Error>>(
        &mut self,
        work: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut options = self.options().clone();
        options.set("noatime", None)?;
        self.transaction_as(&options, work)
    }

    fn transaction_as<T, E: From<Error>>(
        &mut self,
        options: &Options,
        work: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let path = self.image_path().to_owned();
        let creator = self.creator();
        let devices = self.suspend()?;
        let devices = devices.ok_or_else(|| Error::from(TransactionError::InUse(path.clone())))?;
        let done = run(&path, self.kind(), devices, options, Some(creator), work);
        let resumed = self.resume();
        let value = done?;
        resumed?;
        Ok(value)
    }
}

impl Options {
    /// Opens an image, runs `work` on it as [`FileSystem::transaction`] does, and closes it.
    ///
    /// ```no_run
    /// sapwood::Options::new().transaction("disk.img", |tx| tx.write("etc/hostname", "box\n"))?;
    /// # Ok::<(), sapwood::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`open`](crate::open) and of [`FileSystem::transaction`].
    pub fn transaction<T, E: From<Error>>(
        &self,
        path: impl AsRef<Path>,
        work: impl FnOnce(&FileSystem) -> Result<T, E>,
    ) -> Result<T, E> {
        let path = path.as_ref();
        let opened = OpenFiles::open(path, self).and_then(|files| files.devices(self));
        let (kind, devices) = opened.map_err(Error::from)?;
        run(path, kind, devices, self, None, work)
    }
}

impl Options {
    /// Opens an image, and runs `work` on it with all changes in memory, at most 1 GiB. The image
    /// stays as it is, and need not be writable.
    ///
    /// # Errors
    /// The errors of [`open`](crate::open); an error of `work`; the changes exceed the limit
    /// ([`ErrorKind::StorageFull`](crate::ErrorKind::StorageFull)).
    pub fn rehearse<T, E: From<Error>>(
        &self,
        path: impl AsRef<Path>,
        work: impl FnOnce(&FileSystem) -> Result<T, E>,
    ) -> Result<T, E> {
        let path = path.as_ref();
        let reading = self.clone().read_only(true);
        let opened = OpenFiles::open(path, &reading).and_then(|files| files.devices(&reading));
        let (kind, devices) = opened.map_err(Error::from)?;
        let staged = devices.into_iter().map(|device| {
            let staged = StagedDevice::new(device, REHEARSED, Box::new(|_| false));
            Arc::new(staged)
        });
        let staged: Vec<Arc<StagedDevice>> = staged.collect();
        let devices = staged
            .iter()
            .map(|device| Arc::clone(device) as Arc<dyn Device>);
        let options = self.clone().read_only(false);
        let mounted = image::reopen(path, kind, devices.collect(), &options);
        let fs = FileSystem::of(path, mounted.map_err(Error::from)?, Vec::new(), &options);
        let done = work(&fs);
        if let Err(error) = fs.close() {
            log::debug!("{}: {error}", path.display());
        }
        for device in staged {
            let checked = device.check().map_err(OpenError::Device);
            checked.map_err(Error::from)?;
        }
        done
    }
}

/// Runs `work` on the file system on devices that no engine uses.
fn run<T, E: From<Error>>(
    path: &Path,
    kind: Kind,
    devices: Vec<Arc<dyn Device>>,
    options: &Options,
    creator: Option<Credentials>,
    work: impl FnOnce(&FileSystem) -> Result<T, E>,
) -> Result<T, E> {
    if options.is_read_only() || devices.iter().any(|device| device.read_only()) {
        return Err(Error::from(TransactionError::ReadOnly(path.to_owned())).into());
    }
    let staging = Staging::begin(path, kind, &devices, options).map_err(Error::from)?;
    let done = within(path, kind, &staging, options, creator, work);
    match done {
        Ok(value) => {
            staging.apply(path).map_err(Error::from)?;
            Ok(value)
        }
        Err(error) => {
            // The write that was refused made the engine read-only; later errors say only that.
            let cause = staging.check(path);
            if let Err(error) = staging.abandon(path) {
                log::warn!("{error}");
            }
            cause.map_err(Error::from)?;
            Err(error)
        }
    }
}

/// Runs `work` on the staged devices, and closes the engine.
fn within<T, E: From<Error>>(
    path: &Path,
    kind: Kind,
    staging: &Staging,
    options: &Options,
    creator: Option<Credentials>,
    work: impl FnOnce(&FileSystem) -> Result<T, E>,
) -> Result<T, E> {
    let options = options.clone().staged();
    let mounted = image::reopen(path, kind, vec![staging.device()], &options);
    let fs = FileSystem::of(path, mounted.map_err(Error::from)?, Vec::new(), &options);
    if let Some(creator) = creator {
        fs.set_creator(creator.uid, creator.gid);
        fs.set_umask(creator.umask);
    }
    let done = work(&fs);
    let closed = fs.close();
    let value = done?;
    closed?;
    Ok(value)
}

/// The staging of either engine.
enum Staging {
    Btrfs(sapwood_btrfs::Staging),
    Ext4(Box<sapwood_ext4::Staging>),
}

impl Staging {
    fn begin(
        path: &Path,
        kind: Kind,
        devices: &[Arc<dyn Device>],
        options: &Options,
    ) -> Result<Self, TransactionError> {
        let Some(first) = devices.first() else {
            return Err(TransactionError::InUse(path.to_owned()));
        };
        Ok(match kind {
            Kind::Btrfs => Self::Btrfs(sapwood_btrfs::Staging::begin(first).map_err(btrfs(path))?),
            Kind::Ext4 => {
                let staging = sapwood_ext4::Staging::begin(first, options.fixed_time());
                Self::Ext4(Box::new(staging.map_err(ext4(path))?))
            }
        })
    }

    fn device(&self) -> Arc<dyn Device> {
        match self {
            Self::Btrfs(staging) => staging.device(),
            Self::Ext4(staging) => staging.device(),
        }
    }

    fn check(&self, path: &Path) -> Result<(), TransactionError> {
        match self {
            Self::Btrfs(_) => Ok(()),
            Self::Ext4(staging) => staging.check().map_err(ext4(path)),
        }
    }

    fn apply(self, path: &Path) -> Result<(), TransactionError> {
        match self {
            Self::Btrfs(staging) => staging.apply().map_err(btrfs(path)),
            Self::Ext4(staging) => staging.apply().map_err(ext4(path)),
        }
    }

    fn abandon(self, path: &Path) -> Result<(), TransactionError> {
        match self {
            Self::Btrfs(_) => Ok(()),
            Self::Ext4(staging) => staging.abandon().map_err(ext4(path)),
        }
    }
}

fn btrfs(path: &Path) -> impl FnOnce(sapwood_btrfs::StagingError) -> TransactionError {
    move |source| TransactionError::Btrfs {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

fn ext4(path: &Path) -> impl FnOnce(sapwood_ext4::StagingError) -> TransactionError {
    move |source| TransactionError::Ext4 {
        path: path.to_owned(),
        source: Box::new(source),
    }
}
