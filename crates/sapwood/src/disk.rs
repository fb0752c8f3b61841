//! Whole disk images: a partition table, and partitions that are filled.
//!
//! # How it works
//! The content of each partition is built in a file of its own, so its size is known before the
//! places are. Then the partitions are laid out in their order, each at a multiple of the
//! alignment, the contents are copied to their places without their holes, and the table is
//! written, a GPT with its backup. All of it goes into a file that gets its name at the end.

mod content;
mod hashes;
mod layout;
mod openssl;
mod replace;
mod signature;
mod swap;
mod table;
mod write;

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::build::{BuildError, ImageBuilder};
use crate::fat::{FatError, FatImage};
use crate::image::OpenError;
use crate::luks::{Key, LuksError};
use crate::new_file::NewFileError;
use crate::output::{OutputError, OutputFormat};
use crate::progress::{self, OnProgress};
use crate::repartition::RepartitionError;
use crate::sources::derived_uuid;
use crate::verity::{Params, RootHash, VerityError};
use sapwood_block::partition::Scheme;
pub use signature::RootSignature;
pub use table::{partition_type, type_names};

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Sectors of a GPT with its header, at each end of the disk.
const TABLE: u64 = 33;
/// Most UTF-16 units of a partition's name.
const NAME: usize = 36;
/// Most partitions of a GPT.
const PARTITIONS: usize = 128;
/// Most primary partitions of an MBR.
const PRIMARY: usize = 4;

/// How large a partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PartitionSize {
    /// The size of its content.
    #[default]
    Content,
    /// A number of bytes.
    Bytes(u64),
    /// The part of the disk's given size that the other partitions leave.
    Rest,
}

/// Content of a partition.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum PartitionContent {
    /// Zeros.
    #[default]
    Empty,
    /// The bytes of a file.
    File(PathBuf),
    /// A file system.
    Image(Box<ImageBuilder>),
    /// A FAT volume.
    Fat(Box<FatImage>),
    /// Swap space of Linux, with this label.
    Swap(String),
}

/// A partition to be made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct NewPartition {
    /// Its name in the table.
    pub name: String,
    /// Type; Linux data if not given.
    pub kind: Option<[u8; 16]>,
    /// Type in an MBR; it follows from `kind` if not given.
    pub mbr_kind: Option<u8>,
    /// Whether firmware of a BIOS boots from it.
    pub boot: bool,
    /// UUID in the table; derived from the disk's if not given.
    pub uuid: Option<[u8; 16]>,
    /// Its size.
    pub size: PartitionSize,
    /// Content.
    pub content: PartitionContent,
    /// Encrypts the content: the partition is a LUKS2 volume that this key opens.
    pub key: Option<Key>,
    /// Makes the hash tree of the content.
    pub verity: Option<NewHashes>,
    /// Signature of the root hash, which gets the partition `NAME-verity-sig`. If the disk has none
    /// of that name, it is added after all others. The other partitions, and so the root hash, do
    /// not depend on it in a disk with fixed UUIDs.
    pub signature: Option<RootSignature>,
}

/// The hash tree of a partition, in another partition. The UUIDs of both partitions are parts of
/// the root hash unless they are given, as the Discoverable Partitions Specification has it.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct NewHashes {
    /// Name of the partition with the tree. If the disk has none of that name, it is added after
    /// the partition that it verifies.
    pub partition: String,
    /// Parameters of the tree. If they have no salt, it derives from the UUID of the disk.
    pub params: Params,
}

/// A disk that was made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BuiltDisk {
    /// Kind of its partition table.
    pub scheme: Scheme,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its bytes.
    pub size: u64,
    /// Its partitions, in their order; of a copy, those whose contents were replaced.
    pub partitions: Vec<BuiltPartition>,
}

/// A partition of a disk that was made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BuiltPartition {
    /// Its name.
    pub name: String,
    /// First byte on the disk.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Type.
    pub kind: [u8; 16],
    /// UUID in the table of a GPT.
    pub uuid: [u8; 16],
    /// Root hash of its hash tree.
    pub root_hash: Option<RootHash>,
}

