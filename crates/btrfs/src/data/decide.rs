//! Decides the place of a range in flight, and makes its ordered extents.
//!
//! # How it works
//! [`decide`] sends a range into the tree (inline), over existing extents ([`overwrite`]), or to
//! new extents, as compressed pieces or unchanged. The range is cut accordingly, and each piece
//! gets an ordered extent ([`order`]). An error before that ends the range at once; afterwards its
//! completion ends it.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{Header, Incompat, InodeFlags, compression as id};

use super::complete::end;
use super::compress;
use super::files::{Batch, DataWrite, Dispatch, Files, Work};
use super::submit::{MAX_WRITE, SHORT, submit};
use super::{items, overwrite};
use crate::compression::Compression;
use crate::file_data::{InFlightId, OrderedExtent, Slice, Stored, Target, cut};
use crate::inode::Inode;
use crate::transaction::Store;
use crate::{Error, Result, xattr};

/// Longest extent in bytes.
pub(super) const MAX_EXTENT: u64 = 128 << 20;

/// Bytes of an item's head and of a file extent's in a leaf.
const HEADS: usize = 25 + 21;

/// Most inline data that fits into a leaf.
fn leaf_limit(store: &Store) -> u64 {
    (store.nodesize as usize - Header::SIZE - HEADS) as u64
}

/// Decides the place of entries, in a thread of writeback, and writes the short ones.
pub(super) fn decide_all(files: &Arc<Files>, taken: &[(Arc<Inode>, InFlightId)]) {
    let batch = Batch::default();
    for (inode, id) in taken {
        decide(files, inode, *id, Dispatch::Queue(&batch));
    }
    end_batch(files, batch);
}

/// Allocates and writes the entries that a thread of writeback has collected.
pub(super) fn end_batch(files: &Arc<Files>, batch: Batch) {
    place_together(files, &batch);
    submit(files, batch.writes.into_inner(), true);
}

/// Decides the place of an entry, and sends it there.
pub(super) fn decide(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
    dispatch: Dispatch<'_>,
) {
    if let Err(error) = try_decide(files, inode, id, dispatch) {
        abandon(files, inode, id, &error);
    }
}

fn try_decide(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
    dispatch: Dispatch<'_>,
) -> Result<()> {
    files.health.check()?;
    let Some((range, data)) = inode.data.state.lock().in_flight.get(id) else {
        return Ok(());
    };
    let (flags, size) = {
        let state = inode.state.lock();
        (state.flags, state.size)
    };
    if let Some(target) = inline_target(files, inode, &range, &data)? {
        let ordered = Arc::new(OrderedExtent::new(range, size, target, id, 0));
        inode.data.unpromise(ordered.len());
        register(inode, &ordered);
        let write = DataWrite {
            inode: Arc::clone(inode),
            ordered,
            at: 0,
            slices: Vec::new(),
        };
        dispatch.batch().writes.borrow_mut().push(write);
        return Ok(());
    }
    if flags.intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC) {
        // The data on disk there is about to change. Waiting here could block all threads that are
        // to write it.
        if inode.data.state.lock().in_flight.park_if_blocked(id) {
            return Ok(());
        }
        let segments = overwrite::plan(files, inode, &range)?;
        let cuts: Vec<u64> = segments
            .iter()
            .skip(1)
            .map(|(part, _)| part.start)
            .collect();
        let ids = inode.data.state.lock().in_flight.split(id, &cuts);
        for (id, (part, target)) in ids.into_iter().zip(segments) {
            match target {
                Some(target) => {
                    inode.data.unpromise(part.end - part.start);
                    order(files, inode, id, target, None, dispatch);
                }
                None => copy(files, inode, id, dispatch),
            }
        }
        return Ok(());
    }
    copy(files, inode, id, dispatch);
    Ok(())
}

