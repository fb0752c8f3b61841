//! Opening images.

mod damaged;
mod encrypted;

use std::collections::BTreeSet;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, OpenOptions, Operand, OperandError, OperandFiles};
use sapwood_btrfs::Btrfs;
use sapwood_ext4::{Ext4, JournalDevice};
use sapwood_luks::Key;
use sapwood_rescue::Rescued;
use sapwood_verity::RootHash;
use sapwood_vfs::FileSystem;

use crate::kind::{DetectError, Kind, detect};
use crate::options::{OptionError, Options};
use crate::unflushed::Unflushed;
pub use damaged::{deleted, open_damaged, state_of, survey};
use damaged::{rescue, with_state};
pub use encrypted::decrypted;
use encrypted::{key_of, verified};
pub(crate) use encrypted::{open_member, read_key};

/// Why an image could not be opened, as one line for people.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file or device.
    #[error("{0}")]
    Device(#[from] sapwood_block::Error),
    /// The part of a file or device that the operand names.
    #[error("{0}")]
    Operand(OperandError),
    /// It has no known file system, or superblocks of both formats.
    #[error("{}", named(path, source))]
    Kind {
        /// Image.
        path: PathBuf,
        /// The result of the detection.
        source: DetectError,
    },
    /// An option does not fit the image.
    #[error("{}", named(path, source))]
    Option {
        /// Image.
        path: PathBuf,
        /// The option, and the reason.
        source: OptionError,
    },
    /// It is of another format than the operation needs.
    #[error("{}", named(path, format_args!("this is {found}; {what} needs {needed}")))]
    OtherKind {
        /// Image.
        path: PathBuf,
        /// The operation, as text.
        what: &'static str,
        /// The format that has it.
        needed: Kind,
        /// The format of the image.
        found: Kind,
    },
    /// The hash tree of dm-verity does not verify the image.
    #[error("{}", named(path, source))]
    Verity {
        /// Image.
        path: PathBuf,
        /// The reason.
        source: Box<sapwood_verity::Error>,
    },
    /// A root hash without a hash device, or the reverse.
    #[error("{}: a root hash and a hash device are needed together", .0.display())]
    HalfVerity(PathBuf),
    /// The image is no LUKS volume, a damaged or unsupported one, or the key is wrong.
    #[error("{}", named(path, source))]
    Luks {
        /// Image.
        path: PathBuf,
        /// The reason.
        source: Box<sapwood_luks::Error>,
    },
    /// The file with the key of a LUKS volume.
    #[error("{}: {source}", path.display())]
    KeyFile {
        /// Key file.
        path: PathBuf,
        /// Error of the host.
        source: std::io::Error,
    },
    /// A damaged or unsupported btrfs.
    #[error("{}", named(path, source))]
    Btrfs {
        /// Image.
        path: PathBuf,
        /// Error of the engine.
        source: Box<sapwood_btrfs::Error>,
    },
    /// A damaged or unsupported ext4.
    #[error("{}", named(path, source))]
    Ext4 {
        /// Image.
        path: PathBuf,
        /// Error of the engine.
        source: Box<sapwood_ext4::Error>,
    },
    /// Nothing of a damaged image can be read.
    #[error("{}", named(path, source))]
    Rescue {
        /// Image.
        path: PathBuf,
        /// Why.
        source: sapwood_rescue::Error,
    },
}

/// The message for an image, with its name once.
pub fn named(path: &Path, why: impl std::fmt::Display) -> String {
    let (name, why) = (path.display().to_string(), why.to_string());
    match why.strip_prefix(&name) {
        Some(rest) if rest.starts_with(':') => why,
        _ => format!("{name}: {why}"),
    }
}

/// A file system that is open: everything that the trait offers, whatever engine it is.
#[derive(Clone)]
pub enum Mounted {
    /// btrfs.
    Btrfs(Arc<Btrfs>),
    /// ext4, ext3 or ext2.
    Ext4(Arc<Ext4>),
    /// A damaged image of this kind, read without an engine.
    Rescued(Kind, Arc<Rescued>),
}

