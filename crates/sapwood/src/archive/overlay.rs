//! A layer in the form of overlayfs: the upper directory of a mount, or an archive of it.
//!
//! Its whiteouts hide names of the layers below: device nodes 0/0, and empty files with the
//! attribute `overlay.whiteout`. A directory with `overlay.opaque=y` hides all that lower layers
//! have in it. These attributes are in the namespace `trusted.`, or in `user.` if the overlay was
//! mounted with `userxattr`. They belong to overlayfs, so an image gets none of them.
//! A layer can also refer to an inode that a lower layer has under another name (`redirect_dir`),
//! or whose content a lower layer has (`metacopy`). Such a layer is refused.
//! content of (`metacopy`). Such a layer is refused.

use std::collections::HashSet;

use super::entry::{Attributes, Entries, Entry, EntryKind, Xattrs};
use super::error::{ArchiveError, Result, path};
use super::extract::components;
use crate::vfs::FileKind;

/// The prefixes of the attributes of overlayfs.
const NAMESPACES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// The effect of an inode of a layer on the layers below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It replaces an inode of its name; two directories are merged.
    Plain,
    /// It hides an inode of its name, and creates none.
    Whiteout,
    /// It is a directory, and hides the content of a directory of its name.
    Opaque,
}

impl Mark {
    /// The mark of an inode.
    ///
    /// # Errors
    /// A description of the defect, if the layer cannot be applied.
    pub(crate) fn of(
        kind: FileKind,
        rdev: u64,
        size: u64,
        xattrs: &Xattrs,
    ) -> std::result::Result<Self, &'static str> {
        if kind == FileKind::CharDevice && rdev == 0 {
            return Ok(Self::Whiteout);
        }
        let mut mark = Self::Plain;
        for (name, value) in xattrs {
            let Some(name) = own(name) else {
                continue;
            };
            mark = match (name, value.as_slice()) {
                (b"opaque", _) if kind != FileKind::Directory => {
                    return Err("overlay.opaque is for directories alone");
                }
                (b"opaque", b"y") => Self::Opaque,
                // Whiteouts that are files are in it.
                (b"opaque", b"x") => mark,
                (b"opaque", _) => return Err("overlay.opaque is neither y nor x"),
                (b"whiteout", _) if kind == FileKind::Regular && size == 0 => Self::Whiteout,
                (b"whiteout", _) => return Err("overlay.whiteout is for empty files alone"),
                (b"redirect", _) => {
                    return Err(
                        "overlay.redirect: a lower layer has it under another name, and is \
                                not searched for it; mount the overlay with redirect_dir=off",
                    );
                }
                (b"metacopy", _) => {
                    return Err(
                        "overlay.metacopy: the content is in a lower layer, and is not \
                                read there; mount the overlay with metacopy=off",
                    );
                }
                (name, _) if name.starts_with(b"overlay.") => {
                    return Err(
                        "overlay.overlay: the layer has a layer of another overlay in it, \
                                which is not read",
                    );
                }
                _ => mark,
            };
        }
        Ok(mark)
    }
}

/// The name of an attribute of overlayfs, without its namespace.
fn own(name: &[u8]) -> Option<&[u8]> {
    NAMESPACES
        .iter()
        .find_map(|namespace| name.strip_prefix(*namespace))
}

/// Removes the attributes of overlayfs.
pub(crate) fn strip(xattrs: &mut Xattrs) {
    xattrs.retain(|(name, _)| own(name).is_none());
}

/// The entries of a layer, without its whiteouts and without attributes of overlayfs.
pub(crate) struct Layer<'e> {
    inner: &'e mut dyn Entries,
    /// The whiteouts that were read. They may share one inode.
    whiteouts: HashSet<Vec<u8>>,
}

impl<'e> Layer<'e> {
    pub(crate) fn new(inner: &'e mut dyn Entries) -> Self {
        Self {
            inner,
            whiteouts: HashSet::new(),
        }
    }

    /// The next entry, which may be a whiteout, and what it does to the layers below.
    ///
    /// # Errors
    /// [`ArchiveError::Overlay`]: the layer cannot be applied. The errors of [`Entries::next`].
    pub(crate) fn marked(&mut self) -> Result<Option<(Entry, Mark)>> {
        let Some(mut entry) = self.inner.next()? else {
            return Ok(None);
        };
        let named = components(&entry.path)?.join(&b'/');
        let Attributes { xattrs, .. } = &mut entry.attributes;
        let mark = match &entry.kind {
            EntryKind::Link(target) => match components(target)?.join(&b'/') {
                target if self.whiteouts.contains(&target) => Ok(Mark::Whiteout),
                _ => Ok(Mark::Plain),
            },
            EntryKind::Special(kind, rdev) => Mark::of(*kind, *rdev, 0, xattrs),
            EntryKind::Symlink(_) => Mark::of(FileKind::Symlink, 0, 0, xattrs),
            EntryKind::Directory => Mark::of(FileKind::Directory, 0, 0, xattrs),
            EntryKind::Regular => Mark::of(FileKind::Regular, 0, entry.size, xattrs),
        };
        let mark = mark.map_err(|what| ArchiveError::Overlay {
            path: path(&entry.path),
            what,
        })?;
        match mark {
            Mark::Whiteout => self.whiteouts.insert(named),
            _ => self.whiteouts.remove(&named),
        };
        strip(xattrs);
        Ok(Some((entry, mark)))
    }
}

impl Entries for Layer<'_> {
    fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            match self.marked()? {
                Some((_, Mark::Whiteout)) => {}
                found => return Ok(found.map(|(entry, _)| entry)),
            }
        }
    }

    fn read(&mut self, piece: &mut [u8]) -> Result<(u64, usize)> {
        self.inner.read(piece)
    }

    fn cut(&self) -> Option<u64> {
        self.inner.cut()
    }

    fn allocated(&self, entry: &Entry, block: u64) -> u64 {
        self.inner.allocated(entry, block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_devices_and_attributes() {
        let of = |kind, rdev, size, name: &str, value: &str| {
            let xattrs = vec![(name.as_bytes().to_vec(), value.as_bytes().to_vec())];
            Mark::of(kind, rdev, size, &xattrs)
        };
        use FileKind::{BlockDevice, CharDevice, Directory, Regular};
        assert_eq!(of(CharDevice, 0, 0, "user.x", ""), Ok(Mark::Whiteout));
        assert_eq!(of(CharDevice, 1, 0, "user.x", ""), Ok(Mark::Plain));
        assert_eq!(of(BlockDevice, 0, 0, "user.x", ""), Ok(Mark::Plain));
        for space in ["trusted", "user"] {
            let of = |kind, size, name: &str, value| {
                of(kind, 0, size, &format!("{space}.overlay.{name}"), value)
            };
            assert_eq!(of(Directory, 0, "opaque", "y"), Ok(Mark::Opaque));
            assert_eq!(of(Directory, 0, "opaque", "x"), Ok(Mark::Plain));
            assert_eq!(of(Directory, 0, "origin", "any"), Ok(Mark::Plain));
            assert_eq!(of(Regular, 0, "whiteout", ""), Ok(Mark::Whiteout));
            for (kind, size, name, value) in [
                (Directory, 0, "opaque", "z"),
                (Regular, 0, "opaque", "y"),
                (Regular, 1, "whiteout", "y"),
                (Directory, 0, "whiteout", "y"),
                (Directory, 0, "redirect", "/a"),
                (Regular, 9, "metacopy", ""),
                (Directory, 0, "overlay.opaque", "y"),
            ] {
                assert!(of(kind, size, name, value).is_err(), "{name}={value}");
            }
        }
    }
}
