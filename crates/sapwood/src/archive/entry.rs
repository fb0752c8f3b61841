//! Entries of archives, whatever their format.

use super::error::{ArchiveError, Result, path};
pub(crate) use crate::changes::{Attributes, Xattrs};
use crate::vfs::{FileKind, Timestamp, device_number};

/// Most bytes of the name of an entry, and of the name that a hard link leads to: `PATH_MAX`
/// without the byte that ends a path.
pub(super) const PATH_MAX: usize = 4095;

/// Refuses a name of the entry `named` that is longer than a path may be.
///
/// # Errors
/// [`ArchiveError::TooLong`].
pub(super) fn check_length(named: &[u8], name: &[u8], field: &'static str) -> Result<()> {
    if name.len() > PATH_MAX {
        Err(ArchiveError::TooLong {
            path: path(named),
            field,
            size: name.len() as u64,
            limit: PATH_MAX as u64,
        })
    } else {
        Ok(())
    }
}

/// One entry of an archive.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its name as the archive has it.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: EntryKind,
    pub(crate) attributes: Attributes,
    /// Length of the content, with holes.
    pub(crate) size: u64,
}

impl Entry {
    /// Whether it is a file with content, which no whiteout is.
    pub(crate) fn has_content(&self) -> bool {
        self.kind == EntryKind::Regular && self.size > 0
    }
}

/// The kind of inode that an entry creates, or the name to which it links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Regular,
    Directory,
    Symlink(Vec<u8>),
    /// A further name of the entry of this name. An entry of cpio may bring the content as well.
    Link(Vec<u8>),
    /// A device of this number, a fifo or a socket.
    Special(FileKind, u64),
}

impl EntryKind {
    /// The kind of the inode; `None` for a further name.
    pub(crate) fn kind(&self) -> Option<FileKind> {
        Some(match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Special(kind, _) => *kind,
            Self::Link(_) => return None,
        })
    }
}

/// The entries of an archive in their order.
pub(crate) trait Entries {
    /// The next entry. Content of the last entry that was not read is skipped.
    ///
    /// # Errors
    /// [`ArchiveError`]: the archive cannot be read, or a header is damaged, truncated or not
    /// supported.
    fn next(&mut self) -> Result<Option<Entry>>;

    /// Reads the next piece of the content of the last entry: its offset in the file, and the
    /// number of bytes, which is 0 at the end. What is between two pieces is a hole.
    ///
    /// # Errors
    /// [`ArchiveError`]: the archive cannot be read, or ends within the entry; its checksum
    /// differs.
    fn read(&mut self, piece: &mut [u8]) -> Result<(u64, usize)>;

    /// Length of the last entry, if its content ended early because the rest cannot be read. Asked
    /// for after the content is read.
    fn cut(&self) -> Option<u64> {
        None
    }

    /// Bytes that the content of `entry`, which is the last one, takes in a file system with blocks
    /// of `block` bytes. Asked for before the content is read.
    fn allocated(&self, entry: &Entry, block: u64) -> u64 {
        whole_blocks(0, entry.size, block)
    }
}

/// Bytes of the blocks that a range touches.
pub(super) fn whole_blocks(at: u64, length: u64, block: u64) -> u64 {
    let end = at.saturating_add(length).div_ceil(block);
    let blocks = if length == 0 { 0 } else { end - at / block };
    blocks.saturating_mul(block)
}

/// Number of a device node, if an inode of both formats can have it.
pub(crate) fn device(major: u64, minor: u64) -> Option<u64> {
    let major = u32::try_from(major).ok().filter(|major| *major < 1 << 12)?;
    let minor = u32::try_from(minor).ok().filter(|minor| *minor < 1 << 20)?;
    Some(device_number::make(major, minor))
}

/// A time of the pax format: seconds, and a fraction if there is one.
pub(crate) fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sec: i64 = whole.parse().ok()?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nsec: u32 = digits.parse().ok()?;
    match (whole.starts_with('-'), nsec) {
        (true, 1..) => Some(Timestamp {
            sec: sec.checked_sub(1)?,
            nsec: 1_000_000_000_u32.checked_sub(nsec)?,
        }),
        _ => Some(Timestamp { sec, nsec }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_fractions_and_may_be_before_1970() {
        let at = |sec, nsec| Some(Timestamp { sec, nsec });
        assert_eq!(time(b"17"), at(17, 0));
        assert_eq!(time(b"17.25"), at(17, 250_000_000));
        assert_eq!(time(b"17.1234567899"), at(17, 123_456_789));
        assert_eq!(time(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(time(b"soon"), None);
        assert_eq!(time(b"1.x"), None);
    }

    #[test]
    fn device_numbers_are_those_that_inodes_can_store() {
        assert_eq!(device(1, 3), Some(device_number::make(1, 3)));
        assert_eq!(device(4095, 1_048_575), Some(0xffff_ffff));
        assert_eq!(device(4096, 0), None);
        assert_eq!(device(0, 1 << 20), None);
    }
}
