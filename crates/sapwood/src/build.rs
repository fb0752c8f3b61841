//! Making images.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::FileDevice;
use sapwood_btrfs::mkfs as btrfs;
use sapwood_ext4::mkfs as ext4;

use crate::Kind;
use crate::archive::{Archive, ArchiveError};

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
    archive: Option<Arc<Archive>>,
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
    /// The archive could not be read, or put into the image.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
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
            archive: None,
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

    /// Size of the image in bytes. It may be left out with an [archive](Self::from_tar).
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

    /// Fills the image with the files of a tar archive, which is read to its end here. Owners, modes,
    /// times, links, device nodes and, of the pax format, extended attributes are those of the
    /// archive. Without a [`size`](Self::size) the image has room for them and some more.
    ///
    /// ```no_run
    /// let archive = std::fs::File::open("root.tar")?;
    /// sapwood::ImageBuilder::ext4().from_tar(archive)?.write_to("root.img")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::Archive`].
    pub fn from_tar(mut self, archive: impl Read) -> Result<Self, BuildError> {
        self.archive = Some(Arc::new(Archive::read(archive)?));
        Ok(self)
    }

    /// Room for the archive, for what the format takes, and an eighth more, in whole MiB.
    fn size_of_archive(&self) -> Option<u64> {
        let archive = self.archive.as_ref()?;
        let own = match self.kind {
            Kind::Btrfs => 256 << 20,
            Kind::Ext4 => 96 << 20,
        };
        let files = archive.entries().saturating_mul(4096);
        let all = archive.bytes().saturating_add(files);
        Some(all.saturating_add(all / 8).saturating_add(own) & !0xf_ffff)
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
            .or_else(|| self.size_of_archive())
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
        self.format(file, path, size)?;
        self.fill(file)
    }

    fn format(&self, file: &Path, path: &Path, size: u64) -> Result<(), BuildError> {
        let device = FileDevice::create(file, size)?;
        match self.kind {
            Kind::Btrfs => {
                let options = btrfs::MkfsOptions {
                    label: self.label.clone(),
                    uuid: self.uuid,
                    ..btrfs::MkfsOptions::default()
                };
                let made = btrfs::mkfs(&device, &options);
                made.map(drop).map_err(|source| BuildError::Btrfs {
                    path: path.to_owned(),
                    source: Box::new(source),
                })
            }
            Kind::Ext4 => {
                let options = ext4::MkfsOptions {
                    label: self.label.clone(),
                    uuid: self.uuid,
                    root_owner: self.owner,
                    inodes: self.inodes(size),
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

    /// Inodes of an ext4 image, if the archive needs more than an image of that size has.
    fn inodes(&self, size: u64) -> Option<u64> {
        let entries = self.archive.as_ref()?.entries();
        let needed = entries + entries / 8 + 64;
        (needed > size / 16_384).then_some(needed)
    }

    fn fill(&self, file: &Path) -> Result<(), BuildError> {
        let root = self.kind == Kind::Btrfs && self.owner != (0, 0);
        if !root && self.archive.is_none() {
            return Ok(());
        }
        let fs = crate::fs::FileSystem::open(file)?;
        let (uid, gid) = self.owner;
        if root {
            fs.set_owner("/", Some(uid), Some(gid))?;
        }
        if let Some(archive) = &self.archive {
            fs.set_creator(uid, gid);
            archive.extract(&fs)?;
        }
        Ok(fs.close()?)
    }
}
