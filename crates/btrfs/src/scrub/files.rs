//! The files that have bad sectors.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, Key, kind, objectid};

use crate::mount::Engine;
use crate::subvolume::listing;
use crate::{Error, Result};

/// Most files that are named.
const MOST: usize = 1000;

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
}

/// The files that use ranges (logical address, bytes, whether a copy is good), in order. Ranges of
/// a file that follow each other are one.
pub(super) fn with(engine: &Arc<Engine>, bad: &[(u64, u64, bool)]) -> Result<Vec<DamagedFile>> {
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
                for (offset, len, repaired) in in_extent(&key, &extent, bad) {
                    add(&mut files, (id, key.objectid), offset, len, repaired);
                }
            }
            Ok(files.len() < MOST)
        })?;
        for file in files.iter_mut().skip(first) {
            file.path = listing::file_path(engine, &root, file.inode, &mut paths)?;
        }
    }
    Ok(files)
}

/// The bad ranges of a file extent: offset in the file, bytes, whether a copy is good.
fn in_extent(
    key: &Key,
    extent: &FileExtent<'_>,
    bad: &[(u64, u64, bool)],
) -> Vec<(u64, u64, bool)> {
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
    let first = bad.partition_point(|(at, len, _)| at + len <= from);
    let inside = bad.iter().skip(first).take_while(|(at, ..)| *at < to);
    let place = |(at, len, repaired): &(u64, u64, bool)| {
        if !plain {
            return (key.offset, extent.num_bytes, *repaired);
        }
        let (low, high) = ((*at).max(from), (at + len).min(to));
        (key.offset.saturating_add(low - from), high - low, *repaired)
    };
    inside.map(place).collect()
}

fn add(
    files: &mut Vec<DamagedFile>,
    (subvolume, inode): (u64, u64),
    offset: u64,
    len: u64,
    repaired: bool,
) {
    if let Some(last) = files.last_mut()
        && (last.subvolume, last.inode, last.repaired) == (subvolume, inode, repaired)
        && last.offset.saturating_add(last.len) >= offset
    {
        last.len = last.len.max(offset.saturating_add(len) - last.offset);
        return;
    }
    files.push(DamagedFile {
        path: Vec::new(),
        subvolume,
        inode,
        offset,
        len,
        repaired,
    });
}
