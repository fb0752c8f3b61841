//! Reads files: memory over disk, checksums, repair from another copy, inline extents. Reads ahead,
//! and finds data and holes (`SEEK_DATA`, `SEEK_HOLE`).

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{Checksum, FileExtent, InodeFlags, RegularExtent, compression as id};

use super::compress;
use super::files::Files;
use super::items::{self, damaged, key_of};
use super::verity;
use crate::counters::Counters;
use crate::devices::errors::ErrorKind;
use crate::file_data::{Content, DataState, ExtentMap, Stored};
use crate::inode::Inode;
use crate::lock::RankedMutexGuard;
use crate::transaction::Store;
use crate::{Error, Result};

/// Reads up to `buf.len()` bytes at `offset`; returns how many (fewer only at the end of the
/// file). The caller holds `io`.
///
/// # Errors
/// [`Error::DataChecksum`] and others if no copy of a sector is good; [`Error::Verity`] if the
/// content does not match its hash tree; unreadable or damaged items.
pub(crate) fn read(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize> {
    let (size, sealed) = {
        let state = inode.state.lock();
        (state.size, state.flags.contains(InodeFlags::VERITY))
    };
    let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
    let buf = buf.get_mut(..len).unwrap_or_default();
    note_read(files, inode, &(offset..offset + len as u64), size);
    if sealed && len > 0 {
        verity::read(files, inode, offset, buf)?;
    } else {
        fill(files, inode, offset, buf)?;
    }
    Ok(len)
}

/// Reads `buf.len()` bytes at `offset`, wherever the file ends; bytes without an item are zero.
pub(super) fn fill(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    if buf.is_empty() {
        return Ok(());
    }
    let end = offset + buf.len() as u64;
    let gaps = {
        let state = wait_for_bytes(files, inode, offset..end);
        state.in_flight.read(offset, buf);
        state.dirty.read(offset, buf);
        let mut gaps = Vec::new();
        for gap in state.dirty.gaps(offset..end) {
            let mut at = gap.start;
            for part in state.in_flight.covered(gap.clone()) {
                if part.start > at {
                    gaps.push(at..part.start);
                }
                at = part.end;
            }
            if at < gap.end {
                gaps.push(at..gap.end);
            }
        }
        gaps
    };
    for gap in gaps {
        let target = buf.get_mut((gap.start - offset) as usize..(gap.end - offset) as usize);
        read_disk(files, inode, gap, target.unwrap_or_default())?;
    }
    Ok(())
}

/// Waits until no data in `range` is in flight whose bytes are not in memory.
fn wait_for_bytes<'a>(
    files: &Files,
    inode: &'a Inode,
    range: Range<u64>,
) -> RankedMutexGuard<'a, DataState> {
    let mut state = inode.data.state.lock();
    if state.in_flight.lacks_bytes(range.clone()) {
        drop(state);
        files.writeback.hurry();
        state = inode.data.state.lock();
        while state.in_flight.lacks_bytes(range.clone()) {
            state.wait(&inode.data.changed);
        }
    }
    state
}

fn read_disk(files: &Arc<Files>, inode: &Inode, range: Range<u64>, buf: &mut [u8]) -> Result<()> {
    let mut at = range.start;
    let mut rest = buf;
    while at < range.end {
        let map = items::find(files, inode, at)?.cut(&(at..range.end));
        let (front, back) = rest.split_at_mut((map.end - map.start) as usize);
        match &map.content {
            Content::Hole | Content::Prealloc(_) => front.fill(0),
            Content::Inline => {
                let bytes = read_inline(files, inode)?
                    .ok_or_else(|| damaged(inode, 0, "inline extent is gone"))?;
                let from = bytes.get(map.start as usize..).unwrap_or_default();
                let len = from.len().min(front.len());
                let (has, lacks) = front.split_at_mut(len);
                has.copy_from_slice(from.get(..len).unwrap_or_default());
                lacks.fill(0);
            }
            Content::Data(stored) if stored.compression == 0 => {
                read_plain(files, inode, &map, stored, front)?
            }
            Content::Data(stored) => read_compressed(files, inode, &map, stored, front)?,
        }
        at = map.end;
        rest = back;
    }
    Ok(())
}

