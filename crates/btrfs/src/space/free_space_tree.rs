//! The free-space tree's items of one block group.
//!
//! # How it works
//! Each group has a FREE_SPACE_INFO item with the number of its free extents (runs) and their form:
//! FREE_SPACE_EXTENT items, one per run, or FREE_SPACE_BITMAP items, which cover the whole group
//! with one bit per sector. A group is converted to bitmaps when its runs would take more space as
//! items, and back when they are 100 fewer than that. Areas of superblock copies count as free.
//! Facts: btrfs documentation, "Free space tree". The limits were compared with images that the
//! kernel wrote.

use sapwood_btrfs_format::{
    FREE_SPACE_BITMAP_BITS, FreeSpaceFlags, FreeSpaceInfo, Item, Key, kind,
};

use super::free_space::RangeDelta;
use super::store::{ItemRead, ItemStore};
use crate::error::{Error, Result};
use sapwood_base::RangeSet;

/// The block group to work on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Logical address.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Bytes of a sector.
    pub(crate) sector: u64,
}

impl Span {
    fn end(&self) -> u64 {
        self.start + self.len
    }

    fn info_key(&self) -> Key {
        Key::new(self.start, kind::FREE_SPACE_INFO, self.len)
    }

    fn bitmap_bytes(&self) -> u64 {
        FREE_SPACE_BITMAP_BITS * self.sector
    }

    /// Numbers of runs: above the first, bitmaps are used; below the second, extents.
    fn thresholds(&self) -> (u64, u64) {
        let bitmaps = self.len.div_ceil(self.bitmap_bytes());
        let bitmap_item = Item::SIZE as u64 + FREE_SPACE_BITMAP_BITS / 8;
        let high = bitmaps * bitmap_item / Item::SIZE as u64;
        (high, high.saturating_sub(100))
    }

    fn wrong(&self, start: u64, end: u64) -> Error {
        Error::FreeSpace {
            group: self.start,
            start,
            end,
        }
    }