/// Place of a file that is written into the tree if it can be: all of it is in this
/// range, it is short enough, and it has no other extents.
fn inline_target(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: &Range<u64>,
    data: &[Slice],
) -> Result<Option<Target>> {
    let sector = u64::from(files.sectorsize);
    let (size, flags) = {
        let state = inode.state.lock();
        (state.size, state.flags)
    };
    let limit = u64::from(files.options.max_inline).min(leaf_limit(files));
    if range.start != 0 || range.end > sector || size == 0 || size > sector || limit == 0 {
        return Ok(None);
    }
    // A preallocated extent stays, so that a later write finds its space.
    if flags.intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC) {
        return Ok(None);
    }
    if items::find(files, inode, sector)?.end != u64::MAX {
        return Ok(None);
    }
    // A whole sector gains nothing by standing in the tree.
    let plain = size <= limit && size < sector;
    let wanted = compression(files, inode)?;
    if wanted.is_none() && !plain {
        return Ok(None);
    }
    let mut bytes = gather(data);
    bytes.truncate(size as usize);
    if let Some(wanted) = wanted {
        let most = limit.min(size - 1) as usize;
        if let Some(packed) = compress::compress(wanted.how, &bytes, most, sector as usize) {
            use_feature(files, wanted.how);
            return Ok(Some(Target::Inline {
                ram_len: size,
                compression: wanted.how.id(),
                data: packed,
            }));
        }
    }
    if !plain {
        return Ok(None);
    }
    Ok(Some(Target::Inline {
        ram_len: size,
        compression: id::NONE,
        data: bytes,
    }))
}

/// Sends an entry to new extents.
fn copy(files: &Arc<Files>, inode: &Arc<Inode>, id: InFlightId, dispatch: Dispatch<'_>) {
    let Some((range, _)) = inode.data.state.lock().in_flight.get(id) else {
        return;
    };
    let wanted = match compression(files, inode) {
        Ok(wanted) => wanted,
        Err(error) => return abandon(files, inode, id, &error),
    };
    if wanted.is_none() || range.end - range.start <= u64::from(files.sectorsize) {
        return match dispatch {
            Dispatch::Queue(batch) if range.end - range.start <= SHORT => {
                batch.plain.borrow_mut().push((Arc::clone(inode), id));
            }
            _ => allocate(files, inode, id, dispatch),
        };
    }
    let piece = compress::MAX_PIECE as u64;
    let cuts: Vec<u64> = (1..)
        .map(|i| range.start + i * piece)
        .take_while(|at| *at < range.end)
        .collect();
    let ids = inode.data.state.lock().in_flight.split(id, &cuts);
    for id in ids {
        match dispatch {
            Dispatch::Here(_) => compress(files, inode, id, dispatch),
            Dispatch::Queue(_) => files
                .writeback
                .push(files, Work::Compress(Arc::clone(inode), id)),
        }
    }
}

/// The wanted compression of a file's data, and whether to try it on any data.
#[derive(Clone, Copy)]
struct Wanted {
    how: Compression,
    force: bool,
    /// The file asks for it; the mount alone would not.
    property: bool,
}

/// The compression that the file and the mount ask for; `None` for no compression.
fn compression(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<Option<Wanted>> {
    let options = &files.options;
    let flags = inode.state.lock().flags;
    if flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
        return Ok(None);
    }
    if let Some(how) = options.compress.filter(|_| options.compress_force) {
        return Ok(Some(Wanted {
            how,
            force: true,
            property: false,
        }));
    }
    if flags.contains(InodeFlags::NOCOMPRESS) {
        return Ok(None);
    }
    if flags.contains(InodeFlags::COMPRESS) {
        let named = xattr::compression(files, inode)?;
        let named = named.and_then(|name| std::str::from_utf8(&name).ok()?.parse().ok());
        let how = named
            .or(options.compress)
            .unwrap_or(Compression::Zlib(Compression::DEFAULT_ZLIB));
        return Ok(Some(Wanted {
            how,
            force: false,
            property: true,
        }));
    }
    Ok(options.compress.map(|how| Wanted {
        how,
        force: false,
        property: false,
    }))
}

/// Compresses an entry of at most one piece and sends it on; incompressible data stays as it is.
pub(super) fn compress(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
    dispatch: Dispatch<'_>,
) {
    let Some((range, data)) = inode.data.state.lock().in_flight.get(id) else {
        return;
    };
    let result = compression(files, inode).and_then(|wanted| {
        let Some(wanted) = wanted else {
            return Ok(None);
        };
        let bytes = gather(&data);
        let packed = shrink(files, wanted, &bytes);
        if packed.is_none() && range.start == 0 && !wanted.force && !wanted.property {
            inode.state.lock().flags.insert(InodeFlags::NOCOMPRESS);
        }
        let Some(packed) = packed else {
            return Ok(None);
        };
        use_feature(files, wanted.how);
        place_compressed(files, inode, &range, wanted.how, packed)
    });
    match result {
        Ok(Some((target, packed))) => {
            order(
                files,
                inode,
                id,
                target,
                Some(vec![Slice::new(packed)]),
                dispatch,
            );
        }
        Ok(None) => allocate(files, inode, id, dispatch),
        Err(error) => abandon(files, inode, id, &error),
    }
}