/// Reads the part of an extent that a map shows.
fn read_plain(
    files: &Arc<Files>,
    inode: &Inode,
    map: &ExtentMap,
    stored: &Stored,
    buf: &mut [u8],
) -> Result<()> {
    let sector = u64::from(files.sectorsize);
    let from = stored.bytenr + stored.offset;
    let to = from + (map.end - map.start);
    let (low, high) = (from - from % sector, to.next_multiple_of(sector));
    let place = |logical: u64| map.start.wrapping_add(logical.wrapping_sub(from));
    if low == from && high == to {
        return read_sectors(files, inode, low, buf, &place);
    }
    let mut whole = vec![0; (high - low) as usize];
    read_sectors(files, inode, low, &mut whole, &place)?;
    let part = whole
        .get((from - low) as usize..(to - low) as usize)
        .unwrap_or_default();
    buf.copy_from_slice(part);
    Ok(())
}

fn read_compressed(
    files: &Arc<Files>,
    inode: &Inode,
    map: &ExtentMap,
    stored: &Stored,
    buf: &mut [u8],
) -> Result<()> {
    let bytes = match files.expanded.get(stored.bytenr, stored.generation) {
        Some(bytes) => bytes,
        None => expand(files, inode, map, stored)?,
    };
    let from = usize::try_from(stored.offset).unwrap_or(usize::MAX);
    let part = bytes.get(from..from.saturating_add(buf.len()));
    buf.copy_from_slice(part.ok_or_else(|| damaged(inode, map.start, "range outside its extent"))?);
    Ok(())
}

/// Reads and expands a whole compressed extent.
fn expand(
    files: &Arc<Files>,
    inode: &Inode,
    map: &ExtentMap,
    stored: &Stored,
) -> Result<Arc<Vec<u8>>> {
    let most = compress::MAX_PIECE as u64;
    let aligned = stored.disk_len.is_multiple_of(files.sectorsize.into());
    if stored.ram_len > most || stored.disk_len > most || !aligned {
        return Err(damaged(
            inode,
            map.start,
            "compressed extent of impossible length",
        ));
    }
    let mut packed = vec![0; stored.disk_len as usize];
    let begin = map.start.wrapping_sub(stored.offset);
    read_sectors(files, inode, stored.bytenr, &mut packed, &|_| begin)?;
    let sector = files.sectorsize as usize;
    let bytes = compress::decompress(stored.compression, &packed, stored.ram_len as usize, sector);
    let bytes = bytes.map_err(|reason| Error::Compressed {
        root: inode.root.id(),
        objectid: inode.objectid,
        offset: map.start,
        reason: reason.to_string(),
    })?;
    Counters::count(&files.counters.expanded_extents);
    let bytes = Arc::new(bytes);
    files
        .expanded
        .keep(stored.bytenr, stored.generation, &bytes);
    Ok(bytes)
}

/// Reads the stored bytes of the compressed extent that the range at `start` of a file shows, and
/// checks them.
pub(crate) fn read_stored(
    files: &Arc<Files>,
    inode: &Inode,
    start: u64,
    extent: &RegularExtent,
) -> Result<Vec<u8>> {
    let aligned = extent
        .disk_num_bytes
        .is_multiple_of(files.sectorsize.into());
    let len = usize::try_from(extent.disk_num_bytes).ok();
    let Some(len) = len.filter(|len| *len <= compress::MAX_PIECE && aligned) else {
        let why = "compressed extent of impossible length";
        return Err(damaged(inode, start, why));
    };
    let mut bytes = vec![0; len];
    let begin = start.wrapping_sub(extent.offset);
    read_sectors(files, inode, extent.disk_bytenr, &mut bytes, &|_| begin)?;
    Ok(bytes)
}

