//! The contents of a new image: directories, archives, container images and manifests, in any mix.

mod below;
mod container;
mod fill;
mod growth;
mod input;
mod summary;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::archive::{ArchiveError, Scratch, components, plain};
use crate::changes::Changes;
use crate::copy::{self, CopyError, CopyReport};
use crate::like::LikeError;
use crate::luks::LuksError;
use crate::manifest::{Manifest, ManifestError};
use crate::mkfs::MkfsError;
use crate::new_file::NewFileError;
use crate::oci::OciError;
use crate::options::OptionError;
use crate::output::OutputError;
use crate::progress::Stop;
use crate::resize::ResizeError;
use crate::storage::{Storage, StorageError};
use crate::verity::VerityError;
use crate::vfs::Timestamp;

use container::Container;
pub(crate) use growth::Growth;
pub(crate) use input::Format;
use input::{Input, Noted, Stopped, skip};
use summary::Summarizer;
pub(crate) use summary::Summary;
pub(crate) use summary::derived_uuid;

/// Unit of space of both formats, in bytes, for estimates.
const BLOCK: u64 = 4096;

/// Sources of the files of an image, applied in their order: a later file replaces an earlier one
/// of its name, and directories are merged.
///
/// ```no_run
/// use sapwood::{ImageBuilder, Sources};
///
/// let mut sources = Sources::default();
/// sources.oci("debian.tar:12");
/// sources.tar("overlay.tar.zst");
/// sources.dir("root");
/// sources.changes_mut().all_root();
/// ImageBuilder::ext4().sources(sources).write_to("root.img")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Sources {
    list: Vec<Placed>,
    /// The directory of the sources that are added next: its path in the image, without slashes at
    /// either end.
    at: Vec<u8>,
    manifests: Vec<PathBuf>,
    changes: Changes,
    storage: Storage,
    time: Option<Timestamp>,
    /// The directory of copies of archives that are used several times.
    scratch: Scratch,
    stop: Stop,
}

/// A source, and the directory of the image that it is put into.
#[derive(Debug, Clone)]
struct Placed {
    /// Like [`Sources::at`].
    at: Vec<u8>,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Directory(PathBuf),
    Archive(Input),
    Oci(Container),
    /// A layer of a container image.
    Layer(Input),
    /// Layers in the form of overlayfs.
    LayerDirectory(PathBuf),
    LayerTar(Input),
}

impl Placed {
    fn is_dir(&self) -> bool {
        matches!(
            self.source,
            Source::Directory(_) | Source::LayerDirectory(_)
        )
    }
}

/// Size of the sources' files.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Need {
    pub(crate) entries: u64,
    /// Bytes of content in whole blocks.
    pub(crate) bytes: u64,
}

/// Names that filling an image left out.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    /// The report of the directories.
    pub(crate) copied: CopyReport,
}