impl Mounted {
    /// The format.
    #[must_use]
    pub fn image_kind(&self) -> Kind {
        match self {
            Self::Btrfs(_) => Kind::Btrfs,
            Self::Ext4(_) => Kind::Ext4,
            Self::Rescued(kind, _) => *kind,
        }
    }

    /// The same, as a shared trait object.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn FileSystem> {
        match self {
            Self::Btrfs(fs) => fs.clone(),
            Self::Ext4(fs) => fs.clone(),
            Self::Rescued(_, fs) => fs.clone(),
        }
    }
}

impl Deref for Mounted {
    type Target = dyn FileSystem;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Btrfs(fs) => &**fs,
            Self::Ext4(fs) => &**fs,
            Self::Rescued(_, fs) => &**fs,
        }
    }
}

impl From<OperandError> for OpenError {
    fn from(error: OperandError) -> Self {
        match error {
            OperandError::Device(error) => Self::Device(error),
            error => Self::Operand(error),
        }
    }
}

/// Names an image without regard to the current directory. Returns an operand with real paths, made
/// of `path` and the options `offset`, `length` and `partition`, and the options without these
/// three. A daemon needs it, because it changes its directory before it opens the image.
///
/// # Errors
/// [`OpenError::Operand`]: more than one of them names a part. The image, or a device of the
/// options, does not exist.
pub fn located(path: &Path, options: &Options) -> Result<(PathBuf, Options), OpenError> {
    let (path, options) = &with_state(path, options);
    let real = |path: &Path| {
        Operand::canonical(path)
            .map_err(|error| sapwood_block::Error::open(&path.display().to_string(), error))
    };
    let image = real(&options.mounting().operand(path)?)?;
    let devices = devices_of(&image, options)?;
    let devices = devices.iter().map(|device| real(device));
    let devices = devices.collect::<Result<_, _>>()?;
    let mut options = options.clone().of_whole(devices);
    options.relocate(real)?;
    Ok((image, options))
}

/// The further devices that options name, and devices of the same btrfs in the directories that
/// they name.
fn devices_of(image: &Path, options: &Options) -> Result<Vec<PathBuf>, OpenError> {
    let mut devices = options.devices().to_vec();
    if options.scanned().is_empty() {
        return Ok(devices);
    }
    let Some((fsid, own)) = member(image) else {
        // The thread that opens the image reports its errors.
        return Ok(devices);
    };
    let mut known: BTreeSet<u64> = devices.iter().filter_map(|d| Some(member(d)?.1)).collect();
    known.insert(own);
    for directory in options.scanned() {
        let failed = |error| sapwood_block::Error::open(&directory.display().to_string(), error);
        let entries = fs::read_dir(directory).map_err(failed)?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let kind = fs::metadata(&path).map(|found| found.file_type());
            if !kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
                continue;
            }
            if let Some((of, devid)) = member(&path)
                && of == fsid
                && known.insert(devid)
            {
                devices.push(path);
            }
        }
    }
    Ok(devices)
}

/// File system id and device id of a device of a btrfs; `None` for anything else, and for a device
/// that cannot be opened.
fn member(path: &Path) -> Option<([u8; 16], u64)> {
    let device = open_device(path, true).ok()?;
    let found = sapwood_btrfs::inspect::super_block(&[device]).ok()?;
    Some((found.fsid, found.dev_item.devid.get()))
}

/// Opens the device of an image, locked against other users: a file, a device, or a part of one.
/// `path` is an [`Operand`].
///
/// # Errors
/// It does not exist, is in use, or may not be read (or written); the operand names no part of it.
pub fn open_device(path: &Path, read_only: bool) -> Result<Arc<dyn Device>, OpenError> {
    let options = if read_only {
        OpenOptions::read_only()
    } else {
        OpenOptions::default()
    };
    Ok(Operand::parse(path)?.open(options)?)
}