/// Reads whole sectors at a logical address and checks them. `place` gives the file offset of
/// a logical address, for messages.
fn read_sectors(
    files: &Arc<Files>,
    inode: &Inode,
    logical: u64,
    buf: &mut [u8],
    place: &dyn Fn(u64) -> u64,
) -> Result<()> {
    let summed = !inode.state.lock().flags.contains(InodeFlags::NODATASUM);
    let sums = if summed {
        Some(files.checksums.lookup(files, logical, buf.len() as u64)?)
    } else {
        None
    };
    let readable = files.volume.readable(logical, buf.len() as u64)?;
    let mirror = readable.first();
    let first = mirror.map(|mirror| files.volume.read(logical, buf, mirror));
    let failed = !matches!(first, Some(Ok(())));
    let mirror = mirror.unwrap_or(0);
    let sector = files.sectorsize as usize;
    for (i, bytes) in buf.chunks_mut(sector).enumerate() {
        let at = logical + (i * sector) as u64;
        let expected = sums.as_ref().map(|sums| sums.get(i).copied().flatten());
        if !failed && judge(files, expected, bytes).is_ok() {
            continue;
        }
        let sector = Sector {
            files,
            inode,
            logical: at,
            offset: place(at),
            expected,
        };
        if failed {
            // Another part of the range may be the one that cannot be read.
            sector.recover(bytes, None, sector.unreadable(mirror))?;
        } else if let Err(error) = sector.judged(bytes, mirror) {
            log::warn!("{error}");
            sector.recover(bytes, Some(mirror), error)?;
        }
    }
    Ok(())
}

/// Compares a sector with its expected checksum, `None` for data without checksums. The error is
/// the checksum found, or `None` if the expected one is missing in the tree.
fn judge(
    store: &Store,
    expected: Option<Option<Checksum>>,
    bytes: &[u8],
) -> Result<(), Option<Checksum>> {
    match expected {
        None => Ok(()),
        Some(None) => Err(None),
        Some(Some(expected)) => {
            let found = store.checksum.compute(bytes);
            if found == expected {
                Ok(())
            } else {
                Err(Some(found))
            }
        }
    }
}

/// A sector with a bad copy.
struct Sector<'a> {
    files: &'a Arc<Files>,
    inode: &'a Inode,
    logical: u64,
    offset: u64,
    expected: Option<Option<Checksum>>,
}

impl Sector<'_> {
    fn judged(&self, bytes: &[u8], mirror: usize) -> Result<()> {
        let Err(found) = judge(self.files, self.expected, bytes) else {
            return Ok(());
        };
        let (root, objectid, offset) = (self.inode.root.id(), self.inode.objectid, self.offset);
        let (device, physical) = self.place(mirror);
        let volume = &self.files.volume;
        volume.count_corruption(self.logical, mirror, ErrorKind::Corruption);
        Err(match (self.expected.flatten(), found) {
            (Some(expected), Some(found)) => Error::DataChecksum {
                device,
                physical,
                root,
                objectid,
                offset,
                expected: Box::new(expected),
                found: Box::new(found),
            },
            _ => Error::NoChecksum {
                device,
                physical,
                root,
                objectid,
                offset,
            },
        })
    }

    fn unreadable(&self, mirror: usize) -> Error {
        let (device, physical) = self.place(mirror);
        let (root, objectid, offset) = (self.inode.root.id(), self.inode.objectid, self.offset);
        Error::DataUnreadable {
            device,
            physical,
            root,
            objectid,
            offset,
        }
    }

    fn place(&self, mirror: usize) -> (String, u64) {
        self.files.volume.place(self.logical, mirror)
    }

    /// Tries all copies but `tried`; the first valid one is read and repairs the bad ones. `first`
    /// is the error if there is none.
    fn recover(&self, bytes: &mut [u8], tried: Option<usize>, first: Error) -> Result<()> {
        let volume = &self.files.volume;
        let readable = volume.readable(self.logical, bytes.len() as u64)?;
        let mut bad: Vec<usize> = tried.into_iter().collect();
        // Without a checksum in the tree no copy can be verified.
        let verifiable = self.expected != Some(None);
        for mirror in readable.iter().filter(|m| verifiable && Some(*m) != tried) {
            let read = volume.read(self.logical, bytes, mirror);
            match read.and_then(|()| self.judged(bytes, mirror)) {
                Ok(()) => {
                    self.repair(bytes, &bad, mirror);
                    return Ok(());
                }
                Err(error) => log::warn!("{error}"),
            }
            bad.push(mirror);
        }
        Err(first)
    }

    fn repair(&self, good: &[u8], bad: &[usize], from: usize) {
        for mirror in bad {
            let volume = &self.files.volume;
            match volume.repair_from(self.logical, good, from, *mirror) {
                Ok(true) => log::info!("repaired logical {} from copy {from}", self.logical),
                Ok(false) => {}
                Err(error) => log::warn!("cannot repair logical {}: {error}", self.logical),
            }
        }
    }
}

