//! Parts of ordered extents, and their way to the device.
//!
//! # How it works
//! The bytes of an ordered extent are one or more [`Part`]s. What a flush in the caller's thread brings together
//! is collected in a [`Batch`] and written in the order of addresses, neighbours with one request: an fsync after
//! random writes has many short extents, which were allocated one behind the other. The threads of writeback write
//! their parts as they come.
//!
//! A failed request fails all ordered extents that it has a part of (`a_failed_write_of_neighbours_fails_each`).

use std::cell::RefCell;
use std::sync::Arc;

use sapwood_btrfs_format::InodeFlags;

use super::writeback::Files;
use super::writeback::Work;
use crate::Error;
use crate::file_data::Slice;
use crate::file_data::{OrderedExtent, Target};
use crate::inode::Inode;
use crate::transaction::Store;

/// Bytes of one write request.
pub(super) const MAX_WRITE: u64 = 4 << 20;

/// A part of the bytes that an ordered extent brings to disk.
pub(super) struct Part {
    pub(super) ordered: Arc<OrderedExtent>,
    /// Where in them it begins.
    pub(super) at: u64,
    pub(super) slices: Vec<Slice>,
}

impl Part {
    /// Where its bytes go, if not into the tree.
    fn address(&self) -> Option<u64> {
        match &self.ordered.target {
            Target::New(stored) | Target::Overwrite(stored) | Target::Prealloc(stored) => {
                Some(stored.bytenr + stored.offset + self.at)
            }
            Target::Inline { .. } => None,
        }
    }

    fn len(&self) -> u64 {
        self.slices.iter().map(|s| s.bytes().len() as u64).sum()
    }
}

/// What one flush is going to write.
pub(super) type Batch = RefCell<Vec<Part>>;

/// Where the work of a flush is done.
#[derive(Clone, Copy)]
pub(super) enum Dispatch<'a> {
    /// In this thread; what is to be written is collected.
    Here(&'a Batch),
    /// By the threads of writeback.
    Queue,
}

/// Writes parts of a file, in as few requests as their places allow.
pub(super) fn write_batch(files: &Arc<Files>, inode: &Arc<Inode>, mut parts: Vec<Part>) {
    for part in &parts {
        checksum(files, inode, part);
    }
    parts.sort_by_key(Part::address);
    let mut rest = &parts[..];
    while let Some(first) = rest.first() {
        let mut end = first.address().map(|at| at + first.len());
        let mut bytes = first.len();
        let neighbours = rest.iter().skip(1).take_while(|part| {
            bytes += part.len();
            let fits = part.address() == end && bytes <= MAX_WRITE;
            end = end.map(|end| end + part.len());
            fits
        });
        let (run, behind) = rest.split_at(1 + neighbours.count());
        write_run(files, inode, run, false);
        rest = behind;
    }
}

/// Checksums and writes a part.
pub(super) fn write_part(files: &Arc<Files>, inode: &Arc<Inode>, part: &Part) {
    checksum(files, inode, part);
    write_run(files, inode, std::slice::from_ref(part), true);
}

fn checksum(store: &Store, inode: &Inode, part: &Part) {
    if inode.state.lock().flags.contains(InodeFlags::NODATASUM) {
        return;
    }
    let sector = store.sectorsize as usize;
    let size = store.checksum.size();
    let mut sums = Vec::with_capacity(part.len() as usize / sector * size);
    for slice in &part.slices {
        for bytes in slice.bytes().chunks(sector) {
            sums.extend_from_slice(store.checksum.compute(bytes).as_bytes());
        }
    }
    part.ordered
        .set_sums(part.at as usize / sector * size, &sums);
}

/// Writes parts that lie one behind the other. `queued`: by a thread of writeback.
fn write_run(files: &Arc<Files>, inode: &Arc<Inode>, run: &[Part], queued: bool) {
    let Some(at) = run.first().and_then(Part::address) else {
        return;
    };
    let slices = run.iter().flat_map(|part| &part.slices);
    let bufs: Vec<&[u8]> = slices.map(Slice::bytes).collect();
    let result = files
        .health
        .check()
        .map_err(Error::from)
        .and_then(|()| files.volume.write_vectored(at, &bufs));
    match &result {
        Err(error) if error.is_host_full() && !sapwood_fault::planted(77) => {
            log::warn!("{inode:?}: data stays in memory: {error}");
        }
        Err(error) => files.health.fail(error),
        Ok(()) => {}
    }
    let written = run
        .iter()
        .filter(|part| part.ordered.part_done(&result))
        .map(|part| Arc::clone(&part.ordered));
    io_finished(files, inode, written.collect(), queued);
    if queued && result.is_ok() {
        files
            .volume
            .write_behind(at, run.iter().map(Part::len).sum());
    }
}

/// All I/O of these ordered extents is done.
pub(super) fn io_finished(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    mut written: Vec<Arc<OrderedExtent>>,
    queued: bool,
) {
    for ordered in &written {
        if matches!(ordered.target, Target::Overwrite(_) | Target::Prealloc(_)) {
            files.writeback.overwrite_done(inode.root.id());
        }
    }
    {
        let mut state = inode.data.state.lock();
        written.retain(|ordered| match ordered.failed() {
            // A thread that waits for the I/O waits until the bytes are dirty again, or lost.
            true => {
                state.failures += u64::from(!ordered.refused());
                state.flights.io_failed(ordered.flight)
            }
            false => state.flights.io_done(ordered.flight),
        });
        inode.data.changed.notify_all();
    }
    let any = !written.is_empty();
    let failed = written.iter().any(|ordered| ordered.failed());
    for ready in written {
        let work = Work::Complete(Arc::clone(inode), ready);
        files.writeback.push(files, work);
    }
    if (any && queued) || failed {
        // Who waits for it, if anybody, does so already.
        files.writeback.hurry();
    }
}
