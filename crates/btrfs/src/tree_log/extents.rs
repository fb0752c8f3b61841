//! Extents and checksums of a file in the log.
//!
//! # How it works
//! The maps that changed in this transaction, and were not logged yet, come from the file's list of
//! modified maps. Some are in the tree already. For the others the I/O is done, but their ordered
//! extent is not complete: it is pinned, so that the transaction is not committed without it.
//!
//! Extents in the log never overlap, so a range is deleted from the log before it is logged again.
//! Replay first drops extents of the subvolume after the logged length: preallocated extents there,
//! even old ones, are therefore logged with the file's first log.
//!
//! Checksums come from the ordered extent if that is in flight, else from the checksum tree.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, InodeFlags, Key, RegularExtent, kind};

use super::state::{Logged, Writer};
use crate::counters::Counters;
use crate::data;
use crate::file_data::{Content, ExtentMap, ModifiedMap, Stored, Target};
use crate::inode::Inode;
use crate::{Error, Result};

fn key_of(inode: &Inode, offset: u64) -> Key {
    Key::new(inode.objectid, kind::EXTENT_DATA, offset)
}

/// Logs the changes of a file of `size` bytes.
pub(super) fn write(
    w: &mut Writer<'_>,
    inode: &Arc<Inode>,
    size: u64,
    logged: &Logged,
) -> Result<()> {
    let end = size.checked_next_multiple_of(w.store.sectorsize.into());
    let end = end.unwrap_or(u64::MAX);
    let clean = !logged.full;
    if clean && inode.state.lock().flags.contains(InodeFlags::PREALLOC) {
        for map in data::preallocated_behind(&w.store, inode, end)? {
            put(w, inode, &map, map.generation(w.h.transid()))?;
        }
    }
    // Holes were logged up to the length only: holes in the growth since then are missing.
    let grown = logged.full && size > logged.size;
    let had = if grown { logged.size } else { u64::MAX };
    // The changes leave the list only now. They cannot be put back: an error breaks the whole log.
    let mut sums = Vec::new();
    for modified in inode.data.take_unlogged(w.h.transid(), had) {
        one(w, inode, &modified, end, &mut sums)?;
    }
    put_checksums(w, sums)
}

/// Checksums of neighbouring sectors, one after another: address of the first sector, checksums.
type Run = (u64, Vec<u8>);

/// Logs a map without its checksums, which are added to `sums`.
fn one(
    w: &mut Writer<'_>,
    inode: &Arc<Inode>,
    modified: &ModifiedMap,
    end: u64,
    sums: &mut Vec<Run>,
) -> Result<()> {
    let pinned = modified
        .ordered
        .as_ref()
        .is_some_and(|ordered| ordered.pin(w.h));
    if pinned {
        Counters::count(&w.store.counters.log.pinned);
    }
    let mut map = modified.map;
    clear(w, inode, map.range())?;
    if matches!(map.content, Content::Hole) {
        map = map.cut(&(0..end));
        if map.start >= map.end {
            return Ok(());
        }
    }
    Counters::count(&w.store.counters.log.extents);
    let inline = modified.ordered.as_ref().map(|ordered| &ordered.target);
    match (&map.content, inline) {
        (
            Content::Inline,
            Some(Target::Inline {
                ram_len,
                compression,
                data,
            }),
        ) => {
            let item = FileExtent::Inline {
                generation: w.h.transid(),
                ram_bytes: *ram_len,
                compression: *compression,
                data,
            };
            w.put(&key_of(inode, 0), &item.encode())
        }
        (Content::Inline, _) => copy_inline(w, inode),
        _ => {
            put(w, inode, &map, map.generation(w.h.transid()))?;
            sums.extend(checksums(w, inode, modified)?);
            Ok(())
        }
    }
}

/// Puts the item of a map that is not inline into the log.
fn put(w: &mut Writer<'_>, inode: &Inode, map: &ExtentMap, generation: u64) -> Result<()> {
    let len = map.end - map.start;
    let regular = |stored: &Stored| RegularExtent {
        generation,
        ram_bytes: stored.ram_len,
        compression: stored.compression,
        disk_bytenr: stored.bytenr,
        disk_num_bytes: stored.disk_len,
        offset: stored.offset,
        num_bytes: len,
    };
    let item = match &map.content {
        Content::Data(stored) => FileExtent::Regular(regular(stored)),
        Content::Prealloc(stored) => FileExtent::Prealloc(regular(stored)),
        Content::Hole | Content::Inline => FileExtent::Regular(RegularExtent {
            generation,
            ram_bytes: len,
            num_bytes: len,
            ..RegularExtent::default()
        }),
    };
    w.put(&key_of(inode, map.start), &item.encode())
}

/// Copies the inline extent of the tree.
pub(super) fn copy_inline(w: &mut Writer<'_>, inode: &Inode) -> Result<()> {
    let key = key_of(inode, 0);
    match inode.root.get(&w.store, &key)? {
        Some(item) => w.put(&key, &item),
        None => Ok(()),
    }
}

