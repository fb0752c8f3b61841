//! Makes the ordered extent of a range in flight whose place on disk is decided.

use std::sync::Arc;

use sapwood_btrfs_format::InodeFlags;

use super::submit::MAX_WRITE;
use super::writeback::{DataWrite, Dispatch, Files, Work};
use crate::file_data::{InFlightId, OrderedExtent, Slice, Target, cut};
use crate::inode::Inode;

/// Makes the ordered extent of an entry, and collects or queues its writes. `payload`: what goes to disk, if that
/// is not the entry's data.
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
        Dispatch::Here(batch) => batch.borrow_mut().extend(writes),
        Dispatch::Queue => {
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
    // What was written again since, and may be listed already, is not taken back.
    for part in state.in_flight.newest(entry, ordered.range.clone()) {
        let listed = Some(Arc::clone(ordered));
        state.modified.set(map.cut(&part), None, listed);
    }
}