/// The bytes of slices in one.
fn gather(data: &[Slice]) -> Vec<u8> {
    let slices: Vec<&[u8]> = data.iter().map(Slice::bytes).collect();
    slices.concat()
}

/// Compresses whole sectors; `None` unless at least one sector is saved. Padded to sectors.
fn shrink(store: &Store, wanted: Wanted, bytes: &[u8]) -> Option<Vec<u8>> {
    let sector = store.sectorsize as usize;
    if bytes.len() <= sector || !(wanted.force || compress::worth_trying(bytes)) {
        return None;
    }
    let mut packed = compress::compress(wanted.how, bytes, bytes.len() - sector, sector)?;
    packed.resize(packed.len().next_multiple_of(sector), 0);
    Some(packed)
}

/// Records in the superblock that an algorithm is in use, which older readers do not know.
fn use_feature(store: &Store, how: Compression) {
    match how {
        Compression::Zlib(_) => {}
        Compression::Lzo => store.add_incompat(Incompat::COMPRESS_LZO),
        Compression::Zstd(_) => store.add_incompat(Incompat::COMPRESS_ZSTD),
    }
}

/// Takes space for a compressed piece; `None` if there is none in one stretch.
fn place_compressed(
    files: &Arc<Files>,
    inode: &Inode,
    range: &Range<u64>,
    how: Compression,
    packed: Vec<u8>,
) -> Result<Option<(Target, Vec<u8>)>> {
    let len = packed.len() as u64;
    let Some((bytenr, _)) = take_space(files, inode, len, len)? else {
        return Ok(None);
    };
    let ram_len = range.end - range.start;
    inode.data.unpromise(ram_len - len);
    let stored = Stored {
        bytenr,
        disk_len: len,
        ram_len,
        compression: how.id(),
        offset: 0,
        generation: 0,
    };
    Ok(Some((Target::New(stored), packed)))
}