/// Why an image was not made. There is no file under its name then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The filled image could not get its size.
    #[error(transparent)]
    Resize(#[from] ResizeError),
    /// No size was given.
    #[error("{}: the image needs a size", .0.display())]
    NoSize(PathBuf),
    /// The image cannot be fitted to its files, because it has this property, and no size was given.
    #[error("{}: an image with {what} cannot change its size, so it needs one", path.display())]
    FixedSize {
        /// The image.
        path: PathBuf,
        /// The property.
        what: &'static str,
    },
    /// A journal device was to get files.
    #[error("{}: a journal device has no files", .0.display())]
    JournalDevice(PathBuf),
    /// The path of a directory in the image leads out of the image, or has a NUL.
    #[error("{}: no path of a directory in an image", .0.display())]
    At(PathBuf),
    /// The file could not be made.
    #[error("{}: {source}", path.display())]
    File {
        /// The image.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The file could not be made, or did not get its name.
    #[error(transparent)]
    NewFile(#[from] NewFileError),
    /// The image could not be written in its format.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The device.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The encrypted volume around the image.
    #[error(transparent)]
    Luks(#[from] LuksError),
    /// The hash tree of the image.
    #[error(transparent)]
    Verity(#[from] VerityError),
    /// An encrypted image was requested together with a property that excludes it.
    #[error("an encrypted image {0}")]
    Encrypted(&'static str),
    /// mkfs refuses the options, or failed.
    #[error(transparent)]
    Mkfs(#[from] MkfsError),
    /// The archive could not be read, or put into the image.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The container image could not be read, or put into the image.
    #[error(transparent)]
    Oci(#[from] OciError),
    /// The list of files could not be read, or applied.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file could not be copied into the image.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// An option with which the image is opened.
    #[error(transparent)]
    Option(OptionError),
    /// Files could not be stored as they were to be.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The image could not be made like an older one.
    #[error(transparent)]
    Like(#[from] LikeError),
    /// A request ended the build.
    #[error("interrupted; no image was made")]
    Stopped,
    /// The new image could not be opened, completed, or given to its owner.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
}

impl Sources {
    /// Puts the sources that are added from now on into this directory of the image, and not into
    /// its root. The directory is made if no source before has it. Whiteouts of a layer hide names
    /// in it only; patterns, owners and labels of [`changes`](Self::changes) still belong to paths
    /// from the root.
    ///
    /// ```no_run
    /// use sapwood::{ImageBuilder, Sources};
    ///
    /// let mut sources = Sources::default();
    /// sources.oci("debian.tar:12");
    /// sources.at("/srv/www")?;
    /// sources.dir("site");
    /// ImageBuilder::ext4().sources(sources).write_to("root.img")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the path has `..` in it, or a
    /// NUL.
    pub fn at(&mut self, directory: impl AsRef<Path>) -> crate::Result<()> {
        let path = directory.as_ref();
        let names = components(path.as_os_str().as_bytes());
        let names = names.map_err(|_| BuildError::At(path.to_owned()))?;
        self.at = names.join(&b'/');
        Ok(())
    }

    fn add(&mut self, source: Source) {
        let at = self.at.clone();
        self.list.push(Placed { at, source });
    }

    /// Everything in a directory of this machine, as `cp -a` copies it.
    pub fn dir(&mut self, path: impl Into<PathBuf>) {
        self.add(Source::Directory(path.into()));
    }

    /// The files of a tar archive, plain or compressed with gzip, zstd, xz or bzip2.
    pub fn tar(&mut self, path: impl Into<PathBuf>) {
        let input = Input::file(Format::Tar, path.into());
        self.add(Source::Archive(input));
    }

    /// Like [`tar`](Self::tar), from a stream.
    pub fn tar_stream(&mut self, stream: impl Read + Send + 'static) {
        let input = Input::stream(Format::Tar, stream);
        self.add(Source::Archive(input));
    }

    /// The files of a cpio archive (`newc`, with or without checksums), plain or compressed.
    pub fn cpio(&mut self, path: impl Into<PathBuf>) {
        let input = Input::file(Format::Cpio, path.into());
        self.add(Source::Archive(input));
    }

    /// Like [`cpio`](Self::cpio), from a stream.
    pub fn cpio_stream(&mut self, stream: impl Read + Send + 'static) {
        let input = Input::stream(Format::Cpio, stream);
        self.add(Source::Archive(input));
    }

    /// A container image: an OCI layout in a directory or an archive, or an archive of `docker
    /// save`; `PATH:TAG` chooses one of several.
    pub fn oci(&mut self, path: impl Into<PathBuf>) {
        self.add(Source::Oci(Container::new(path.into())));
    }

    /// A layer of a container image, applied to the sources before it: a tar archive, plain or
    /// compressed. Its whiteouts (`.wh.NAME`, and `.wh..wh..opq` for everything in a directory)
    /// hide names of these. In any other archive such a name is an error.
    pub fn layer(&mut self, path: impl Into<PathBuf>) {
        let input = Input::file(Format::Tar, path.into());
        self.add(Source::Layer(input));
    }

    /// Like [`layer`](Self::layer), from a stream.
    pub fn layer_stream(&mut self, stream: impl Read + Send + 'static) {
        let input = Input::stream(Format::Tar, stream);
        self.add(Source::Layer(input));
    }

    /// A layer of overlayfs, applied to the sources before it: the upper directory of a mount, or a
    /// tar archive of it, plain or compressed. A whiteout is a device node 0/0, or an empty file
    /// with the attribute `overlay.whiteout`, in the namespace `trusted.` or `user.`. A directory
    /// with `overlay.opaque=y` hides everything that earlier sources have in it.
    pub fn overlay(&mut self, path: impl Into<PathBuf>) {
        let path = path.into();
        self.add(if path.is_dir() {
            Source::LayerDirectory(path)
        } else {
            Source::LayerTar(Input::file(Format::Tar, path))
        });
    }

    /// Metadata from a list in the format of BSD mtree or of composefs dumps, applied after all
    /// sources: owners, modes, times, attributes; also files without content, such as device nodes,
    /// links and empty files.
    pub fn manifest(&mut self, path: impl Into<PathBuf>) {
        self.manifests.push(path.into());
    }

    /// Owners and groups of the files of the same paths in a tar or cpio archive, or in a list as
    /// of [`manifest`](Self::manifest). The file is read here.
    ///
    /// # Errors
    /// The file cannot be read, or is neither an archive nor a list.
    pub fn owners_from(&mut self, path: impl AsRef<Path>) -> crate::Result<()> {
        let path = path.as_ref();
        let mut start = Vec::new();
        let opened = File::open(path).map_err(ArchiveError::Read);
        let read = opened.and_then(|file| Ok(plain(file)?.take(6).read_to_end(&mut start)?));
        read.map_err(|error| error.of(path))?;
        if start.starts_with(b"#mtree") || start.starts_with(b"/") {
            Manifest::read(path)?.add_owners(&mut self.changes);
            return Ok(());
        }
        let format = if start.starts_with(b"0707") {
            Format::Cpio
        } else {
            Format::Tar
        };
        let changes = &mut self.changes;
        Input::file(format, path.to_owned()).with(|entries| {
            while let Some(entry) = entries.next()? {
                let owner = (entry.attributes.uid, entry.attributes.gid);
                let place = changes.place(None, &components(&entry.path)?.join(&b'/'));
                changes.set_owner(place, owner);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Adds an archive like [`tar`](Self::tar) or [`cpio`](Self::cpio), and reads it to its end.
    ///
    /// # Errors
    /// [`BuildError::Archive`]: the archive cannot be read or decompressed.
    pub(crate) fn read_now(
        &mut self,
        format: Format,
        archive: impl Read + Send,
    ) -> Result<(), BuildError> {
        let input = Input::read_now(format, archive)?;
        self.add(Source::Archive(input));
        Ok(())
    }

    /// Keeps copies of archives that are used several times in unnamed files in this directory, and
    /// not in the directory of temporary files. It must have room for them decompressed.
    pub fn keep_in(&mut self, dir: impl Into<PathBuf>) {
        self.scratch = Scratch(Some(dir.into()));
    }

    /// Adds the sources of another list. If this one has no sources, it also takes the other's
    /// changes and storage.
    pub(crate) fn append(&mut self, mut later: Self) {
        if self.is_empty() {
            self.changes = later.changes;
            self.storage = later.storage;
        }
        self.list.append(&mut later.list);
        self.manifests.append(&mut later.manifests);
        self.time = later.time.or(self.time);
    }

    /// Metadata that the files get in place of their source's.
    #[must_use]
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The [`changes`](Self::changes), to change them.
    pub fn changes_mut(&mut self) -> &mut Changes {
        &mut self.changes
    }

    /// How the files are stored.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The [`storage`](Self::storage), to change it.
    pub fn storage_mut(&mut self) -> &mut Storage {
        &mut self.storage
    }

    /// Whether the sources put nothing into an image, not even a subvolume.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.manifests.is_empty() && self.storage.is_plain()
    }

    /// Whether one source is a directory of this machine.
    #[must_use]
    pub fn has_dir(&self) -> bool {
        self.list.iter().any(Placed::is_dir)
    }

    /// Whether a directory of this machine is put into the root of the image, which then gets its
    /// owner.
    pub(crate) fn has_root(&self) -> bool {
        let is_root = |placed: &Placed| placed.at.is_empty() && placed.is_dir();
        self.list.iter().any(is_root)
    }

    /// Sets times that no source has, such as the root directory's. The image then depends on the
    /// sources alone.
    pub fn set_time(&mut self, time: SystemTime) {
        self.time = Some(time.into());
    }

    /// Has the request end a use of the sources early.
    pub(crate) fn stop_with(&mut self, stop: Stop) {
        self.stop = stop;
    }

    /// The request that ends the use of the sources.
    pub(crate) fn stop_request(&self) -> &Stop {
        &self.stop
    }

    /// [`BuildError::Stopped`] after the request.
    pub(crate) fn check_stop(&self) -> Result<(), BuildError> {
        if self.stop.is_stopped() {
            Err(BuildError::Stopped)
        } else {
            Ok(())
        }
    }

    /// The time of [`set_time`](Self::set_time).
    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.time
    }

    /// Reads everything and summarizes it. Streams and compressed archives are
    /// [kept](Self::keep_in), decompressed, until the image is filled.
    ///
    /// # Errors
    /// [`BuildError`]: a source cannot be read.
    pub(crate) fn summary(&self) -> Result<Summary, BuildError> {
        let mut all = Summarizer::new();
        for Placed { at, source } in &self.list {
            if !at.is_empty() {
                all.field(b"at");
                all.field(at);
            }
            match source {
                Source::Directory(path) => {
                    all.field(b"directory");
                    copy::survey(path, at, &self.changes, &self.stop, &mut all)?;
                }
                Source::LayerDirectory(path) => {
                    all.field(b"layer of a directory");
                    copy::survey(path, at, &self.changes, &self.stop, &mut all)?;
                }
                Source::Layer(input) => self.summarize(input, b"layer of a container", &mut all)?,
                Source::LayerTar(input) => {
                    self.summarize(input, b"layer of an archive", &mut all)?
                }
                Source::Archive(input) => self.summarize(input, b"archive", &mut all)?,
                Source::Oci(container) => {
                    let image = container.open()?;
                    for layer in 0..image.layers() {
                        all.field(b"layer");
                        image.layer(layer, Some(&self.scratch), |entries| {
                            all.entries(&mut Stopped::new(entries, &self.stop))
                        })?;
                    }
                }
            }
        }
        if !self.storage.is_plain() {
            all.field(format!("{:?}", self.storage).as_bytes());
        }
        for path in &self.manifests {
            let text = fs::read(path).map_err(|source| BuildError::File {
                path: path.clone(),
                source,
            })?;
            all.field(b"manifest");
            all.field(&text);
        }
        Ok(all.end())
    }

    fn summarize(
        &self,
        input: &Input,
        what: &[u8],
        all: &mut Summarizer,
    ) -> Result<(), BuildError> {
        all.field(what);
        input.keep(&self.scratch, |entries| {
            all.entries(&mut Stopped::new(entries, &self.stop))
        })?;
        Ok(())
    }

    /// The size of the files. Streams and compressed archives are kept for the filling. With a
    /// `counts` that leaves out streams, a stream is not read yet. For a reproducible image, the
    /// holes in the host's file system do not count.
    pub(crate) fn need(&self, counts: Counts) -> Result<Need, BuildError> {
        let mut need = Need::default();
        for path in &self.manifests {
            need.entries += Manifest::read(path)?.len() as u64;
        }
        for Placed { at, source } in &self.list {
            if !at.is_empty() {
                need.entries += 1 + at.iter().filter(|byte| **byte == b'/').count() as u64;
            }
            match source {
                Source::Directory(path) | Source::LayerDirectory(path) => match self.time {
                    Some(_) if counts != Counts::Directories => {
                        copy::survey(path, at, &self.changes, &self.stop, &mut need)?;
                    }
                    _ => self.add_directory(&mut need, path)?,
                },
                _ if counts == Counts::Directories => {}
                Source::Archive(input) | Source::Layer(input) | Source::LayerTar(input) => {
                    if counts == Counts::All || !input.is_read_once() {
                        need.add(input.need(&self.scratch, &self.stop)?);
                    }
                }
                Source::Oci(container) => {
                    let image = container.open()?;
                    for layer in 0..image.layers() {
                        let mut count = |more| {
                            need.add(more);
                            Ok(())
                        };
                        image.layer(layer, Some(&self.scratch), |entries| {
                            let entries = &mut Stopped::new(entries, &self.stop);
                            skip(&mut Noted::new(entries, &mut count))
                        })?;
                    }
                }
            }
        }
        Ok(need)
    }
    /// Adds the files of a directory.
    fn add_directory(&self, need: &mut Need, path: &Path) -> Result<(), BuildError> {
        let failed = |source| BuildError::File {
            path: path.to_owned(),
            source,
        };
        let mut top = Some(fs::read_dir(path).map_err(failed)?);
        let mut waiting = Vec::new();
        loop {
            let entries = match (top.take(), waiting.pop()) {
                (Some(top), _) => top,
                (None, None) => return Ok(()),
                // The copy fails in the same way, and reports the names that it leaves out.
                (None, Some(dir)) => match fs::read_dir(dir) {
                    Ok(entries) => entries,
                    Err(_) => continue,
                },
            };
            self.check_stop()?;
            for entry in entries.flatten() {
                let path = entry.path();
                need.entries += 1;
                let Ok(found) = entry.metadata() else {
                    continue;
                };
                if found.is_dir() {
                    waiting.push(path);
                } else if found.is_file() {
                    need.add_bytes(found.len().min(found.blocks().saturating_mul(512)));
                }
            }
        }
    }
}

/// The sources that are counted before an image is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    All,
    /// All except streams, which can be read only once.
    Files,
    /// Sources whose files are counted without reading them.
    Directories,
}

impl Need {
    fn add(&mut self, other: Self) {
        self.entries = self.entries.saturating_add(other.entries);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn add_bytes(&mut self, bytes: u64) {
        let blocks = bytes.div_ceil(BLOCK).saturating_mul(BLOCK);
        self.bytes = self.bytes.saturating_add(blocks);
    }
}
