//! Opening images.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, OpenOptions, Operand, OperandError};
use sapwood_btrfs::Btrfs;
use sapwood_ext4::Ext4;
use sapwood_vfs::FileSystem;

use crate::kind::{DetectError, Kind, detect};
use crate::options::{OptionError, Options};

/// Why an image could not be opened, as one line for people.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file or device.
    #[error("{0}")]
    Device(#[from] sapwood_block::Error),
    /// The part of a file or device that the operand names.
    #[error("{0}")]
    Operand(OperandError),
    /// Nothing that we know, or too much, is in it.
    #[error("{}", named(path, source))]
    Kind {
        /// Image.
        path: PathBuf,
        /// What is found.
        source: DetectError,
    },
    /// An option does not fit what is in it.
    #[error("{}", named(path, source))]
    Option {
        /// Image.
        path: PathBuf,
        /// Which, and why.
        source: OptionError,
    },
    /// It is of another kind than the one that is needed.
    #[error("{}", named(path, format_args!("this is {found}; {what} needs {needed}")))]
    OtherKind {
        /// Image.
        path: PathBuf,
        /// What was asked for.
        what: &'static str,
        /// The kind that has it.
        needed: Kind,
        /// The kind that the image is.
        found: Kind,
    },
    /// What is wrong with a btrfs.
    #[error("{}{}", named(path, source), hint(source))]
    Btrfs {
        /// Image.
        path: PathBuf,
        /// What the engine says.
        source: Box<sapwood_btrfs::Error>,
    },
    /// What is wrong with an ext4.
    #[error("{}", named(path, source))]
    Ext4 {
        /// Image.
        path: PathBuf,
        /// What the engine says.
        source: Box<sapwood_ext4::Error>,
    },
}

/// What went wrong with an image, with its name once.
pub fn named(path: &Path, why: impl std::fmt::Display) -> String {
    let (name, why) = (path.display().to_string(), why.to_string());
    match why.strip_prefix(&name) {
        Some(rest) if rest.starts_with(':') => why,
        _ => format!("{name}: {why}"),
    }
}

/// What to do about an error, for the end of its message.
fn hint(error: &sapwood_btrfs::Error) -> &'static str {
    match error {
        sapwood_btrfs::Error::MissingDevice { .. } => {
            "; give the path of every other device with the mount option device=PATH"
        }
        _ => "",
    }
}

/// A file system that is open: everything that the trait offers, whatever engine it is.
#[derive(Clone)]
pub enum Mounted {
    /// btrfs.
    Btrfs(Arc<Btrfs>),
    /// ext4, ext3 or ext2.
    Ext4(Arc<Ext4>),
}

impl Mounted {
    /// What kind it is.
    #[must_use]
    pub fn image_kind(&self) -> Kind {
        match self {
            Self::Btrfs(_) => Kind::Btrfs,
            Self::Ext4(_) => Kind::Ext4,
        }
    }

    /// The same, as a shared trait object.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn FileSystem> {
        match self {
            Self::Btrfs(fs) => fs.clone(),
            Self::Ext4(fs) => fs.clone(),
        }
    }
}

impl Deref for Mounted {
    type Target = dyn FileSystem;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Btrfs(fs) => &**fs,
            Self::Ext4(fs) => &**fs,
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

/// Opens what holds an image, locked against other users: a file, a device, or a part of one. `path`
/// is an [`Operand`].
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

/// As [`open_device`], and tells what kind of file system is in it.
///
/// # Errors
/// As [`open_device`]; [`OpenError::Kind`].
pub fn open_known(path: &Path, read_only: bool) -> Result<(Arc<dyn Device>, Kind), OpenError> {
    let device = open_device(path, read_only)?;
    let kind = known(path, &*device)?;
    Ok((device, kind))
}

/// Tells what kind of file system is on an opened device; `path` names it.
///
/// # Errors
/// [`OpenError::Kind`].
pub fn known(path: &Path, device: &dyn Device) -> Result<Kind, OpenError> {
    detect(device).map_err(|source| OpenError::Kind {
        path: path.to_owned(),
        source,
    })
}

/// Opens the file system in an image.
///
/// # Errors
/// As [`open_known`]; an option that does not fit; what the engine finds wrong.
pub fn open(path: &Path, options: &Options) -> Result<Mounted, OpenError> {
    Ok(open_file(path, options)?.0)
}

/// As [`open`], with the files or devices, whose locks can then be given up while the file system
/// still exists.
///
/// # Errors
/// As [`open`].
pub fn open_file(
    path: &Path,
    options: &Options,
) -> Result<(Mounted, Vec<Arc<dyn Device>>), OpenError> {
    let file = open_device(path, options.is_read_only())?;
    let kind = known(path, &*file)?;
    let misfit = |source| OpenError::Option {
        path: path.to_owned(),
        source,
    };
    let mut files = vec![Arc::clone(&file)];
    let fs = match kind {
        Kind::Btrfs => {
            let engine = options.for_btrfs().map_err(misfit)?;
            for device in options.devices() {
                files.push(open_device(device, options.is_read_only())?);
            }
            Mounted::Btrfs(mount_btrfs(path, files.clone(), engine)?)
        }
        Kind::Ext4 => {
            let engine = options.for_ext4().map_err(misfit)?;
            match Ext4::open(Arc::clone(&file), engine) {
                Ok(fs) => Mounted::Ext4(Arc::new(fs)),
                Err(error) => {
                    return Err(OpenError::Ext4 {
                        path: path.to_owned(),
                        source: Box::new(error),
                    });
                }
            }
        }
    };
    Ok((fs, files))
}

/// Opens a btrfs, for `what` only btrfs has.
///
/// # Errors
/// As [`open_known`]; [`OpenError::OtherKind`]; what the engine finds wrong.
pub fn open_btrfs(
    path: &Path,
    options: sapwood_btrfs::Options,
    what: &'static str,
) -> Result<Arc<Btrfs>, OpenError> {
    let (device, kind) = open_known(path, options.read_only)?;
    match kind {
        Kind::Btrfs => mount_btrfs(path, vec![device], options),
        found => Err(OpenError::OtherKind {
            path: path.to_owned(),
            what,
            needed: Kind::Btrfs,
            found,
        }),
    }
}

fn mount_btrfs(
    path: &Path,
    devices: Vec<Arc<dyn Device>>,
    options: sapwood_btrfs::Options,
) -> Result<Arc<Btrfs>, OpenError> {
    match Btrfs::open(devices, options) {
        Ok(fs) => Ok(Arc::new(fs)),
        Err(error) => Err(OpenError::Btrfs {
            path: path.to_owned(),
            source: Box::new(error),
        }),
    }
}
