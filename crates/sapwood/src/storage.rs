//! Storage of the files of an image on btrfs: subvolumes, compression, inode flags, shared extents.
//!
//! # How it works
//! Subvolumes are created before the sources are applied, which merge their directories into them.
//! All files are written with the compression of most of them. A walk then visits every file. If a
//! file needs another compression or flag, its data is copied to an unnamed file with that
//! property, and the file takes the extents of the copy. A file with the content of an earlier one
//! takes the extents of that file. Flags that forbid changes come last, with read-only subvolumes.
//!
//! ```
//! use sapwood::Sources;
//!
//! let mut sources = Sources::default();
//! let storage = sources.storage_mut();
//! storage.subvolume("default:root".parse()?);
//! storage.compress("zstd:3")?;
//! storage.compress_matching("*.jpg", "no")?;
//! storage.inode_flags("nodatacow:var/lib/db".parse()?);
//! storage.dedupe();
//! # Ok::<(), sapwood::Error>(())
//! ```

mod arrange;
mod subvolumes;

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use globset::Glob;
use sapwood_btrfs::Compression;

use crate::changes::path_pattern;
use crate::fs::FileSystem;
use crate::kind::Kind;
use crate::options::{OptionError, Options};
use crate::progress::OnProgress;
use crate::vfs::{self, InodeFlags};
pub use arrange::ARRANGING;

/// Why files cannot be stored in the requested way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// ext4 does not have it.
    #[error("{0}: only btrfs has them")]
    OnlyBtrfs(&'static str),
    /// A pattern is malformed.
    #[error("{0}")]
    Pattern(#[from] globset::Error),
    /// There is no such compression.
    #[error("{0:?} is no compression: no, zlib[:1-9], lzo, zstd[:1-15]")]
    Compression(String),
    /// There is no such flag.
    #[error("{flag:?} is no inode flag: {names}", flag = .0, names = flag_names().join(", "))]
    Flag(String),
    /// A path with flags does not have the form `FLAGS:PATH`.
    #[error("{0:?} is not FLAGS:PATH")]
    FlagsForm(String),
    /// A word before the path of a subvolume is not known.
    #[error("{0:?} is no kind of subvolume: rw, ro, default, default-ro")]
    SubvolumeKind(String),
    /// Several subvolumes are to be the default one.
    #[error("several subvolumes are to be the default one")]
    Defaults,
    /// A path that leads out of the image, or names its root.
    #[error("{}: is no path below the root of the image", .0.display())]
    Path(PathBuf),
    /// A directory that was to become a subvolume is none in the sources.
    #[error("{}: to be a subvolume it has to be a directory", .0.display())]
    NoDirectory(PathBuf),
    /// An option with which the image is opened.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A file of the image could not be stored in the requested way.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Error of the engine.
        source: vfs::Error,
    },
    /// The image.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
}

/// A subvolume of the image. Text: `[rw|ro|default|default-ro:]PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSubvolume {
    /// Its path in the image.
    pub path: PathBuf,
    /// Nothing can be changed in it.
    pub read_only: bool,
    /// It is mounted when no subvolume is named.
    pub default: bool,
}

impl FromStr for NewSubvolume {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let (kind, path) = text.split_once(':').unwrap_or(("rw", text));
        let (default, read_only) = match kind {
            "rw" => (false, false),
            "ro" => (false, true),
            "default" => (true, false),
            "default-ro" => (true, true),
            _ => return Err(StorageError::SubvolumeKind(kind.to_owned()).into()),
        };
        Ok(Self {
            path: below_root(Path::new(path))?,
            read_only,
            default,
        })
    }
}

/// Flags of a file or directory of the image. Text: `FLAG[,FLAG...]:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathFlags {
    /// Its path in the image.
    pub path: PathBuf,
    /// The flags that it gets in addition to its own.
    pub flags: InodeFlags,
    /// The data has no checksums.
    pub nodatasum: bool,
}

