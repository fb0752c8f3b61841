//! Completion: inserts written data into the trees, and ends its in-flight entries.

use std::sync::Arc;

use sapwood_btrfs_format::FileExtent;

use super::files::{Files, Work};
use super::items::{self, ItemKind, Items, changing, damaged, data_ref, key_of, raise_disk_size};
use crate::file_data::{Content, ExtentMap, InFlightId, Ready, Stored};
use crate::file_data::{OrderedExtent, Target};
use crate::inode::Inode;
use crate::space::DataReservation;
use crate::transaction::{Handle, Store};
use crate::{Error, Result};

/// An ordered extent and its inode.
type Extent = (Arc<Inode>, Arc<OrderedExtent>);

/// Completes ordered extents, of one or more inodes, whose I/O is done, or ends them if that
/// failed.
pub(super) fn complete(files: &Arc<Files>, batch: &[Extent]) {
    let (failed, good): (Vec<&Extent>, Vec<&Extent>) =
        batch.iter().partition(|(_, ordered)| ordered.failed());
    for (inode, ordered) in failed {
        finish(files, inode, ordered, Ok(None));
    }
    for ((inode, ordered), result) in good.iter().zip(insert(files, &good)) {
        finish(files, inode, ordered, result.map(Some));
    }
}

/// Ends an ordered extent. `result`: the transaction that put it into the tree, or the error of its
/// I/O.
fn finish(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    ordered: &Arc<OrderedExtent>,
    result: Result<Option<u64>>,
) {
    let mut put_back = false;
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
            let kept = inode.data.state.lock().in_flight.has_bytes(ordered.entry);
            let promised = kept.then(|| promise_again(files, ordered)).flatten();
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
                // The caller of an encoded write gets the error.
                None if ordered.refused() && !kept => state.refusals += 1,
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
            state.quota = None;
            state.promised_metadata = None;
        }
        // Before waiters are woken: they must not count these bytes any more.
        files.writeback.leave(bytes - kept);
        if put_back {
            files.writeback.refuse();
        }
        inode.data.changed.notify_all();
        ready
    };
    for ready in ready {
        let work = match ready {
            Ready::Parked(id) => Work::Decide(vec![(Arc::clone(inode), id)]),
            Ready::Complete(ordered) => Work::Complete(vec![(Arc::clone(inode), ordered)]),
        };
        files.writeback.push(files, work);
    }
    files.writeback.settle(inode);
}

/// Promises space again for data that the host had no space for, so that it can be dirty again.
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

/// Puts ordered extents into the tree, in one transaction; returns its transid for each.
fn insert(files: &Arc<Files>, batch: &[&Extent]) -> Vec<Result<u64>> {
    if batch.is_empty() {
        return Vec::new();
    }
    let mut h = match files.join() {
        Ok(h) => h,
        Err(error) => return fail_all(files, batch, error),
    };
    let transid = h.transid();
    for of_inode in batch.chunk_by(|one, other| Arc::ptr_eq(&one.0, &other.0)) {
        let bytes = of_inode.iter().map(|(_, ordered)| ordered.len()).sum();
        let state = of_inode.first().map(|(inode, _)| inode.data.state.lock());
        let share = state.and_then(|state| state.share_of_metadata(bytes));
        match (&h.reservation, share) {
            (Some(all), Some(share)) => all.merge(share),
            (None, share) => h.reservation = share,
            (Some(_), None) => {}
        }
    }
    // Before the items that lead to the data, so that no reader finds data without checksums.
    if let Err(error) = insert_sums(&mut h, batch) {
        h.abort(&error);
        return fail_all(files, batch, error);
    }
    let mut results: Vec<Result<u64>> = Vec::with_capacity(batch.len());
    for (inode, ordered) in batch {
        let change = changing(inode);
        let result = match files.health.check() {
            Ok(()) => apply(&mut h, inode, ordered),
            Err(failed) => Err(failed.into()),
        };
        match &result {
            Ok(map) => change.done(ordered.range.clone(), &[*map]),
            Err(error) => {
                drop(change);
                h.abort(error);
            }
        }
        results.push(result.map(|_| transid));
    }
    match h.end() {
        Ok(()) => results,
        Err(error) => fail_all(files, batch, error),
    }
}

/// The first gets the error, the others the mount's error since then.
fn fail_all(files: &Files, batch: &[&Extent], error: Error) -> Vec<Result<u64>> {
    files.health.fail(&error);
    let mut first = Some(error);
    let error = |_: &&Extent| match first.take() {
        Some(error) => Err(error),
        None => Err(files
            .health
            .check()
            .err()
            .map_or(Error::NoSpace, Error::from)),
    };
    batch.iter().map(error).collect()
}

/// Inserts the checksums of new extents. Adjacent extents share one change of the tree.
fn insert_sums(h: &mut Handle, batch: &[&Extent]) -> Result<()> {
    let mut sums: Vec<(u64, u64, Vec<u8>)> = batch
        .iter()
        .filter_map(|(_, ordered)| match &ordered.target {
            Target::New(stored) => Some((stored.bytenr, stored.disk_len, ordered.sums())),
            _ => None,
        })
        .filter(|(.., sums)| !sums.is_empty())
        .collect();
    sums.sort_by_key(|(start, ..)| *start);
    let mut runs: Vec<(u64, u64, Vec<u8>)> = Vec::new();
    for (start, len, sums) in sums {
        match runs.last_mut() {
            Some((_, end, run)) if *end == start => {
                run.extend_from_slice(&sums);
                *end += len;
            }
            _ => runs.push((start, start + len, sums)),
        }
    }
    let store = Arc::clone(h.store());
    for (start, _, sums) in runs {
        store.checksums.insert(h, start, &sums)?;
    }
    Ok(())
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
            store.quotas.allocated(inode.root.id(), stored.disk_len);
            (ordered.len(), dropped)
        }
        Target::Overwrite(stored) => {
            // Replaces the checksums of a mount that overwrites in place; other files have none.
            let at = stored.bytenr + stored.offset;
            store.checksums.insert(h, at, &ordered.sums())?;
            (0, 0)
        }
        Target::Prealloc(stored) => {
            let stored = Stored {
                generation: h.transid(),
                ..*stored
            };
            map.content = Content::Data(stored);
            mark_written(h, inode, &map, &stored)?;
            store
                .checksums
                .insert(h, stored.bytenr + stored.offset, &ordered.sums())?;
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
/// lengthens the one before if that continues in the same extent.
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
        refs += 1;
    }
    let before = if item.start == map.start {
        goes_on(&store, inode, &item)?
    } else {
        None
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

/// A written item that another one may extend.
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
