//! A summary of the contents of an image's sources.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::Need;
use crate::archive::{ArchiveError, Entries, Entry, EntryKind};
use crate::copy::Surveyor;
use crate::vfs::{FileKind, Timestamp};

/// Bytes that are read of an archive at a time.
const PIECE: usize = 1 << 20;

/// A summary of the sources of an image. It depends only on contents that the image will have, so
/// equal sources have equal summaries on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) struct Summary {
    /// Hash of all names, contents and metadata.
    pub hash: [u8; 32],
    /// The newest modification time; 1970 if there is none.
    pub newest: SystemTime,
}

/// Makes a [`Summary`].
pub(super) struct Summarizer {
    hash: Sha256,
    newest: Timestamp,
}

impl Summarizer {
    pub(super) fn new() -> Self {
        Self {
            hash: Sha256::new(),
            newest: Timestamp::default(),
        }
    }

    pub(super) fn end(self) -> Summary {
        let Timestamp { sec, nsec } = self.newest;
        let since = Duration::new(u64::try_from(sec).unwrap_or(0), nsec);
        Summary {
            hash: self.hash.finalize().into(),
            newest: UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH),
        }
    }

    /// Hashes a field with its length, so that fields do not run into each other.
    pub(super) fn field(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash.update(number.to_le_bytes());
        }
    }

    fn time(&mut self, time: Timestamp) {
        self.hash.update(time.sec.to_le_bytes());
        self.hash.update(time.nsec.to_le_bytes());
        self.newest = self.newest.max(time);
    }

    fn attributes(&mut self, xattrs: &[(Vec<u8>, Vec<u8>)]) {
        self.numbers(&[xattrs.len() as u64]);
        for (name, value) in xattrs {
            self.field(name);
            self.field(value);
        }
    }

    /// The entries of an archive.
    pub(super) fn entries(&mut self, entries: &mut dyn Entries) -> Result<(), ArchiveError> {
        let mut piece = vec![0; PIECE];
        while let Some(entry) = entries.next()? {
            self.entry(&entry);
            loop {
                let (at, count) = entries.read(&mut piece)?;
                if count == 0 {
                    break;
                }
                self.content(at, piece.get(..count).unwrap_or_default());
            }
        }
        Ok(())
    }
}

impl Surveyor for Summarizer {
    fn entry(&mut self, entry: &Entry) {
        self.field(&entry.path);
        let (target, rdev) = match &entry.kind {
            EntryKind::Symlink(target) | EntryKind::Link(target) => (target.as_slice(), 0),
            EntryKind::Special(_, rdev) => (b"".as_slice(), *rdev),
            EntryKind::Regular | EntryKind::Directory => (b"".as_slice(), 0),
        };
        self.field(target);
        let about = &entry.attributes;
        let kind = kind_number(entry.kind.kind());
        let owner = [about.uid.into(), about.gid.into()];
        let perm = about.perm.into();
        self.numbers(&[kind, perm, owner[0], owner[1], rdev, entry.size]);
        self.time(about.mtime);
        self.attributes(&about.xattrs);
    }

    fn content(&mut self, at: u64, data: &[u8]) {
        self.numbers(&[at]);
        self.field(data);
    }
}

/// The size of a directory's files, by blocks that are not zero.
impl Surveyor for Need {
    fn entry(&mut self, entry: &Entry) {
        self.entries += u64::from(!entry.path.is_empty());
    }

    fn content(&mut self, _at: u64, data: &[u8]) {
        self.add_bytes(data.len() as u64);
    }
}

/// 0 for a hard link.
fn kind_number(kind: Option<FileKind>) -> u64 {
    kind.map_or(0, |kind| u64::from(kind.mode_bits()))
}

/// A UUID that follows from a hash and a text.
pub(crate) fn derived_uuid(hash: &[u8], what: &str) -> [u8; 16] {
    let mut digest = Sha256::new();
    digest.update(hash);
    digest.update(what);
    let bytes: [u8; 32] = digest.finalize().into();
    let mut short = [0; 16];
    short
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = from);
    *uuid::Builder::from_custom_bytes(short).as_uuid().as_bytes()
}
