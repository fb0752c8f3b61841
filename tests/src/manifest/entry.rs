//! What a listing says of one name.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use sapwood_vfs::Timestamp;
use sha2::{Digest, Sha256};

/// Reads this much of a file at once.
pub(super) const PIECE: usize = 1 << 20;

/// A listing: path from the root (empty for the root itself) to what is there.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    /// Entries by path.
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

/// Everything that can be seen of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Inode number as it is on disk; in btrfs unique only within its subvolume.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Device number of a device node, as `makedev` composes it.
    pub rdev: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Option<Timestamp>,
    /// Flags as `lsattr` shows them (files and directories).
    pub flags: Option<u32>,
    /// First path that leads to the same inode, if it has several.
    pub same_as: Option<Vec<u8>>,
    /// What is in it.
    pub content: Content,
    /// Extended attributes, ACLs among them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What is in an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A file: SHA-256, and where it has data, as ranges of bytes.
    File {
        /// SHA-256 of all bytes.
        sha256: [u8; 32],
        /// Ranges `from..to` that are not holes, in order, joined where they touch.
        data: Vec<(u64, u64)>,
    },
    /// A symbolic link's target.
    Link(Vec<u8>),
    /// Nothing that shows here.
    Other,
}

/// Finds the first path of inodes with several names.
#[derive(Debug, Default)]
pub(super) struct Groups(HashMap<(u64, u64), Vec<u8>>);

impl Groups {
    /// The first path of the inode `ino` on `device`, if it has several names.
    pub(super) fn first(
        &mut self,
        device: u64,
        ino: u64,
        links: u32,
        path: &[u8],
    ) -> Option<Vec<u8>> {
        let of_several = links > 1;
        of_several.then(|| {
            self.0
                .entry((device, ino))
                .or_insert_with(|| path.to_vec())
                .clone()
        })
    }
}

/// Ranges of data, grown to whole pages: what FUSE's cache writes is a page, where blocks are
/// smaller.
pub(super) fn in_pages(size: u64, data: &[(u64, u64)]) -> Vec<(u64, u64)> {
    const PAGE: u64 = 4096;
    let mut pages: Vec<(u64, u64)> = Vec::new();
    for (from, to) in data {
        let (from, to) = (from / PAGE * PAGE, to.next_multiple_of(PAGE).min(size));
        match pages.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(to),
            _ => pages.push((from, to)),
        }
    }
    pages
}

/// Of a long hole, this much at either end is read.
const BORDER: u64 = 64 << 10;

/// Reads a file through `read` (offset, buffer; returns how much) to its end: SHA-256 of its
/// bytes, but for the middle of long holes.
pub(super) fn hash<E>(
    size: u64,
    data: &[(u64, u64)],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<[u8; 32], E> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; PIECE];
    let mut part = |from: u64, to: u64| {
        let mut offset = from;
        while offset < to {
            let want = usize::try_from(to - offset).unwrap_or(PIECE).min(PIECE);
            let len = read(offset, &mut buffer[..want])?;
            if len == 0 {
                break;
            }
            hasher.update(&buffer[..len]);
            offset += len as u64;
        }
        Ok(())
    };
    let mut hole = 0;
    for (from, to) in data.iter().copied().chain([(size, size)]) {
        if from - hole > 4 * BORDER {
            part(hole, hole + BORDER)?;
            part(from - BORDER, from)?;
        } else {
            part(hole, from)?;
        }
        part(from, to)?;
        hole = to;
    }
    // Nothing may come behind the end.
    part(size, size + 1)?;
    Ok(hasher.finalize().into())
}

/// Walks a file's data and holes through `seek` (offset, true for data; `None` past the end).
pub(super) fn data_map<E>(
    size: u64,
    mut seek: impl FnMut(u64, bool) -> Result<Option<u64>, E>,
) -> Result<Vec<(u64, u64)>, E> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let Some(from) = seek(at, true)? else { break };
        let to = seek(from, false)?.unwrap_or(size).min(size);
        match ranges.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => ranges.push((from, to)),
        }
        if to <= at {
            break;
        }
        at = to;
    }
    Ok(ranges)
}

impl Manifest {
    /// Bytes as text for people.
    pub fn shown(bytes: &[u8]) -> String {
        const MOST: usize = 80;
        let mut text = bytes.escape_ascii().to_string();
        if text.len() > MOST {
            text.truncate(MOST);
            let _ = write!(text, "... ({} bytes)", bytes.len());
        }
        text
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