/// Takes `range` out of the extents that the log has of a file.
fn clear(w: &mut Writer<'_>, inode: &Inode, range: Range<u64>) -> Result<()> {
    let tree = w.tree();
    let sector = u64::from(w.store.sectorsize);
    let ours = |key: &Key| key.objectid == inode.objectid && key.kind == kind::EXTENT_DATA;
    let bad = |key: Key| {
        move |source| Error::BadItem {
            root: sapwood_btrfs_format::objectid::TREE_LOG,
            key,
            source,
        }
    };
    let mut cursor = tree.seek_back(w.h, &key_of(inode, range.start))?;
    let found = cursor.item().filter(|(key, _)| ours(key));
    let before = found.map(|(key, data)| (key, data.to_vec()));
    let mut touched: Vec<(Key, Vec<u8>)> = before.into_iter().collect();
    match cursor.item() {
        Some(_) => cursor.next()?,
        None => cursor = tree.seek(w.h, &key_of(inode, range.start.saturating_add(1)))?,
    }
    while let Some((key, data)) = cursor.item().filter(|(key, _)| ours(key)) {
        if key.offset >= range.end {
            break;
        }
        touched.push((key, data.to_vec()));
        cursor.next()?;
    }
    // With the cursor's snapshot of the leaf alive, every change would copy the leaf.
    drop(cursor);
    for (key, data) in touched {
        let item = FileExtent::parse(&data).map_err(bad(key))?;
        let (extent, prealloc) = match item {
            FileExtent::Inline { .. } => {
                if range.start < sector {
                    tree.delete(w.h, &key)?;
                }
                continue;
            }
            FileExtent::Regular(extent) => (extent, false),
            FileExtent::Prealloc(extent) => (extent, true),
        };
        let (start, end) = (key.offset, key.offset.saturating_add(extent.num_bytes));
        if end <= range.start {
            continue;
        }
        let part = |from: u64, to: u64| {
            let offset = if extent.is_hole() {
                0
            } else {
                extent.offset + (from - start)
            };
            let part = RegularExtent {
                offset,
                num_bytes: to - from,
                ..extent
            };
            if prealloc {
                FileExtent::Prealloc(part).encode()
            } else {
                FileExtent::Regular(part).encode()
            }
        };
        if start < range.start {
            tree.put(w.h, &key, &part(start, range.start))?;
        } else {
            tree.delete(w.h, &key)?;
        }
        if end > range.end {
            tree.put(w.h, &key_of(inode, range.end), &part(range.end, end))?;
        }
    }
    Ok(())
}

/// The checksums of a map's data, if it has any.
fn checksums(w: &Writer<'_>, inode: &Inode, modified: &ModifiedMap) -> Result<Vec<Run>> {
    let Content::Data(stored) = modified.map.content else {
        return Ok(Vec::new());
    };
    if inode.state.lock().flags.contains(InodeFlags::NODATASUM) {
        return Ok(Vec::new());
    }
    let (start, len) = match stored.compression {
        0 => (
            stored.bytenr + stored.offset,
            modified.map.end - modified.map.start,
        ),
        _ => (stored.bytenr, stored.disk_len),
    };
    let Some(ordered) = &modified.ordered else {
        return w.store.checksums.runs(&*w.store, start, len);
    };
    let size = w.store.checksum.size();
    let sector = u64::from(w.store.sectorsize);
    let all = ordered.sums();
    let sums = match stored.compression {
        0 => {
            let at = ((modified.map.start - ordered.range.start) / sector) as usize * size;
            let count = (len / sector) as usize * size;
            all.get(at..at + count).unwrap_or_default().to_vec()
        }
        _ => all,
    };
    Ok(vec![(start, sums)])
}

/// Puts checksums into the log. Checksums of neighbouring extents go together: the log tree is
/// changed once per file instead of once per extent.
fn put_checksums(w: &mut Writer<'_>, mut sums: Vec<Run>) -> Result<()> {
    let size = w.store.checksum.size();
    let sector = u64::from(w.store.sectorsize);
    sums.retain(|(_, sums)| !sums.is_empty());
    sums.sort_unstable_by_key(|(start, _)| *start);
    let mut merged: Vec<Run> = Vec::new();
    for (start, sums) in sums {
        let end = |run: &Run| run.0 + (run.1.len() / size) as u64 * sector;
        match merged.last_mut() {
            Some(run) if end(run) == start => run.1.extend(sums),
            _ => merged.push((start, sums)),
        }
    }
    if merged.is_empty() {
        return Ok(());
    }
    let (log, store) = (Arc::clone(&w.log), Arc::clone(&w.store));
    let _edit = log.sums.lock();
    for (logical, sums) in merged {
        store
            .checksums
            .insert_in_log(w.h, &log.tree, logical, &sums)?;
    }
    Ok(())
}
