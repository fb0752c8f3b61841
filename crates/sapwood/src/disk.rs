//! Whole disk images: a GUID partition table, and partitions that are filled.
//!
//! # How it works
//! The content of each partition is built in a file of its own, so its size is known before the
//! places are. Then the partitions are laid out in their order, each at a multiple of the
//! alignment, the contents are copied to their places without their holes, and the table is
//! written with its backup. All of it goes into a file that gets its name at the end.

mod content;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gpt::mbr::ProtectiveMBR;
use gpt::partition_types::{OperatingSystem, Type};
use gpt::{GptConfig, partition};
use uuid::Uuid;

use crate::build::{BuildError, ImageBuilder};
use crate::new_file::{NewFile, NewFileError};
use crate::output::{Identity, OutputError, OutputFormat, VHD_UNIT, convert};
use crate::progress::{self, OnProgress};
use crate::sources::derived_uuid;
use content::Built;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Sectors of a table with its header, at each end of the disk.
const TABLE: u64 = 33;
/// Most UTF-16 units of a partition's name.
const NAME: usize = 36;
/// Most partitions of a table.
const PARTITIONS: usize = 128;

/// The types of partitions that have a name here.
const TYPES: &[(&str, &str)] = &[
    ("linux", "0fc63daf-8483-4772-8e79-3d69d8477de4"),
    ("esp", "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"),
    ("xbootldr", "bc13c2ff-59e6-4262-a352-b275fd6f7172"),
    ("bios", "21686148-6449-6e6f-744e-656564454649"),
    ("swap", "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"),
    ("home", "933ac7e1-2eb4-4f13-b844-0e14e2aef915"),
    ("srv", "3b8f8425-20e0-4f3b-907f-1a25a76f98e8"),
    ("var", "4d21b016-b534-45c2-a9fb-5c16e091fd2d"),
    ("tmp", "7ec6f557-3bc5-4aca-b293-16ef5df639d1"),
    ("root-x86", "44479540-f297-41b2-9af7-d131d5f0458a"),
    ("root-x86-64", "4f68bce3-e8cd-4db1-96e7-fbcaf984b709"),
    ("root-arm", "69dad710-2ce4-4e3c-b16c-21a1d49abed3"),
    ("root-arm64", "b921b045-1df0-41c3-af44-4c6f280d3fae"),
    ("root-riscv64", "72ec70a6-cf74-40e6-bd49-4bda08e8f224"),
    ("usr-x86-64", "8484680c-9521-48c6-9c11-b0720656f69e"),
    ("usr-arm64", "b0e01050-ee5f-4390-949a-9101b17104e9"),
    ("lvm", "e6d6d379-f507-44c2-a23c-238f2a3df928"),
    ("raid", "a19d880f-05fc-4d3b-a006-743f0f84911e"),
    ("luks", "ca7d7ccb-63ed-4c53-861c-1742536059cc"),
    ("basic", "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"),
];

/// The names of [`partition_type`].
pub fn type_names() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|(name, _)| *name)
}

/// The type of a partition by its name (`esp`, `root-x86-64`, ...) or GUID.
#[must_use]
pub fn partition_type(text: &str) -> Option<[u8; 16]> {
    let named = TYPES.iter().find(|(name, _)| *name == text);
    let guid = named.map_or(text, |(_, guid)| *guid);
    Some(Uuid::parse_str(guid).ok()?.into_bytes())
}

/// How large a partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PartitionSize {
    /// The size of its content.
    #[default]
    Content,
    /// So many bytes.
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
}

/// A partition to be made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct NewPartition {
    /// Its name in the table.
    pub name: String,
    /// Type; Linux data if not given.
    pub kind: Option<[u8; 16]>,
    /// UUID in the table; derived from the disk's if not given.
    pub uuid: Option<[u8; 16]>,
    /// Its size.
    pub size: PartitionSize,
    /// Content.
    pub content: PartitionContent,
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
    #[error("{0} partitions: at least 1, at most 128")]
    Count(usize),
    /// A name that is empty, too long, or used twice.
    #[error("partition {0:?}: a name has 1 to 36 characters, and only one partition has it")]
    Name(String),
    /// The size of the partition is unknown.
    #[error("partition {0}: needs a size")]
    NoSize(String),
    /// Several partitions take the rest, or the disk has no size.
    #[error("partition {0}: the rest is for one partition of a disk with a size")]
    Rest(String),
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

