//! The difference of two directories: of snapshots, subvolumes or images.
//!
//! # How it works
//! Two subvolumes of one btrfs are compared by their trees (`subvolumes`): shared blocks are
//! passed, inodes are recognized by their numbers, and renames are found. Everything else is
//! compared name by name (`names`), and a renamed file is a removed and an added one.

mod names;
mod subvolumes;

use std::path::{Path, PathBuf};

use sapwood_btrfs::compare::FileTree;

use crate::archive::path;
use crate::fs::{FileSystem, OperationError};
use crate::image::Mounted;
use crate::progress::Stop;
use crate::tree::{self, HeldInode};
use crate::vfs::{self, FileKind, Subvolumes as _};

/// How directories are compared.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DiffOptions {
    /// Compare the bytes of files. Otherwise a file of equal size and modification time, or with
    /// the same extents, counts as unchanged; one with new extents counts as changed.
    pub content: bool,
    /// Ends the comparison early.
    pub stop: Stop,
}

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiffKind {
    /// Only the old directory has it.
    Removed,
    /// Its file has another name in the new directory.
    Renamed,
    /// Only the new directory has it.
    Added,
    /// Its file changed.
    Changed,
}

/// The attributes of a file that changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiffParts {
    /// Content, target of a symbolic link, or device number.
    pub content: bool,
    /// Length.
    pub size: bool,
    /// Modification time.
    pub mtime: bool,
    /// Permission bits.
    pub mode: bool,
    /// Owner.
    pub uid: bool,
    /// Group.
    pub gid: bool,
    /// Extended attributes, ACLs among them.
    pub xattrs: bool,
}

/// One difference between the directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffEntry {
    /// What happened.
    pub kind: DiffKind,
    /// The path: in the old directory for [`Removed`](DiffKind::Removed), else in the new one.
    pub path: PathBuf,
    /// The old path of a renamed file.
    pub from: Option<PathBuf>,
    /// Type of the file.
    pub file: FileKind,
    /// The attributes that differ, for [`Changed`](DiffKind::Changed).
    pub parts: DiffParts,
}

impl DiffParts {
    /// Whether any attribute changed.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Why a comparison failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    /// A path could not be read.
    #[error(transparent)]
    Path(#[from] OperationError),
    /// The trees of an image could not be read.
    #[error("{0}")]
    Tree(#[from] Box<sapwood_btrfs::Error>),
    /// An inode has no path.
    #[error("inode {0}: its names do not lead to the top")]
    Names(u64),
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

type Result<T, E = DiffError> = std::result::Result<T, E>;

impl From<sapwood_btrfs::Error> for DiffError {
    fn from(error: sapwood_btrfs::Error) -> Self {
        Self::Tree(Box::new(error))
    }
}

fn at(action: &'static str, name: &[u8]) -> impl FnOnce(vfs::Error) -> DiffError + use<> {
    let path = path(name);
    move |source| {
        DiffError::Path(OperationError::Path {
            action,
            path,
            source,
        })
    }
}

/// A directory to compare.
struct Top<'a> {
    fs: &'a FileSystem,
    node: HeldInode<'a>,
    /// The subvolume whose root it is.
    tree: Option<FileTree>,
}

impl<'a> Top<'a> {
    fn find(fs: &'a FileSystem, place: &Path) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;

        let name = place.as_os_str().as_bytes();
        let vfs: &dyn vfs::FileSystem = &**fs.engine();
        let node = tree::resolve(vfs, name, true).map_err(at("compare", name))?;
        if !node.is_dir() {
            return Err(at("compare", name)(vfs::Error::NotDirectory));
        }
        let mut tree = None;
        if let Mounted::Btrfs(btrfs) = fs.engine()
            && let Ok(id) = btrfs.subvolume_at(node.ino())
        {
            tree = Some(btrfs.file_tree(id)?);
        }
        Ok(Self { fs, node, tree })
    }
}

/// Calls `each` with every difference of two directories. Names below a renamed directory of a
/// subvolume did not change, and are left out. Entries come in no particular order.
///
/// # Errors
/// A path is no directory; the images cannot be read.
pub fn diff(
    (old_fs, old_dir): (&FileSystem, &Path),
    (new_fs, new_dir): (&FileSystem, &Path),
    options: &DiffOptions,
    each: &mut dyn FnMut(DiffEntry),
) -> crate::Result<()> {
    let (old, new) = (Top::find(old_fs, old_dir)?, Top::find(new_fs, new_dir)?);
    match (&old.tree, &new.tree) {
        // An open image may have changes that are in no tree yet.
        (Some(before), Some(after)) if old.fs.is_same(new.fs) && old.fs.engine().read_only() => {
            subvolumes::diff((&old, before), (&new, after), options, each)?;
        }
        _ => names::diff(&old, &new, options, each)?,
    }
    Ok(())
}
