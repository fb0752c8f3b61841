//! Decides the place of a range in flight, and makes its ordered extents.
//!
//! # How it works
//! [`decide`] makes one [`Decision`] for a range in flight: into the tree (inline), over the
//! existing extent ([`overwrite`]), or to new extents, compressed or plain. The range is cut
//! accordingly, and the choice of the compression travels with its pieces. Each piece gets an
//! ordered extent ([`order`]). An error before that ends the range at once; afterwards its
//! completion ends it.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{Header, Incompat, InodeFlags, compression as id};

use super::complete::end;
use super::compress::{self, ChosenBy, CompressionChoice};
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

/// The destination of a range in flight.
enum Decision {
    /// It waits for older data that is in flight, and is decided again after it.
    Parked,
    /// Into the tree, as the content of a file of this size.
    Inline(Target, u64),
    /// Some parts overwrite existing extents, the others (`None`) go to new ones.
    Parts(Vec<(Range<u64>, Option<Target>)>, Option<CompressionChoice>),
    /// To new extents.
    New(Option<CompressionChoice>),
}

/// Decides the place of an entry, and sends it there.
pub(super) fn decide(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
    dispatch: Dispatch<'_>,
) {
    let Some((range, data)) = inode.data.state.lock().in_flight.get(id) else {
        return;
    };
    match decision(files, inode, id, &range, &data) {
        Ok(Decision::Parked) => {}
        Ok(Decision::Inline(target, size)) => {
            inode.data.unpromise(range.end - range.start);
            order_inline(inode, id, range, size, target, dispatch);
        }
        Ok(Decision::Parts(parts, wanted)) => {
            let cuts: Vec<u64> = parts.iter().skip(1).map(|(part, _)| part.start).collect();
            let ids = inode.data.state.lock().in_flight.split(id, &cuts);
            for (id, (part, target)) in ids.into_iter().zip(parts) {
                match target {
                    Some(target) => {
                        inode.data.unpromise(part.end - part.start);
                        order(files, inode, id, target, None, dispatch);
                    }
                    None => place_new(files, inode, (id, part), wanted, dispatch),
                }
            }
        }
        Ok(Decision::New(wanted)) => place_new(files, inode, (id, range), wanted, dispatch),
        Err(error) => abandon(files, inode, id, &error),
    }
}

/// Decides where an entry goes. If parts are to be overwritten, the overwrites have begun.
fn decision(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
    range: &Range<u64>,
    data: &[Slice],
) -> Result<Decision> {
    files.health.check()?;
    let (flags, size) = {
        let state = inode.state.lock();
        (state.flags, state.size)
    };
    let inline = |wanted| inline_target(files, inode, range, data, size, wanted);
    if overwrite::may_overwrite(files, inode) {
        // The data on disk there is about to change. Waiting here could block all threads that are
        // to write it.
        if inode.data.state.lock().in_flight.park_if_blocked(id) {
            return Ok(Decision::Parked);
        }
        let wanted = compression(files, inode, flags)?;
        let plain = flags.intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC);
        if !plain && let Some(target) = inline(wanted)? {
            return Ok(Decision::Inline(target, size));
        }
        let parts = overwrite::plan(files, inode, range)?;
        return Ok(Decision::Parts(parts, wanted));
    }
    let wanted = compression(files, inode, flags)?;
    Ok(match inline(wanted)? {
        Some(target) => Decision::Inline(target, size),
        None => Decision::New(wanted),
    })
}

/// Most bytes of an inline extent that has all content of a file of `size` bytes; `None` if the
/// file has other extents, or cannot have an inline one.
pub(super) fn fits_inline(
    files: &Files,
    inode: &Inode,
    range: &Range<u64>,
    size: u64,
) -> Result<Option<u64>> {
    let sector = u64::from(files.sectorsize);
    let limit = u64::from(files.options.max_inline).min(leaf_limit(files));
    if range.start != 0 || range.end > sector || size == 0 || size > sector || limit == 0 {
        return Ok(None);
    }
    let alone = items::find(files, inode, sector)?.end == u64::MAX;
    Ok(alone.then_some(limit))
}