/// Records that `read` was read. For a sequential reader, asks the devices to read ahead, up to the
/// end of the file at `size`. They read in the background into the system's page cache: there is no
/// cache of data here. Checksums are compared when the data is read.
pub(super) fn note_read(store: &Store, inode: &Inode, read: &Range<u64>, size: u64) {
    let asked = inode.data.state.lock().ahead.note(read);
    let Some(Range { start, end }) = asked else {
        return;
    };
    let end = end.min(size);
    let mut at = start;
    while at < end {
        // The thread that reads there reports defects of the items.
        let Ok(map) = items::find(store, inode, at) else {
            return;
        };
        if let Content::Data(stored) = map.content {
            let (from, len) = match stored.compression {
                0 => {
                    let part = map.cut(&(at..end));
                    let begin = stored.offset + (part.start - map.start);
                    (stored.bytenr + begin, part.end - part.start)
                }
                _ => (stored.bytenr, stored.disk_len),
            };
            store.volume.will_read(from, len);
        }
        if map.end <= at {
            return;
        }
        at = map.end;
    }
}

/// Bytes of the inline extent of a file, expanded; `None` if it has none.
///
/// # Errors
/// Unreadable blocks, a damaged item.
pub(super) fn read_inline(store: &Store, inode: &Inode) -> Result<Option<Vec<u8>>> {
    let key = key_of(inode, 0);
    let Some(item) = inode.root.get(store, &key)? else {
        return Ok(None);
    };
    let bad = |source| Error::BadItem {
        root: inode.root.id(),
        key,
        source,
    };
    let FileExtent::Inline {
        ram_bytes,
        compression,
        data,
        ..
    } = FileExtent::parse(&item).map_err(bad)?
    else {
        return Ok(None);
    };
    if compression == id::NONE {
        return Ok(Some(data.to_vec()));
    }
    let len = usize::try_from(ram_bytes)
        .ok()
        .filter(|len| *len <= compress::MAX_PIECE);
    let len = len.ok_or_else(|| damaged(inode, 0, "inline data expands to too much"))?;
    let sector = store.sectorsize as usize;
    match compress::decompress(compression, data, len, sector) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(reason) => Err(Error::Compressed {
            root: inode.root.id(),
            objectid: inode.objectid,
            offset: 0,
            reason: reason.to_string(),
        }),
    }
}

/// Target of a symbolic link.
///
/// # Errors
/// Unreadable blocks, a damaged item.
pub(crate) fn readlink(files: &Arc<Files>, inode: &Inode) -> Result<Vec<u8>> {
    let mut target = read_inline(files, inode)?
        .ok_or_else(|| damaged(inode, 0, "symbolic link without target"))?;
    let size = inode.state.lock().size;
    target.truncate(usize::try_from(size).unwrap_or(usize::MAX));
    Ok(target)
}

/// Whether the byte at `at` is data, and up to where that is known to continue. Preallocated
/// extents are holes, data in memory is data. Expects `io`.
pub(crate) fn stretch(files: &Arc<Files>, inode: &Inode, at: u64) -> Result<(bool, u64)> {
    let next = {
        let state = inode.data.state.lock();
        let dirty = state.dirty.covered(at..u64::MAX).next();
        let in_flight = state.in_flight.covered(at..u64::MAX).next();
        dirty
            .into_iter()
            .chain(in_flight)
            .min_by_key(|part| part.start)
    };
    if let Some(part) = next.clone().filter(|part| part.start <= at) {
        return Ok((true, part.end));
    }
    let limit = next.map_or(u64::MAX, |part| part.start);
    let map = items::find(files, inode, at)?;
    let is_data = matches!(map.content, Content::Data(_) | Content::Inline);
    Ok((is_data, map.end.min(limit)))
}
