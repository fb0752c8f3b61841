//! Removal of names that a layer hides: by `.wh.` names, or by the marks of overlayfs.

use super::super::entry::{Entries, EntryKind};
use super::super::error::{ArchiveError, Result, path};
use super::super::overlay::{Layer, Mark};
use super::{Extracted, Extraction, components, failed};
use crate::progress;
use crate::tree::Names;
use crate::vfs::{self, Error};

/// Prefix of the names of whiteouts.
const WHITEOUT: &[u8] = b".wh.";
/// Prefix of names that are for the tool that wrote the layer, apart from [`OPAQUE`].
const RESERVED: &[u8] = b".wh..wh.";
/// An entry of this name hides everything that lower layers have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Whether an entry of this name only hides others, or is for the tool that wrote the layer.
pub(crate) fn is_one(name: &[u8]) -> bool {
    name.starts_with(WHITEOUT)
}

impl Extraction<'_> {
    /// Removes the names that the whiteouts of a layer hide.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub(crate) fn whiteouts(mut self, entries: &mut dyn Entries) -> Result<()> {
        while let Some(entry) = entries.next()? {
            let parts = components(&entry.path)?;
            let Some((name, parents)) = parts.split_last() else {
                continue;
            };
            let hidden = match name.strip_prefix(WHITEOUT) {
                _ if *name == OPAQUE => None,
                _ if name.starts_with(RESERVED) => continue,
                None => continue,
                Some(b"" | b"." | b"..") => return Err(ArchiveError::Whiteout(path(&entry.path))),
                Some(hidden) => Some(hidden),
            };
            if self.reach(parents, &entry.path, false)? {
                let removed = self.hide(hidden);
                removed.map_err(failed(&entry.path))?;
            }
        }
        let mut extracted = Extracted::default();
        self.finish_directories(&mut extracted, &mut progress::ignore)
    }

    /// Prepares for a layer in the form of overlayfs: removes the names that it hides, and inodes
    /// that cannot be merged with its inode of the same name. A merged directory has the extended
    /// attributes of the layer alone, so its own are removed.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub(crate) fn uncover(mut self, layer: &mut Layer<'_>) -> Result<()> {
        while let Some((entry, mark)) = layer.marked()? {
            let parts = components(&entry.path)?;
            let directory = entry.kind == EntryKind::Directory;
            let changed = match parts.split_last() {
                _ if self.into.changes.excludes(&parts.join(&b'/')) => Ok(()),
                Some((name, _)) if is_one(name) && !entry.has_content() => {
                    return Err(ArchiveError::OfLayer(path(&entry.path)));
                }
                None if directory => {
                    self.held.leave(0);
                    self.merge(mark)
                }
                None => return Err(ArchiveError::Root(path(&entry.path))),
                Some((name, parents)) => {
                    if self.reach(parents, &entry.path, false)? {
                        self.make_room(name, directory, mark)
                    } else {
                        Ok(())
                    }
                }
            };
            changed.map_err(failed(&entry.path))?;
        }
        let mut extracted = Extracted::default();
        self.finish_directories(&mut extracted, &mut progress::ignore)
    }

    /// Makes room for a name in the top directory.
    fn make_room(&mut self, name: &[u8], directory: bool, mark: Mark) -> vfs::Result<()> {
        let Some(node) = self.child(name)? else {
            return Ok(());
        };
        match (directory, node.is_dir()) {
            (true, true) => {
                self.held.enter(name, node);
                self.merge(mark)
            }
            (false, false) if mark != Mark::Whiteout => Ok(()),
            _ => {
                self.pass();
                self.remove(name)
            }
        }
    }

    /// Prepares the top directory for its entry in the layer.
    fn merge(&mut self, mark: Mark) -> vfs::Result<()> {
        if mark == Mark::Opaque {
            self.hide(None)?;
        }
        let (fs, dir) = (self.into.fs, self.top().ino());
        for name in fs.listxattr(dir)? {
            match fs.removexattr(dir, &name) {
                Err(Error::NoAttribute | Error::NotSupported) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Removes a name of the top directory, or all names.
    fn hide(&mut self, hidden: Option<&[u8]>) -> vfs::Result<()> {
        self.pass();
        if let Some(name) = hidden {
            return self.remove(name);
        }
        let mut names = Names::default();
        let mut all = Vec::new();
        while let Some(entry) = names.next(self.into.fs, self.top().ino())? {
            all.push(entry.name);
        }
        all.iter().try_for_each(|name| self.remove(name))
    }
}
