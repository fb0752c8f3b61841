//! The walk of a source: its nodes in the order of a copy, and their entries of an archive.
//!
//! An image can contain a directory below itself, or twice. A walk refuses both: it enters a
//! directory of an image once, and no directory that it is in. It holds one batch of names for each
//! level, and the number of each directory.

use std::collections::HashSet;

use super::error::{CopyCause, CopyError, Result};
use super::side::{Meta, Source, SourceNode, Xattrs};
use crate::archive::{Attributes, Entry, EntryKind};
use crate::shown;
use crate::vfs::FileKind;

/// Levels of directories; cp(1) ends earlier, where a path gets too long.
const MOST_LEVELS: usize = 4096;
/// Levels of an image that keep a batch of names while a directory below them is walked.
const BATCHES: usize = 32;

/// A directory that a walk can enter.
pub(super) trait SourceDir<'s> {
    fn source(&self) -> &dyn SourceNode<'s>;
}

impl<'s> SourceDir<'s> for Source<'s> {
    fn source(&self) -> &dyn SourceNode<'s> {
        &**self
    }
}

/// A directory that the walk is in.
struct Level<D> {
    dir: D,
    names: std::vec::IntoIter<(Vec<u8>, u64)>,
    /// Position after the last name.
    next: u64,
    /// Bytes of the path to it.
    path: usize,
    /// A name was found in it.
    entered: bool,
    /// It has no further names, or they cannot be read.
    ended: bool,
}

/// A step of a walk.
pub(super) enum Step<'s, D> {
    /// The next node. The caller may enter it if it is a directory.
    Node(Source<'s>),
    /// A node is left out, or the rest of a directory.
    Failed(CopyError),
    /// The walk leaves this directory.
    Left(D),
}

/// A walk through the directories that the caller enters.
pub(super) struct Nodes<D> {
    levels: Vec<Level<D>>,
    /// Path of the last node.
    path: Vec<u8>,
    /// Bytes of the path of its directory.
    dir_path: usize,
    /// Directories that the walk is in.
    inside: HashSet<(u64, u64)>,
    /// Directories that the walk has entered, without empty ones; for a source that is an image,
    /// which may contain anything.
    entered: Option<HashSet<(u64, u64)>>,
}

impl<'s, D: SourceDir<'s>> Nodes<D> {
    /// A walk that has not entered a directory. The first one has this path.
    pub(super) fn new(path: Vec<u8>, of_image: bool) -> Self {
        Self {
            levels: Vec::new(),
            dir_path: path.len(),
            path,
            inside: HashSet::new(),
            entered: of_image.then(HashSet::new),
        }
    }

    /// Refuses to enter a directory that the walk is in, or that is too deep.
    ///
    /// # Errors
    /// `Loop`, `TooDeep`.
    pub(super) fn check(&self, dir: &dyn SourceNode<'s>) -> Result<()> {
        let refused = |cause| Err(CopyError::on(dir.shown(), cause));
        if self.levels.len() >= MOST_LEVELS {
            refused(CopyCause::TooDeep)
        } else if self.inside.contains(&dir.meta().id) {
            refused(CopyCause::Loop)
        } else {
            Ok(())
        }
    }

    /// Enters the last node, which is a directory.
    pub(super) fn enter(&mut self, dir: D) {
        if self.entered.is_some()
            && self.levels.len() > BATCHES
            && let Some(above) = self.levels.last_mut()
        {
            // Names of an image can be read again from where the walk was.
            above.names = Vec::new().into_iter();
        }
        self.inside.insert(dir.source().meta().id);
        self.levels.push(Level {
            dir,
            names: Vec::new().into_iter(),
            next: 0,
            path: self.path.len(),
            entered: false,
            ended: false,
        });
    }

    /// The next step; `None` after the first directory is left.
    pub(super) fn next(&mut self) -> Option<Step<'s, D>> {
        let level = self.levels.last_mut()?;
        self.path.truncate(level.path);
        let name = match level.next_name(self.entered.as_mut()) {
            Ok(Some(name)) => name,
            Ok(None) => {
                let Level { dir, .. } = self.levels.pop()?;
                self.inside.remove(&dir.source().meta().id);
                return Some(Step::Left(dir));
            }
            Err(failure) => {
                level.ended = true;
                return Some(Step::Failed(failure));
            }
        };
        self.dir_path = level.path;
        if !self.path.is_empty() && !self.path.ends_with(b"/") {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&name);
        let dir = level.dir.source();
        Some(match dir.child(&name) {
            Ok(Some(node)) => Step::Node(node),
            Ok(None) => {
                let cause = CopyCause::EntryGone(shown::name(&name));
                Step::Failed(CopyError::on(dir.shown(), cause))
            }
            Err(failure) => Step::Failed(failure),
        })
    }

    /// Path of the last node.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Path of the directory of the last node, and its name in it.
    pub(super) fn place(&self) -> (&[u8], &[u8]) {
        let (dir, name) = self.path.split_at(self.dir_path.min(self.path.len()));
        (dir, name.strip_prefix(b"/").unwrap_or(name))
    }

    /// The directory that the walk is in.
    pub(super) fn dir(&self) -> Option<&D> {
        self.levels.last().map(|level| &level.dir)
    }
}

impl<'s, D: SourceDir<'s>> Level<D> {
    /// The next name. An image can give a directory two names; its content is found for the first.
    fn next_name(&mut self, entered: Option<&mut HashSet<(u64, u64)>>) -> Result<Option<Vec<u8>>> {
        if self.ended {
            return Ok(None);
        }
        let dir = self.dir.source();
        if self.names.len() == 0 {
            self.names = dir.names(self.next)?.into_iter();
        }
        let Some((name, next)) = self.names.next() else {
            return Ok(None);
        };
        self.next = next;
        let first = !std::mem::replace(&mut self.entered, true);
        if first
            && let Some(entered) = entered
            && !entered.insert(dir.meta().id)
        {
            return Err(CopyError::on(dir.shown(), CopyCause::SecondName));
        }
        Ok(Some(name))
    }
}

/// The entry of a node.
pub(super) fn entry_of(node: &dyn SourceNode<'_>, path: Vec<u8>, xattrs: Xattrs) -> Result<Entry> {
    let Meta {
        kind, rdev, size, ..
    } = *node.meta();
    let (kind, size) = match kind {
        FileKind::Regular => (EntryKind::Regular, size),
        FileKind::Directory => (EntryKind::Directory, 0),
        FileKind::Symlink => (EntryKind::Symlink(node.read_link()?), 0),
        FileKind::CharDevice | FileKind::BlockDevice => (EntryKind::Special(kind, rdev), 0),
        FileKind::Fifo | FileKind::Socket => (EntryKind::Special(kind, 0), 0),
    };
    let attributes = attributes_of(node.meta(), xattrs);
    Ok(Entry {
        path,
        kind,
        attributes,
        size,
    })
}

/// The attributes of an entry with this metadata.
pub(super) fn attributes_of(meta: &Meta, xattrs: Xattrs) -> Attributes {
    Attributes {
        perm: meta.perm,
        uid: meta.uid,
        gid: meta.gid,
        mtime: meta.mtime,
        atime: Some(meta.atime),
        xattrs,
    }
}
