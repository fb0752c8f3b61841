//! FAT volumes with files, for the EFI system partition of a disk.
//!
//! # How it works
//! The sources fill a file system in a scratch file, so they have the same meaning as for every
//! image. Its files are then laid out one after the other and written, directory by directory. A
//! volume depends only on its files, size, label and volume number.

mod geometry;
mod names;
mod tree;
mod volume;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use sapwood_block::Device;

use crate::build::{BuildError, ImageBuilder};
use crate::fs::FileSystem;
use crate::new_file::{NewFile, NewFileError};
use crate::options::Options;
use crate::progress::OnProgress;
use crate::sources::Sources;
use geometry::Geometry;
use tree::Tree;
use volume::Volume;

/// Bits of an entry in the file allocation table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FatWidth {
    /// FAT12: at most 4084 clusters.
    Fat12,
    /// FAT16: at most 65,524 clusters.
    Fat16,
    /// FAT32: at least 65,525 clusters.
    Fat32,
}

impl std::fmt::Display for FatWidth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FAT{}", self.bits())
    }
}

/// A FAT volume in a [partition](crate::PartitionContent::Fat). It stores names, contents and
/// times. Owners, modes and extended attributes have no place in it.
#[derive(Debug, Clone, Default)]
pub struct FatImage {
    sources: Sources,
    width: Option<FatWidth>,
    label: Option<[u8; 11]>,
    free: u64,
    time: Option<SystemTime>,
    reproducible: bool,
}

/// Why a FAT volume was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FatError {
    /// The sources.
    #[error(transparent)]
    Build(Box<BuildError>),
    /// A scratch file.
    #[error(transparent)]
    NewFile(#[from] NewFileError),
    /// A scratch file as a device.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The files of the sources.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
    /// A file of the sources.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file in the volume.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The volume.
    #[error("{0}")]
    Write(io::Error),
    /// A kind of file that FAT cannot store.
    #[error("{}: FAT has no {what}", path.display())]
    Kind {
        /// The file in the volume.
        path: PathBuf,
        /// The kind.
        what: &'static str,
    },
    /// A name that FAT cannot store.
    #[error("{}: {why}", path.display())]
    Name {
        /// The file in the volume.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// Two names that FAT cannot distinguish.
    #[error("{}: another name differs from it only in upper and lower case", .0.display())]
    Case(PathBuf),
    /// A file of 4 GiB or more.
    #[error("{}: {size} bytes are too many for a file of FAT", path.display())]
    TooLarge {
        /// The file in the volume.
        path: PathBuf,
        /// Its bytes.
        size: u64,
    },
    /// A directory with too many names.
    #[error("{}: too many names for a directory of FAT", .0.display())]
    TooManyNames(PathBuf),
    /// The files do not fit.
    #[error("{needed} bytes do not fit into {size}")]
    Full {
        /// Bytes of a volume that has room for them.
        needed: u64,
        /// Bytes of the volume.
        size: u64,
    },
    /// No volume has this size and width.
    #[error("{}", no_volume(*width, *size))]
    NoVolume {
        /// The width.
        width: Option<FatWidth>,
        /// Bytes of the volume.
        size: Option<u64>,
    },
    /// A label that FAT cannot store.
    #[error(
        "label {0:?}: at most 11 letters, digits, spaces, and characters of !#$%&'()-@^_`{{}}~"
    )]
    Label(String),
    /// Storage options of other formats.
    #[error("FAT stores files in one way: no compression, subvolumes, flags or shared extents")]
    Storage,
}

fn no_volume(width: Option<FatWidth>, size: Option<u64>) -> String {
    let name = width.map_or_else(|| "FAT".to_owned(), |width| width.to_string());
    match size {
        Some(size) => format!("no {name} volume has {size} bytes"),
        None => format!("the files are too large for {name}"),
    }
}

type Result<T, E = FatError> = std::result::Result<T, E>;

impl FatImage {
    /// An empty volume. Its width follows from its size.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills it from these sources.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the sources have storage
    /// options of btrfs or ext4.
    pub fn sources(mut self, sources: Sources) -> crate::Result<Self> {
        if !sources.storage().is_plain() {
            return Err(FatError::Storage.into());
        }
        self.sources = sources;
        Ok(self)
    }

    /// Width of the table.
    #[must_use]
    pub fn width(mut self, width: FatWidth) -> Self {
        self.width = Some(width);
        self
    }

    /// Label, in capitals.
    ///
    /// # Errors
    /// It has more than 11 characters, or others than FAT has.
    pub fn label(mut self, label: &str) -> crate::Result<Self> {
        let upper = label.to_ascii_uppercase();
        let allowed =
            |char: char| char.is_ascii_alphanumeric() || " !#$%&'()-@^_`{}~".contains(char);
        if !(1..=11).contains(&upper.len()) || !upper.chars().all(allowed) || upper.starts_with(' ')
        {
            return Err(FatError::Label(label.to_owned()).into());
        }
        let mut bytes = [b' '; 11];
        for (to, from) in bytes.iter_mut().zip(upper.bytes()) {
            *to = from;
        }
        self.label = Some(bytes);
        Ok(self)
    }

    /// Free bytes, if the partition has no size.
    #[must_use]
    pub fn free(mut self, bytes: u64) -> Self {
        self.free = bytes;
        self
    }

    /// Has the volume use a time, and be reproducible.
    pub(crate) fn fix(&mut self, time: Option<SystemTime>, reproducible: bool) {
        self.time = time;
        self.reproducible |= reproducible;
    }

    /// The builder of the scratch file, which has the files of the sources.
    fn builder(&self) -> ImageBuilder {
        let mut builder = ImageBuilder::btrfs().sources(self.sources.clone());
        builder.fix(self.time, self.reproducible);
        builder
    }

    /// A hash of the sources and the options.
    pub(crate) fn hash(&self) -> Result<[u8; 32], BuildError> {
        use sha2::{Digest, Sha256};

        let mut hash = Sha256::new();
        hash.update(self.builder().hash()?);
        hash.update(format!("{:?}", (self.width, self.label, self.free)));
        Ok(hash.finalize().into())
    }

    /// Makes the volume in an empty file that never has a name: of `size` bytes, or as small as it
    /// can be. `id` is its number.
    pub(crate) fn make_in_scratch(
        &self,
        out: &NewFile,
        size: Option<u64>,
        id: u32,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let scratch = out.scratch()?;
        let files = if self.sources.is_empty() {
            None
        } else {
            let made = self.builder().make_in_scratch(&scratch, progress);
            made.map_err(|error| FatError::Build(Box::new(error)))?;
            let device: Arc<dyn Device> = scratch.device()?;
            let options = Options::new().read_only(true);
            Some(FileSystem::open_on(device, out.path(), &options)?)
        };
        let tree = Tree::read(files.as_ref(), self.label.is_some())?;
        let geometry = match size {
            Some(size) => Geometry::of_size(self.width, &tree, size)?,
            None => Geometry::fitting(self.width, &tree, self.free)?,
        };
        let volume = Volume {
            geometry,
            files: files.as_ref(),
            id,
            label: self.label,
            time: self.time.unwrap_or_else(|| tree.newest()),
            tree: &tree,
        };
        volume.write(out.file(), progress)?;
        if let Some(files) = files {
            files.close()?;
        }
        Ok(())
    }
}