    /// Start and end of the bitmap that contains an address.
    fn bitmap_around(&self, at: u64) -> (u64, u64) {
        let from = at - (at - self.start) % self.bitmap_bytes();
        (from, (from + self.bitmap_bytes()).min(self.end()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Info {
    runs: u64,
    bitmaps: bool,
}

fn read_info(store: &mut impl ItemRead, span: &Span) -> Result<Info> {
    let found = store.get(&span.info_key())?;
    let item = found.ok_or_else(|| span.wrong(span.start, span.end()))?;
    let info = FreeSpaceInfo::read(&item).map_err(|source| bad_item(span.info_key(), source))?;
    Ok(Info {
        runs: info.extent_count.get().into(),
        bitmaps: info.info_flags().contains(FreeSpaceFlags::USING_BITMAPS),
    })
}

fn bad_item(key: Key, source: sapwood_btrfs_format::ItemError) -> Error {
    Error::BadItem {
        root: sapwood_btrfs_format::objectid::FREE_SPACE_TREE,
        key,
        source,
    }
}

fn encode_info(span: &Span, info: Info) -> Result<Vec<u8>> {
    let flags = if info.bitmaps {
        FreeSpaceFlags::USING_BITMAPS
    } else {
        FreeSpaceFlags::empty()
    };
    let runs = u32::try_from(info.runs).map_err(|_| span.wrong(span.start, span.end()))?;
    let item = FreeSpaceInfo {
        extent_count: runs.into(),
        flags: flags.bits().into(),
    };
    Ok(item.bytes().to_vec())
}

/// Collects free ranges from a group's items, which arrive in the order of their keys.
pub(crate) struct Collector {
    span: Span,
    free: RangeSet,
    runs: Option<u64>,
}

impl Collector {
    /// A collector without ranges.
    pub(crate) fn new(span: Span) -> Self {
        Self {
            span,
            free: RangeSet::new(),
            runs: None,
        }
    }

    /// The key to start from.
    pub(crate) fn first_key(&self) -> Key {
        self.span.info_key()
    }

    /// Takes an item. Returns false if it is after the group.
    ///
    /// # Errors
    /// [`Error::FreeSpace`] for an item that overlaps others or is outside the group.
    pub(crate) fn take(&mut self, key: Key, item: &[u8]) -> Result<bool> {
        let span = self.span;
        if key.objectid >= span.end() {
            return Ok(false);
        }
        let end = key.objectid.checked_add(key.offset);
        let end = end.filter(|end| *end <= span.end());
        let end = end.ok_or_else(|| span.wrong(key.objectid, key.offset))?;
        match key.kind {
            kind::FREE_SPACE_INFO => {
                let info = FreeSpaceInfo::read(item).map_err(|e| bad_item(key, e))?;
                self.runs = Some(info.extent_count.get().into());
            }
            kind::FREE_SPACE_EXTENT => self.add(key.objectid, end)?,
            kind::FREE_SPACE_BITMAP => {
                for (from, to) in bits_to_ranges(&span, &key, item)? {
                    self.add(from, to)?;
                }
            }
            _ => {}
        }
        Ok(true)
    }

    fn add(&mut self, from: u64, to: u64) -> Result<()> {
        if from >= to || !self.free.within(from, to).is_empty() {
            return Err(self.span.wrong(from, to));
        }
        self.free.insert(from, to);
        Ok(())
    }

    /// All free ranges (start, end).
    ///
    /// # Errors
    /// [`Error::FreeSpace`] if the info item is missing or has another count.
    pub(crate) fn finish(self) -> Result<Vec<(u64, u64)>> {
        if self.runs != Some(self.free.len() as u64) {
            return Err(self.span.wrong(self.span.start, self.span.end()));
        }
        Ok(self.free.iter().collect())
    }
}

fn bits_to_ranges(span: &Span, key: &Key, item: &[u8]) -> Result<Vec<(u64, u64)>> {
    let bits = key.offset / span.sector;
    if bits > FREE_SPACE_BITMAP_BITS || item.len() as u64 != bits.div_ceil(8) {
        return Err(span.wrong(key.objectid, key.objectid + key.offset));
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for bit in (0..bits).filter(|bit| get_bit(item, *bit)) {
        let at = key.objectid + bit * span.sector;
        match ranges.last_mut() {
            Some(last) if last.1 == at => last.1 += span.sector,
            _ => ranges.push((at, at + span.sector)),
        }
    }
    Ok(ranges)
}

fn get_bit(bitmap: &[u8], bit: u64) -> bool {
    let byte = bitmap.get((bit / 8) as usize).copied().unwrap_or(0);
    byte >> (bit % 8) & 1 == 1
}

fn put_bit(bitmap: &mut [u8], bit: u64, value: bool) {
    if let Some(byte) = bitmap.get_mut((bit / 8) as usize) {
        let mask = 1 << (bit % 8);
        *byte = if value { *byte | mask } else { *byte & !mask };
    }
}

/// Reads the free ranges (start, end) of a group.
///
/// # Errors
/// [`Error::FreeSpace`] if the items contradict each other; errors of the store.
#[cfg(test)]
pub(crate) fn read(store: &mut impl ItemRead, span: &Span) -> Result<Vec<(u64, u64)>> {
    let mut collector = Collector::new(*span);
    let mut at = Some(collector.first_key());
    while let Some(from) = at {
        let Some((key, item)) = store.next(&from)? else {
            break;
        };
        if !collector.take(key, &item)? {
            break;
        }
        at = key.successor();
    }
    collector.finish()
}

/// Writes the items of a new group that is completely free.
///
/// # Errors
/// Errors of the store.
pub(crate) fn create(store: &mut impl ItemStore, span: &Span) -> Result<()> {
    let info = Info {
        runs: 1,
        bitmaps: false,
    };
    store.insert(span.info_key(), &encode_info(span, info)?)?;
    store.insert(extent_key(span.start, span.end()), &[])
}

/// The range of keys of all items of a group.
pub(crate) fn key_range(span: &Span) -> (Key, Key) {
    let last = Key::new(span.end() - 1, kind::FREE_SPACE_BITMAP, u64::MAX);
    (span.info_key(), last)
}

/// Writes the changes, and converts the form if the number of runs requires it.
///
/// # Errors
/// [`Error::FreeSpace`] if a range was free or used already; errors of the store.
pub(crate) fn update(store: &mut impl ItemStore, span: &Span, delta: &RangeDelta) -> Result<()> {
    let before = read_info(store, span)?;
    let mut info = before;
    for (from, to) in delta.used().iter() {
        change(store, span, &mut info, from, to, false)?;
    }
    for (from, to) in delta.freed().iter() {
        change(store, span, &mut info, from, to, true)?;
    }
    let (high, low) = span.thresholds();
    if !info.bitmaps && info.runs > high {
        to_bitmaps(store, span)?;
        info.bitmaps = true;
    } else if info.bitmaps && info.runs < low {
        to_extents(store, span)?;
        info.bitmaps = false;
    }
    if info != before {
        store.replace(span.info_key(), &encode_info(span, info)?)?;
    }
    Ok(())
}

fn change(
    store: &mut impl ItemStore,
    span: &Span,
    info: &mut Info,
    from: u64,
    to: u64,
    free: bool,
) -> Result<()> {
    if from < span.start || to > span.end() {
        return Err(span.wrong(from, to));
    }
    let runs = match (info.bitmaps, free) {
        (false, false) => take_extent(store, span, from, to)?,
        (false, true) => add_extent(store, span, from, to)?,
        (true, _) => change_bits(store, span, from, to, free)?,
    };
    info.runs = info
        .runs
        .checked_add_signed(runs)
        .ok_or_else(|| span.wrong(from, to))?;
    Ok(())
}

fn extent_key(from: u64, to: u64) -> Key {
    Key::new(from, kind::FREE_SPACE_EXTENT, to - from)
}

/// The free extent that begins at or before `at`, as (start, end).
fn extent_before(store: &mut impl ItemStore, span: &Span, at: u64) -> Result<Option<(u64, u64)>> {
    let last = Key::new(at, kind::FREE_SPACE_EXTENT, u64::MAX);
    let found = store.prev(&last)?.map(|(key, _)| key);
    let found = found.filter(|k| k.kind == kind::FREE_SPACE_EXTENT && k.objectid >= span.start);
    Ok(found.map(|key| (key.objectid, key.objectid.saturating_add(key.offset))))
}

/// Returns the change in the number of runs.
fn take_extent(store: &mut impl ItemStore, span: &Span, from: u64, to: u64) -> Result<i64> {
    let around = extent_before(store, span, from)?.filter(|(_, end)| *end >= to);
    let (start, end) = around.ok_or_else(|| span.wrong(from, to))?;
    store.delete(extent_key(start, end))?;
    let mut runs = -1;
    for (from, to) in [(start, from), (to, end)] {
        if from < to {
            store.insert(extent_key(from, to), &[])?;
            runs += 1;
        }
    }
    Ok(runs)
}

/// Returns the change in the number of runs.
fn add_extent(store: &mut impl ItemStore, span: &Span, from: u64, to: u64) -> Result<i64> {
    let (mut start, mut end, mut runs) = (from, to, 1);
    // The last extent that begins before the new range ends is its left neighbour, or overlaps it.
    let left = extent_before(store, span, to - 1)?;
    if let Some((left_start, left_end)) = left {
        if left_end > from {
            return Err(span.wrong(from, to));
        }
        if left_end == from {
            store.delete(extent_key(left_start, left_end))?;
            start = left_start;
            runs -= 1;
        }
    }
    let right = store.next(&Key::new(to, kind::FREE_SPACE_EXTENT, 0))?;
    if let Some((key, _)) = right
        && key.objectid == to
        && key.kind == kind::FREE_SPACE_EXTENT
        && to < span.end()
    {
        store.delete(key)?;
        end = to.saturating_add(key.offset);
        runs -= 1;
    }
    store.insert(extent_key(start, end), &[])?;
    Ok(runs)
}

fn bitmap_key(from: u64, to: u64) -> Key {
    Key::new(from, kind::FREE_SPACE_BITMAP, to - from)
}

fn read_bitmap(store: &mut impl ItemStore, span: &Span, at: u64) -> Result<(u64, u64, Vec<u8>)> {
    let (from, to) = span.bitmap_around(at);
    let found = store.get(&bitmap_key(from, to))?;
    let found = found.filter(|b| b.len() as u64 == ((to - from) / span.sector).div_ceil(8));
    let bitmap = found.ok_or_else(|| span.wrong(from, to))?;
    Ok((from, to, bitmap))
}

fn is_free(store: &mut impl ItemStore, span: &Span, at: u64) -> Result<bool> {
    let (from, _, bitmap) = read_bitmap(store, span, at)?;
    Ok(get_bit(&bitmap, (at - from) / span.sector))
}

/// Returns the change in the number of runs.
fn change_bits(
    store: &mut impl ItemStore,
    span: &Span,
    from: u64,
    to: u64,
    free: bool,
) -> Result<i64> {
    let left = from > span.start && is_free(store, span, from - span.sector)?;
    let right = to < span.end() && is_free(store, span, to)?;
    let mut at = from;
    while at < to {
        let (start, end, mut bitmap) = read_bitmap(store, span, at)?;
        let stop = to.min(end);
        for bit in (at - start) / span.sector..(stop - start) / span.sector {
            if get_bit(&bitmap, bit) == free {
                return Err(span.wrong(at, stop));
            }
            put_bit(&mut bitmap, bit, free);
        }
        store.replace(bitmap_key(start, end), &bitmap)?;
        at = stop;
    }
    let neighbours = i64::from(left) + i64::from(right);
    Ok(if free { 1 - neighbours } else { neighbours - 1 })
}

fn to_bitmaps(store: &mut impl ItemStore, span: &Span) -> Result<()> {
    let free = items(store, span, kind::FREE_SPACE_EXTENT)?;
    let mut ranges = RangeSet::new();
    for (key, _) in free {
        ranges.insert(key.objectid, key.objectid.saturating_add(key.offset));
        store.delete(key)?;
    }
    let mut at = span.start;
    while at < span.end() {
        let (start, end) = span.bitmap_around(at);
        let mut bitmap = vec![0; ((end - start) / span.sector).div_ceil(8) as usize];
        for (from, to) in ranges.within(start, end) {
            for bit in (from - start) / span.sector..(to - start) / span.sector {
                put_bit(&mut bitmap, bit, true);
            }
        }
        store.insert(bitmap_key(start, end), &bitmap)?;
        at = end;
    }
    Ok(())
}

fn to_extents(store: &mut impl ItemStore, span: &Span) -> Result<()> {
    let mut ranges = RangeSet::new();
    for (key, bitmap) in items(store, span, kind::FREE_SPACE_BITMAP)? {
        for (from, to) in bits_to_ranges(span, &key, &bitmap)? {
            ranges.insert(from, to);
        }
        store.delete(key)?;
    }
    for (from, to) in ranges.iter() {
        store.insert(extent_key(from, to), &[])?;
    }
    Ok(())
}

/// All items of one kind in the group.
fn items(store: &mut impl ItemStore, span: &Span, kind: u8) -> Result<Vec<(Key, Vec<u8>)>> {
    let (first, last) = key_range(span);
    let mut found = Vec::new();
    let mut at = Some(first);
    while let Some(from) = at {
        let Some((key, item)) = store.next(&from)?.filter(|(key, _)| *key <= last) else {
            break;
        };
        at = key.successor();
        if key.kind == kind {
            found.push((key, item));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::store::tests::MapStore;
    use super::*;

    const SECTOR: u64 = 4096;

    fn span(sectors: u64) -> Span {
        Span {
            start: 1 << 30,
            len: sectors * SECTOR,
            sector: SECTOR,
        }
    }

    fn is_bitmap(store: &mut MapStore, span: &Span) -> bool {
        read_info(store, span).unwrap().bitmaps
    }

    fn model_ranges(span: &Span, model: &[bool]) -> Vec<(u64, u64)> {
        let mut set = RangeSet::new();
        for (at, _) in model.iter().enumerate().filter(|(_, free)| **free) {
            let at = span.start + at as u64 * SECTOR;
            set.insert(at, at + SECTOR);
        }
        set.iter().collect()
    }

    fn neighbours(store: &mut MapStore, span: &Span) {
        for start in [span.start - (1 << 20), span.end()] {
            let other = Span {
                start,
                len: 1 << 20,
                sector: SECTOR,
            };
            create(store, &other).unwrap();
        }
    }

    proptest! {
        #[test]
        fn equals_a_model(sectors in 2100..2300usize,
                        steps in prop::collection::vec((0..2100usize, 1..40usize, 1..30usize), 1..120)) {
            let span = span(sectors as u64);
            let mut store = MapStore::default();
            create(&mut store, &span).unwrap();
            neighbours(&mut store, &span);
            let mut model = vec![true; sectors];
            for chunk in steps.chunks(7) {
                let mut delta = RangeDelta::default();
                for &(at, len, gap) in chunk {
                    // Every second sector, so that the number of runs passes the thresholds in both
                    // directions.
                    for tooth in 0..len {
                        let from = (at + tooth * gap) % sectors;
                        let address = span.start + from as u64 * SECTOR;
                        if model[from] {
                            delta.take(address, address + SECTOR);
                        } else {
                            delta.free(address, address + SECTOR);
                        }
                        model[from] = !model[from];
                    }
                }
                update(&mut store, &span, &delta).unwrap();
                prop_assert_eq!(read(&mut store, &span).unwrap(), model_ranges(&span, &model));
            }
        }
    }

    #[test]
    fn form_follows_the_number_of_runs() {
        let span = span(2048);
        let (high, low) = span.thresholds();
        assert_eq!((high, low), (11, 0));
        let span = Span {
            len: 1 << 30,
            ..span
        };
        let (high, low) = span.thresholds();
        assert_eq!((high, low), (1438, 1338));
        let mut store = MapStore::default();
        create(&mut store, &span).unwrap();
        neighbours(&mut store, &span);
        let at = |n: u64| span.start + (2 * n + 1) * SECTOR;
        let mut step = |n: u64, free: bool| {
            let mut delta = RangeDelta::default();
            if free {
                delta.free(at(n), at(n) + SECTOR);
            } else {
                delta.take(at(n), at(n) + SECTOR);
            }
            update(&mut store, &span, &delta).unwrap();
            is_bitmap(&mut store, &span)
        };
        for n in 0..high - 1 {
            assert!(!step(n, false), "{n} holes");
        }
        assert!(step(high - 1, false), "one run more than extents may have");
        for n in 0..high - low {
            assert!(step(n, true), "{n} holes filled");
        }
        assert!(step(high - low, true));
        assert!(!step(high - low + 1, true));
    }

    #[test]
    fn freeing_twice_is_an_error_in_both_forms() {
        let span = span(4096);
        let mut store = MapStore::default();
        create(&mut store, &span).unwrap();
        let mut delta = RangeDelta::default();
        delta.free(span.start, span.start + SECTOR);
        assert!(update(&mut store, &span, &delta).is_err());
        to_bitmaps(&mut store, &span).unwrap();
        let info = Info {
            runs: 1,
            bitmaps: true,
        };
        let item = encode_info(&span, info).unwrap();
        store.replace(span.info_key(), &item).unwrap();
        assert_eq!(read(&mut store, &span).unwrap(), [(span.start, span.end())]);
        assert!(update(&mut store, &span, &delta).is_err());
    }
}