/// Like [`open_device`], and detects the format of the file system.
///
/// # Errors
/// It does not exist, is in use, or may not be read (or written); [`OpenError::Kind`].
pub fn open_known(path: &Path, read_only: bool) -> Result<(Arc<dyn Device>, Kind), OpenError> {
    let device = open_device(path, read_only)?;
    let kind = known(path, &*device)?;
    Ok((device, kind))
}

/// Like [`open_known`] for reading, with the further devices of a btrfs that the options name. The
/// image itself is the first.
///
/// # Errors
/// [`OpenError`]; the options name devices, and the image is not btrfs.
pub(crate) fn open_all(
    path: &Path,
    options: &Options,
) -> Result<(Vec<Arc<dyn Device>>, Kind), OpenError> {
    open_devices(path, options, true)
}

/// Opens the devices of [`open_all`], for reading or for writing.
///
/// # Errors
/// [`OpenError`]; the options name devices, and the image is not btrfs.
pub(crate) fn open_devices(
    path: &Path,
    options: &Options,
    read_only: bool,
) -> Result<(Vec<Arc<dyn Device>>, Kind), OpenError> {
    let files = OpenFiles::open_as(path, options, read_only)?;
    let (kind, devices) = files.devices(options)?;
    Ok((devices, kind))
}

/// Detects the format of the file system on an opened device; `path` names it.
///
/// # Errors
/// [`OpenError::Kind`].
pub fn known(path: &Path, device: &dyn Device) -> Result<Kind, OpenError> {
    detect(device).map_err(|source| OpenError::Kind {
        path: path.to_owned(),
        source,
    })
}

/// Opens the file system in an image. If the options `offset`, `length` or `partition` name a part
/// of `path`, the image is that part. For a btrfs over several devices the options name the others
/// ([`Options::add_device`]).
///
/// # Errors
/// [`OpenError`]: two parts are named; an option that does not fit; errors of the engine.
pub fn open(path: &Path, options: &Options) -> Result<Mounted, OpenError> {
    Ok(open_file(path, options, |_| Ok(()))?.0)
}

/// Opens a btrfs like [`open`]. `what` names the operation in the error for another format.
///
/// # Errors
/// [`OpenError`], also [`OpenError::OtherKind`].
pub(crate) fn open_btrfs(
    path: &Path,
    options: &Options,
    what: &'static str,
) -> Result<(Mounted, Vec<Arc<dyn Device>>), OpenError> {
    let only_btrfs = |found: Kind| match found {
        Kind::Btrfs => Ok(()),
        found => Err(OpenError::OtherKind {
            path: path.to_owned(),
            what,
            needed: Kind::Btrfs,
            found,
        }),
    };
    open_file(path, options, only_btrfs)
}

/// Like [`open`], if `accept` does not refuse the format. Also returns the files or devices, whose
/// locks can then be released while the file system still exists.
///
/// # Errors
/// [`OpenError`], and the errors of `accept`.
pub(crate) fn open_file(
    path: &Path,
    options: &Options,
    accept: impl FnOnce(Kind) -> Result<(), OpenError>,
) -> Result<(Mounted, Vec<Arc<dyn Device>>), OpenError> {
    let (path, options) = &with_state(path, options);
    OpenFiles::open(path, options)?.mount(options, accept)
}

pub(crate) type Stored = (PathBuf, Arc<dyn Device>);
/// A file, device or export, opened and locked.
struct OpenFile {
    path: PathBuf,
    operand: Operand,
    whole: OperandFiles,
}

impl OpenFile {
    fn open(path: PathBuf, how: OpenOptions) -> Result<Self, OpenError> {
        let operand = Operand::parse(&path)?;
        let whole = operand.open_whole(how)?;
        Ok(Self {
            path,
            operand,
            whole,
        })
    }

