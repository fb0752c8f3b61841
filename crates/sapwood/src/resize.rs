//! Growing and shrinking a file system in place.

#[cfg(feature = "fuse")]
mod mounted;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use sapwood_block::{Device, DiskFormat, MemoryDevice, Operand, Part};
use sapwood_btrfs::{Btrfs, resize as btrfs};
use sapwood_ext4::{Ext4, resize as ext4};
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::daemon::DaemonError;
use crate::image::{self, OpenError, named};
use crate::new_file::NewFile;
use crate::options::parse_size;
use crate::progress::{OnProgress, Progress};
use crate::repartition::{self, RepartitionError};
use crate::vfs::{FileSystem, FsStat, Timestamp};

/// Sizes of file systems are multiples of this.
const UNIT: u64 = 4096;
/// Most steps of growth until enough space is available.
const STEPS: u32 = 64;

/// The size that a file system is to have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NewSize {
    /// The smallest size that holds the contents and leaves this much space available to users, as
    /// `df` shows it.
    Min(FreeRoom),
    /// A number of bytes.
    Exactly(u64),
    /// More bytes than now.
    More(u64),
    /// Fewer bytes than now.
    Less(u64),
    /// As many bytes as its device has; for a file system in an image file, as the file has.
    Max,
}

/// Space that is available to users.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FreeRoom {
    /// Bytes.
    Bytes(u64),
    /// Per cent of the smallest size.
    Percent(f64),
}

impl Default for FreeRoom {
    fn default() -> Self {
        Self::Bytes(0)
    }
}

/// The error for a text that is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not {1}")]
pub(crate) struct BadSize(String, &'static str);

impl FromStr for FreeRoom {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let bad = || BadSize(text.to_owned(), "a size, or a percentage like 10%");
        if let Some(number) = text.strip_suffix('%') {
            let percent: f64 = number.parse().map_err(|_| bad())?;
            let sane = (0.0..=10_000.0).contains(&percent);
            return Ok(sane.then_some(Self::Percent(percent)).ok_or_else(bad)?);
        }
        Ok(parse_size(text).map(Self::Bytes).ok_or_else(bad)?)
    }
}

impl FromStr for NewSize {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let size = |text: &str| parse_size(text).filter(|_| !text.starts_with('+'));
        let found = match text.as_bytes() {
            b"min" => Some(Self::Min(FreeRoom::default())),
            b"max" => Some(Self::Max),
            [b'+', ..] => size(&text[1..]).map(Self::More),
            [b'-', ..] => size(&text[1..]).map(Self::Less),
            _ => size(text).map(Self::Exactly),
        };
        let what = "min, max, or a size: bytes, or with k, M, G, T; with + or - in front a change";
        Ok(found.ok_or_else(|| BadSize(text.to_owned(), what))?)
    }
}

impl FreeRoom {
    /// The number of bytes in a file system whose smallest size is `least`.
    fn bytes(self, least: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // A float represents sizes exactly enough; the fraction is dropped.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            #[expect(clippy::cast_precision_loss)]
            Self::Percent(percent) => (least as f64 * percent / 100.0) as u64,
        }
    }
}

/// Report of a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeReport {
    /// Bytes of the file system, or of the device, before.
    pub before: u64,
    /// Bytes of the file system, or of the device, now.
    pub after: u64,
}

/// Why a file system keeps its size. It is complete, with everything in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// It cannot be opened; something uses it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file cannot be made longer or shorter.
    #[error("{}: {source}", path.display())]
    File {
        /// The image.
        path: PathBuf,
        /// Error of the host.
        source: std::io::Error,
    },
    /// The end of its partition cannot be moved.
    #[error(transparent)]
    Partition(#[from] RepartitionError),
    /// The change is larger than the file system.
    #[error("{}: the file system has only {size} bytes", path.display())]
    TooMuchLess {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// The daemon of the mount did not do it.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A mounted file system has no smallest size.
    #[error(
        "{}: in use, so it has no smallest size: name a size, or unmount it first",
        path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A device of several was named, and the path leads to no mount.
    #[error(
        "{}: DEVID:SIZE is for a directory in a mount of a btrfs over several devices",
        path.display()
    )]
    NoMount {
        /// The path.
        path: PathBuf,
    },
    /// Error of the btrfs engine.
    #[error("{}", named(path, source))]
    Btrfs {
        /// The image.
        path: PathBuf,
        /// Why.
        source: Box<btrfs::ResizeError>,
    },
    /// Error of the ext4 engine.
    #[error("{}", named(path, source))]
    Ext4 {
        /// The image.
        path: PathBuf,
        /// Why.
        source: Box<ext4::ResizeError>,
    },
}

