//! The names and metadata of everything in a directory of this machine, as entries.

use std::path::Path;

use super::error::{CopyCause, CopyError, Result};
use super::local_side::LocalSide;
use super::side::{Found, Meta, Scratch, Shown, Side, join};
use crate::archive::{ArchiveError, Attributes, Entries, Entry, EntryKind};
use crate::shown;
use crate::vfs::FileKind;

/// A directory that the walk is in, its path, and its names.
type Level<'s> = (Found<'s>, Vec<u8>, std::vec::IntoIter<(Vec<u8>, u64)>);

struct Listing<'s> {
    /// The directory itself, until it was returned.
    top: Option<Found<'s>>,
    levels: Vec<Level<'s>>,
    scratch: Scratch,
}

/// Hands everything in a directory to `work`, directories before what is in them, without the
/// content of files.
///
/// # Errors
/// Something cannot be read; that of `work`.
pub(crate) fn list<T>(
    source: &Path,
    work: impl FnOnce(&mut dyn Entries) -> std::result::Result<T, ArchiveError>,
) -> std::result::Result<T, ArchiveError> {
    let side = LocalSide::new(source.to_owned());
    let gone = || CopyError::on(source.display(), CopyCause::Missing);
    let top = side.find(b"", true).and_then(|top| top.ok_or_else(gone));
    let mut listing = Listing {
        top: Some(top.map_err(failed)?),
        levels: Vec::new(),
        scratch: Scratch::default(),
    };
    work(&mut listing)
}

fn failed(error: CopyError) -> ArchiveError {
    ArchiveError::Read(error.into())
}

impl<'s> Listing<'s> {
    fn step(&mut self) -> Result<Option<Entry>> {
        if let Some(top) = self.top.take() {
            return self.entry(top, Vec::new()).map(Some);
        }
        while let Some((dir, path, names)) = self.levels.last_mut() {
            let Some((name, _)) = names.next() else {
                self.levels.pop();
                continue;
            };
            let gone = || CopyError::on(dir.shown(), CopyCause::EntryGone(shown::name(&name)));
            let node = dir.child(&name)?.ok_or_else(gone)?;
            let path = join(path, &name);
            return self.entry(node, path).map(Some);
        }
        Ok(None)
    }

    fn entry(&mut self, node: Found<'s>, path: Vec<u8>) -> Result<Entry> {
        let Meta {
            kind,
            perm,
            uid,
            gid,
            rdev,
            size,
            mtime,
            atime,
            ..
        } = *node.meta();
        let attributes = Attributes {
            perm,
            uid,
            gid,
            mtime,
            atime: Some(atime),
            xattrs: node.xattrs(&mut self.scratch)?,
        };
        let (kind, size) = match kind {
            FileKind::Regular => (EntryKind::Regular, size),
            FileKind::Symlink => (EntryKind::Symlink(node.read_link()?), 0),
            FileKind::Directory => {
                let names = node.names(0)?.into_iter();
                self.levels.push((node, path.clone(), names));
                (EntryKind::Directory, 0)
            }
            kind => (EntryKind::Special(kind, rdev), 0),
        };
        Ok(Entry {
            path,
            kind,
            attributes,
            size,
        })
    }
}

impl Entries for Listing<'_> {
    fn next(&mut self) -> std::result::Result<Option<Entry>, ArchiveError> {
        self.step().map_err(failed)
    }

    fn read(&mut self, _: &mut [u8]) -> std::result::Result<(u64, usize), ArchiveError> {
        Ok((0, 0))
    }
}