/// Names of the flags, as `mkfs.btrfs` and `lsattr -l` have them.
const FLAGS: [(&str, InodeFlags); 7] = [
    ("nodatacow", InodeFlags::NOCOW),
    ("immutable", InodeFlags::IMMUTABLE),
    ("append", InodeFlags::APPEND),
    ("nodump", InodeFlags::NODUMP),
    ("noatime", InodeFlags::NOATIME),
    ("sync", InodeFlags::SYNC),
    ("dirsync", InodeFlags::DIRSYNC),
];
/// The flag for which the interface between programs and the kernel has no bit.
const NODATASUM: &str = "nodatasum";

fn flag_names() -> Vec<&'static str> {
    let mut names: Vec<_> = FLAGS.iter().map(|(name, _)| *name).collect();
    names.insert(1, NODATASUM);
    names
}

impl FromStr for PathFlags {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let form = || StorageError::FlagsForm(text.to_owned());
        let (names, path) = text.split_once(':').ok_or_else(form)?;
        let (mut flags, mut nodatasum) = (InodeFlags::empty(), false);
        for name in names.split(',') {
            if name == NODATASUM {
                nodatasum = true;
                continue;
            }
            let mut known = FLAGS.iter();
            let found = known.find(|(known, _)| *known == name);
            let (_, flag) = found.ok_or_else(|| StorageError::Flag(name.to_owned()))?;
            flags |= *flag;
        }
        let path = below_root(Path::new(path))?;
        Ok(Self {
            path,
            flags,
            nodatasum,
        })
    }
}

impl PathFlags {
    /// Whether the flags decide how data is stored.
    fn are_of_data(&self) -> bool {
        self.nodatasum || self.flags.contains(InodeFlags::NOCOW)
    }
}

/// A flag that decides how data is stored. Data without copy-on-write has no checksums, either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataFlag {
    Nodatacow,
    Nodatasum,
}

/// Validates a path below the root of the image: names only.
fn below_root(path: &Path) -> Result<PathBuf, StorageError> {
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(StorageError::Path(path.to_owned()));
            }
        }
    }
    if below.as_os_str().is_empty() {
        Err(StorageError::Path(path.to_owned()))
    } else {
        Ok(below)
    }
}

/// Storage options for the files of an image. Only some flags exist on ext4.
#[derive(Debug, Clone, Default)]
pub struct Storage {
    subvolumes: Vec<NewSubvolume>,
    compress: Option<String>,
    /// Compression of files that match a pattern; the last one counts.
    patterns: Vec<(Glob, String)>,
    flags: Vec<PathFlags>,
    dedupe: bool,
    /// Files with a hash tree.
    sealed: Vec<Glob>,
}

impl Storage {
    /// Adds a subvolume. A directory of the sources with this path is put into it; otherwise it is
    /// empty.
    pub fn subvolume(&mut self, subvolume: NewSubvolume) {
        self.subvolumes.push(subvolume);
    }

    /// Compresses all files with `zlib`, `lzo` or `zstd`, with a level after a colon, or not
    /// (`no`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): it is no compression.
    pub fn compress(&mut self, how: &str) -> crate::Result<()> {
        self.compress = compression(how)?;
        Ok(())
    }

    /// Like [`compress`](Self::compress), for files that match a pattern as in
    /// [`Changes::exclude`](crate::Changes::exclude): names anywhere, or paths if it has a slash,
    /// with everything below. The last pattern that matches a file counts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): it is no compression, or no
    /// pattern.
    pub fn compress_matching(&mut self, pattern: &str, how: &str) -> crate::Result<()> {
        let how = compression(how)?.unwrap_or_else(|| "no".to_owned());
        let pattern = path_pattern(pattern).map_err(StorageError::from)?;
        self.patterns.push((pattern, how));
        Ok(())
    }

    /// Sets flags of a file or directory. If a directory has `nodatacow` or `nodatasum`, everything
    /// below it gets that flag, too.
    pub fn inode_flags(&mut self, flags: PathFlags) {
        self.flags.push(flags);
    }

    /// Files with the same content share its extents.
    pub fn dedupe(&mut self) {
        self.dedupe = true;
    }

    /// Gives files that match a pattern as in [`Changes::exclude`](crate::Changes::exclude) a hash
    /// tree of fs-verity (SHA-256, blocks of 4 KiB or of the file system, no salt); see
    /// [`FileSystem::enable_verity`](crate::FileSystem::enable_verity).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): it is no pattern.
    pub fn fs_verity(&mut self, pattern: &str) -> crate::Result<()> {
        let pattern = path_pattern(pattern).map_err(StorageError::from)?;
        self.sealed.push(pattern);
        Ok(())
    }

