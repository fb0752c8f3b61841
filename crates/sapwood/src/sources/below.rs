//! The entries of a source that is put into a directory of the image.

use crate::archive::{ArchiveError, Entries, Entry, EntryKind};

/// Entries whose paths, and targets of hard links, begin with the path of a directory.
pub(super) struct Below<'e> {
    inner: &'e mut dyn Entries,
    /// The path of the directory; empty for the root.
    at: &'e [u8],
}

impl<'e> Below<'e> {
    pub(super) fn new(inner: &'e mut dyn Entries, at: &'e [u8]) -> Self {
        Self { inner, at }
    }
}

/// Puts a path below a directory.
fn put_below(at: &[u8], path: &mut Vec<u8>) {
    path.splice(..0, [at, b"/"].concat());
}

impl Entries for Below<'_> {
    fn next(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let mut entry = self.inner.next()?;
        if let Some(entry) = entry.as_mut().filter(|_| !self.at.is_empty()) {
            put_below(self.at, &mut entry.path);
            if let EntryKind::Link(target) = &mut entry.kind {
                put_below(self.at, target);
            }
        }
        Ok(entry)
    }

    fn read(&mut self, piece: &mut [u8]) -> Result<(u64, usize), ArchiveError> {
        self.inner.read(piece)
    }

    fn cut(&self) -> Option<u64> {
        self.inner.cut()
    }

    fn allocated(&self, entry: &Entry, block: u64) -> u64 {
        self.inner.allocated(entry, block)
    }
}