    /// The part of it that the path names, decrypted if there is a key.
    fn device(self, key: Option<&Key>) -> Result<Arc<dyn Device>, OpenError> {
        let part = self.operand.part_of(self.whole)?;
        decrypted(&self.path, part, key)
    }
}

/// The files, devices and exports of an image, opened and locked. Nothing was read from them,
/// except headers of a qcow2 file with backing files that the user allows.
pub(crate) struct OpenFiles {
    image: OpenFile,
    others: Vec<OpenFile>,
    /// The key, if they are LUKS volumes.
    key: Option<Key>,
    /// The hash tree of the image, and its root hash.
    hashes: Option<(Arc<dyn Device>, RootHash)>,
}

impl OpenFiles {
    /// Opens the image, and the devices of the options.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        Self::open_as(path, options, options.is_read_only())
    }

    /// Opens the image, and the devices of the options, for reading or for writing.
    fn open_as(path: &Path, options: &Options, read_only: bool) -> Result<Self, OpenError> {
        let path = options.mounting().operand(path)?;
        let hashes = match (
            &options.mounting().hash_device,
            &options.mounting().root_hash,
        ) {
            (Some(device), Some(root)) => Some((open_device(device, true)?, root.clone())),
            (None, None) => None,
            _ => return Err(OpenError::HalfVerity(path)),
        };
        let how = if read_only || hashes.is_some() {
            OpenOptions::read_only()
        } else {
            OpenOptions::default()
        };
        let devices = devices_of(&path, options)?.into_iter();
        let devices = devices.chain(options.mounting().journal_path.clone());
        let image = OpenFile::open(path, how)?;
        let others = devices.map(|device| OpenFile::open(device, how));
        Ok(Self {
            image,
            others: others.collect::<Result<_, _>>()?,
            key: key_of(options)?,
            hashes,
        })
    }

    /// Opens the files with the file system as they are stored, the image first, without the journal
    /// of an ext4 on another device. Returns the key that decrypts them.
    pub(crate) fn stored(
        path: &Path,
        options: &Options,
        read_only: bool,
    ) -> Result<(Vec<Stored>, Option<Key>), OpenError> {
        let opened = Self::open_as(path, &options.without_journal(), read_only)?;
        let files = std::iter::once(opened.image).chain(opened.others);
        let files = files.map(|file| Ok((file.path.clone(), file.device(None)?)));
        Ok((files.collect::<Result<_, OpenError>>()?, opened.key))
    }

    /// Whether any of them is an export of an NBD server.
    #[cfg(feature = "fuse")]
    pub(crate) fn has_export(&self) -> bool {
        std::iter::once(&self.image)
            .chain(&self.others)
            .any(|file| file.operand.is_export())
    }

    /// The devices, the image first, whether or not they have a file system.
    fn all(self) -> Result<Vec<Arc<dyn Device>>, OpenError> {
        let files = std::iter::once(self.image).chain(self.others);
        files.map(|file| file.device(self.key.as_ref())).collect()
    }

    /// The kind of the file system, and its devices.
    pub(crate) fn devices(
        self,
        options: &Options,
    ) -> Result<(Kind, Vec<Arc<dyn Device>>), OpenError> {
        let (path, key) = (self.image.path.clone(), self.key.as_ref());
        let file = verified(&path, self.image.device(key)?, self.hashes)?;
        let others = self.others.into_iter().map(|other| other.device(key));
        devices(&path, file, others, options, |_| Ok(()))
    }

    /// Opens the file system, if `accept` does not refuse its format. Also returns its devices.
    ///
    /// # Errors
    /// [`OpenError`], and the errors of `accept`.
    pub(crate) fn mount(
        self,
        options: &Options,
        accept: impl FnOnce(Kind) -> Result<(), OpenError>,
    ) -> Result<(Mounted, Vec<Arc<dyn Device>>), OpenError> {
        let (path, key) = (self.image.path.clone(), self.key.as_ref());
        let is_export = self.image.operand.is_export();
        let file = self.image.device(key)?;
        let file = if options.is_unflushed() {
            Unflushed::over(file, is_export)
        } else {
            file
        };
        let file = verified(&path, file, self.hashes)?;
        let others = self.others.into_iter().map(|other| other.device(key));
        mount(&path, file, others, options, accept)
    }
}

