//! LUKS: encrypted volumes, as `cryptsetup` makes them.
//!
//! ```no_run
//! use sapwood::luks::{self, FormatOptions, Key, NewVolume};
//!
//! let key = luks::read_key("root.key")?;
//! let volume = NewVolume::new("root.img").size(1 << 30);
//! luks::format(&volume, &key, &FormatOptions::default())?;
//! println!("{}", luks::describe("root.img")?.uuid);
//! let fs = sapwood::Options::new().key(key).open("root.img")?;
//! # Ok::<(), sapwood::Error>(())
//! ```

use std::path::{Path, PathBuf};

use sapwood_block::signature;
pub use sapwood_luks::{Derivation, Description, FormatOptions, Key, SlotDescription};

use crate::error::Result;
use crate::image::{self, OpenError};
use crate::new_file::{NewFile, NewFileError};

/// Why a volume was not made or described.
#[derive(Debug, thiserror::Error)]
pub enum LuksError {
    /// The image, or the key file.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new image.
    #[error(transparent)]
    NewFile(#[from] NewFileError),
    /// The image has content that would be lost.
    #[error("{}: has {found} already, and is not overwritten", path.display())]
    Occupied {
        /// Image.
        path: PathBuf,
        /// What was found.
        found: &'static str,
    },
    /// The volume.
    #[error("{}", image::named(path, source))]
    Volume {
        /// Image.
        path: PathBuf,
        /// The reason.
        source: sapwood_luks::Error,
    },
}

fn volume(path: &Path) -> impl FnOnce(sapwood_luks::Error) -> LuksError {
    move |source| LuksError::Volume {
        path: path.to_owned(),
        source,
    }
}

/// Where a volume is made: in an existing image, device or partition, or in a new file.
#[derive(Debug, Clone)]
pub struct NewVolume {
    path: PathBuf,
    size: Option<u64>,
    replace: bool,
}

impl NewVolume {
    /// In what has this path, an operand as `disk.img#1`.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            size: None,
            replace: false,
        }
    }

    /// In a new file of this size in bytes, the header of 16 MiB included.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// Overwrites what is there.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }
}

/// Makes an empty LUKS2 volume that `key` opens.
///
/// # Errors
/// The file exists, or the device has content; there is no room for the header; options that make
/// no sense.
pub fn format(new: &NewVolume, key: &Key, options: &FormatOptions) -> Result<()> {
    Ok(make(new, key, options)?)
}

fn make(new: &NewVolume, key: &Key, options: &FormatOptions) -> Result<(), LuksError> {
    let path = &*new.path;
    if let Some(size) = new.size {
        let file = NewFile::create(path, new.replace)?;
        let device = file.device_of(size).map_err(OpenError::Device)?;
        sapwood_luks::format(&*device, key, options).map_err(volume(path))?;
        drop(device);
        return Ok(file.finish()?);
    }
    let device = image::open_device(path, false)?;
    let found = signature::find(&*device).map_err(OpenError::Device)?;
    if let Some(found) = found.filter(|_| !new.replace) {
        return Err(LuksError::Occupied {
            path: path.to_owned(),
            found,
        });
    }
    signature::wipe(&*device).map_err(OpenError::Device)?;
    sapwood_luks::format(&*device, key, options).map_err(volume(path))
}

/// Describes a volume. It needs no key.
///
/// # Errors
/// The image is no volume, or has a damaged or unsupported one.
pub fn describe(image: impl AsRef<Path>) -> Result<Description> {
    let image = image.as_ref();
    let device = image::open_device(image, true).map_err(LuksError::from)?;
    let described = sapwood_luks::describe(&*device).map_err(volume(image));
    Ok(described?)
}

/// Reads a key file: all of its bytes are the key. `-` is standard input.
///
/// # Errors
/// The file cannot be read, is empty, or is larger than 8 MiB.
pub fn read_key(path: impl AsRef<Path>) -> Result<Key> {
    let key = image::read_key(path.as_ref());
    Ok(key.map_err(LuksError::from)?)
}
