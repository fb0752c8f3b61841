//! Encoded writes: an extent that arrives compressed becomes an extent of the file as it is.
//!
//! # How it works
//! The stored bytes take the path of a compressed piece of writeback, from the allocation of its
//! extent on: order, submit, complete. The I/O is done when the write returns. Until the completion
//! has run, the entry in flight has no plain bytes, so readers of its range wait for it
//! ([`read`](super::read)).
//!
//! Nothing is expanded here: the claims about lengths are checked, the bytes are not. Bytes that do
//! not expand to the claimed length are an error of each read.
//!
//! If the host has no space for the bytes, the range keeps its old content.
//!
//! Offsets and lengths follow the rules of `BTRFS_IOC_ENCODED_WRITE`:
//! <https://btrfs.readthedocs.io/en/latest/btrfs-ioctl.html>.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{InodeFlags, compression as id};

use super::compress::MAX_PIECE;
use super::decide::{fits_inline, order, order_inline, use_feature};
use super::files::{Batch, Dispatch, Files};
use super::flush::begin;
use super::items::{self, sector_ceil};
use super::submit::submit;
use super::truncate::truncate;
use super::write::{ITEMS, prepare_growth};
use crate::counters::Counters;
use crate::file_data::{Content, OrderedExtent, Slice, Stored, Target};
use crate::inode::Inode;
use crate::space::MetadataReservation;
use crate::{Error, Result};

/// A compressed extent, and the part of it that becomes content of a file.
#[derive(Debug, Clone, Copy)]
pub struct EncodedExtent<'a> {
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Bytes of the whole extent once expanded.
    pub extent_len: u64,
    /// Offset of the file's bytes in the expanded extent.
    pub extent_offset: u64,
    /// Algorithm, as in file extent items.
    pub compression: u8,
    /// The compressed bytes. LZO: in segments of the file system's sectors.
    pub stored: &'a [u8],
}

/// The place of an encoded extent.
struct Place {
    /// Whole sectors.
    range: Range<u64>,
    /// End of the file's bytes.
    end: u64,
    /// The extent, without an address; `None`: inline.
    stored: Option<Stored>,
}

/// Writes a compressed extent as it is. Returns false, without a change of the content, if the
/// file or the file system does not take it in this form: the caller expands it and writes the
/// bytes. The caller holds `io` exclusively, has checked limits, and sets the times.
///
/// # Errors
/// [`Error::NoSpace`]; the mount takes no changes; unreadable or damaged items.
pub(crate) fn write_encoded(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    extent: &EncodedExtent<'_>,
) -> Result<bool> {
    files.health.check()?;
    let Some(place) = place(files, inode, extent)? else {
        return Ok(false);
    };
    if !leaves_inline(files, inode, extent.offset)? {
        return Ok(false);
    }
    prepare_growth(files, inode, extent.offset, place.end)?;
    // Older data in memory would hide the extent.
    settle(files, inode, place.range.clone())?;
    let store = files.store();
    let metadata = files.space.reserve_metadata(store, ITEMS, false)?;
    let Some(target) = target(files, inode, extent, &place)? else {
        return Ok(false);
    };
    let bytes = place.range.end - place.range.start;
    if !files.writeback.enter(files, bytes) {
        release(files, &target);
        return Err(Error::NoSpace);
    }
    use_feature(files, extent.compression);
    let old = inode.state.lock().size;
    let ordered = write(files, inode, &place, target, metadata, extent.stored);
    if ordered.is_none_or(|ordered| ordered.failed()) {
        return Err(withdraw(files, inode, &place.range, old));
    }
    Counters::count(&files.counters.encoded_writes);
    Counters::add(&files.counters.encoded_bytes, extent.stored.len() as u64);
    Ok(true)
}

/// The place of an extent whose claims are possible, in a file that takes compressed extents.
fn place(files: &Files, inode: &Inode, extent: &EncodedExtent<'_>) -> Result<Option<Place>> {
    let sector = u64::from(files.sectorsize);
    let (flags, size) = {
        let state = inode.state.lock();
        (state.flags, state.size)
    };
    let stored_len = extent.stored.len() as u64;
    let known = matches!(extent.compression, id::ZLIB | id::LZO | id::ZSTD);
    let sized = extent.len > 0
        && stored_len > 0
        && stored_len < extent.extent_len
        && extent.extent_len <= MAX_PIECE as u64;
    let within = extent.extent_offset.checked_add(extent.len);
    let end = extent.offset.checked_add(extent.len);
    let (Some(within), Some(end)) = (within, end) else {
        return Ok(None);
    };
    let aligned = extent.offset.is_multiple_of(sector)
        && extent.extent_offset.is_multiple_of(sector)
        && (end.is_multiple_of(sector) || end >= size);
    if !known
        || !sized
        || !aligned
        || within > extent.extent_len
        || flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM)
    {
        return Ok(None);
    }
    let range = extent.offset..sector_ceil(files, end);
    let whole = extent.extent_offset == 0 && extent.len == extent.extent_len;
    let size = size.max(end);
    if whole
        && size == extent.len
        && fits_inline(files, inode, &range, size)?.is_some_and(|limit| stored_len <= limit)
    {
        return Ok(Some(Place {
            range,
            end,
            stored: None,
        }));
    }
    let stored = Stored {
        disk_len: sector_ceil(files, stored_len),
        ram_len: sector_ceil(files, extent.extent_len),
        compression: extent.compression,
        offset: extent.extent_offset,
        ..Stored::default()
    };
    let smaller = stored.disk_len < stored.ram_len;
    Ok(smaller.then_some(Place {
        range,
        end,
        stored: Some(stored),
    }))
}