impl fmt::Display for ResizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {} before", self.after, self.before)
    }
}

/// Gives the file system in an image another size. Nothing else may use the image. If the path is a
/// directory in a mount by Sapwood, the daemon of the mount resizes the file system, which stays in
/// use; see below.
///
/// A file gets the size of its file system: it is made longer first, and cut last. A partition grows if its file
/// system needs that, and if there is room up to the next partition or the end of the disk; it is
/// never made smaller. A block device and an export keep their size, and the file system must fit.
///
/// A crash at any moment leaves a complete file system of the old or the new size. The smallest
/// size is reached in steps, each of which leaves a complete file system too.
///
/// A mounted file system grows in an image file, which is made longer, and on a device that has
/// become larger. Of a btrfs over several devices the one with id 1 grows
/// ([`resize_device`] names one). A mounted btrfs also shrinks; its file keeps its length.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)).
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the content does not fit into the
/// new size, or the image cannot have it. The directory is in no mount by Sapwood, or the caller is
/// neither its owner nor root; the daemon refuses.
pub fn resize(
    path: impl AsRef<Path>,
    size: NewSize,
    progress: &mut OnProgress<'_>,
) -> crate::Result<ResizeReport> {
    #[cfg(feature = "fuse")]
    if path.as_ref().is_dir() {
        return Ok(mounted::resize(path.as_ref(), None, size, progress)?);
    }
    let image = OpenImage::open(path.as_ref(), None)?;
    Ok(resize_image(image, size, 0, progress)?)
}

/// Gives a device of a mounted btrfs another size, like [`resize`]. `dir` is a directory in a mount
/// by Sapwood.
///
/// # Errors
/// The errors of [`resize`].
pub fn resize_device(
    dir: impl AsRef<Path>,
    devid: u64,
    size: NewSize,
    progress: &mut OnProgress<'_>,
) -> crate::Result<ResizeReport> {
    let dir = dir.as_ref();
    #[cfg(feature = "fuse")]
    if dir.is_dir() {
        return Ok(mounted::resize(dir, Some(devid), size, progress)?);
    }
    let _ = (devid, size, progress);
    let path = dir.to_owned();
    Err(ResizeError::NoMount { path }.into())
}

/// Like [`resize`], and reproducible: the same image gives the same bytes. New timestamps are
/// `time`.
///
/// # Errors
/// The errors of [`resize`].
pub fn resize_reproducibly(
    path: impl AsRef<Path>,
    size: NewSize,
    time: SystemTime,
    progress: &mut OnProgress<'_>,
) -> crate::Result<ResizeReport> {
    let image = OpenImage::open(path.as_ref(), Some(time.into()))?;
    Ok(resize_image(image, size, 0, progress)?)
}

/// Resizes like [`resize`], for an image that is not complete yet. The smallest size of an ext4
/// leaves this many inodes free.
pub(crate) fn resize_new(
    new: &NewFile,
    size: NewSize,
    inodes: u64,
    time: Option<Timestamp>,
    progress: &mut OnProgress<'_>,
) -> Result<ResizeReport, ResizeError> {
    let device = new.device().map_err(OpenError::from)?;
    let image = OpenImage {
        path: new.path(),
        kind: image::known(new.path(), &*device)?,
        device,
        file: true,
        new: Some(new),
        time,
    };
    resize_image(image, size, inodes, progress)
}

fn resize_image(
    mut image: OpenImage<'_>,
    size: NewSize,
    inodes: u64,
    progress: &mut OnProgress<'_>,
) -> Result<ResizeReport, ResizeError> {
    let before = image.size()?;
    let wanted = match size {
        NewSize::Exactly(bytes) => bytes,
        NewSize::More(bytes) => before.saturating_add(bytes),
        NewSize::Less(bytes) => before.checked_sub(bytes).ok_or(ResizeError::TooMuchLess {
            path: image.path.to_owned(),
            size: before,
        })?,
        NewSize::Max => image.device.size(),
        NewSize::Min(room) => {
            let least = image.shrink_to_fit(inodes, progress)?;
            image.cut(least, before)?;
            let size = image.grow_to_have(room.bytes(least), least, progress)?;
            size.next_multiple_of(UNIT)
        }
    };
    let wanted = wanted - wanted % UNIT;
    let after = if wanted == image.size()? {
        wanted
    } else {
        image.make_room(wanted)?;
        image.resize(wanted, progress)?
    };
    image.cut(after, before)?;
    Ok(ResizeReport { before, after })
}

