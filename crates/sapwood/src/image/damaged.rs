//! Opening damaged images, and older states of a btrfs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, Operand};

use super::{Mounted, OpenError, OpenFiles};
use crate::options::{DeletedFiles, OptionError, Options};
use crate::rescue::{self, OnDeleted, OnScan, Survey};

/// The image and the generation of `IMAGE@GENERATION`, unless a file has this name.
#[must_use]
pub fn state_of(path: &Path) -> Option<(PathBuf, u64)> {
    let bytes = path.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'@')?;
    if Operand::exists(path) {
        return None;
    }
    let generation = std::str::from_utf8(&bytes[at + 1..]).ok()?.parse().ok()?;
    let image = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
    Operand::exists(&image).then_some((image, generation))
}

/// Options for the state that `IMAGE@GENERATION` names, and the image.
pub(super) fn with_state(path: &Path, options: &Options) -> (PathBuf, Options) {
    match state_of(path) {
        Some((image, generation)) => (image, options.clone().of_generation(generation)),
        None => (path.to_owned(), options.clone()),
    }
}

/// Reads the damaged file system on devices, with the options for rescue.
pub(super) fn rescue(
    path: &Path,
    devices: &[Arc<dyn Device>],
    options: &Options,
    on_scan: &OnScan<'_>,
) -> Result<Mounted, OpenError> {
    let misfit = |source| OpenError::Option {
        path: path.to_owned(),
        source,
    };
    if !options.is_read_only() {
        return Err(misfit(OptionError::Unsupported {
            option: "rescue".to_owned(),
            why: "a damaged image is only read; add ro",
        }));
    }
    let how = options.rescues().cloned().unwrap_or_default();
    let opened = rescue::open(devices, &how, on_scan);
    let (fs, kind) = opened.map_err(|source| OpenError::Rescue {
        path: path.to_owned(),
        source,
    })?;
    options.refuse_foreign(kind).map_err(misfit)?;
    Ok(Mounted::Rescued(kind, Arc::new(fs)))
}

/// Opens a damaged image like [`open`](super::open), with the progress of the scan.
///
/// # Errors
/// The errors of [`open`](super::open). [`OpenError::Rescue`]: no file system was found.
pub fn open_damaged(
    path: &Path,
    options: &Options,
    on_scan: &OnScan<'_>,
) -> Result<Mounted, OpenError> {
    let (path, options) = &with_state(path, options);
    let devices = OpenFiles::open(path, options)?.all()?;
    rescue(path, &devices, options, on_scan)
}

/// Lists the recoverable trees and files of a damaged image.
///
/// # Errors
/// The errors of [`open_device`](super::open_device). [`OpenError::Rescue`]: no file system was
/// found.
pub fn survey(path: &Path, options: &Options, on_scan: &OnScan<'_>) -> Result<Survey, OpenError> {
    let devices = OpenFiles::open(path, options)?.all()?;
    let how = options.rescues().cloned().unwrap_or_default();
    let found = rescue::survey(&devices, &how, on_scan);
    found.map_err(|source| OpenError::Rescue {
        path: path.to_owned(),
        source,
    })
}

/// Lists the deleted files of an image.
///
/// # Errors
/// The errors of [`open_device`](super::open_device). [`OpenError::Rescue`]: no file system was
/// found.
pub fn deleted(
    path: &Path,
    options: &Options,
    wanted: &DeletedFiles,
    on_scan: &OnScan<'_>,
    each: &mut OnDeleted<'_>,
) -> Result<(), OpenError> {
    let devices = OpenFiles::open(path, options)?.all()?;
    let how = options.rescues().cloned().unwrap_or_default();
    let listed = rescue::deleted(&devices, &how, wanted, on_scan, each);
    listed.map_err(|source| OpenError::Rescue {
        path: path.to_owned(),
        source,
    })
}