/// Whether data may follow at `offset`: an inline extent must be the only extent of its file.
fn leaves_inline(files: &Arc<Files>, inode: &Arc<Inode>, offset: u64) -> Result<bool> {
    let sector = u64::from(files.sectorsize);
    let size = inode.state.lock().size;
    if size == 0 || size > sector || offset < sector {
        return Ok(true);
    }
    // The place of a first sector in memory is not decided yet.
    settle(files, inode, 0..sector)?;
    Ok(items::find(files, inode, 0)?.content != Content::Inline)
}

/// Writes back the dirty data in `range`, and waits until nothing of it is in memory.
fn settle(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    begin(files, inode, range.clone());
    files.writeback.hurry();
    inode.data.wait_not_in_flight(&range);
    let clean = inode.data.is_clean(range);
    clean.then_some(()).ok_or(Error::NoSpace)
}

/// Takes space for an extent; `None` if there is none in one stretch.
fn target(
    files: &Arc<Files>,
    inode: &Inode,
    extent: &EncodedExtent<'_>,
    place: &Place,
) -> Result<Option<Target>> {
    let Some(stored) = place.stored else {
        return Ok(Some(Target::Inline {
            ram_len: extent.len,
            compression: extent.compression,
            data: extent.stored.to_vec(),
        }));
    };
    let len = stored.disk_len;
    let quota = files.reserve_quota(inode.root.id(), len)?;
    let promised = files.space.reserve_data(files.store(), len)?;
    let hint = inode.data.state.lock().hint;
    match files.space.reserve_data_extent(&promised, len, len, hint) {
        Ok((bytenr, _)) => {
            let mut state = inode.data.state.lock();
            state.hint = bytenr + len;
            state.hold_quota(quota);
            Ok(Some(Target::New(Stored { bytenr, ..stored })))
        }
        Err(Error::NoSpace) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Gives back the space of a target that is not written.
fn release(files: &Files, target: &Target) {
    if let Target::New(stored) = target
        && let Err(error) = files
            .space
            .release_data_extent(stored.bytenr, stored.disk_len)
    {
        files.health.fail(&error);
    }
}

/// Writes the bytes of an extent. The file grows to the place's end. Returns the ordered extent,
/// all of whose I/O is done.
fn write(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    place: &Place,
    target: Target,
    metadata: MetadataReservation,
    bytes: &[u8],
) -> Option<Arc<OrderedExtent>> {
    let (entry, size) = {
        let mut guard = inode.data.state.lock();
        let state = &mut *guard;
        match &state.promised_metadata {
            Some(own) => own.merge(metadata),
            None => state.promised_metadata = Some(Arc::new(metadata)),
        }
        let mut own = inode.state.lock();
        own.size = own.size.max(place.end);
        let entry = state.in_flight.insert(place.range.clone(), Vec::new());
        (entry, own.size)
    };
    files.writeback.activate(inode);
    let batch = Batch::default();
    let dispatch = Dispatch::Here(&batch);
    if let Target::New(stored) = &target {
        let mut padded = bytes.to_vec();
        padded.resize(stored.disk_len as usize, 0);
        let payload = Some(vec![Slice::new(padded.into())]);
        order(files, inode, entry, target, payload, dispatch);
    } else {
        order_inline(inode, entry, place.range.clone(), size, target, dispatch);
    }
    let writes = batch.writes.into_inner();
    let ordered = writes.first().map(|write| Arc::clone(&write.ordered));
    submit(files, writes, false);
    ordered
}

/// After a write whose I/O failed: the file has its old length again, and the log learns the old
/// content of the range again. Returns the error of the write.
fn withdraw(files: &Arc<Files>, inode: &Arc<Inode>, range: &Range<u64>, size: u64) -> Error {
    inode.data.wait_not_in_flight(range);
    let restored = || -> Result<()> {
        files.health.check()?;
        if inode.state.lock().size > size {
            truncate(files, inode, size)?;
        }
        let h = files.join()?;
        let mut at = range.start;
        while at < range.end.min(sector_ceil(files, size)) {
            let map = items::find(files, inode, at)?.cut(&(at..range.end));
            at = map.end;
            inode.data.note_change(map, h.transid());
        }
        inode.change(&h, |_| {});
        h.end()
    };
    restored().err().unwrap_or(Error::NoSpace)
}
