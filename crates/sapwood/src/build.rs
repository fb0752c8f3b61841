//! Making images.

mod subvolumes;

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::FileDevice;

use crate::Kind;
use crate::archive::{Archive, ArchiveError};
use crate::copy::{self, CopyError, CopyReport};
use crate::fs::FileSystem;
use crate::mkfs::{MkfsError, MkfsOptionError, MkfsOptions, mkfs};
use crate::options::{OptionError, Options};
use crate::progress::{self, OnProgress};
pub use subvolumes::NewSubvolume;

/// Unit of space of both formats, in bytes, as the need of files is estimated.
const BLOCK: u64 = 4096;

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
    options: MkfsOptions,
    source: Option<Source>,
}

/// Where the files of an image come from.
#[derive(Debug, Clone)]
enum Source {
    Archive(Arc<Archive>),
    Directory { path: PathBuf, need: Need },
}

/// What the files of an image take.
#[derive(Debug, Clone, Copy, Default)]
struct Need {
    entries: u64,
    /// Bytes of content in whole blocks.
    bytes: u64,
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
    /// The format cannot be made so.
    #[error(transparent)]
    Mkfs(#[from] MkfsError),
    /// The archive could not be read, or put into the image.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A file could not be copied into the image.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// An option with which the image is opened.
    #[error(transparent)]
    Option(OptionError),
    /// A directory that was to become a subvolume is none.
    #[error("{}: to be a subvolume it has to be a directory in {}", path.display(), source_dir.display())]
    NoSubvolume {
        /// Its path in the directory.
        path: PathBuf,
        /// The directory that the image is filled with.
        source_dir: PathBuf,
    },
    /// The new image could not be opened, completed, or given to its owner.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
}

impl ImageBuilder {
    /// An image of this format. Its root belongs to the caller, or to the owner of the
    /// [directory](Self::from_dir) that it is filled from.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            options: MkfsOptions::new(kind),
            source: None,
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

    /// Size of the image in bytes. It may be left out with an
    /// [archive](Self::from_tar) or a [directory](Self::from_dir).
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.options.set_size(bytes);
        self
    }

