//! Deleted files, and trees of them.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_vfs::{FileKind, Ino, Timestamp};

use crate::collected::Collected;
use crate::tree::Tree;

/// A file that was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deleted {
    /// btrfs: the newest generation that has it.
    pub generation: Option<u64>,
    /// Path from the root. A directory or file whose name is not known has its inode number after
    /// a `#`, in the root.
    pub path: Vec<u8>,
    /// The source of its name.
    pub name: NameSource,
    /// Regular file or symbolic link.
    pub kind: FileKind,
    /// Length in bytes.
    pub size: u64,
    /// Last change of its content.
    pub mtime: Timestamp,
    /// Bytes that can still be read, holes included.
    pub readable: u64,
}

/// The source of the name of a deleted file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameSource {
    /// An entry of the directory.
    Directory,
    /// Free space of a directory, which may be older than the file.
    FreeSpace,
    /// Unknown: the path has the inode number.
    None,
}

impl NameSource {
    /// A word for it: `directory`, `free-space`, `none`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::FreeSpace => "free-space",
            Self::None => "none",
        }
    }
}

/// Receives deleted files with the tree and the inode that have them, until it breaks. The count of
/// readable bytes is made only if it is asked for.
pub type OnDeleted<'d> = dyn FnMut(Found<'_>) -> ControlFlow<()> + 'd;

/// A deleted file that was found.
pub struct Found<'f> {
    pub(crate) file: Deleted,
    pub(crate) tree: &'f Arc<dyn Tree>,
    pub(crate) ino: Ino,
    pub(crate) readable: &'f dyn Fn() -> u64,
}

impl Found<'_> {
    /// The file, without the number of its readable bytes.
    #[must_use]
    pub fn unread(&self) -> &Deleted {
        &self.file
    }

    /// The file with the number of its readable bytes.
    #[must_use]
    pub fn counted(self) -> Deleted {
        Deleted {
            readable: (self.readable)(),
            ..self.file
        }
    }

    /// Adds the file to a tree of deleted files.
    pub fn collect(&self, into: &mut Collected) {
        into.add(&self.file.path, self.tree, self.ino);
    }
}
