//! LUKS: encrypted volumes, as `cryptsetup` makes them.
//!
//! ```standalone_crate
//! use sapwood::luks::{self, FormatOptions};
//!
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # std::fs::write("root.key", "secret")?;
//! # std::fs::create_dir("tree")?;
//! let key = luks::read_key("root.key")?;
//! sapwood::ImageBuilder::ext4()
//!     .size(64 << 20)
//!     .from_dir("tree")?
//!     .encrypted(key.clone(), FormatOptions::default())
//!     .write_to("root.img")?;
//! println!("{}", luks::describe("root.img")?.uuid);
//! let fs = sapwood::Options::new().key(key).open("root.img")?;
//! fs.write("hostname", "box\n")?;
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sapwood_base::RangeSet;
use sapwood_block::{Device, signature};
pub(crate) use sapwood_luks::HEADER_SIZE;
pub use sapwood_luks::{Derivation, Description, FormatOptions, Key, SlotDescription};

use crate::error::Result;
use crate::image::{self, OpenError};
use crate::new_file::{NewFile, NewFileError};
use crate::progress::{OnProgress, Progress};

/// The phase of [`Progress::Done`] in which an image is encrypted; its unit is the MiB.
#[doc(hidden)]
pub const ENCRYPTING: &str = "encrypting";
/// Bytes that are encrypted at a time.
const PIECE: usize = 1 << 20;

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
        /// Its format, as text.
        found: &'static str,
    },
    /// The content of the volume cannot be read.
    #[error("{}: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
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
    /// A volume in `path`, which may be an operand such as `disk.img#1`.
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

/// Makes a volume in an empty file, with the content of another file, which errors call `path`. The
/// ranges in `unused` become holes, which read as noise.
///
/// # Errors
/// The content cannot be read; the volume cannot be made or written.
pub(crate) fn encrypt(
    (from, len, unused): (&File, u64, &RangeSet),
    path: &Path,
    out: &NewFile,
    (key, options): (&Key, &FormatOptions),
    progress: &mut OnProgress<'_>,
) -> Result<(), LuksError> {
    let size = HEADER_SIZE + len.next_multiple_of(options.sector.max(1));
    let device = out.device_of(size).map_err(OpenError::Device)?;
    sapwood_luks::format(&*device, key, options).map_err(volume(out.path()))?;
    let opened = sapwood_luks::open(device, key).map_err(volume(out.path()))?;
    progress(Progress::Total(len >> 20));
    let mut piece = vec![0; PIECE];
    for (mut at, end) in unused.gaps(0, len) {
        while at < end {
            let bytes = (end - at).min(PIECE as u64) as usize;
            let bytes = piece.get_mut(..bytes).unwrap_or_default();
            let read = from.read_exact_at(bytes, at);
            read.map_err(|source| LuksError::Content {
                path: path.to_owned(),
                source,
            })?;
            opened.write_at(at, bytes).map_err(OpenError::Device)?;
            at += bytes.len() as u64;
            progress(Progress::Done {
                phase: ENCRYPTING,
                done: at >> 20,
            });
        }
    }
    Ok(opened.flush().map_err(OpenError::Device)?)
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
