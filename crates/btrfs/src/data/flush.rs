//! From dirty ranges to the device.
//!
//! # How it works
//! [`begin`] takes dirty runs out; each becomes an entry in flight. [`prepare`] decides where it
//! goes: into the tree ([`inline`]), over what is there ([`overwrite`]), or to new extents, of
//! compressed pieces or as it is. The entry is cut accordingly and each part gets an ordered
//! extent, which is written in one or more parts, by any threads ([`parts`](super::parts)). After the last
//! part the ordered extent is queued for completion, as soon as older data of its range is complete.
//!
//! Small flushes that a thread waits for run in the caller's thread, the I/O included: an fsync of
//! a page must not pay for two changes of thread.
//!
//! Whatever fails before there is an ordered extent ends the entry at once; afterwards the
//! completion ends it.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{Incompat, InodeFlags};

use super::compress::{self, heuristic};
use super::parts::{Batch, Dispatch, MAX_WRITE, Part, io_finished, write_batch};
use super::writeback::Files;
use super::writeback::Work;
use super::{Wait, inline, overwrite};
use crate::compression::Compression;
use crate::file_data::Stored;
use crate::file_data::{FlightId, Ready, Slice, cut};
use crate::file_data::{OrderedExtent, Target};
use crate::inode::Inode;
use crate::transaction::Store;
use crate::xattr;
use crate::{Error, Result};

/// Longest extent in bytes.
pub(super) const MAX_EXTENT: u64 = 128 << 20;
/// Bytes up to which a flush that is waited for runs in the caller's thread.
const SMALL: u64 = 256 << 10;

/// Writes back what is dirty in `range` and waits as asked, for all of the file that is in
/// flight by then.
///
/// # Errors
/// [`Error::WriteFailed`] if a write failed since the last flush that waited; [`Error::NoSpace`] if the
/// host has no space, and what is not written is kept.
pub(crate) fn flush(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: Range<u64>,
    wait: Wait,
) -> Result<()> {
    let refusals = refusals(inode);
    let small = wait != Wait::None && inode.data.state.lock().dirty.bytes() <= SMALL;
    if small {
        let batch = Batch::default();
        for id in take(inode, range) {
            prepare(files, inode, id, Dispatch::Here(&batch));
        }
        write_batch(files, inode, batch.into_inner());
    } else {
        begin(files, inode, range);
    }
    let waited = wait_for(files, inode, wait, refusals);
    if let Err(Error::WriteFailed { .. }) = waited {
        let mut state = inode.data.state.lock();
        state.failures_told = state.failures;
    }
    waited
}

/// How often the host had no space for what was to be written.
pub(super) fn refusals(inode: &Inode) -> u64 {
    inode.data.state.lock().refusals
}

/// Takes what is dirty in `range` and starts its way to disk, by the threads of writeback.
pub(super) fn begin(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) {
    for id in take(inode, range) {
        let work = Work::Prepare(Arc::clone(inode), id);
        files.writeback.push(files, work);
    }
}

/// Makes what is dirty in `range` entries in flight.
fn take(inode: &Inode, range: Range<u64>) -> Vec<FlightId> {
    let mut taken = Vec::new();
    let mut guard = inode.data.state.lock();
    let state = &mut *guard;
    while let Some(run) = state.dirty.run(range.start, range.end, MAX_EXTENT) {
        let pieces = state.dirty.take(run.clone());
        let slices = pieces
            .into_iter()
            .map(|(_, bytes)| Slice::new(bytes))
            .collect();
        taken.push(state.flights.insert(run, slices));
    }
    taken
}

/// Waits for what is in flight now. An error if something was refused since there were so many
/// `refusals`, or if a write failed that no [`flush`] of the file has reported. It is still to be
/// reported then: writing back many files, for space or a snapshot, must not hide a failure from
/// the fsync of the file that it concerns.
pub(super) fn wait_for(files: &Files, inode: &Inode, wait: Wait, refusals: u64) -> Result<()> {
    match wait {
        Wait::None => return Ok(()),
        Wait::Io => {}
        Wait::Completion => files.writeback.hurry(),
    }
    let mut state = inode.data.state.lock();
    let mark = state.flights.mark();
    loop {
        let pending = match wait {
            Wait::None => false,
            Wait::Io => state.flights.io_pending(mark),
            Wait::Completion => state.flights.pending(mark),
        };
        if !pending {
            break;
        }
        state.wait(&inode.data.changed);
    }
    if state.failures > state.failures_told {
        return Err(Error::WriteFailed {
            root: inode.root.id(),
            objectid: inode.objectid,
        });
    }
    let refused = state.refusals != refusals && !sapwood_fault::planted(78);
    (!refused).then_some(()).ok_or(Error::NoSpace)
}

