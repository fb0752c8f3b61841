//! Discarding the free space of an image on its device.

use std::path::{Path, PathBuf};

use crate::image;
use crate::options::Options;
use crate::vfs::{self, TrimRange};

/// Why the free space of an image could not be found or discarded. Its contents are as before.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub(crate) struct TrimError {
    pub(crate) path: PathBuf,
    source: vfs::Error,
}

/// Discards all free space of an image: a file gets holes, a block device discards, an export is
/// trimmed. Returns the number of bytes. Nothing else may use the image.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)); the device does not support discard.
pub fn trim(path: impl AsRef<Path>) -> crate::Result<u64> {
    trim_with_options(path, &Options::default())
}

/// Like [`trim`], with these options for opening the image.
///
/// # Errors
/// The errors of [`trim`].
pub fn trim_with_options(path: impl AsRef<Path>, options: &Options) -> crate::Result<u64> {
    let path = path.as_ref();
    let fs = image::open(path, options)?;
    let failed = |source| TrimError {
        path: path.to_owned(),
        source,
    };
    // Space that recovery frees is available only after a commit.
    let trimmed = fs.sync().and_then(|()| fs.trim(&TrimRange::default()));
    let closed = fs.unmount();
    let bytes = trimmed.map_err(failed)?;
    closed.map_err(failed)?;
    Ok(bytes)
}
