//! File extent items: reading them as maps, taking ranges out, putting new ones in.
//!
//! # How it works
//! Readers search without locks, so a change of items goes in steps that keep every other part of
//! the file findable: the part right of the dropped range is inserted as an item of its own before
//! the old item shrinks or is deleted. In between two items cover the same bytes with the same
//! content; a search takes the one with the larger key.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, Incompat, ItemError, Key, RegularExtent, kind};

use crate::file_data::DataState;
use crate::file_data::{Content, ExtentMap, Stored};
use crate::inode::{Inode, InodeState};
use crate::lock::RankedMutexGuard;
use crate::transaction::{Handle, Store};
use crate::tree::{Cursor, DataRef};
use crate::{Error, Result};

/// Items that one search reads ahead.
const BATCH: usize = 64;

/// Start of the sector that `offset` lies in.
pub(super) fn sector_floor(store: &Store, offset: u64) -> u64 {
    offset - offset % u64::from(store.sectorsize)
}

/// End of the sectors that `end` bytes take.
pub(super) fn sector_ceil(store: &Store, end: u64) -> u64 {
    end.checked_next_multiple_of(store.sectorsize.into())
        .unwrap_or(sector_floor(store, u64::MAX))
}

/// An error that names the file and the defect of its items.
pub(super) fn damaged(inode: &Inode, offset: u64, reason: &'static str) -> Error {
    Error::FileExtent {
        root: inode.root.id(),
        objectid: inode.objectid,
        offset,
        reason,
    }
}

/// Key of the item at `offset`.
pub(super) fn key_of(inode: &Inode, offset: u64) -> Key {
    Key::new(inode.objectid, kind::EXTENT_DATA, offset)
}

fn is_ours(inode: &Inode, key: &Key) -> bool {
    key.objectid == inode.objectid && key.kind == kind::EXTENT_DATA
}

/// A file extent item, out of its leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Key offset.
    pub(super) start: u64,
    /// Byte after the last that it covers.
    pub(super) end: u64,
    /// Content.
    pub(super) kind: ItemKind,
}

/// Content of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ItemKind {
    /// Bytes in the item.
    Inline {
        /// Bytes once uncompressed.
        ram_len: u64,
    },
    /// An extent or an explicit hole.
    Regular(RegularExtent),
    /// A preallocated extent.
    Prealloc(RegularExtent),
}

impl Item {
    fn parse(store: &Store, inode: &Inode, key: Key, data: &[u8]) -> Result<Self> {
        let bad = |source: ItemError| Error::BadItem {
            root: inode.root.id(),
            key,
            source,
        };
        let (len, kind) = match FileExtent::parse(data).map_err(bad)? {
            FileExtent::Inline { ram_bytes, .. } => (
                sector_ceil(store, ram_bytes),
                ItemKind::Inline { ram_len: ram_bytes },
            ),
            FileExtent::Regular(extent) => (extent.num_bytes, ItemKind::Regular(extent)),
            FileExtent::Prealloc(extent) => (extent.num_bytes, ItemKind::Prealloc(extent)),
        };
        let end = key.offset.checked_add(len).filter(|end| *end > key.offset);
        let end = end.ok_or_else(|| damaged(inode, key.offset, "impossible length"))?;
        if let ItemKind::Regular(extent) | ItemKind::Prealloc(extent) = &kind {
            check_extent(store, extent, key.offset)
                .map_err(|reason| damaged(inode, key.offset, reason))?;
        }
        Ok(Self {
            start: key.offset,
            end,
            kind,
        })
    }

    /// The item as a map.
    pub(super) fn map(&self) -> ExtentMap {
        let content = match &self.kind {
            ItemKind::Inline { .. } => Content::Inline,
            ItemKind::Regular(extent) if extent.is_hole() => Content::Hole,
            ItemKind::Regular(extent) => Content::Data(stored(extent)),
            ItemKind::Prealloc(extent) if extent.is_hole() => Content::Hole,
            ItemKind::Prealloc(extent) => Content::Prealloc(stored(extent)),
        };
        ExtentMap {
            start: self.start,
            end: self.end,
            content,
        }
    }