/// Decides where an entry goes, and sends it there.
pub(super) fn prepare(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: FlightId,
    dispatch: Dispatch<'_>,
) {
    if let Err(error) = decide(files, inode, id, dispatch) {
        abandon(files, inode, id, &error);
    }
}

fn decide(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: FlightId,
    dispatch: Dispatch<'_>,
) -> Result<()> {
    files.health.check()?;
    let Some((range, data)) = inode.data.state.lock().flights.get(id) else {
        return Ok(());
    };
    let (flags, size) = {
        let state = inode.state.lock();
        (state.flags, state.size)
    };
    if let Some(target) = inline::target(files, inode, &range, &data)? {
        let ordered = Arc::new(OrderedExtent::new(range, size, target, id, 0));
        inode.data.unpromise(ordered.len());
        register(inode, &ordered);
        io_finished(
            files,
            inode,
            vec![ordered],
            matches!(dispatch, Dispatch::Queue),
        );
        return Ok(());
    }
    if flags.intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC) {
        // What is on disk there is about to change. Not waited for here: that could take all
        // threads from those who are to write it.
        if inode.data.state.lock().flights.park_if_blocked(id) {
            return Ok(());
        }
        let segments = overwrite::plan(files, inode, &range)?;
        let cuts: Vec<u64> = segments
            .iter()
            .skip(1)
            .map(|(part, _)| part.start)
            .collect();
        let ids = inode.data.state.lock().flights.split(id, &cuts);
        for (id, (part, target)) in ids.into_iter().zip(segments) {
            match target {
                Some(target) => {
                    inode.data.unpromise(part.end - part.start);
                    submit(files, inode, id, target, None, dispatch);
                }
                None => copy(files, inode, id, dispatch),
            }
        }
        return Ok(());
    }
    copy(files, inode, id, dispatch);
    Ok(())
}

/// Sends an entry to new extents.
fn copy(files: &Arc<Files>, inode: &Arc<Inode>, id: FlightId, dispatch: Dispatch<'_>) {
    let Some((range, _)) = inode.data.state.lock().flights.get(id) else {
        return;
    };
    let wanted = match compression(files, inode) {
        Ok(wanted) => wanted,
        Err(error) => return abandon(files, inode, id, &error),
    };
    if wanted.is_none() || range.end - range.start <= u64::from(files.sectorsize) {
        return allocate(files, inode, id, dispatch);
    }
    let piece = compress::MAX_PIECE as u64;
    let cuts: Vec<u64> = (1..)
        .map(|i| range.start + i * piece)
        .take_while(|at| *at < range.end)
        .collect();
    let ids = inode.data.state.lock().flights.split(id, &cuts);
    for id in ids {
        match dispatch {
            Dispatch::Here(_) => compress(files, inode, id, dispatch),
            Dispatch::Queue => files
                .writeback
                .push(files, Work::Compress(Arc::clone(inode), id)),
        }
    }
}

/// How the data of a file is to be compressed, and whether to try whatever it looks like.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) how: Compression,
    pub(super) force: bool,
    /// The file asks for it; the mount alone would not.
    property: bool,
}

