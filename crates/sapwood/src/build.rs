//! Making images.

mod make;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::Kind;
use crate::changes::Changes;
use crate::luks::{FormatOptions, Key};
use crate::mkfs::{MkfsOptions, MkfsReport};
use crate::output::OutputFormat;
use crate::progress::{self, OnProgress, Stop};
use crate::resize::FreeRoom;
pub use crate::sources::BuildError;
use crate::sources::{Counts, Format, Need, Sources, derived_uuid};
use crate::verity::{Params, RootHash};
pub use make::fill;

/// Unit of space of both formats, in bytes, for estimates.
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
    sources: Sources,
    free: FreeRoom,
    free_inodes: u64,
    reproducible: bool,
    encryption: Option<(Key, FormatOptions)>,
    verity: Option<(PathBuf, Params)>,
    like: Option<PathBuf>,
    format: OutputFormat,
    replace: bool,
}

/// An image that was made.
#[derive(Debug, Clone)]
pub struct BuiltImage {
    /// The report of mkfs. Its sizes are from before the image was filled.
    #[doc(hidden)]
    pub report: MkfsReport,
    /// Bytes of the image.
    pub size: u64,
    /// Names of a [directory](ImageBuilder::from_dir) that could not be copied; each was reported
    /// as [`Progress::Failed`](crate::Progress::Failed).
    pub left_out: u64,
    /// Root hash of its [hash tree](ImageBuilder::verity).
    pub root_hash: Option<RootHash>,
}

