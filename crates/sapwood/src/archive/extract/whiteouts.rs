//! Whiteouts of a layer: names that hide what lower layers have.

use super::super::entry::Entries;
use super::super::error::{ArchiveError, Result, path};
use super::{Extracted, Extraction, components, failed};
use crate::progress;
use crate::tree::Names;
use crate::vfs;

/// Names of whiteouts begin so.
const WHITEOUT: &[u8] = b".wh.";
/// Names that begin so are for the tool that wrote the layer, apart from [`OPAQUE`].
const RESERVED: &[u8] = b".wh..wh.";
/// A directory that has this name hides what lower layers have in it.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Whether an entry of this name only hides others, or is for the tool that wrote the layer.
pub(super) fn is_one(name: &[u8]) -> bool {
    name.starts_with(WHITEOUT)
}

impl Extraction<'_> {
    /// Removes what the whiteouts of a layer hide of the layers below it.
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