    /// Bytes that `range` of it adds to the inode's count.
    fn counted(&self, range: &Range<u64>) -> u64 {
        match &self.kind {
            ItemKind::Inline { ram_len } => *ram_len,
            ItemKind::Regular(extent) | ItemKind::Prealloc(extent) if extent.is_hole() => 0,
            _ => self.end.min(range.end) - self.start.max(range.start),
        }
    }
}

/// Checks the numbers of an extent, so that the caller may calculate with them.
fn check_extent(store: &Store, extent: &RegularExtent, start: u64) -> Result<(), &'static str> {
    let sector = u64::from(store.sectorsize);
    if !start.is_multiple_of(sector) || !extent.num_bytes.is_multiple_of(sector) {
        return Err("range is not of whole sectors");
    }
    if extent.is_hole() {
        return Ok(());
    }
    let aligned = [extent.disk_bytenr, extent.disk_num_bytes, extent.offset];
    if aligned.iter().any(|number| !number.is_multiple_of(sector)) {
        return Err("extent is not of whole sectors");
    }
    if extent
        .disk_bytenr
        .checked_add(extent.disk_num_bytes)
        .is_none()
    {
        return Err("extent outside the address space");
    }
    let limit = match extent.compression {
        0 => extent.disk_num_bytes,
        _ => extent.ram_bytes,
    };
    match extent.offset.checked_add(extent.num_bytes) {
        Some(used) if used <= limit => Ok(()),
        _ => Err("range outside its extent"),
    }
}

fn stored(extent: &RegularExtent) -> Stored {
    Stored {
        bytenr: extent.disk_bytenr,
        disk_len: extent.disk_num_bytes,
        ram_len: extent.ram_bytes,
        compression: extent.compression,
        offset: extent.offset,
        generation: extent.generation,
    }
}

/// The item's extent for a map of `len` bytes.
pub(super) fn regular(stored: &Stored, len: u64) -> RegularExtent {
    RegularExtent {
        generation: stored.generation,
        ram_bytes: stored.ram_len,
        compression: stored.compression,
        disk_bytenr: stored.bytenr,
        disk_num_bytes: stored.disk_len,
        offset: stored.offset,
        num_bytes: len,
    }
}

/// A walk over the items of a file, from the one that covers an offset on.
pub(super) struct Items<'a> {
    store: &'a Store,
    inode: &'a Inode,
    cursor: Cursor,
}

impl<'a> Items<'a> {
    /// Begins at the item that covers `offset`, else at the first one after it.
    pub(super) fn from(store: &'a Store, inode: &'a Inode, offset: u64) -> Result<Self> {
        let key = key_of(inode, offset);
        let mut cursor = inode.root.seek_back(store, &key)?;
        let covers = match cursor.item() {
            Some((found, data)) if is_ours(inode, &found) => {
                Item::parse(store, inode, found, data)?.end > offset
            }
            _ => false,
        };
        if !covers {
            cursor = inode.root.seek(store, &key)?;
        }
        Ok(Self {
            store,
            inode,
            cursor,
        })
    }

    /// The next item.
    pub(super) fn next(&mut self) -> Result<Option<Item>> {
        let item = match self.cursor.item() {
            Some((key, data)) if is_ours(self.inode, &key) => {
                Item::parse(self.store, self.inode, key, data)?
            }
            _ => return Ok(None),
        };
        self.cursor.next()?;
        Ok(Some(item))
    }
}