    /// Label of the file system.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.set_label(label.into());
        self
    }

    /// UUID of the file system; random if none is given.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.options.set_uuid(uuid);
        self
    }

    /// UUID of the file system, and the seed of its directories' hashes, unless they were chosen.
    pub(crate) fn default_uuid(mut self, uuid: [u8; 16]) -> Self {
        self.options.default_uuid(uuid);
        self
    }

    /// Owner and group of the root directory.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.options.set_root_owner(uid, gid);
        self
    }

    /// Sets an option of mkfs by its name, long or short, without dashes: `("inode-size",
    /// Some("512"))`. [`table`](crate::mkfs::table) has them all.
    ///
    /// # Errors
    /// There is none of that name, the other format has it, or the value makes no sense.
    pub fn option(mut self, name: &str, value: Option<&str>) -> Result<Self, MkfsOptionError> {
        self.options.set(name, value)?;
        Ok(self)
    }

    /// Fills the image with the files of a tar archive, plain or compressed with gzip or zstd,
    /// which is read to its end here. Owners, modes, times, links, device nodes and, of the pax
    /// format, extended attributes are those of the archive. Without a [`size`](Self::size) the
    /// image has room for them and some more.
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
        self.source = Some(Source::Archive(Arc::new(Archive::read(archive)?)));
        Ok(self)
    }

    /// Fills the image with everything that is in a directory of this machine, as `cp -a` copies
    /// it: with owners, modes, times, links, special files, extended attributes and holes. Without
    /// a [`size`](Self::size) the image has room for what the directory holds now, and some more.
    ///
    /// ```no_run
    /// sapwood::ImageBuilder::btrfs().from_dir("root")?.write_to("root.img")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::File`]: the directory cannot be listed.
    pub fn from_dir(mut self, path: impl Into<PathBuf>) -> Result<Self, BuildError> {
        let path = path.into();
        let mut need = Need::default();
        need.add_directory(&path)?;
        self.source = Some(Source::Directory { path, need });
        Ok(self)
    }

    /// Bytes that an image needs for its source: room for the files, for what the format takes, and
    /// an eighth more, in whole MiB. `None` without a source.
    #[must_use]
    pub fn needed_size(&self) -> Option<u64> {
        let need = self.need()?;
        let own = match self.options.kind() {
            Kind::Btrfs => 256 << 20,
            Kind::Ext4 => 96 << 20,
        };
        let files = need.entries.saturating_mul(BLOCK);
        let all = need.bytes.saturating_add(files);
        Some(all.saturating_add(all / 8).saturating_add(own) & !0xf_ffff)
    }

    fn need(&self) -> Option<Need> {
        Some(match self.source.as_ref()? {
            Source::Directory { need, .. } => *need,
            Source::Archive(archive) => Need {
                entries: archive.entries(),
                bytes: archive.bytes(),
            },
        })
    }

    /// Makes the image. It gets its name when it is complete and durable; a file that has the name
    /// is replaced then.
    ///
    /// # Errors
    /// [`BuildError`]; [`BuildError::Copy`] also for a file of the [directory](Self::from_dir) that
    /// cannot be copied.
    pub fn write_to(&self, path: impl AsRef<Path>) -> Result<(), BuildError> {
        self.write_with_progress(path, &mut progress::ignore)
    }

    /// As [`write_to`](Self::write_to), with progress.
    ///
    /// # Errors
    /// As [`write_to`](Self::write_to).
    pub fn write_with_progress(
        &self,
        path: impl AsRef<Path>,
        progress: &mut OnProgress<'_>,
    ) -> Result<(), BuildError> {
        let path = path.as_ref();
        let size = self
            .options
            .size()
            .or_else(|| self.needed_size())
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
        self.format(&unfinished, path, size)?;
        self.fill(&unfinished, path, progress)?;
        let file = fs::File::open(&unfinished).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        unfinished
            .persist(path)
            .map_err(|error| failed(error.error))?;
        fs::File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed)
    }

    /// Makes the file system in `file`, which is called `path` in errors.
    fn format(&self, file: &Path, path: &Path, size: u64) -> Result<(), BuildError> {
        let device = FileDevice::create(file, size)?;
        let mut options = self.options.clone();
        if options.root_owner().is_none() {
            let (uid, gid) = caller();
            options.set_root_owner(uid, gid);
        }
        // More than an image of that size has.
        if let Some(Need { entries, .. }) = self.need() {
            let needed = entries + entries / 8 + 64;
            if needed > size / 16_384 {
                options.suggest_inodes(needed);
            }
        }
        mkfs(&device, path, &options, true)?;
        Ok(())
    }

    /// Fills the image in `file`, which is called `path` in errors, and gives the root its owner.
    fn fill(
        &self,
        file: &Path,
        path: &Path,
        progress: &mut OnProgress<'_>,
    ) -> Result<(), BuildError> {
        let owner = match &self.source {
            Some(Source::Directory { .. }) => self.options.root_owner(),
            _ => Some(self.options.root_owner().unwrap_or_else(caller)),
        };
        let owned = owner.is_none_or(|owner| self.options.kind() == Kind::Ext4 || owner == (0, 0));
        if owned && self.source.is_none() {
            return Ok(());
        }
        let fs = FileSystem::open_with_options(file, &filling()?)?;
        match &self.source {
            None => {}
            Some(Source::Archive(archive)) => {
                let (uid, gid) = self.options.root_owner().unwrap_or_else(caller);
                fs.set_owner("/", Some(uid), Some(gid))?;
                fs.set_creator(uid, gid);
                archive.extract(&fs, progress)?;
            }
            Some(Source::Directory { path: source, .. }) => {
                copy::fill(&fs, path, source, progress)?.complete()?;
            }
        }
        let given = match &self.source {
            Some(Source::Archive(_)) => None,
            _ => owner,
        };
        if let Some((uid, gid)) = given {
            fs.set_owner("/", Some(uid), Some(gid))?;
        }
        Ok(fs.close()?)
    }
}

