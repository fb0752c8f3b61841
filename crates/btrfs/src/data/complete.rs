//! Completion: puts what is on the device into the tree.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::FileExtent;

use super::damaged;
use super::flush::land;
use super::items::{self, ItemKind, Items, key_of};
use super::writeback::Files;
use crate::Result;
use crate::file_data::{Content, DataState, ExtentMap, Stored};
use crate::file_data::{OrderedExtent, Target};
use crate::inode::{Inode, InodeState};
use crate::lock::RankedMutexGuard;
use crate::space::DataReservation;
use crate::transaction::{Handle, Store};
use crate::tree::DataRef;

/// Completes an ordered extent whose I/O is done, or ends it if that failed.
pub(super) fn complete(files: &Arc<Files>, inode: &Arc<Inode>, ordered: &Arc<OrderedExtent>) {
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
    land(files, inode, ordered.flight, ordered.len(), put_back);
    ordered.complete(files);
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

/// A change of a file's items under way: no other thread changes any item of the file, because two
/// changes of different ranges may have to cut the same one; and what searches find meanwhile is
/// not kept.
pub(super) struct Changing<'a> {
    inode: &'a Inode,
    ended: bool,
    _items: RankedMutexGuard<'a, ()>,
}

/// Begins a change of items. The caller holds a handle.
pub(super) fn changing(inode: &Inode) -> Changing<'_> {
    let items = inode.data.items.lock();
    inode.data.state.lock().maps.begin();
    Changing {
        inode,
        ended: false,
        _items: items,
    }
}

impl Changing<'_> {
    /// The items of `range` are as `maps` say, or not known.
    pub(super) fn done(mut self, range: Range<u64>, maps: &[ExtentMap]) {
        self.ended = true;
        self.inode.data.state.lock().maps.end(range, maps);
    }
}

impl Drop for Changing<'_> {
    /// After an error nothing is known of the items.
    fn drop(&mut self) {
        if !self.ended {
            self.inode.data.state.lock().maps.end(0..u64::MAX, &[]);
        }
    }
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
        data.flights.set_inserted(ordered.flight);
        data.in_tree.insert(ordered.range.start, ordered.bytes_end);
        let mut state = inode.state.lock();
        state.nbytes = state.nbytes.saturating_add(added).saturating_sub(dropped);
        raise_disk_size(&data, &mut state);
        data.in_tree.remove(0, state.disk_size);
    }
    inode.change(h, |_| {});
    Ok(map)
}

/// The ref that a file extent item at `start` makes.
pub(super) fn data_ref(inode: &Inode, start: u64, stored: &Stored) -> DataRef {
    DataRef {
        bytenr: stored.bytenr,
        len: stored.disk_len,
        parent: None,
        root_id: inode.root.id(),
        objectid: inode.objectid,
        offset: start.wrapping_sub(stored.offset),
    }
}

/// Raises the size that the inode item will have, up to the first byte that is not in the tree
/// yet. So after a power cut the file shows no range that was being written as if it had never
/// been. The caller holds a handle and queues the inode.
pub(super) fn raise_disk_size(data: &DataState, state: &mut InodeState) {
    let reached = data.first_missing(state.disk_size).unwrap_or(u64::MAX);
    let reached = if sapwood_fault::planted(62) {
        u64::MAX
    } else {
        reached
    };
    state.disk_size = state.disk_size.max(state.size.min(reached));
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