/// Makes a disk image with a GUID partition table.
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
    size: Option<u64>,
    uuid: Option<[u8; 16]>,
    time: Option<SystemTime>,
    reproducible: bool,
    alignment: u64,
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
            size: None,
            uuid: None,
            time: None,
            reproducible: false,
            alignment: 1 << 20,
            format: OutputFormat::Raw,
            replace: true,
        }
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes / SECTOR * SECTOR);
        self
    }

    /// UUID of the disk, from which the UUIDs of its partitions and file systems derive; random if
    /// not given.
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
    /// As [`write_to`](Self::write_to).
    pub fn write_with_progress(
        &self,
        path: impl AsRef<Path>,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<()> {
        let path = path.as_ref();
        self.check()?;
        let mut fixed = self.clone();
        for partition in &mut fixed.partitions {
            if let PartitionContent::Image(image) = &mut partition.content {
                image.fix(self.time, self.reproducible);
            }
        }
        if self.reproducible && self.uuid.is_none() {
            fixed.uuid = Some(self.hashed()?);
        }
        Ok(fixed.write(path, progress)?)
    }

    /// A UUID derived from the contents of the disk.
    fn hashed(&self) -> Result<[u8; 16]> {
        let mut parts = Vec::new();
        for partition in &self.partitions {
            parts.extend(partition.hash()?);
        }
        let options = (self.size, self.alignment);
        Ok(derived_uuid(&parts, &format!("disk {options:?}")))
    }

    /// Makes the disk image, when the UUID is decided.
    fn write(&self, path: &Path, progress: &mut OnProgress<'_>) -> Result<()> {
        let failed = |source| DiskError::File {
            path: path.to_owned(),
            source,
        };
        let new = NewFile::create(path, self.replace)?;
        let disk_uuid = self.uuid.unwrap_or_else(|| *Uuid::new_v4().as_bytes());
        let mut built = Vec::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            let rest = partition.size == PartitionSize::Rest;
            built.push(if rest {
                Built::Nothing
            } else {
                partition.build(None, self.derived(index, "file system"), &new, progress)?
            });
        }
        let places = self.places(&built)?;
        for (index, (partition, place)) in self.partitions.iter().zip(&places).enumerate() {
            if partition.size == PartitionSize::Rest {
                let uuid = self.derived(index, "file system");
                let content = partition.build(Some(place.len), uuid, &new, progress)?;
                if let Some(slot) = built.get_mut(index) {
                    *slot = content;
                }
            }
        }
        let raw = match self.format {
            OutputFormat::Raw => None,
            _ => Some(new.scratch()?),
        };
        let disk = raw.as_ref().unwrap_or(&new).file();
        let end = places.last().map_or(0, |place| place.start + place.len);
        let size = match (self.size.unwrap_or_else(|| self.whole(end)), self.format) {
            // So that the backup of the table is at the end of the disk.
            (size, OutputFormat::Vhd) => size.next_multiple_of(VHD_UNIT),
            (size, _) => size,
        };
        disk.set_len(size).map_err(failed)?;
        for ((partition, content), place) in self.partitions.iter().zip(&built).zip(&places) {
            partition.copy(content, *place, disk, path)?;
        }
        drop(built);
        self.write_table(disk, path, disk_uuid, &places)?;
        let identity = Identity {
            uuid: disk_uuid,
            time: self.time.unwrap_or_else(|| self.fixed_time()),
        };
        if let Some(raw) = raw {
            convert(&raw, &new, self.format, identity, progress)?;
        }
        Ok(new.finish()?)
    }

    /// The time of a format that records one, where none is given.
    fn fixed_time(&self) -> SystemTime {
        if self.reproducible {
            SystemTime::UNIX_EPOCH
        } else {
            SystemTime::now()
        }
    }

    fn check(&self) -> Result<()> {
        let count = self.partitions.len();
        if !(1..=PARTITIONS).contains(&count) {
            return Err(DiskError::Count(count));
        }
        if !self.alignment.is_power_of_two() || self.alignment < SECTOR {
            return Err(DiskError::Alignment(self.alignment));
        }
        let mut rest = false;
        for (index, partition) in self.partitions.iter().enumerate() {
            let name = &partition.name;
            let before = self.partitions.get(..index).unwrap_or_default();
            let units = name.encode_utf16().count();
            let bad = name.contains(|char: char| char.is_control());
            if bad || !(1..=NAME).contains(&units) || before.iter().any(|one| one.name == *name) {
                return Err(DiskError::Name(name.clone()));
            }
            if partition.size == PartitionSize::Rest {
                if rest || self.size.is_none() {
                    return Err(DiskError::Rest(name.clone()));
                }
                rest = true;
            }
        }
        Ok(())
    }

    /// A UUID derived from the disk's, if that was given.
    fn derived(&self, index: usize, what: &str) -> Option<[u8; 16]> {
        let what = format!("partition {index}: {what}");
        Some(derived_uuid(&self.uuid?, &what))
    }

    fn aligned(&self, bytes: u64) -> u64 {
        bytes
            .div_ceil(self.alignment)
            .saturating_mul(self.alignment)
    }

    /// Bytes of a disk whose last partition has this end.
    fn whole(&self, end: u64) -> u64 {
        self.aligned(end.saturating_add(TABLE * SECTOR))
    }

    /// The places of all partitions.
    fn places(&self, built: &[Built]) -> Result<Vec<PartitionRange>> {
        let mut sizes = Vec::new();
        for (partition, content) in self.partitions.iter().zip(built) {
            sizes.push(partition.bytes(content)?);
        }
        let first = self.aligned((1 + TABLE) * SECTOR);
        let lay_out = |rest: u64| -> (Vec<PartitionRange>, u64) {
            let mut at = first;
            let mut places = Vec::new();
            for size in &sizes {
                let start = self.aligned(at);
                let len = size.unwrap_or(rest);
                places.push(PartitionRange { start, len });
                at = start.saturating_add(len);
            }
            (places, at)
        };
        let (places, end) = lay_out(0);
        let Some(size) = self.size else {
            return Ok(places);
        };
        let usable = size.saturating_sub(TABLE * SECTOR);
        let takes_rest = sizes.iter().any(Option::is_none);
        let unit = self.alignment.max(4096);
        let rest = usable.saturating_sub(end) / unit * unit;
        if end > usable || (takes_rest && rest == 0) {
            let needed = self.whole(end + if takes_rest { unit } else { 0 });
            return Err(DiskError::Full { needed, size });
        }
        Ok(lay_out(rest).0)
    }

    fn write_table(
        &self,
        file: &File,
        path: &Path,
        uuid: [u8; 16],
        places: &[PartitionRange],
    ) -> Result<()> {
        let failed = |source: gpt::GptError| DiskError::Table {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let host = |source| DiskError::File {
            path: path.to_owned(),
            source,
        };
        let mut device = file.try_clone().map_err(host)?;
        let sectors = file.metadata().map_err(host)?.len() / SECTOR;
        let protected = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
        let mbr = ProtectiveMBR::with_lb_size(protected);
        let written = mbr.overwrite_lba0(&mut device);
        written.map_err(|source| DiskError::Mbr {
            path: path.to_owned(),
            source,
        })?;
        let linux = partition_type("linux").unwrap_or_default();
        let mut entries = BTreeMap::new();
        for (index, (partition, place)) in (0..).zip(self.partitions.iter().zip(places)) {
            let derived = || self.derived(index, "table");
            let own = partition.uuid.or_else(derived);
            let entry = partition::Partition {
                part_type_guid: Type {
                    guid: Uuid::from_bytes(partition.kind.unwrap_or(linux)),
                    os: OperatingSystem::None,
                },
                part_guid: own.map_or_else(Uuid::new_v4, Uuid::from_bytes),
                first_lba: place.start / SECTOR,
                last_lba: (place.start + place.len) / SECTOR - 1,
                flags: 0,
                name: partition.name.clone(),
            };
            entries.insert(index as u32 + 1, entry);
        }
        let config = GptConfig::new().writable(true);
        let disk = config.create_from_device(device, Some(Uuid::from_bytes(uuid)));
        let mut disk = disk.map_err(failed)?;
        disk.update_partitions(entries).map_err(failed)?;
        disk.write().map_err(failed)?;
        Ok(())
    }
}
