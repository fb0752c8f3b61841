//! Completion: puts what is on the device into the trees, and ends what was in flight.

use std::sync::Arc;

use sapwood_btrfs_format::FileExtent;

use super::items::{self, ItemKind, Items, changing, damaged, data_ref, key_of, raise_disk_size};
use super::writeback::{Files, Work};
use crate::Result;
use crate::file_data::{Content, ExtentMap, InFlightId, Ready, Stored};
use crate::file_data::{OrderedExtent, Target};
use crate::inode::Inode;
use crate::space::DataReservation;
use crate::transaction::{Handle, Store};

/// Completes ordered extents, of one or more inodes, whose I/O is done, or ends them if that failed.
pub(super) fn complete(files: &Arc<Files>, batch: &[(Arc<Inode>, Arc<OrderedExtent>)]) {
    for (inode, ordered) in batch {
        complete_one(files, inode, ordered);
    }
}

/// Completes an ordered extent whose I/O is done, or ends it if that failed.
fn complete_one(files: &Arc<Files>, inode: &Arc<Inode>, ordered: &Arc<OrderedExtent>) {
    let mut put_back = false;
    let result = if ordered.failed() {
        Ok(None)
    } else {
        insert(files, inode, ordered).map(Some)
    };
    match result {
        Ok(Some(transid)) => {
            let mut state = inode.data.state.lock();
            state.modified.completed(ordered, transid);
            if state.modified.is_long() {
                state.modified.prune(files.last_committed());
            }
        }
        Ok(None) => {
            if let Target::New(stored) = &ordered.target {
                let (bytenr, len) = (stored.bytenr, stored.disk_len);
                if let Err(error) = files.space.release_data_extent(bytenr, len) {
                    files.health.fail(&error);
                }
            }
            let promised = promise_again(files, ordered);
            let mut state = inode.data.state.lock();
            state.modified.failed(ordered);
            match promised {
                Some(promised) => {
                    put_back = true;
                    match &state.promised {
                        Some(own) => own.merge(promised),
                        None => state.promised = Some(Arc::new(promised)),
                    }
                }
                None if ordered.refused() => {
                    log::error!("{inode:?}: data is lost: no space is free");
                    state.failures += 1;
                }
                None => {}
            }
        }
        Err(error) => {
            // Part of it may be in the tree: that transaction can never be committed.
            files.health.fail(&error);
            let mut state = inode.data.state.lock();
            state.failures += 1;
            state.modified.failed(ordered);
        }
    }
    end(files, inode, ordered.entry, ordered.len(), put_back);
    ordered.complete(files);
}

/// Ends a range in flight and wakes the threads that wait for it. `put_back`: its bytes become
/// dirty again.
pub(super) fn end(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    id: InFlightId,
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
        let ready = state.in_flight.remove(id);
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
            Ready::Parked(id) => Work::Decide(Arc::clone(inode), id),
            Ready::Complete(ordered) => Work::Complete(Arc::clone(inode), ordered),
        };
        files.writeback.push(files, work);
    }
    files.writeback.settle(inode);
}

/// Promises space once more to what the host had no space for, so that it can be dirty again.
fn promise_again(store: &Store, ordered: &OrderedExtent) -> Option<DataReservation> {
    if !ordered.refused() {
        return None;
    }
    store
        .space
        .try_reserve_data(ordered.len())
        .unwrap_or_else(|error| {
            store.health.fail(&error);
            None
        })
}

/// Puts it into the tree; returns the transid.
fn insert(files: &Arc<Files>, inode: &Arc<Inode>, ordered: &OrderedExtent) -> Result<u64> {
    let mut h = files.join()?;
    h.reservation = inode.data.state.lock().share_of_metadata(ordered.len());
    let transid = h.transid();
    let change = changing(inode);
    let result = apply(&mut h, inode, ordered);
    match &result {
        Ok(map) => change.done(ordered.range.clone(), &[*map]),
        Err(error) => {
            drop(change);
            h.abort(error);
        }
    }
    h.end()?;
    result.map(|_| transid)
}