/// An open image.
struct OpenImage<'p> {
    path: &'p Path,
    device: Arc<dyn Device>,
    kind: Kind,
    /// A file of its own, which gets the size of the file system.
    file: bool,
    /// The file, if it has no name yet.
    new: Option<&'p NewFile>,
    /// The result is reproducible, and has this time.
    time: Option<Timestamp>,
}

impl<'p> OpenImage<'p> {
    fn open(path: &'p Path, time: Option<Timestamp>) -> Result<Self, ResizeError> {
        let (device, kind) = image::open_known(path, false)?;
        // A qcow2 file is no file system from its first byte to its last.
        let plain = path.metadata().is_ok_and(|meta| meta.is_file());
        let file = plain && device.format() == DiskFormat::Raw;
        Ok(Self {
            path,
            device,
            kind,
            file: file && !Operand::is_fixed(path),
            new: None,
            time,
        })
    }

    fn size(&self) -> Result<u64, ResizeError> {
        match self.kind {
            Kind::Btrfs => btrfs::size(&*self.device).map_err(|error| self.btrfs(error.into())),
            Kind::Ext4 => ext4::size(&*self.device).map_err(|error| self.ext4(error.into())),
        }
    }

    fn btrfs(&self, source: btrfs::ResizeError) -> ResizeError {
        ResizeError::Btrfs {
            path: self.path.to_owned(),
            source: Box::new(source),
        }
    }

    fn ext4(&self, source: ext4::ResizeError) -> ResizeError {
        ResizeError::Ext4 {
            path: self.path.to_owned(),
            source: Box::new(source),
        }
    }

    fn shrink_to_fit(
        &self,
        inodes: u64,
        progress: &mut OnProgress<'_>,
    ) -> Result<u64, ResizeError> {
        let mut moved = |done| progress(moved(done));
        match self.kind {
            Kind::Btrfs => {
                let fitted = btrfs::shrink_to_fit(&self.device, self.time, &mut moved);
                fitted.map_err(|error| self.btrfs(error))
            }
            Kind::Ext4 => {
                let fitted = ext4::shrink_to_fit(&self.device, inodes, self.time, &mut moved);
                fitted.map_err(|error| self.ext4(error))
            }
        }
    }

    fn resize(&self, size: u64, progress: &mut OnProgress<'_>) -> Result<u64, ResizeError> {
        let mut moved = |done| progress(moved(done));
        match self.kind {
            Kind::Btrfs => {
                let resized = btrfs::resize(&self.device, size, self.time, &mut moved);
                resized.map_err(|error| self.btrfs(error))
            }
            Kind::Ext4 => {
                let resized = ext4::resize(&self.device, size, self.time, &mut moved);
                resized.map_err(|error| self.ext4(error))
            }
        }
    }

    /// Bytes that are available to users, as `df` shows them.
    fn available(&self) -> Result<u64, ResizeError> {
        let device = Arc::clone(&self.device);
        let stat = match self.kind {
            Kind::Btrfs => available_in_btrfs(device).map_err(|error| self.btrfs(error.into()))?,
            Kind::Ext4 => available_in_ext4(device).map_err(|error| self.ext4(error.into()))?,
        };
        Ok(stat.blocks_available.saturating_mul(stat.block_size.into()))
    }

    /// Grows the file system, which has `size` bytes, until `free` bytes are available. Growth adds
    /// metadata and enlarges the reserve, so it may take several steps.
    fn grow_to_have(
        &mut self,
        free: u64,
        mut size: u64,
        progress: &mut OnProgress<'_>,
    ) -> Result<u64, ResizeError> {
        let (mut wanted, mut step) = (size, 0u64);
        for _ in 0..STEPS {
            let lacking = match free {
                0 => 0,
                free => free.saturating_sub(self.available()?),
            };
            if lacking == 0 {
                break;
            }
            step = lacking.max(step);
            wanted = wanted.saturating_add(step).next_multiple_of(UNIT);
            self.make_room(wanted)?;
            let grown = self.resize(wanted, progress)?;
            // A new group at the end has a least size, below which the file system does not grow.
            step = if grown > size {
                0
            } else {
                step.saturating_mul(2)
            };
            size = grown;
        }
        Ok(size)
    }