impl ImageBuilder {
    /// An image of this format. Its root belongs to the caller, or to the owner of the
    /// [directory](Self::from_dir) that it is filled from.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            options: MkfsOptions::new(kind),
            sources: Sources::default(),
            free: FreeRoom::default(),
            free_inodes: 0,
            reproducible: false,
            encryption: None,
            verity: None,
            like: None,
            format: OutputFormat::Raw,
            replace: true,
        }
    }

    /// An image with these options of mkfs.
    #[must_use]
    pub fn with_options(options: MkfsOptions) -> Self {
        let kind = options.kind();
        Self {
            options,
            ..Self::new(kind)
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

    /// Size of the image in bytes. Without one, an image that is filled is as small as it can be,
    /// with [`free`](Self::free) space.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.options.set_size(bytes);
        self
    }

    /// Space that is available to users, as `df` shows it, if no size is given.
    #[must_use]
    pub fn free(mut self, room: FreeRoom) -> Self {
        self.free = room;
        self
    }

    /// Free inodes at least, if no size is given. btrfs makes inodes as it needs them.
    #[must_use]
    pub fn free_inodes(mut self, count: u64) -> Self {
        self.free_inodes = count;
        self
    }

    /// Format of the file that is written. In a [partition](crate::DiskBuilder) the image is raw.
    #[must_use]
    pub fn format(mut self, format: OutputFormat) -> Self {
        self.format = format;
        self
    }

    /// Encrypts the image: it becomes a LUKS2 volume, whose header of 16 MiB counts in its size. In
    /// a partition, [`NewPartition::key`](crate::NewPartition) does that.
    #[must_use]
    pub fn encrypted(mut self, key: Key, options: FormatOptions) -> Self {
        self.encryption = Some((key, options));
        self
    }

    /// Writes the hash tree of the image to a new file, which appears with the image. A file of that
    /// name is treated as one of the image's name. In a partition,
    /// [`NewPartition::verity`](crate::NewPartition) does that.
    #[must_use]
    pub fn verity(mut self, hashes: impl Into<PathBuf>, params: Params) -> Self {
        self.verity = Some((hashes.into(), params));
        self
    }

    /// Makes the image from a copy of an older one of the same format: all inodes, blocks and names
    /// that did not change stay where they are, so that the difference of the two files is small.
    /// The files are exactly those of the sources, and free space is zeros. The size is the older
    /// image's if none is given. UUID, label and features are the older image's; options of mkfs
    /// other than the size and the owner of the root have no effect. The image is
    /// [reproducible](Self::reproducible).
    ///
    /// ```no_run
    /// sapwood::ImageBuilder::ext4().from_dir("root")?.like("v1.img").write_to("v2.img")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn like(mut self, older: impl Into<PathBuf>) -> Self {
        self.like = Some(older.into());
        self
    }

    /// Has a request end the making early, with
    /// [`ErrorKind::Interrupted`](crate::ErrorKind::Interrupted). No image is made then.
    #[must_use]
    pub fn stop(mut self, stop: Stop) -> Self {
        self.sources.stop_with(stop);
        self
    }

    /// Whether to replace a file with the name of the image. The default is yes; a file in use is
    /// never replaced.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
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

    /// UUID of the file system, unless it was chosen.
    pub(crate) fn default_uuid(mut self, uuid: [u8; 16]) -> Self {
        self.options.default_uuid(uuid);
        self
    }

    /// Sets every time that no source has, also in the superblock. With a [UUID](Self::uuid) the
    /// same sources and options then give the same bytes.
    #[must_use]
    pub fn time(mut self, time: SystemTime) -> Self {
        self.options.set_time(time);
        self.sources.set_time(time);
        self
    }

    /// Makes an image that depends on the sources and the options alone. The UUID derives from
    /// them if none is given, and the time is the newest one of the sources if none is given.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        self.reproducible = true;
        self
    }

    /// Has the image use a time, if one is given and it has none, and be
    /// [reproducible](Self::reproducible).
    pub(crate) fn fix(&mut self, time: Option<SystemTime>, reproducible: bool) {
        if let Some(time) = time.filter(|_| self.options.time().is_none()) {
            self.options.set_time(time);
        }
        self.reproducible |= reproducible;
    }

    /// A hash of the sources and the options.
    pub(crate) fn hash(&self) -> Result<[u8; 32], BuildError> {
        let mut hash = Sha256::new();
        hash.update(self.sources.summary()?.hash);
        hash.update(format!("{:?}", self.options));
        Ok(hash.finalize().into())
    }

    /// Owner and group of the root directory.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.options.set_root_owner(uid, gid);
        self
    }

    /// Sets an option of mkfs by its name, long or short, without dashes: `("inode-size",
    /// Some("512"))`. `sapwood mkfs-options` lists them.
    ///
    /// # Errors
    /// There is none of that name, the other format has it, or the value makes no sense.
    pub fn option(mut self, name: &str, value: Option<&str>) -> crate::Result<Self> {
        self.options.set(name, value)?;
        Ok(self)
    }

    /// Fills the image from these sources, after those that it has.
    #[must_use]
    pub fn sources(mut self, sources: Sources) -> Self {
        self.sources.append(sources);
        self
    }

    /// Adds the files of a tar archive, plain or compressed with gzip, zstd, xz or bzip2, which is
    /// read to its end here. Owners, modes, times, links, device nodes, extended attributes, ACLs
    /// and holes come from the archive.
    ///
    /// Sources are applied in the order of these calls. A later file replaces an earlier one of
    /// its name, and directories are merged.
    ///
    /// ```no_run
    /// let archive = std::fs::File::open("root.tar")?;
    /// sapwood::ImageBuilder::ext4().from_tar(archive)?.write_to("root.img")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// It cannot be read or decompressed. Errors of its entries are errors of
    /// [`write_to`](Self::write_to).
    pub fn from_tar(mut self, archive: impl Read + Send) -> crate::Result<Self> {
        self.sources.read_now(Format::Tar, archive)?;
        Ok(self)
    }

    /// Like [`from_tar`](Self::from_tar), for a cpio archive (`newc`, with or without checksums).
    ///
    /// # Errors
    /// It cannot be read or decompressed. Errors of its entries are errors of
    /// [`write_to`](Self::write_to).
    pub fn from_cpio(mut self, archive: impl Read + Send) -> crate::Result<Self> {
        self.sources.read_now(Format::Cpio, archive)?;
        Ok(self)
    }

    /// Adds the files of a container image: an OCI layout in a directory or an archive, or an
    /// archive of `docker save`; `PATH:TAG` chooses one of several images.
    #[must_use]
    pub fn from_oci(mut self, path: impl Into<PathBuf>) -> Self {
        self.sources.oci(path);
        self
    }

    /// Adds everything in a directory of this machine, as `cp -a` copies it: with owners, modes,
    /// times, links, special files, extended attributes and holes.
    ///
    /// ```no_run
    /// sapwood::ImageBuilder::btrfs().from_dir("root")?.write_to("root.img")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn from_dir(mut self, path: impl Into<PathBuf>) -> crate::Result<Self> {
        let path = path.into();
        fs::read_dir(&path).map_err(|source| BuildError::File {
            path: path.clone(),
            source,
        })?;
        self.sources.dir(path);
        Ok(self)
    }

    /// Metadata that files get in place of their source's.
    #[must_use]
    pub fn changes(mut self, changes: Changes) -> Self {
        *self.sources.changes_mut() = changes;
        self
    }

    /// Bytes that an image needs for its sources: room for the files and the format, and an eighth
    /// more, in whole MiB. `None` without a source.
    ///
    /// # Errors
    /// A source cannot be read.
    pub fn needed_size(&self) -> crate::Result<Option<u64>> {
        let need = self.sources.need(Counts::All)?;
        Ok((!self.sources.is_empty()).then(|| self.size_for(need)))
    }

    fn size_for(&self, need: Need) -> u64 {
        let own = match self.options.kind() {
            Kind::Btrfs => 256 << 20,
            Kind::Ext4 => 96 << 20,
        };
        let files = need.entries.saturating_mul(BLOCK);
        let all = need.bytes.saturating_add(files);
        all.saturating_add(all / 8).saturating_add(own) & !0xf_ffff
    }

    /// Makes the image. It gets its name when it is complete and durable. A file that has the name
    /// is [replaced](Self::replace) then.
    ///
    /// # Errors
    /// A source cannot be read, or a file of a [directory](Self::from_dir) not be copied.
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists): the name exists. [`ErrorKind::StorageFull`](crate::ErrorKind::StorageFull): the image is too
    /// small.
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
        self.make(path.as_ref(), true, progress)?;
        Ok(())
    }

    /// Like [`write_to`](Self::write_to), with progress. The image is made although names of a
    /// [directory](Self::from_dir) could not be copied.
    ///
    /// # Errors
    /// The errors of [`write_to`](Self::write_to), except for files that cannot be copied.
    pub fn build(
        &self,
        path: impl AsRef<Path>,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<BuiltImage> {
        Ok(self.make(path.as_ref(), false, progress)?)
    }
}

/// Makes a file system with these options, filled from these sources, depend on both alone. The
/// UUID derives from them if none is given, and the time is the newest one of the sources if none
/// is given.
///
/// # Errors
/// [`BuildError`]: a source cannot be read.
pub fn make_reproducible(
    options: &mut MkfsOptions,
    sources: &mut Sources,
) -> Result<(), BuildError> {
    let summary = sources.summary()?;
    let time = options.time().unwrap_or(summary.newest);
    options.set_time(time);
    sources.set_time(time);
    let what = format!("{:?}", options);
    options.default_uuid(derived_uuid(&summary.hash, &what));
    Ok(())
}