/// Why no disk image was made. There is no file under its name then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The disk image, or a file that is to be in it.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The file system of a partition.
    #[error("partition {name}: {source}")]
    Build {
        /// Name of the partition.
        name: String,
        /// The cause.
        source: Box<BuildError>,
    },
    /// The FAT volume of a partition.
    #[error("partition {name}: {source}")]
    Fat {
        /// Name of the partition.
        name: String,
        /// The cause.
        source: Box<FatError>,
    },
    /// The encrypted volume of a partition.
    #[error("partition {name}: {source}")]
    Encrypt {
        /// Name of the partition.
        name: String,
        /// The cause.
        source: Box<LuksError>,
    },
    /// The hash tree of a partition.
    #[error("partition {name}: {source}")]
    Verity {
        /// Name of the partition.
        name: String,
        /// The cause.
        source: Box<VerityError>,
    },
    /// A partition cannot have the hash tree or the key that it is to have.
    #[error("partition {name}: {why}")]
    Layers {
        /// Name of the partition.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// A signature of a root hash that makes no sense.
    #[error("{0}")]
    Signature(&'static str),
    /// A file has no certificate.
    #[error("{}: no certificate in PEM", .0.display())]
    Certificate(PathBuf),
    /// The program `openssl` failed, or is missing.
    #[error("openssl: {0}")]
    OpenSsl(String),
    /// The partition table could not be written.
    #[error("{}: the partition table: {source}", path.display())]
    Table {
        /// The disk image.
        path: PathBuf,
        /// The cause.
        source: Box<gpt::GptError>,
    },
    /// The first sector could not be written.
    #[error("{}: the protective MBR: {source}", path.display())]
    Mbr {
        /// The disk image.
        path: PathBuf,
        /// The cause.
        source: gpt::mbr::MBRError,
    },
    /// The file could not be made, or did not get its name.
    #[error(transparent)]
    NewFile(#[from] NewFileError),
    /// It could not be written in its format.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// There is nothing to make, or too much.
    #[error("{count} partitions: at least 1, at most {most}")]
    Count {
        /// Number of partitions.
        count: usize,
        /// Most that the table has.
        most: usize,
    },
    /// An MBR has no such type.
    #[error("partition {0}: its type has no number in an MBR; type=XX gives one")]
    NoMbrType(String),
    /// The disk is too large for an MBR.
    #[error("an MBR describes at most 2 TiB, and the disk has {0} bytes")]
    TooLargeForMbr(u64),
    /// A size or label that swap space cannot have.
    #[error("partition {0}: swap space has at least 40 KiB, and a label of at most 16 bytes")]
    Swap(String),
    /// A name that is empty, too long, or used twice.
    #[error("partition {0:?}: a name has 1 to 36 characters, and only one partition has it")]
    Name(String),
    /// The size of the partition is unknown.
    #[error("partition {0}: needs a size")]
    NoSize(String),
    /// Several partitions take the rest, or the disk has no size.
    #[error("partition {0}: the rest is for one partition of a disk with a size")]
    Rest(String),
    /// The disk whose partitions are replaced cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The disk whose partitions are replaced cannot be read.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The table of the disk whose partitions are replaced.
    #[error(transparent)]
    Existing(#[from] RepartitionError),
    /// A property of a partition that stays when its content is replaced.
    #[error("partition {name}: the {property} of an existing partition stays")]
    Kept {
        /// Name of the partition.
        name: String,
        /// The property.
        property: &'static str,
    },
    /// A property of a disk that stays when partitions of it are replaced.
    #[error("the {0} of an existing disk stays")]
    DiskKept(&'static str),
    /// The alignment is no power of two of at least a sector.
    #[error("alignment of {0} bytes: must be a power of two, at least 512")]
    Alignment(u64),
    /// The content of a partition does not fit.
    #[error("partition {name}: {content} bytes do not fit into {size}")]
    TooLarge {
        /// Name of the partition.
        name: String,
        /// Bytes of its content.
        content: u64,
        /// Its bytes.
        size: u64,
    },
    /// The partitions do not fit.
    #[error("{needed} bytes are needed, and the disk has {size}")]
    Full {
        /// Bytes of a disk with these partitions.
        needed: u64,
        /// Bytes of the disk.
        size: u64,
    },
}

type Result<T> = std::result::Result<T, DiskError>;

/// Makes a disk image with a partition table.
///
/// ```no_run
/// use sapwood::{DiskBuilder, NewPartition, PartitionContent};
///
/// let mut root = NewPartition::default();
/// root.name = "root".to_owned();
/// let archive = std::fs::File::open("root.tar")?;
/// let image = sapwood::ImageBuilder::ext4().from_tar(archive)?;
/// root.content = PartitionContent::Image(Box::new(image));
/// DiskBuilder::new().partition(root).write_to("disk.img")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct DiskBuilder {
    partitions: Vec<NewPartition>,
    from: Option<PathBuf>,
    size: Option<u64>,
    uuid: Option<[u8; 16]>,
    time: Option<SystemTime>,
    reproducible: bool,
    alignment: u64,
    scheme: Scheme,
    format: OutputFormat,
    replace: bool,
}

impl Default for DiskBuilder {
    fn default() -> Self {
        Self::new()
    }
}

/// The place of a partition, in bytes.
#[derive(Debug, Clone, Copy)]
struct PartitionRange {
    start: u64,
    len: u64,
}

impl DiskBuilder {
    /// A disk without partitions, as large as it has to be.
    #[must_use]
    pub fn new() -> Self {
        Self {
            partitions: Vec::new(),
            from: None,
            size: None,
            uuid: None,
            time: None,
            reproducible: false,
            alignment: 1 << 20,
            scheme: Scheme::Gpt,
            format: OutputFormat::Raw,
            replace: true,
        }
    }

    /// Copies an existing disk, and replaces the contents of the partitions that are added here.
    /// Each of them is named by the name or the number that it has there, and keeps its place, size
    /// and type. `from` may be an image in any format that can be read, or a device.
    ///
    /// ```no_run
    /// use sapwood::{DiskBuilder, NewPartition, PartitionContent};
    ///
    /// let mut root = NewPartition::default();
    /// root.name = "root".to_owned();
    /// root.content = PartitionContent::File("root-2.img".into());
    /// DiskBuilder::new().from("disk-1.img").partition(root).write_to("disk-2.img")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn from(mut self, from: impl Into<PathBuf>) -> Self {
        self.from = Some(from.into());
        self
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes / SECTOR * SECTOR);
        self
    }

    /// UUID of the disk, from which the UUIDs of its partitions and file systems derive; random if
    /// not given. A copy of an existing disk keeps the UUIDs of disk and partitions, and only those
    /// of new file systems derive from this one.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.uuid = Some(uuid);
        self
    }

    /// Sets every time in the file systems that no source has. With a [UUID](Self::uuid) the disk
    /// then depends on the sources and the options alone.
    #[must_use]
    pub fn time(mut self, time: SystemTime) -> Self {
        self.time = Some(time);
        self
    }

    /// Makes a disk that depends only on its contents. The UUID derives from them if none is given,
    /// and the time of a file system is the newest one of its sources if none is given.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        self.reproducible = true;
        self
    }

    /// Partitions begin at multiples of this many bytes. Default 1 MiB.
    #[must_use]
    pub fn alignment(mut self, bytes: u64) -> Self {
        self.alignment = bytes;
        self
    }

    /// Kind of the partition table: GPT, or an MBR with at most four partitions, which have no
    /// names in it.
    #[must_use]
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// Format of the file that is written.
    #[must_use]
    pub fn format(mut self, format: OutputFormat) -> Self {
        self.format = format;
        self
    }

    /// Whether to replace a file with the name of the disk image. The default is yes; a file in use
    /// is never replaced.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Adds a partition after those that were added before.
    #[must_use]
    pub fn partition(mut self, partition: NewPartition) -> Self {
        self.partitions.push(partition);
        self
    }

    /// Makes the disk image. It gets its name when it is complete and durable. A file that has the
    /// name is [replaced](Self::replace) then.
    ///
    /// # Errors
    /// The partitions do not fit, the content of one cannot be made, or the file cannot be written.
    pub fn write_to(&self, path: impl AsRef<Path>) -> crate::Result<()> {
        self.write_with_progress(path, &mut progress::ignore)
    }

    /// Like [`write_to`](Self::write_to), with progress.
    ///
    /// # Errors
    /// The errors of [`write_to`](Self::write_to).
    pub fn write_with_progress(
        &self,
        path: impl AsRef<Path>,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<()> {
        self.build(path, progress).map(drop)
    }

    /// Like [`write_to`](Self::write_to), with progress. Describes the disk.
    ///
    /// # Errors
    /// The errors of [`write_to`](Self::write_to).
    pub fn build(
        &self,
        path: impl AsRef<Path>,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<BuiltDisk> {
        let mut fixed = self.clone();
        fixed.add_hash_partitions()?;
        fixed.add_signature_partitions()?;
        fixed.check()?;
        for partition in &mut fixed.partitions {
            match &mut partition.content {
                PartitionContent::Image(image) => image.fix(self.time, self.reproducible),
                PartitionContent::Fat(image) => image.fix(self.time, self.reproducible),
                _ => {}
            }
        }
        if self.reproducible && self.uuid.is_none() {
            fixed.uuid = Some(self.hashed()?);
        }
        let path = path.as_ref();
        Ok(match fixed.from.take() {
            None => fixed.write(path, progress)?,
            Some(from) => fixed.write_replaced(&from, path, progress)?,
        })
    }

    /// A UUID derived from the contents of the disk.
    fn hashed(&self) -> Result<[u8; 16]> {
        let mut parts = Vec::new();
        for partition in &self.partitions {
            parts.extend(partition.hash()?);
        }
        let options = (self.size, self.alignment);
        let mut what = format!("disk {options:?}");
        if self.from.is_some() {
            what.push_str(" replaced");
        }
        if self.scheme != Scheme::Gpt {
            what.push_str(" mbr");
        }
        Ok(derived_uuid(&parts, &what))
    }
}
