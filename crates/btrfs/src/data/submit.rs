//! Submits batches: checksums, requests to the device, and the steps after the I/O.
//!
//! # How it works
//! A flush in the caller's thread collects its writes in one batch. A thread of writeback does so
//! with the short ones, of all inodes of its job. [`submit`] writes the batch in the order of
//! addresses, and neighbours with one request: an fsync after random writes, or of small files, has
//! many short extents that were allocated next to each other.
//!
//! A failed request fails all ordered extents that it has bytes of
//! (`a_failed_write_of_neighbours_fails_each`).

use std::sync::Arc;

use sapwood_btrfs_format::InodeFlags;

use super::files::{DataWrite, Files, Work};
use crate::Error;
use crate::file_data::{OrderedExtent, Slice, Target};
use crate::inode::Inode;
use crate::transaction::Store;

/// Bytes of one write request.
pub(super) const MAX_WRITE: u64 = 4 << 20;
/// Bytes up to which the thread that decides the place of an ordered extent also writes it.
pub(super) const SHORT: u64 = 1 << 20;

impl DataWrite {
    /// Address of its bytes, if they do not go into the tree.
    fn address(&self) -> Option<u64> {
        match &self.ordered.target {
            // The offset of a compressed extent counts its expanded bytes.
            Target::New(stored) => Some(stored.bytenr + self.at),
            Target::Overwrite(stored) | Target::Prealloc(stored) => {
                Some(stored.bytenr + stored.offset + self.at)
            }
            Target::Inline { .. } => None,
        }
    }

    fn len(&self) -> u64 {
        self.slices.iter().map(|s| s.bytes().len() as u64).sum()
    }
}

/// Writes the bytes of ordered extents, of one or more inodes, in as few requests as their places
/// allow. `queued`: in a thread of writeback.
pub(super) fn submit(files: &Arc<Files>, batch: Vec<DataWrite>, queued: bool) {
    let (inline, mut batch): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .partition(|write| write.address().is_none());
    if !inline.is_empty() {
        let done = inline
            .iter()
            .map(|write| Done::new(&write.inode, &write.ordered));
        io_done(files, done.collect(), queued);
    }
    for write in &batch {
        checksum(files, write);
    }
    batch.sort_by_key(DataWrite::address);
    let mut rest = &batch[..];
    while let Some(first) = rest.first() {
        let mut end = first.address().map(|at| at + first.len());
        let mut bytes = first.len();
        let neighbours = rest.iter().skip(1).take_while(|write| {
            bytes += write.len();
            let fits = write.address() == end && bytes <= MAX_WRITE;
            end = end.map(|end| end + write.len());
            fits
        });
        let (run, others) = rest.split_at(1 + neighbours.count());
        write_run(files, run, queued);
        rest = others;
    }
}

fn checksum(store: &Store, write: &DataWrite) {
    if write
        .inode
        .state
        .lock()
        .flags
        .contains(InodeFlags::NODATASUM)
    {
        return;
    }
    let sector = store.sectorsize as usize;
    let size = store.checksum.size();
    let mut sums = Vec::with_capacity(write.len() as usize / sector * size);
    for slice in &write.slices {
        for bytes in slice.bytes().chunks(sector) {
            sums.extend_from_slice(store.checksum.compute(bytes).as_bytes());
        }
    }
    write
        .ordered
        .set_sums(write.at as usize / sector * size, &sums);
}

/// Writes bytes that follow each other on the device. `queued`: in a thread of writeback.
fn write_run(files: &Arc<Files>, run: &[DataWrite], queued: bool) {
    let Some((first, at)) = run
        .first()
        .and_then(|first| Some((first, first.address()?)))
    else {
        return;
    };
    let slices = run.iter().flat_map(|write| &write.slices);
    let bufs: Vec<&[u8]> = slices.map(Slice::bytes).collect();
    let result = files
        .health
        .check()
        .map_err(Error::from)
        .and_then(|()| files.volume.write_vectored(at, &bufs));
    let several = run
        .iter()
        .any(|write| !Arc::ptr_eq(&write.inode, &first.inode));
    if several && result.as_ref().is_err_and(Error::is_host_full) {
        // A file whose bytes have space does not wait for the others.
        run.chunk_by(|one, other| Arc::ptr_eq(&one.inode, &other.inode))
            .for_each(|of_inode| write_run(files, of_inode, queued));
        return;
    }
    match &result {
        Err(error) if error.is_host_full() => {
            log::warn!("{:?}: data stays in memory: {error}", first.inode);
        }
        Err(error) => files.health.fail(error),
        Ok(()) => {}
    }
    let done = run
        .iter()
        .filter(|write| write.ordered.write_done(&result))
        .map(|write| Done::new(&write.inode, &write.ordered));
    io_done(files, done.collect(), queued);
    if queued && result.is_ok() {
        files
            .volume
            .write_behind(at, run.iter().map(DataWrite::len).sum());
    }
}

/// An ordered extent all of whose I/O is done.
pub(super) struct Done {
    inode: Arc<Inode>,
    ordered: Arc<OrderedExtent>,
    /// No older overlapping entry is in flight, so it can be completed.
    ready: bool,
}

impl Done {
    pub(super) fn new(inode: &Arc<Inode>, ordered: &Arc<OrderedExtent>) -> Self {
        Self {
            inode: Arc::clone(inode),
            ordered: Arc::clone(ordered),
            ready: false,
        }
    }
}

/// All I/O of these ordered extents is done: wakes the threads that wait for it, and queues those
/// for completion that can be completed.
pub(super) fn io_done(files: &Arc<Files>, mut done: Vec<Done>, queued: bool) {
    for Done { inode, ordered, .. } in &done {
        if matches!(ordered.target, Target::Overwrite(_) | Target::Prealloc(_)) {
            files.overwrites.end(inode.root.id());
        }
    }
    for of_inode in done.chunk_by_mut(|one, other| Arc::ptr_eq(&one.inode, &other.inode)) {
        let Some(inode) = of_inode.first().map(|first| Arc::clone(&first.inode)) else {
            continue;
        };
        let mut state = inode.data.state.lock();
        for Done { ordered, ready, .. } in of_inode {
            *ready = if ordered.failed() {
                state.failures += u64::from(!ordered.refused());
                state.in_flight.io_failed(ordered.entry)
            } else {
                state.in_flight.io_done(ordered.entry)
            };
        }
        inode.data.changed.notify_all();
    }
    done.retain(|done| done.ready);
    if done.is_empty() {
        return;
    }
    let failed = done.iter().any(|done| done.ordered.failed());
    let batch = done.into_iter().map(|done| (done.inode, done.ordered));
    files.writeback.push(files, Work::Complete(batch.collect()));
    if queued || failed {
        // The threads that wait for the completion do so already.
        files.writeback.hurry();
    }
}