/// What the file and the mount want; `None` for no compression.
pub(super) fn compression(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<Option<Wanted>> {
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

/// Compresses an entry of at most one piece and sends it on; one that does not shrink goes
/// as it is.
pub(super) fn compress(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: FlightId,
    dispatch: Dispatch<'_>,
) {
    let Some((range, data)) = inode.data.state.lock().flights.get(id) else {
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
            submit(
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
pub(super) fn gather(data: &[Slice]) -> Vec<u8> {
    data.iter().flat_map(Slice::bytes).copied().collect()
}

/// Compresses whole sectors; `None` unless at least one sector is saved. Padded to sectors.
fn shrink(store: &Store, wanted: Wanted, bytes: &[u8]) -> Option<Vec<u8>> {
    let sector = store.sectorsize as usize;
    if bytes.len() <= sector || !(wanted.force || heuristic::worth_trying(bytes)) {
        return None;
    }
    let mut packed = compress::compress(wanted.how, bytes, bytes.len() - sector, sector)?;
    packed.resize(packed.len().next_multiple_of(sector), 0);
    Some(packed)
}

/// Notes in the superblock that an algorithm is in use, which older readers do not know.
pub(super) fn use_feature(store: &Store, how: Compression) {
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
pub(super) fn take_space(
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

/// Takes extents for an entry that goes to disk as it is.
fn allocate(files: &Arc<Files>, inode: &Arc<Inode>, id: FlightId, dispatch: Dispatch<'_>) {
    let Some((range, _)) = inode.data.state.lock().flights.get(id) else {
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
    let ids = inode.data.state.lock().flights.split(id, &cuts);
    for (id, (bytenr, len)) in ids.into_iter().zip(extents) {
        let stored = Stored {
            bytenr,
            disk_len: len,
            ram_len: len,
            ..Stored::default()
        };
        submit(files, inode, id, Target::New(stored), None, dispatch);
    }
}

fn register(inode: &Inode, ordered: &Arc<OrderedExtent>) {
    let mut guard = inode.data.state.lock();
    let state = &mut *guard;
    let flight = ordered.flight;
    state.flights.set_ordered(flight, Arc::clone(ordered));
    let map = ordered.map();
    // What was written again since, and may be listed already, is not taken back.
    for part in state.flights.newest(flight, ordered.range.clone()) {
        let listed = Some(Arc::clone(ordered));
        state.modified.set(map.cut(&part), None, listed);
    }
}

/// Makes the ordered extent of an entry and writes it. `payload`: what goes to disk, if that
/// is not the entry's data.
fn submit(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: FlightId,
    target: Target,
    payload: Option<Vec<Slice>>,
    dispatch: Dispatch<'_>,
) {
    let Some((range, data)) = inode.data.state.lock().flights.get(id) else {
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
    let part = |at| Part {
        ordered: Arc::clone(&ordered),
        at,
        slices: cut(&payload, at..(at + MAX_WRITE).min(bytes)),
    };
    let parts: Vec<Part> = (0..bytes).step_by(MAX_WRITE as usize).map(part).collect();
    ordered.set_parts(parts.len());
    register(inode, &ordered);
    match dispatch {
        Dispatch::Here(batch) => batch.borrow_mut().extend(parts),
        Dispatch::Queue => {
            for part in parts {
                let work = Work::Write(Arc::clone(inode), part);
                files.writeback.push(files, work);
            }
        }
    }
}

/// Ends an entry that cannot be written. Its bytes are lost.
fn abandon(files: &Arc<Files>, inode: &Arc<Inode>, id: FlightId, error: &Error) {
    let Some((range, _)) = inode.data.state.lock().flights.get(id) else {
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
    land(files, inode, id, bytes, false);
}

/// Takes an entry out of the flights and wakes the threads that waited for it. `put_back`: its
/// bytes are dirty again then.
pub(super) fn land(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: FlightId,
    bytes: u64,
    put_back: bool,
) {
    let ready = {
        let mut kept = 0;
        let mut state = inode.data.state.lock();
        if put_back {
            kept = state.put_back(id);
            state.refusals += 1;
        }
        let ready = state.flights.remove(id);
        if state.bytes() == 0 {
            state.promised = None;
            state.promised_metadata = None;
        }
        // Before a waiter looks: its bytes count no longer.
        files.writeback.leave(bytes - kept);
        if put_back {
            files.writeback.refuse();
        }
        inode.data.changed.notify_all();
        ready
    };
    for ready in ready {
        let work = match ready {
            Ready::Parked(id) => Work::Prepare(Arc::clone(inode), id),
            Ready::Complete(ordered) => Work::Complete(Arc::clone(inode), ordered),
        };
        files.writeback.push(files, work);
    }
    files.writeback.settle(inode);
}
