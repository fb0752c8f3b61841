//! Making images.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sapwood_block::FileDevice;
use sapwood_btrfs::mkfs as btrfs;
use sapwood_ext4::mkfs as ext4;

use crate::Kind;

/// Makes a file system in a new image file.
///
/// ```no_run
/// sapwood::ImageBuilder::ext4().label("root").size(64 << 20).write_to("root.img")?;
/// let fs = sapwood::open("root.img")?;
/// fs.write("hello", "world")?;
/// fs.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ImageBuilder {
    kind: Kind,
    size: Option<u64>,
    label: String,
    uuid: Option<[u8; 16]>,
    owner: (u32, u32),
}

/// Why an image was not made. There is no file under its name then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No size was given.
    #[error("{}: the image needs a size", .0.display())]
    NoSize(PathBuf),
    /// The file could not be made.
    #[error("{}: {source}", path.display())]
    File {
        /// The image.
        path: PathBuf,
        /// What the host says.
        source: io::Error,
    },
    /// The device.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// btrfs cannot be made so.
    #[error("{}: {source}", path.display())]
    Btrfs {
        /// The image.
        path: PathBuf,
        /// What is wrong with the options or the device.
        source: Box<btrfs::MkfsError>,
    },
    /// ext4 cannot be made so.
    #[error("{}: {source}", path.display())]
    Ext4 {
        /// The image.
        path: PathBuf,
        /// What is wrong with the options or the device.
        source: Box<ext4::MkfsError>,
    },
    /// The root directory could not be given to its owner.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
}

impl ImageBuilder {
    /// An image of this format. Its root belongs to the caller.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            size: None,
            label: String::new(),
            uuid: None,
            owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
        }
    }

    /// A btrfs image.
    #[must_use]
    pub fn btrfs() -> Self {
        Self::new(Kind::Btrfs)
    }

    /// An ext4 image.
    #[must_use]
    pub fn ext4() -> Self {
        Self::new(Kind::Ext4)
    }

    /// Size of the image in bytes.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// Label of the file system.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// UUID of the file system; random if none is given.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.uuid = Some(uuid);
        self
    }

    /// Owner and group of the root directory.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Makes the image. It gets its name when it is complete and durable; a file that has the name is
    /// replaced then.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn write_to(&self, path: impl AsRef<Path>) -> Result<(), BuildError> {
        let path = path.as_ref();
        let size = self
            .size
            .ok_or_else(|| BuildError::NoSize(path.to_owned()))?;
        let failed = |source| BuildError::File {
            path: path.to_owned(),
            source,
        };
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let unfinished = tempfile::Builder::new()
            .prefix(".sapwood-")
            .tempfile_in(dir)
            .map_err(failed)?
            .into_temp_path();
        self.make(&unfinished, path, size)?;
        let file = fs::File::open(&unfinished).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        unfinished
            .persist(path)
            .map_err(|error| failed(error.error))?;
        fs::File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed)
    }

    fn make(&self, file: &Path, path: &Path, size: u64) -> Result<(), BuildError> {
        let device = FileDevice::create(file, size)?;
        match self.kind {
            Kind::Btrfs => {
                let options = btrfs::MkfsOptions {
                    label: self.label.clone(),
                    uuid: self.uuid,
                    ..btrfs::MkfsOptions::default()
                };
                let made = btrfs::mkfs(&device, &options);
                made.map_err(|source| BuildError::Btrfs {
                    path: path.to_owned(),
                    source: Box::new(source),
                })?;
                drop(device);
                self.give_root(file)
            }
            Kind::Ext4 => {
                let options = ext4::MkfsOptions {
                    label: self.label.clone(),
                    uuid: self.uuid,
                    root_owner: self.owner,
                    ..ext4::MkfsOptions::default()
                };
                let made = ext4::mkfs(&device, &options);
                made.map(drop).map_err(|source| BuildError::Ext4 {
                    path: path.to_owned(),
                    source: Box::new(source),
                })
            }
        }
    }

    fn give_root(&self, file: &Path) -> Result<(), BuildError> {
        if self.owner == (0, 0) {
            return Ok(());
        }
        let fs = crate::fs::FileSystem::open(file)?;
        fs.set_owner("/", Some(self.owner.0), Some(self.owner.1))?;
        Ok(fs.close()?)
    }
}