/// Takes between `min` and `want` bytes near the file's last extent; `None` if there is no
/// stretch of `min` bytes.
fn take_space(
    files: &Arc<Files>,
    inode: &Inode,
    min: u64,
    want: u64,
) -> Result<Option<(u64, u64)>> {
    let (promised, hint) = {
        let state = inode.data.state.lock();
        (state.promised.clone(), state.hint)
    };
    let promised = match promised {
        Some(promised) => promised,
        // Overwrites that turned out not to be possible come without a promise. Waiting for
        // space here could be waiting for this very thread.
        None => match files.space.try_reserve_data(want)? {
            Some(promised) => Arc::new(promised),
            None => return Ok(None),
        },
    };
    match files.space.reserve_data_extent(&promised, min, want, hint) {
        Ok((bytenr, len)) => {
            inode.data.state.lock().hint = bytenr + len;
            Ok(Some((bytenr, len)))
        }
        Err(Error::NoSpace) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes space for short entries that stay uncompressed: one run for all, so that one request
/// writes them. If there is none, each is allocated separately.
fn place_together(files: &Arc<Files>, batch: &Batch) {
    let entries = batch.plain.take();
    let dispatch = Dispatch::Queue(batch);
    let parts: Option<Vec<_>> = entries
        .iter()
        .map(|(inode, id)| {
            let state = inode.data.state.lock();
            let (range, _) = state.in_flight.get(*id)?;
            Some((state.promised.clone()?, range.end - range.start))
        })
        .collect();
    let parts = parts.filter(|parts| parts.len() > 1).unwrap_or_default();
    let Some(start) = files.space.reserve_data_stretch(&parts) else {
        for (inode, id) in entries {
            allocate(files, &inode, id, dispatch);
        }
        return;
    };
    let mut bytenr = start;
    for ((inode, id), (_, len)) in entries.iter().zip(parts) {
        inode.data.state.lock().hint = bytenr + len;
        order_new(files, inode, *id, (bytenr, len), dispatch);
        bytenr += len;
    }
}

/// Takes extents for an uncompressed entry.
fn allocate(files: &Arc<Files>, inode: &Arc<Inode>, id: InFlightId, dispatch: Dispatch<'_>) {
    let Some((range, _)) = inode.data.state.lock().in_flight.get(id) else {
        return;
    };
    let mut extents: Vec<(u64, u64)> = Vec::new();
    let mut cuts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let want = (range.end - at).min(MAX_EXTENT);
        let taken = match take_space(files, inode, files.sectorsize.into(), want) {
            Ok(Some(taken)) => taken,
            failed => {
                let error = failed.err().unwrap_or(Error::NoSpace);
                for (bytenr, len) in extents {
                    if let Err(error) = files.space.release_data_extent(bytenr, len) {
                        files.health.fail(&error);
                    }
                }
                return abandon(files, inode, id, &error);
            }
        };
        at += taken.1;
        extents.push(taken);
        if at < range.end {
            cuts.push(at);
        }
    }
    let ids = inode.data.state.lock().in_flight.split(id, &cuts);
    for (id, extent) in ids.into_iter().zip(extents) {
        order_new(files, inode, id, extent, dispatch);
    }
}

/// Makes the ordered extent of an uncompressed entry in a new extent.
fn order_new(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
    (bytenr, len): (u64, u64),
    dispatch: Dispatch<'_>,
) {
    let stored = Stored {
        bytenr,
        disk_len: len,
        ram_len: len,
        ..Stored::default()
    };
    order(files, inode, id, Target::New(stored), None, dispatch);
}

/// Ends an entry that cannot be written. Its bytes are lost.
fn abandon(files: &Arc<Files>, inode: &Arc<Inode>, id: InFlightId, error: &Error) {
    let Some((range, _)) = inode.data.state.lock().in_flight.get(id) else {
        return;
    };
    let lost = format!(
        "tree {} inode {}: bytes {}..{} are lost: {error}",
        inode.root.id(),
        inode.objectid,
        range.start,
        range.end
    );
    log::error!("{lost}");
    files.health.record(&lost);
    // Lack of space damages this file only: nothing on disk contradicts anything.
    if !matches!(error, Error::NoSpace) {
        files.health.fail(error);
    }
    let bytes = range.end - range.start;
    inode.data.unpromise(bytes);
    inode.data.state.lock().failures += 1;
    end(files, inode, id, bytes, false);
}

/// Makes the ordered extent of an entry, and collects or queues its writes. `payload` is the data
/// for the disk, if that is not the entry's data.
pub(super) fn order(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
    target: Target,
    payload: Option<Vec<Slice>>,
    dispatch: Dispatch<'_>,
) {
    let Some((range, data)) = inode.data.state.lock().in_flight.get(id) else {
        return;
    };
    let payload = payload.unwrap_or(data);
    let bytes: u64 = payload.iter().map(|slice| slice.bytes().len() as u64).sum();
    let (flags, size) = {
        let state = inode.state.lock();
        (state.flags, state.size)
    };
    let summed = !flags.contains(InodeFlags::NODATASUM);
    let sectors = (bytes / u64::from(files.sectorsize)) as usize;
    let sums = if summed {
        sectors * files.checksum.size()
    } else {
        0
    };
    let ordered = Arc::new(OrderedExtent::new(range, size, target, id, sums));
    let write = |at| DataWrite {
        inode: Arc::clone(inode),
        ordered: Arc::clone(&ordered),
        at,
        slices: cut(&payload, at..(at + MAX_WRITE).min(bytes)),
    };
    let writes: Vec<DataWrite> = (0..bytes).step_by(MAX_WRITE as usize).map(write).collect();
    ordered.set_writes(writes.len());
    register(inode, &ordered);
    match dispatch {
        Dispatch::Queue(batch) if bytes <= SHORT => batch.writes.borrow_mut().extend(writes),
        Dispatch::Here(batch) => batch.writes.borrow_mut().extend(writes),
        Dispatch::Queue(_) => {
            for write in writes {
                files.writeback.push(files, Work::Write(write));
            }
        }
    }
}

/// Lists an ordered extent with its range in flight and among the extents that changed.
pub(super) fn register(inode: &Inode, ordered: &Arc<OrderedExtent>) {
    let mut guard = inode.data.state.lock();
    let state = &mut *guard;
    let entry = ordered.entry;
    state.in_flight.set_ordered(entry, Arc::clone(ordered));
    let map = ordered.map();
    // Data that was written again since, and may be listed already, is not withdrawn.
    for part in state.in_flight.newest(entry, ordered.range.clone()) {
        let listed = Some(Arc::clone(ordered));
        state.modified.set(map.cut(&part), None, listed);
    }
}
