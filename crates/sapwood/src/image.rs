//! Opening images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, FileDevice, OpenOptions};
use sapwood_btrfs::{Btrfs, Options};

/// Why an image could not be opened, as one line for people.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file or device.
    #[error("{0}")]
    Device(#[from] sapwood_block::Error),
    /// What is in it.
    #[error("{}", named(path, source))]
    Engine {
        /// Image.
        path: PathBuf,
        /// What the engine says.
        source: Box<sapwood_btrfs::Error>,
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

/// Opens the file or device that holds an image, locked against other users.
///
/// # Errors
/// It does not exist, is in use, or may not be read (or written).
pub fn open_device(path: &Path, read_only: bool) -> Result<Arc<dyn Device>, OpenError> {
    let options = if read_only {
        OpenOptions::read_only()
    } else {
        OpenOptions::default()
    };
    Ok(Arc::new(FileDevice::open(path, options)?))
}

/// Opens the file system in an image.
///
/// # Errors
/// As [`open_device`], and what the engine finds wrong.
pub fn open(path: &Path, options: Options) -> Result<Arc<Btrfs>, OpenError> {
    let device = open_device(path, options.read_only)?;
    let engine = |error| OpenError::Engine {
        path: path.to_owned(),
        source: Box::new(error),
    };
    Ok(Arc::new(
        Btrfs::open(vec![device], options).map_err(engine)?,
    ))
}