/// Like [`open_file`] for the file system on a device, which is called `path` in errors. The caller
/// flushes the device at the end if the options switch the file system's flushes off.
pub(crate) fn open_on(
    device: Arc<dyn Device>,
    path: &Path,
    options: &Options,
) -> Result<(Mounted, Vec<Arc<dyn Device>>), OpenError> {
    let device = if options.is_unflushed() {
        Unflushed::over(device, false)
    } else {
        device
    };
    let open = |path: &PathBuf| open_device(path, options.is_read_only());
    let others = options
        .devices()
        .iter()
        .chain(&options.mounting().journal_path);
    mount(path, device, others.map(open), options, |_| Ok(()))
}

fn mount(
    path: &Path,
    file: Arc<dyn Device>,
    others: impl Iterator<Item = Result<Arc<dyn Device>, OpenError>>,
    options: &Options,
    accept: impl FnOnce(Kind) -> Result<(), OpenError>,
) -> Result<(Mounted, Vec<Arc<dyn Device>>), OpenError> {
    if options.rescues().is_some() {
        let mut files = vec![file];
        for other in others {
            files.push(other?);
        }
        let fs = rescue(path, &files, options, &|_, _| true)?;
        accept(fs.image_kind())?;
        return Ok((fs, files));
    }
    let (kind, files) = devices(path, file, others, options, accept)?;
    let fs = reopen(path, kind, files.clone(), options)?;
    Ok((fs, files))
}

/// The kind of the file system on `file`, if `accept` does not refuse it, and all of its devices.
fn devices(
    path: &Path,
    file: Arc<dyn Device>,
    others: impl Iterator<Item = Result<Arc<dyn Device>, OpenError>>,
    options: &Options,
    accept: impl FnOnce(Kind) -> Result<(), OpenError>,
) -> Result<(Kind, Vec<Arc<dyn Device>>), OpenError> {
    let kind = known(path, &*file)?;
    accept(kind)?;
    let path = path.to_owned();
    let misfit = |source| OpenError::Option { path, source };
    options.refuse_foreign(kind).map_err(misfit)?;
    let mut files = vec![file];
    for other in others {
        files.push(other?);
    }
    Ok((kind, files))
}

/// Opens the file system on devices that are open already; `path` names the first. The second one
/// of an ext4 has its journal.
pub(crate) fn reopen(
    path: &Path,
    kind: Kind,
    devices: Vec<Arc<dyn Device>>,
    options: &Options,
) -> Result<Mounted, OpenError> {
    if options.rescues().is_some() {
        return rescue(path, &devices, options, &|_, _| true);
    }
    let path = || path.to_owned();
    let misfit = |source| OpenError::Option {
        path: path(),
        source,
    };
    match kind {
        Kind::Btrfs => {
            let engine = options.for_btrfs().map_err(misfit)?;
            let opened = Btrfs::open(devices, engine);
            let failed = |error| OpenError::Btrfs {
                path: path(),
                source: Box::new(error),
            };
            Ok(Mounted::Btrfs(Arc::new(opened.map_err(failed)?)))
        }
        Kind::Ext4 => {
            let mut engine = options.for_ext4().map_err(misfit)?;
            let mut devices = devices.into_iter();
            let device = devices.next().ok_or(OpenError::Kind {
                path: path(),
                source: DetectError::Neither,
            })?;
            engine.journal = devices.next().map(JournalDevice::new);
            let failed = |error| OpenError::Ext4 {
                path: path(),
                source: Box::new(error),
            };
            let opened = Ext4::open(device, engine).map_err(failed)?;
            Ok(Mounted::Ext4(Arc::new(opened)))
        }
    }
}