fn apply(h: &mut Handle, inode: &Arc<Inode>, ordered: &OrderedExtent) -> Result<ExtentMap> {
    let store = Arc::clone(h.store());
    let mut map = ordered.map();
    let (added, dropped) = match &ordered.target {
        Target::New(stored) => {
            let dropped = items::drop_extents(h, inode, ordered.range.clone())?;
            let stored = Stored {
                generation: h.transid(),
                ..*stored
            };
            map.content = Content::Data(stored);
            items::insert(h, inode, &map)?;
            store
                .space
                .insert_data_extent(h, &data_ref(inode, map.start, &stored))?;
            store.checksums.insert(h, stored.bytenr, &ordered.sums())?;
            (ordered.len(), dropped)
        }
        Target::Overwrite(_) => (0, 0),
        Target::Prealloc(stored) => {
            let stored = Stored {
                generation: h.transid(),
                ..*stored
            };
            map.content = Content::Data(stored);
            mark_written(h, inode, &map, &stored)?;
            if !sapwood_fault::planted(61) {
                store
                    .checksums
                    .insert(h, stored.bytenr + stored.offset, &ordered.sums())?;
            }
            (0, 0)
        }
        Target::Inline {
            ram_len,
            compression,
            data,
        } => {
            let dropped = items::drop_extents(h, inode, ordered.range.clone())?;
            let item = FileExtent::Inline {
                generation: h.transid(),
                ram_bytes: *ram_len,
                compression: *compression,
                data,
            };
            inode.root.insert(h, &key_of(inode, 0), &item.encode())?;
            (*ram_len, dropped)
        }
    };
    {
        let mut data = inode.data.state.lock();
        data.in_flight.set_inserted(ordered.entry);
        data.in_tree.insert(ordered.range.start, ordered.bytes_end);
        let mut state = inode.state.lock();
        state.nbytes = state.nbytes.saturating_add(added).saturating_sub(dropped);
        raise_disk_size(&data, &mut state);
        data.in_tree.remove(0, state.disk_size);
    }
    inode.change(h, |_| {});
    Ok(map)
}

/// Turns the range of `map` from preallocated into data: cuts the item that it lies in, and
/// lengthens the one before if that goes on in the same extent.
fn mark_written(h: &mut Handle, inode: &Inode, map: &ExtentMap, stored: &Stored) -> Result<()> {
    let store = Arc::clone(h.store());
    let mut items = Items::from(&store, inode, map.start)?;
    let item = items
        .next()?
        .filter(|item| item.start <= map.start && item.end >= map.end);
    let item = item.ok_or_else(|| damaged(inode, map.start, "preallocated extent is gone"))?;
    let extent = match item.kind {
        ItemKind::Prealloc(extent) if extent.disk_bytenr == stored.bytenr => extent,
        _ => return Err(damaged(inode, map.start, "preallocated extent changed")),
    };
    let part = |start: u64, end: u64| sapwood_btrfs_format::RegularExtent {
        offset: extent.offset + (start - item.start),
        num_bytes: end - start,
        ..extent
    };
    let written = |start: u64, end: u64| sapwood_btrfs_format::RegularExtent {
        generation: stored.generation,
        ..part(start, end)
    };
    let mut refs = 0i64;
    if item.end > map.end {
        let right = FileExtent::Prealloc(part(map.end, item.end)).encode();
        inode.root.insert(h, &key_of(inode, map.end), &right)?;
        refs += i64::from(!sapwood_fault::planted(63));
    }
    let before = match item.start == map.start {
        true => goes_on(&store, inode, &item)?,
        false => None,
    };
    if let Some(before) = before {
        let longer = sapwood_btrfs_format::RegularExtent {
            generation: stored.generation,
            num_bytes: map.end - before.start,
            ..before.extent
        };
        inode.root.put(
            h,
            &key_of(inode, before.start),
            &FileExtent::Regular(longer).encode(),
        )?;
        inode.root.delete(h, &key_of(inode, item.start))?;
        refs -= 1;
    } else {
        let middle = FileExtent::Regular(written(map.start, map.end)).encode();
        inode.root.put(h, &key_of(inode, map.start), &middle)?;
        if item.start < map.start {
            let left = FileExtent::Prealloc(part(item.start, map.start)).encode();
            inode.root.put(h, &key_of(inode, item.start), &left)?;
            refs += 1;
        }
    }
    let data = data_ref(inode, map.start, stored);
    match refs {
        0 => Ok(()),
        1.. => store.space.add_data_ref(h, &data, refs as u32),
        ..0 => store
            .space
            .drop_data_ref(h, &data, refs.unsigned_abs() as u32),
    }
}

/// A written item that another one goes on from.
struct Before {
    start: u64,
    extent: sapwood_btrfs_format::RegularExtent,
}

/// The written item right before a preallocated one, in the same extent.
fn goes_on(store: &Store, inode: &Inode, item: &items::Item) -> Result<Option<Before>> {
    let Some(last) = item.start.checked_sub(1) else {
        return Ok(None);
    };
    let Some(before) = Items::from(store, inode, last)?.next()? else {
        return Ok(None);
    };
    let (ItemKind::Regular(left), ItemKind::Prealloc(right)) = (&before.kind, &item.kind) else {
        return Ok(None);
    };
    let same = left.disk_bytenr == right.disk_bytenr
        && left.compression == 0
        && before.end == item.start
        && left.offset.checked_add(left.num_bytes) == Some(right.offset);
    Ok(same.then_some(Before {
        start: before.start,
        extent: *left,
    }))
}