    /// Whether no file needs a special way of storage.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let plain = !self.compresses() && self.sealed.is_empty() && !self.dedupe;
        plain && self.subvolumes.is_empty() && self.flags.is_empty()
    }

    fn compresses(&self) -> bool {
        self.compress.is_some() || !self.patterns.is_empty()
    }

    /// Rejects options that this format cannot store, before an image is made.
    ///
    /// # Errors
    /// [`StorageError::OnlyBtrfs`], [`StorageError::Defaults`].
    #[doc(hidden)]
    pub fn check(&self, kind: Kind) -> Result<(), StorageError> {
        if self.subvolumes.iter().filter(|one| one.default).count() > 1 {
            return Err(StorageError::Defaults);
        }
        let asked = [
            (!self.subvolumes.is_empty(), "subvolumes"),
            (self.compresses(), "compressed files"),
            (self.dedupe, "shared extents"),
            (
                self.flags.iter().any(PathFlags::are_of_data),
                "files with nodatacow or nodatasum",
            ),
        ];
        match asked.into_iter().find(|(asked, _)| *asked) {
            Some((_, what)) if kind != Kind::Btrfs => Err(StorageError::OnlyBtrfs(what)),
            _ => Ok(()),
        }
    }

    /// Rejects a subvolume that is no directory of `source`.
    ///
    /// # Errors
    /// [`StorageError::NoDirectory`].
    #[doc(hidden)]
    pub fn check_directories(&self, source: &Path) -> Result<(), StorageError> {
        for one in &self.subvolumes {
            let mut dirs: Vec<&Path> = one.path.ancestors().collect();
            // The last one is empty: the source itself.
            dirs.pop();
            let all = dirs.iter().all(|dir| {
                let found = source.join(dir).symlink_metadata();
                found.is_ok_and(|found| found.is_dir())
            });
            if !all {
                return Err(StorageError::NoDirectory(source.join(&one.path)));
            }
        }
        Ok(())
    }

    /// Sets the compression of most files in the options with which the image is opened.
    pub(crate) fn opening(&self, options: &mut Options) -> Result<(), StorageError> {
        match &self.compress {
            Some(how) => Ok(options.take("compress", Some(how))?),
            None => Ok(()),
        }
    }

    /// Creates the subvolumes for the sources. They belong to `owner` unless a source has them.
    pub(crate) fn begin(&self, fs: &FileSystem, owner: (u32, u32)) -> Result<(), StorageError> {
        self.check(fs.kind())?;
        subvolumes::create(fs, &self.subvolumes, owner)
    }

    /// Applies compression, flags and sharing to the files that the sources made.
    pub(crate) fn finish(
        &self,
        fs: &FileSystem,
        progress: &mut OnProgress<'_>,
    ) -> Result<(), StorageError> {
        arrange::files(self, fs, progress)?;
        arrange::seal(self, fs, progress)?;
        arrange::set_flags(self, fs)?;
        subvolumes::finish(fs, &self.subvolumes)
    }

    /// The flag that decides how the data of the file at a path is stored: its own, or one of a
    /// directory above it.
    fn data_flag(&self, path: &Path) -> Option<DataFlag> {
        let covering = || self.flags.iter().filter(|one| path.starts_with(&one.path));
        if covering().any(|one| one.flags.contains(InodeFlags::NOCOW)) {
            Some(DataFlag::Nodatacow)
        } else if covering().any(|one| one.nodatasum) {
            Some(DataFlag::Nodatasum)
        } else {
            None
        }
    }
}

/// The name of a compression; `None` for none.
fn compression(how: &str) -> Result<Option<String>, StorageError> {
    if how == "no" || how == "none" {
        return Ok(None);
    }
    match how.parse::<Compression>() {
        // The inode property that compresses a single file has no such level.
        Ok(Compression::Zstd(level)) if level < 1 => Err(StorageError::Compression(how.to_owned())),
        Ok(_) => Ok(Some(how.to_owned())),
        Err(_) => Err(StorageError::Compression(how.to_owned())),
    }
}
