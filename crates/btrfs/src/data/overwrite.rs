//! Overwriting in place: files without copy-on-write, preallocated extents, and all files of a mount
//! with [`Options::in_place`](crate::Options::in_place).
//!
//! A range of an extent may be overwritten under these conditions:
//! - The extent is not compressed.
//! - It was made after the last snapshot of the tree.
//! - The mount need not keep it ([`Options::keep_opened`](crate::Options::keep_opened)).
//! - It has no ref except from this file's item.
//! - The range has no checksums, which would be wrong until new ones are in the tree. Such a mount
//!   replaces them.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::InodeFlags;

use super::files::Files;
use super::items::{self, data_ref};
use crate::Result;
use crate::file_data::Target;
use crate::file_data::{Content, ExtentMap, Stored};
use crate::inode::Inode;

/// Cuts a range in flight into parts that overwrite and parts that do not (`None`). No older
/// data of the range is in flight.
pub(super) fn plan(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: &Range<u64>,
) -> Result<Vec<(Range<u64>, Option<Target>)>> {
    let mut parts: Vec<(Range<u64>, Option<Target>)> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let judged = items::find(files, inode, at).and_then(|map| {
            let map = map.cut(&(at..range.end));
            Ok((map, target(files, inode, &map)?))
        });
        let (map, target) = match judged {
            Ok(judged) => judged,
            Err(error) => {
                for _ in parts.iter().filter(|(_, target)| target.is_some()) {
                    files.overwrites.end(inode.root.id());
                }
                return Err(error);
            }
        };
        at = map.end;
        match (target, parts.last_mut()) {
            (None, Some((last, None))) => last.end = map.end,
            (target, _) => parts.push((map.range(), target)),
        }
    }
    Ok(parts)
}

/// The target of an overwrite of the range of a map. If there is one, the overwrite has begun.
fn target(files: &Arc<Files>, inode: &Inode, map: &ExtentMap) -> Result<Option<Target>> {
    let Some((stored, target)) = candidate(files, inode, map) else {
        return Ok(None);
    };
    let root = inode.root.id();
    // Begun before the check: a snapshot either waits for it or is seen by the check.
    if !files.overwrites.begin(root) {
        return Ok(None);
    }
    match is_ours(files, inode, map, &stored) {
        Ok(true) => Ok(Some(target)),
        Ok(false) => {
            files.overwrites.end(root);
            Ok(None)
        }
        Err(error) => {
            files.overwrites.end(root);
            Err(error)
        }
    }
}

fn candidate(files: &Files, inode: &Inode, map: &ExtentMap) -> Option<(Stored, Target)> {
    let nodatacow = inode.state.lock().flags.contains(InodeFlags::NODATACOW);
    match map.content {
        Content::Data(stored) if nodatacow || files.options.in_place => {
            Some((stored, Target::Overwrite(stored)))
        }
        Content::Prealloc(stored) => Some((stored, Target::Prealloc(stored))),
        _ => None,
    }
}

fn is_ours(files: &Arc<Files>, inode: &Inode, map: &ExtentMap, stored: &Stored) -> Result<bool> {
    if stored.compression != 0
        || stored.generation <= inode.root.last_snapshot()
        || files.space.keeps(stored.generation)
    {
        return Ok(false);
    }
    let len = map.end - map.start;
    let unsummed = inode.state.lock().flags.contains(InodeFlags::NODATASUM);
    if (unsummed || !files.options.in_place)
        && files
            .checksums
            .has_any(files, stored.bytenr + stored.offset, len)?
    {
        return Ok(false);
    }
    let own = data_ref(inode, map.start, stored);
    let h = files.join()?;
    let changes = &h.trans().space;
    Ok(!files.space.is_shared(changes, &inode.root, &own)?)
}

/// Whether a file may have ranges that are overwritten in place.
pub(super) fn may_overwrite(files: &Files, inode: &Inode) -> bool {
    let flags = inode.state.lock().flags;
    files.options.in_place || flags.intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC)
}

/// Whether all of `range` could be overwritten in place now, so that writing needs no space.
pub(crate) fn possible(files: &Arc<Files>, inode: &Arc<Inode>, range: &Range<u64>) -> Result<bool> {
    if !may_overwrite(files, inode) {
        return Ok(false);
    }
    let mut at = range.start;
    while at < range.end {
        let map = items::find(files, inode, at)?.cut(&(at..range.end));
        at = map.end;
        let Some((stored, _)) = candidate(files, inode, &map) else {
            return Ok(false);
        };
        if !is_ours(files, inode, &map, &stored)? {
            return Ok(false);
        }
    }
    Ok(true)
}