    /// Makes a file or a partition at least this long.
    fn make_room(&mut self, size: u64) -> Result<(), ResizeError> {
        if size <= self.device.size() {
            return Ok(());
        }
        if self.file {
            return self.set_len(size);
        }
        let operand = Operand::parse(self.path).map_err(OpenError::from)?;
        match operand.part() {
            Part::Partition(wanted) => self.grow_partition(operand.file(), wanted, size),
            _ => Ok(()),
        }
    }

    /// Moves the end of a partition. The disk is closed for that, and opened again.
    fn grow_partition(&mut self, disk: &Path, wanted: &str, size: u64) -> Result<(), ResizeError> {
        let disk = Operand::with_format(disk, Some(self.device.format()), false);
        self.device = Arc::new(MemoryDevice::new(0));
        let whole = image::open_device(&disk, false)?;
        repartition::grow(&*whole, wanted, size)?;
        drop(whole);
        self.device = image::open_device(self.path, false)?;
        Ok(())
    }

    /// Cuts a file to the size of its file system. On another device, discards space that the file
    /// system, which had `before` bytes, no longer uses.
    fn cut(&mut self, size: u64, before: u64) -> Result<(), ResizeError> {
        let end = before.min(self.device.size());
        if self.file && size < self.device.size() {
            return self.set_len(size);
        }
        if self.file || size >= end {
            return Ok(());
        }
        let discarded = self.device.discard(size, end - size);
        discarded.map_err(|error| match self.kind {
            Kind::Btrfs => self.btrfs(sapwood_btrfs::Error::from(error).into()),
            Kind::Ext4 => self.ext4(error.into()),
        })
    }

    /// Sets the length of a file. It stays locked by the old device until the new one is opened.
    fn set_len(&mut self, size: u64) -> Result<(), ResizeError> {
        let set = match self.new {
            // Becomes durable when the file gets its name.
            Some(new) => new.file().set_len(size),
            None => File::options()
                .write(true)
                .open(self.path)
                .and_then(|file| file.set_len(size).and_then(|()| file.sync_all())),
        };
        set.map_err(|source| ResizeError::File {
            path: self.path.to_owned(),
            source,
        })?;
        self.device = Arc::new(MemoryDevice::new(0));
        self.device = match self.new {
            Some(new) => new.device().map_err(OpenError::from)?,
            None => image::open_device(self.path, false)?,
        };
        Ok(())
    }
}

fn available_in_btrfs(device: Arc<dyn Device>) -> Result<FsStat, sapwood_btrfs::Error> {
    let options = sapwood_btrfs::Options {
        read_only: true,
        background: false,
        ..sapwood_btrfs::Options::default()
    };
    Ok(Btrfs::open(vec![device], options)?.statfs()?)
}

fn available_in_ext4(device: Arc<dyn Device>) -> Result<FsStat, sapwood_ext4::Error> {
    let options = sapwood_ext4::Options {
        read_only: true,
        background: false,
        ..sapwood_ext4::Options::default()
    };
    Ok(Ext4::open(device, options)?.statfs()?)
}

/// The phase of a resize in its progress, counted in bytes.
pub const MOVING: &str = "bytes moved";

fn moved(done: u64) -> Progress<'static> {
    Progress::Done {
        phase: MOVING,
        done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let parsed = |text: &str| text.parse::<NewSize>();
        assert_eq!(parsed("min").unwrap(), NewSize::Min(FreeRoom::Bytes(0)));
        assert_eq!(parsed("+1M").unwrap(), NewSize::More(1 << 20));
        assert_eq!(parsed("-4k").unwrap(), NewSize::Less(4096));
        assert_eq!(parsed("2G").unwrap(), NewSize::Exactly(2 << 30));
        assert_eq!(parsed("max").unwrap(), NewSize::Max);
        for bad in ["", "max1", "+", "-x", "++1", "10%"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        assert_eq!("10%".parse::<FreeRoom>().unwrap(), FreeRoom::Percent(10.0));
        assert_eq!(
            "64M".parse::<FreeRoom>().unwrap(),
            FreeRoom::Bytes(64 << 20)
        );
        assert!("-1%".parse::<FreeRoom>().is_err() && "x".parse::<FreeRoom>().is_err());
        assert_eq!(FreeRoom::Percent(50.0).bytes(8192), 4096);
        assert_eq!(FreeRoom::Bytes(1).bytes(8192), 1);
    }
}
