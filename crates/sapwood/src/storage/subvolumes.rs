//! The subvolumes of an image.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{NewSubvolume, StorageError};
use crate::fs::FileSystem;
use crate::vfs::SubvolumeInfo;

/// Creates the subvolumes, empty, with the directories that lead to them.
pub(super) fn create(
    fs: &FileSystem,
    wanted: &[NewSubvolume],
    owner: (u32, u32),
) -> Result<(), StorageError> {
    fs.set_creator(owner.0, owner.1);
    let mut paths: Vec<&Path> = wanted.iter().map(|one| one.path.as_path()).collect();
    // Outer ones first.
    paths.sort();
    paths.dedup();
    for path in paths {
        if let Some(parent) = path.parent() {
            fs.create_dir_all_with(parent, 0o755)?;
        }
        fs.create_subvolume(path)?;
    }
    Ok(())
}

/// Makes filled subvolumes read-only, and sets the default one, as requested.
pub(super) fn finish(fs: &FileSystem, wanted: &[NewSubvolume]) -> Result<(), StorageError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let all = fs.subvolumes()?;
    for one in wanted {
        let path = one.path.as_os_str().as_bytes();
        let is_it = |found: &&SubvolumeInfo| found.path == path;
        let gone = || StorageError::NoDirectory(one.path.clone());
        let found = all.iter().find(is_it).ok_or_else(gone)?;
        if one.read_only {
            fs.set_subvolume_read_only(&one.path, true)?;
        }
        if one.default {
            fs.set_default_subvolume(found.id)?;
        }
    }
    Ok(())
}