/// Reads maps from `offset` on: the one that covers it (a hole, if no item does) and some that
/// follow. They follow each other without gaps.
pub(super) fn load(store: &Store, inode: &Inode, offset: u64) -> Result<Vec<ExtentMap>> {
    let mut maps = Vec::new();
    let mut at = sector_floor(store, offset);
    let mut items = Items::from(store, inode, offset)?;
    while maps.len() < BATCH {
        let Some(item) = items.next()? else {
            maps.push(ExtentMap {
                start: at,
                end: u64::MAX,
                content: Content::Hole,
            });
            break;
        };
        if item.end <= at {
            continue;
        }
        if item.start > at {
            maps.push(ExtentMap {
                start: at,
                end: item.start,
                content: Content::Hole,
            });
        }
        let map = item.map();
        // Two items that overlap are halves of a change in progress, and agree: the cut is right
        // for the first one and for the rest.
        if let Some(last) = maps
            .last_mut()
            .filter(|last: &&mut ExtentMap| last.end > map.start)
        {
            last.end = map.start;
        }
        at = map.end;
        maps.push(map);
    }
    maps.retain(|map| map.start < map.end);
    Ok(maps)
}

/// The map that covers `offset`, from the cache or the tree.
pub(super) fn find(store: &Store, inode: &Inode, offset: u64) -> Result<ExtentMap> {
    let ticket = {
        let state = inode.data.state.lock();
        if let Some(map) = state.maps.find(offset) {
            return Ok(map);
        }
        state.maps.ticket()
    };
    let maps = load(store, inode, offset)?;
    inode.data.state.lock().maps.add(ticket, &maps);
    let found = maps
        .into_iter()
        .find(|map| map.start <= offset && offset < map.end);
    found.ok_or_else(|| damaged(inode, offset, "items overlap"))
}

/// The last items of a file that reach past `end`, at most `max`, from the last one on.
pub(super) fn last(store: &Store, inode: &Inode, end: u64, max: usize) -> Result<Vec<Item>> {
    let mut found = Vec::new();
    let mut cursor = inode.root.seek_back(store, &key_of(inode, u64::MAX))?;
    while found.len() < max {
        let Some((key, data)) = cursor.item().filter(|(key, _)| is_ours(inode, key)) else {
            break;
        };
        let item = Item::parse(store, inode, key, data)?;
        if item.end <= end {
            break;
        }
        found.push(item);
        cursor.prev()?;
    }
    Ok(found)
}

/// The preallocated extents of a file after `end`.
///
/// # Errors
/// Unreadable blocks, damaged items.
pub(crate) fn preallocated_behind(
    store: &Store,
    inode: &Inode,
    end: u64,
) -> Result<Vec<ExtentMap>> {
    let mut found = Vec::new();
    let mut items = Items::from(store, inode, end)?;
    while let Some(item) = items.next()? {
        let map = item.map();
        if matches!(map.content, Content::Prealloc(_)) {
            found.push(map.cut(&(end..u64::MAX)));
        }
    }
    Ok(found)
}

/// Takes `range` (whole sectors) out of the file's items: cuts and deletes items, drops the refs of
/// their extents. Returns by how much the inode's byte count falls. No other thread may change
/// items of the range; holes get no item here.
///
/// # Errors
/// Unreadable blocks, damaged items, no space.
pub(crate) fn drop_extents(h: &mut Handle, inode: &Inode, range: Range<u64>) -> Result<u64> {
    let store = Arc::clone(h.store());
    let mut dropped = 0;
    let mut at = range.start;
    while at < range.end {
        // In batches, because an iterator does not see changes of the leaf that it is in.
        let mut items = Items::from(&store, inode, at)?;
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            match items.next()? {
                Some(item) if item.start < range.end => batch.push(item),
                _ => break,
            }
        }
        let last = batch.len() < BATCH;
        for item in batch {
            at = item.end.max(at);
            dropped += item.counted(&range);
            drop_item(h, inode, &item, &range)?;
        }
        if last {
            break;
        }
    }
    Ok(dropped)
}

