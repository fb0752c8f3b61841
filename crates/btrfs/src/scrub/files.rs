//! The files that have bad sectors.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, Key, kind, objectid};

use crate::mount::Engine;
use crate::subvolume::listing;
use crate::{Error, Result};

/// Most files that are named.
const MOST: usize = 1000;
/// Most parts of files that are joined for that.
const MOST_PARTS: usize = 16 * MOST;

/// A range of a file with a bad copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedFile {
    /// Path from the top level of all subvolumes; empty if no name leads to the file.
    pub path: Vec<u8>,
    /// Subvolume.
    pub subvolume: u64,
    /// Inode.
    pub inode: u64,
    /// Offset in the file; in a compressed extent, the offset of the extent's part.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// A good copy of all of it exists.
    pub repaired: bool,
    /// The number of the donor that it was repaired from.
    pub donor: Option<usize>,
    /// Logical address, unless the extent is compressed.
    pub(super) logical: Option<u64>,
}

/// The state of a range with a bad copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// No copy was good.
    Lost,
    /// Another copy was good.
    Good,
    /// The donor of this number had the bytes.
    Donated(usize),
}

/// A range of data with a bad copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BadRange {
    /// Logical address.
    pub(super) at: u64,
    /// Bytes.
    pub(super) len: u64,
    pub(super) state: State,
}

/// The files that use ranges, in order. Ranges of a file that follow each other are one.
pub(super) fn with(engine: &Arc<Engine>, bad: &[BadRange]) -> Result<Vec<DamagedFile>> {
    let mut files: Vec<DamagedFile> = Vec::new();
    for part in parts(engine, bad, MOST_PARTS)? {
        match files.last_mut().filter(|last| last.is_joined(&part)) {
            Some(last) => last.extend(&part),
            None => files.push(part),
        }
    }
    files.truncate(MOST);
    Ok(files)
}

/// The parts of files that use ranges, in order, about `most` of them. The bytes of a part follow
/// each other in the file and in the address space.
pub(super) fn parts(
    engine: &Arc<Engine>,
    bad: &[BadRange],
    most: usize,
) -> Result<Vec<DamagedFile>> {
    let mut files: Vec<DamagedFile> = Vec::new();
    if bad.is_empty() {
        return Ok(files);
    }
    let mut paths = HashMap::from([(objectid::FS_TREE, Vec::new())]);
    for id in engine.roots.ids()? {
        if !objectid::is_fs_tree(id) {
            continue;
        }
        let root = match engine.roots.get(id) {
            // Deleted since the ids were read.
            Err(Error::NoSuchRoot(_)) => continue,
            other => other?,
        };
        let first = files.len();
        root.walk_committed(&**engine, &Key::MIN, &mut |key, item| {
            if key.kind == kind::EXTENT_DATA {
                let bad_item = |source| Error::BadItem {
                    root: id,
                    key,
                    source,
                };
                let extent = FileExtent::parse(item).map_err(bad_item)?;
                for part in in_extent(&key, &extent, bad) {
                    add(&mut files, (id, key.objectid), &part);
                }
            }
            Ok(files.len() < most)
        })?;
        for file in files.iter_mut().skip(first) {
            file.path = listing::file_path(engine, &root, file.inode, &mut paths)?;
        }
    }
    Ok(files)
}

/// A bad range of a file extent.
struct BadPart {
    /// Offset in the file.
    offset: u64,
    len: u64,
    state: State,
    /// Logical address, unless the extent is compressed.
    logical: Option<u64>,
}

fn in_extent(key: &Key, extent: &FileExtent<'_>, bad: &[BadRange]) -> Vec<BadPart> {
    let FileExtent::Regular(extent) = extent else {
        return Vec::new();
    };
    if extent.is_hole() {
        return Vec::new();
    }
    let plain = extent.compression == 0;
    let (from, len) = if plain {
        let from = extent.disk_bytenr.saturating_add(extent.offset);
        (from, extent.num_bytes)
    } else {
        (extent.disk_bytenr, extent.disk_num_bytes)
    };
    let to = from.saturating_add(len);
    let first = bad.partition_point(|range| range.at + range.len <= from);
    let inside = bad.iter().skip(first).take_while(|range| range.at < to);
    let part = |range: &BadRange| {
        let (low, high) = (range.at.max(from), (range.at + range.len).min(to));
        let (offset, len) = if plain {
            (key.offset.saturating_add(low - from), high - low)
        } else {
            (key.offset, extent.num_bytes)
        };
        BadPart {
            offset,
            len,
            state: range.state,
            logical: plain.then_some(low),
        }
    };
    inside.map(part).collect()
}

fn add(files: &mut Vec<DamagedFile>, (subvolume, inode): (u64, u64), part: &BadPart) {
    let part = DamagedFile {
        path: Vec::new(),
        subvolume,
        inode,
        offset: part.offset,
        len: part.len,
        repaired: part.state != State::Lost,
        donor: match part.state {
            State::Donated(nth) => Some(nth),
            State::Lost | State::Good => None,
        },
        logical: part.logical,
    };
    let follows = |last: &&mut DamagedFile| {
        let end = last.logical.map(|at| at.saturating_add(last.len));
        last.is_joined(&part) && end == part.logical
    };
    match files.last_mut().filter(follows) {
        Some(last) => last.extend(&part),
        None => files.push(part),
    }
}

impl DamagedFile {
    /// Whether a later part of a file is joined with it.
    fn is_joined(&self, part: &Self) -> bool {
        (self.subvolume, self.inode) == (part.subvolume, part.inode)
            && (self.repaired, self.donor) == (part.repaired, part.donor)
            && self.offset.saturating_add(self.len) >= part.offset
    }

    fn extend(&mut self, part: &Self) {
        let end = part.offset.saturating_add(part.len);
        self.len = self.len.max(end.saturating_sub(self.offset));
    }
}
