//! Discarding the free space of an image on its device.

use std::path::{Path, PathBuf};

use crate::image;
use crate::options::Options;
use crate::vfs::{self, TrimRange};

/// Why an image was not trimmed, or not all of it. Its contents are as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrimError {
    /// It cannot be opened, or not be closed; something uses it.
    #[error(transparent)]
    Open(#[from] image::OpenError),
    /// The free space could not be found or discarded.
    #[error("{}: {source}", path.display())]
    FileSystem {
        /// The image.
        path: PathBuf,
        /// What the engine says.
        source: vfs::Error,
    },
}

/// Discards all free space of an image: a file gets holes, a block device discards, an export is
/// trimmed. Returns the number of bytes. Nothing else may use the image.
///
/// # Errors
/// [`TrimError`].
pub fn trim(path: impl AsRef<Path>) -> Result<u64, TrimError> {
    trim_with_options(path, &Options::default())
}

/// As [`trim`], with the image opened so.
///
/// # Errors
/// As [`trim`].
pub fn trim_with_options(path: impl AsRef<Path>, options: &Options) -> Result<u64, TrimError> {
    let path = path.as_ref();
    let fs = image::open(path, options)?;
    let failed = |source| TrimError::FileSystem {
        path: path.to_owned(),
        source,
    };
    // Space that the open recovered or deleted is free only once that is durable.
    let trimmed = fs.sync().and_then(|()| fs.trim(&TrimRange::default()));
    let closed = fs.unmount();
    let bytes = trimmed.map_err(failed)?;
    closed.map_err(failed)?;
    Ok(bytes)
}