/// The inline data of a file of `size` bytes, if all of it is in this range, it is short enough,
/// and it has no other extents.
fn inline_target(
    files: &Arc<Files>,
    inode: &Inode,
    range: &Range<u64>,
    data: &[Slice],
    size: u64,
    wanted: Option<CompressionChoice>,
) -> Result<Option<Target>> {
    let sector = u64::from(files.sectorsize);
    let Some(limit) = fits_inline(files, inode, range, size)? else {
        return Ok(None);
    };
    // A whole sector saves no space as an inline extent.
    let plain = size <= limit && size < sector;
    if wanted.is_none() && !plain {
        return Ok(None);
    }
    let mut bytes = gather(data);
    bytes.truncate(size as usize);
    if let Some(wanted) = wanted {
        let most = limit.min(size - 1) as usize;
        if let Some(packed) = compress::compress(wanted.how, &bytes, most, sector as usize) {
            use_feature(files, wanted.how.id());
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
fn place_new(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    (id, range): (InFlightId, Range<u64>),
    wanted: Option<CompressionChoice>,
    dispatch: Dispatch<'_>,
) {
    let len = range.end - range.start;
    let Some(wanted) = wanted.filter(|_| len > u64::from(files.sectorsize)) else {
        return match dispatch {
            Dispatch::Queue(batch) if len <= SHORT => {
                batch.plain.borrow_mut().push((Arc::clone(inode), id));
            }
            _ => allocate(files, inode, id, dispatch),
        };
    };
    let piece = compress::MAX_PIECE as u64;
    let cuts: Vec<u64> = (1..)
        .map(|i| range.start + i * piece)
        .take_while(|at| *at < range.end)
        .collect();
    let ids = inode.data.state.lock().in_flight.split(id, &cuts);
    for id in ids {
        match dispatch {
            Dispatch::Here(_) => compress(files, inode, id, wanted, dispatch),
            Dispatch::Queue(_) => files
                .writeback
                .push(files, Work::Compress(Arc::clone(inode), id, wanted)),
        }
    }
}

/// The compression for data of a file with `flags`; `None` if it is not compressed.
fn compression(
    files: &Files,
    inode: &Inode,
    flags: InodeFlags,
) -> Result<Option<CompressionChoice>> {
    let mounted = files.options.compress;
    let (how, by) = if flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
        (None, ChosenBy::Mount)
    } else if mounted.is_some() && files.options.compress_force {
        (mounted, ChosenBy::Force)
    } else if flags.contains(InodeFlags::NOCOMPRESS) {
        (None, ChosenBy::Mount)
    } else if flags.contains(InodeFlags::COMPRESS) {
        let named = xattr::compression(files, inode)?;
        let named = named.and_then(|name| std::str::from_utf8(&name).ok()?.parse().ok());
        let default = Compression::Zlib(Compression::DEFAULT_ZLIB);
        (named.or(mounted).or(Some(default)), ChosenBy::File)
    } else {
        (mounted, ChosenBy::Mount)
    };
    Ok(how.map(|how| CompressionChoice { how, by }))
}

/// Compresses an entry of at most one piece and sends it on; incompressible data stays as it is.
pub(super) fn compress(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
    wanted: CompressionChoice,
    dispatch: Dispatch<'_>,
) {
    let Some((range, data)) = inode.data.state.lock().in_flight.get(id) else {
        return;
    };
    let Some(packed) = shrink(files, inode, &range, &data, wanted) else {
        return allocate(files, inode, id, dispatch);
    };
    use_feature(files, wanted.how.id());
    match place_compressed(files, inode, &range, wanted.how, packed) {
        Ok(Some((target, packed))) => {
            let payload = Some(vec![Slice::new(packed.into())]);
            order(files, inode, id, target, payload, dispatch);
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

/// Compresses whole sectors, and pads the result to sectors; `None` unless at least one sector is
/// saved. If the first bytes of a file do not shrink, and only the mount required it, the file is
/// not compressed from now on.
fn shrink(
    store: &Store,
    inode: &Inode,
    range: &Range<u64>,
    data: &[Slice],
    wanted: CompressionChoice,
) -> Option<Vec<u8>> {
    let may_stop = wanted.by == ChosenBy::Mount;
    if may_stop && inode.state.lock().flags.contains(InodeFlags::NOCOMPRESS) {
        return None;
    }
    let sector = store.sectorsize as usize;
    let bytes = gather(data);
    let tried =
        bytes.len() > sector && (wanted.by == ChosenBy::Force || compress::worth_trying(&bytes));
    let limit = bytes.len().saturating_sub(sector);
    let packed = tried.then(|| compress::compress(wanted.how, &bytes, limit, sector));
    let Some(mut packed) = packed.flatten() else {
        if may_stop && range.start == 0 {
            inode.state.lock().flags.insert(InodeFlags::NOCOMPRESS);
        }
        return None;
    };
    packed.resize(packed.len().next_multiple_of(sector), 0);
    Some(packed)
}

/// Records in the superblock that an algorithm is in use, which older readers do not know.
pub(super) fn use_feature(store: &Store, algorithm: u8) {
    match algorithm {
        id::LZO => store.add_incompat(Incompat::COMPRESS_LZO),
        id::ZSTD => store.add_incompat(Incompat::COMPRESS_ZSTD),
        _ => {}
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
        // A range whose planned overwrite turned out to be impossible has no reservation. This
        // thread cannot wait for space, because it may be the one that has to free it.
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
    // Lack of space damages only this file: the image stays consistent.
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

/// Makes the ordered extent of an entry that goes into the tree, as the content of a file of `size`
/// bytes.
pub(super) fn order_inline(
    inode: &Arc<Inode>,
    id: InFlightId,
    range: Range<u64>,
    size: u64,
    target: Target,
    dispatch: Dispatch<'_>,
) {
    let ordered = Arc::new(OrderedExtent::new(range, size, target, id, 0));
    register(inode, &ordered);
    let write = DataWrite {
        inode: Arc::clone(inode),
        ordered,
        at: 0,
        slices: Vec::new(),
    };
    dispatch.batch().writes.borrow_mut().push(write);
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