fn drop_item(h: &mut Handle, inode: &Inode, item: &Item, range: &Range<u64>) -> Result<()> {
    let root = Arc::clone(&inode.root);
    let key = key_of(inode, item.start);
    let (extent, prealloc) = match &item.kind {
        ItemKind::Inline { .. } => return root.delete(h, &key).map(|_| ()),
        ItemKind::Regular(extent) => (*extent, false),
        ItemKind::Prealloc(extent) => (*extent, true),
    };
    let encode = |extent| {
        if prealloc {
            FileExtent::Prealloc(extent).encode()
        } else {
            FileExtent::Regular(extent).encode()
        }
    };
    let shift = |by: u64| {
        if extent.is_hole() {
            0
        } else {
            extent.offset + by
        }
    };
    let (left, right) = (item.start < range.start, item.end > range.end);
    if right {
        let by = range.end - item.start;
        let part = RegularExtent {
            offset: shift(by),
            num_bytes: item.end - range.end,
            ..extent
        };
        root.put(h, &key_of(inode, range.end), &encode(part))?;
    }
    if left {
        let part = RegularExtent {
            num_bytes: range.start - item.start,
            ..extent
        };
        root.put(h, &key, &encode(part))?;
    } else {
        root.delete(h, &key)?;
    }
    if extent.is_hole() || left != right {
        return Ok(());
    }
    let store = Arc::clone(h.store());
    let data = data_ref(inode, item.start, &stored(&extent));
    if left {
        store.space.add_data_ref(h, &data, 1)
    } else {
        h.lost.push(data.bytenr);
        store.space.drop_data_ref(h, &data, 1)
    }
}

/// Frees the data extents that lost their last ref through this handle, so that their space counts
/// as free before the commit. Call it after the handle's other changes of items.
pub(super) fn free_lost(h: &mut Handle) -> Result<()> {
    let store = Arc::clone(h.store());
    let lost = std::mem::take(&mut h.lost);
    store.space.run_frees(h, &lost)
}

/// Inserts the item of a map that is no hole and not inline. The range has none.
pub(super) fn insert(h: &mut Handle, inode: &Inode, map: &ExtentMap) -> Result<()> {
    let len = map.end - map.start;
    let item = match &map.content {
        Content::Data(stored) => FileExtent::Regular(regular(stored, len)).encode(),
        Content::Prealloc(stored) => FileExtent::Prealloc(regular(stored, len)).encode(),
        Content::Hole => return insert_hole(h, inode, map.range()),
        Content::Inline => return Err(damaged(inode, map.start, "inline where none can be")),
    };
    inode.root.insert(h, &key_of(inode, map.start), &item)
}

/// Inserts the item of an explicit hole, unless the file system has the no-holes feature.
pub(super) fn insert_hole(h: &mut Handle, inode: &Inode, range: Range<u64>) -> Result<()> {
    if range.is_empty() || h.store().incompat.contains(Incompat::NO_HOLES) {
        return Ok(());
    }
    let len = range.end - range.start;
    let hole = RegularExtent {
        generation: h.transid(),
        ram_bytes: len,
        num_bytes: len,
        ..RegularExtent::default()
    };
    inode.root.insert(
        h,
        &key_of(inode, range.start),
        &FileExtent::Regular(hole).encode(),
    )
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

/// Raises the size that the inode item will have, at most to the first byte that is not in the tree
/// yet. So after a power cut the file ends before a range whose write was not complete, instead of
/// having a hole there. The caller holds a handle and queues the inode.
pub(super) fn raise_disk_size(data: &DataState, state: &mut InodeState) {
    let reached = data.first_missing(state.disk_size).unwrap_or(u64::MAX);
    state.disk_size = state.disk_size.max(state.size.min(reached));
}

/// A change of a file's items in progress. No other thread changes any item of the file, because
/// two changes of different ranges may have to cut the same one. Results of concurrent searches are
/// not cached.
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
    /// The items of `range` are as in `maps`, or unknown.
    pub(super) fn done(mut self, range: Range<u64>, maps: &[ExtentMap]) {
        self.ended = true;
        self.inode.data.state.lock().maps.end(range, maps);
    }
}

impl Drop for Changing<'_> {
    /// After an error, the cached maps of the whole file are invalidated.
    fn drop(&mut self) {
        if !self.ended {
            self.inode.data.state.lock().maps.end(0..u64::MAX, &[]);
        }
    }
}
