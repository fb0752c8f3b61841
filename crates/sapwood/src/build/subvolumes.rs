//! Directories of a source that become subvolumes of the image.
//!
//! Subvolumes are created before the copy, which merges the directories of the source into them.
//! They become read-only after it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::BuildError;
use crate::fs::FileSystem;

/// A directory of the source that becomes a subvolume of btrfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSubvolume {
    /// Its path from the directory that the image is filled with.
    pub path: PathBuf,
    /// Nothing can be changed in it.
    pub read_only: bool,
    /// It is mounted when no subvolume is named.
    pub default: bool,
}

/// The subvolumes with paths of names only, outer ones first.
pub(super) fn checked(
    wanted: &[NewSubvolume],
    source: &Path,
) -> Result<Vec<NewSubvolume>, BuildError> {
    let mut checked = Vec::new();
    for one in wanted {
        let bad = || BuildError::NoSubvolume {
            path: one.path.clone(),
            source_dir: source.to_owned(),
        };
        let mut path = PathBuf::new();
        for part in one.path.components() {
            match part {
                Component::Normal(name) => path.push(name),
                Component::RootDir | Component::CurDir => {}
                Component::ParentDir | Component::Prefix(_) => return Err(bad()),
            }
        }
        let mut dirs: Vec<&Path> = path.ancestors().collect();
        // The last one is empty: the source itself.
        dirs.pop();
        let all_dirs = dirs.iter().all(|dir| {
            let found = source.join(dir).symlink_metadata();
            found.is_ok_and(|found| found.is_dir())
        });
        if dirs.is_empty() || !all_dirs {
            return Err(bad());
        }
        let (read_only, default) = (one.read_only, one.default);
        checked.push(NewSubvolume {
            path,
            read_only,
            default,
        });
    }
    checked.sort_by(|one, other| one.path.cmp(&other.path));
    checked.dedup_by(|later, first| {
        let same = later.path == first.path;
        if same {
            first.read_only |= later.read_only;
            first.default |= later.default;
        }
        same
    });
    Ok(checked)
}

/// Creates the subvolumes, empty, with the directories that lead to them.
pub(super) fn create(fs: &FileSystem, wanted: &[NewSubvolume]) -> Result<(), BuildError> {
    for one in wanted {
        if let Some(parent) = one.path.parent() {
            fs.create_dir_all(parent)?;
        }
        fs.create_subvolume(&one.path)?;
    }
    Ok(())
}

/// Makes the subvolumes, which are filled, read-only and the default one as they are wanted.
pub(super) fn finish(fs: &FileSystem, wanted: &[NewSubvolume]) -> Result<(), BuildError> {
    for one in wanted.iter().filter(|one| one.read_only) {
        fs.set_subvolume_read_only(&one.path, true)?;
    }
    for one in wanted.iter().filter(|one| one.default) {
        let path = one.path.as_os_str().as_bytes();
        let all = fs.subvolumes()?;
        if let Some(found) = all.iter().find(|found| found.path == path) {
            fs.set_default_subvolume(found.id)?;
        }
    }
    Ok(())
}
