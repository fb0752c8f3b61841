//! Listings and walks.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::handle::Handle;
use super::metadata::{FileType, Metadata};
use crate::error::{Error, Result};
use crate::tree::{HeldInode, Names, Walker};
use crate::vfs;

/// The entries of a directory. It keeps the file system open.
#[derive(Debug)]
pub struct ReadDir {
    handle: Arc<Handle>,
    path: PathBuf,
    names: Names,
    ended: bool,
}

impl ReadDir {
    pub(super) fn new(handle: Handle, path: &Path) -> Self {
        Self {
            handle: Arc::new(handle),
            path: path.to_owned(),
            names: Names::default(),
            ended: false,
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.ended {
            return None;
        }
        match self.names.next(self.handle.vfs(), self.handle.ino()) {
            Ok(entry) => {
                self.ended = entry.is_none();
                let entry = entry?;
                let path = self.path.join(OsStr::from_bytes(&entry.name));
                let dir = Arc::clone(&self.handle);
                Some(Ok(DirEntry { entry, path, dir }))
            }
            Err(error) => {
                self.ended = true;
                Some(Err(Error::at("list", &self.path)(error)))
            }
        }
    }
}

/// A name in a directory. It keeps the file system open.
#[derive(Debug, Clone)]
pub struct DirEntry {
    dir: Arc<Handle>,
    entry: vfs::DirEntry,
    path: PathBuf,
}

impl DirEntry {
    /// The name.
    #[must_use]
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.entry.name.clone())
    }

    /// The path of the directory, as it was given, with the name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Type of the file, as the directory records it.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType::new(self.entry.kind)
    }

    /// Metadata of the file that has the name now. A symbolic link is not followed.
    ///
    /// # Errors
    /// The name was removed meanwhile; the image is damaged; the device fails.
    pub fn metadata(&self) -> Result<Metadata> {
        let fs = self.dir.vfs();
        match fs.lookup(self.dir.ino(), &self.entry.name) {
            Ok(found) => Ok(Metadata::new(*HeldInode::new(fs, found).attr())),
            Err(error) => Err(Error::at("stat", &self.path)(error)),
        }
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.entry.ino.0
    }
}

/// Everything below a directory. It keeps the file system open.  An image can contain a directory
/// below itself. The walk enters no directory twice: it returns an error for the second time, and
/// ends.
#[derive(Debug)]
pub struct Walk {
    handle: Handle,
    walker: Walker,
    ended: bool,
}

impl Walk {
    pub(super) fn new(handle: Handle, path: &Path) -> Self {
        let walker = Walker::named(handle.ino(), path.as_os_str().as_bytes());
        Self {
            handle,
            walker,
            ended: false,
        }
    }

    /// Ends the walk at this depth: 1 is the content of the top directory.
    #[must_use]
    pub fn max_depth(mut self, depth: usize) -> Self {
        self.walker.limit(depth);
        self
    }
}

impl Walk {
    /// The next file; `None` at the end. The path is borrowed from the walk. The iterator copies
    /// the path of each file, which takes far more time below many nested directories.
    ///
    /// # Errors
    /// The image is damaged; the device fails. The walk ends after an error.
    pub fn step(&mut self) -> Result<Option<Step<'_>>> {
        if self.ended {
            return Ok(None);
        }
        match self.walker.next(self.handle.vfs()) {
            Ok(found) => {
                self.ended = found.is_none();
                let walk = &*self;
                Ok(found.map(|(_, attr)| Step {
                    walk,
                    metadata: Metadata::new(attr),
                }))
            }
            Err(error) => {
                self.ended = true;
                Err(Error::at("list", self.whole_path())(error))
            }
        }
    }

    fn whole_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.walker.whole_path()))
    }

    fn relative_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.walker.path()))
    }
}

impl Iterator for Walk {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Result<WalkEntry>> {
        let step = self.step().transpose()?;
        Some(step.map(|step| WalkEntry {
            path: step.path().to_owned(),
            relative: step.relative_path().to_owned(),
            metadata: *step.metadata(),
        }))
    }
}

/// A file that a walk found, until its next step.
#[derive(Debug)]
pub struct Step<'w> {
    walk: &'w Walk,
    metadata: Metadata,
}

impl Step<'_> {
    /// The path of the top, as it was given, and the path below it.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.walk.whole_path()
    }

    /// The path below the top.
    #[must_use]
    pub fn relative_path(&self) -> &Path {
        self.walk.relative_path()
    }

    /// Number of names in [`relative_path`](Self::relative_path).
    #[must_use]
    pub fn depth(&self) -> usize {
        self.walk.walker.depth()
    }

    /// Metadata as the walk found it. A symbolic link is not followed.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Whether it is a directory without names.
    ///
    /// # Errors
    /// The image is damaged; the device fails.
    pub fn is_empty_dir(&self) -> Result<bool> {
        if !self.metadata.is_dir() {
            return Ok(false);
        }
        let fs = self.walk.handle.vfs();
        let found = self.walk.walker.found(fs);
        let first = found.and_then(|dir| Names::default().next(fs, dir.ino()));
        first
            .map(|first| first.is_none())
            .map_err(Error::at("list", self.path()))
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.walker.end(self.handle.vfs());
    }
}

/// A file that a walk found.
#[derive(Debug, Clone)]
pub struct WalkEntry {
    path: PathBuf,
    relative: PathBuf,
    metadata: Metadata,
}

impl WalkEntry {
    /// The path of the top, as it was given, and the path below it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path below the top.
    #[must_use]
    pub fn relative_path(&self) -> &Path {
        &self.relative
    }

    /// Metadata as the walk found it. A symbolic link is not followed.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Type of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.metadata.file_type()
    }
}