/// How a directory is put into an image.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FillOptions {
    /// Directories that become subvolumes of btrfs.
    pub subvolumes: Vec<NewSubvolume>,
    /// Compression of btrfs, as the mount option `compress` takes it: `zstd:3`.
    pub compress: Option<String>,
}

impl FillOptions {
    /// Finds what would make [`fill_with`] fail at once, before an image is made for it.
    ///
    /// # Errors
    /// [`BuildError::File`]: `source` is no directory; [`BuildError::NoSubvolume`];
    /// [`BuildError::Option`]: no such compression.
    pub fn check(&self, source: &Path) -> Result<(), BuildError> {
        fs::read_dir(source).map_err(|error| BuildError::File {
            path: source.to_owned(),
            source: error,
        })?;
        subvolumes::checked(&self.subvolumes, source)?;
        self.opening().map(drop)
    }

    fn opening(&self) -> Result<Options, BuildError> {
        let mut opening = filling()?;
        if let Some(compression) = &self.compress {
            let set = opening.set("compress", Some(compression));
            set.map_err(BuildError::Option)?;
        }
        Ok(opening)
    }
}

/// Fills the image or device `image` with everything that is in the directory `source`, as
/// [`ImageBuilder::from_dir`]. What cannot be copied is reported to `progress` and left out.
///
/// # Errors
/// [`BuildError::FileSystem`] and [`BuildError::Copy`].
pub fn fill(
    image: &Path,
    source: &Path,
    progress: &mut OnProgress<'_>,
) -> Result<CopyReport, BuildError> {
    fill_with(image, source, &FillOptions::default(), progress)
}

/// As [`fill`], with options.
///
/// # Errors
/// As [`fill`]; [`BuildError::NoSubvolume`]; [`BuildError::Option`]: no such compression.
pub fn fill_with(
    image: &Path,
    source: &Path,
    options: &FillOptions,
    progress: &mut OnProgress<'_>,
) -> Result<CopyReport, BuildError> {
    let wanted = subvolumes::checked(&options.subvolumes, source)?;
    let fs = FileSystem::open_with_options(image, &options.opening()?)?;
    let filled = subvolumes::create(&fs, &wanted).and_then(|()| {
        let report = copy::fill(&fs, image, source, progress)?;
        subvolumes::finish(&fs, &wanted)?;
        Ok(report)
    });
    let ended = fs.close();
    let report = filled?;
    ended?;
    Ok(report)
}

/// How an image is open while it is filled: nothing has to be durable before the end, and what
/// waits in memory to be written only takes memory.
fn filling() -> Result<Options, BuildError> {
    let mut options = Options::default();
    for (name, value) in [
        ("cache_size", "64M"),
        ("dirty_size", "32M"),
        ("commit", "4"),
    ] {
        options.set(name, Some(value)).map_err(BuildError::Option)?;
    }
    Ok(options)
}

fn caller() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

impl Need {
    fn add_directory(&mut self, path: &Path) -> Result<(), BuildError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| BuildError::File { path, source }
        };
        let mut waiting = vec![path.to_owned()];
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(&dir).map_err(failed(&dir))? {
                let entry = entry.map_err(failed(&dir))?;
                let path = entry.path();
                let found = entry.metadata().map_err(failed(&path))?;
                self.entries += 1;
                if found.is_dir() {
                    waiting.push(path);
                } else if found.is_file() {
                    let blocks = found.len().min(found.blocks().saturating_mul(512));
                    let bytes = blocks.div_ceil(BLOCK).saturating_mul(BLOCK);
                    self.bytes = self.bytes.saturating_add(bytes);
                }
            }
        }
        Ok(())
    }
}
