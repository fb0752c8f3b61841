//! Extent maps: the file extent items of one file in memory.
//!
//! # How it works
//! Readers fill the cache. They search the tree without a lock that would keep the items from
//! changing. So a search takes a *ticket* before; its result goes into the cache only if no change
//! began or ended since then. A thread that changes items calls [`MapCache::begin`] before and
//! [`MapCache::end`] after, with the new maps.

use std::collections::BTreeMap;
use std::ops::Range;

/// Maps that the cache of one file keeps at most.
const MAX_MAPS: usize = 1024;

/// Place of an extent's data, and the part of it in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stored {
    /// Logical address of the extent.
    pub(crate) bytenr: u64,
    /// Bytes of it on disk.
    pub(crate) disk_len: u64,
    /// Bytes of it once uncompressed.
    pub(crate) ram_len: u64,
    /// Number of the compression, 0 for none.
    pub(crate) compression: u8,
    /// Start of the map in the uncompressed extent.
    pub(crate) offset: u64,
    /// Transid in which it was made.
    pub(crate) generation: u64,
}

/// The content of a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: zeros.
    Hole,
    /// Bytes within the item.
    Inline,
    /// Bytes in an extent.
    Data(Stored),
    /// An extent that reads as zeros.
    Prealloc(Stored),
}

/// A range of a file and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentMap {
    /// First byte.
    pub(crate) start: u64,
    /// Byte after the last; `u64::MAX` for the hole after the last extent.
    pub(crate) end: u64,
    /// Content of the range.
    pub(crate) content: Content,
}

impl ExtentMap {
    /// The range.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Transid for its item: the extent's, or `running` if that is not known yet.
    pub(crate) fn generation(&self, running: u64) -> u64 {
        match self.content {
            Content::Data(stored) | Content::Prealloc(stored) if stored.generation > 0 => {
                stored.generation
            }
            _ => running,
        }
    }

    /// The part within `range`, which it touches.
    pub(crate) fn cut(&self, range: &Range<u64>) -> Self {
        let start = self.start.max(range.start);
        let end = self.end.min(range.end);
        let moved = |stored: Stored| Stored {
            offset: stored.offset + (start - self.start),
            ..stored
        };
        let content = match self.content {
            Content::Data(stored) => Content::Data(moved(stored)),
            Content::Prealloc(stored) => Content::Prealloc(moved(stored)),
            other => other,
        };
        Self {
            start,
            end,
            content,
        }
    }
}

/// Bytes of the nodes of a `BTreeMap` with this many entries; a node has room for eleven.
pub(super) fn nodes<T>(entries: usize) -> usize {
    let nodes = entries.div_ceil(7);
    nodes * 11 * size_of::<(u64, T)>()
}

/// Replaces `range` in a map of ranges that do not overlap: cuts ranges that reach into it.
pub(super) fn clear<T: Clone>(
    maps: &mut BTreeMap<u64, T>,
    range: &Range<u64>,
    bounds: impl Fn(&T) -> Range<u64>,
    cut: impl Fn(&T, &Range<u64>) -> T,
) {
    if range.is_empty() {
        return;
    }
    let before = maps.range(..range.start).next_back().map(|(at, _)| *at);
    let inside = maps.range(range.clone()).map(|(at, _)| *at);
    let touched: Vec<u64> = before.into_iter().chain(inside).collect();
    for at in touched {
        let Some(old) = maps.get(&at).cloned() else {
            continue;
        };
        let old_range = bounds(&old);
        if old_range.end <= range.start {
            continue;
        }
        maps.remove(&at);
        if old_range.start < range.start {
            maps.insert(at, cut(&old, &(old_range.start..range.start)));
        }
        if old_range.end > range.end {
            maps.insert(range.end, cut(&old, &(range.end..old_range.end)));
        }
    }
}

/// The right to cache the result of a search, unless items changed since the ticket was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket(Option<u64>);

/// Extent maps of one file.
#[derive(Debug, Default)]
pub(crate) struct MapCache {
    maps: BTreeMap<u64, ExtentMap>,
    version: u64,
    changing: u32,
}

impl MapCache {
    /// The map that covers `offset`, if it is known.
    pub(crate) fn find(&self, offset: u64) -> Option<ExtentMap> {
        let (_, map) = self.maps.range(..=offset).next_back()?;
        (map.end > offset).then_some(*map)
    }

    /// Bytes that it holds on the heap.
    pub(crate) fn footprint(&self) -> usize {
        nodes::<ExtentMap>(self.maps.len())
    }

    /// Takes a ticket, before a search.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket((self.changing == 0).then_some(self.version))
    }

    /// Adds the result of a search, unless a change happened since its ticket.
    pub(crate) fn add(&mut self, ticket: Ticket, found: &[ExtentMap]) {
        if ticket.0 != Some(self.version) || self.changing > 0 {
            return;
        }
        if self.maps.len() + found.len() > MAX_MAPS {
            self.maps.clear();
        }
        for map in found {
            self.replace(map.range(), &[*map]);
        }
    }

    fn replace(&mut self, range: Range<u64>, with: &[ExtentMap]) {
        clear(&mut self.maps, &range, ExtentMap::range, ExtentMap::cut);
        for map in with {
            self.maps.insert(map.start, *map);
        }
    }

    /// Records that items are about to change.
    pub(crate) fn begin(&mut self) {
        self.changing += 1;
        self.version += 1;
    }

    /// Records that the items of `range` changed to `now`, which covers only the known part of the
    /// range. After an error `now` is empty.
    pub(crate) fn end(&mut self, range: Range<u64>, now: &[ExtentMap]) {
        self.changing -= 1;
        self.version += 1;
        if self.maps.len() >= MAX_MAPS {
            self.maps.clear();
        }
        self.replace(range, now);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::file_data) fn data(start: u64, end: u64, bytenr: u64) -> ExtentMap {
        let stored = Stored {
            bytenr,
            disk_len: end - start,
            ram_len: end - start,
            ..Stored::default()
        };
        ExtentMap {
            start,
            end,
            content: Content::Data(stored),
        }
    }

    #[test]
    fn a_search_that_met_a_change_is_not_kept() {
        let mut cache = MapCache::default();
        let ticket = cache.ticket();
        cache.begin();
        let during = cache.ticket();
        cache.end(0..10, &[]);
        cache.add(ticket, &[data(0, 10, 100)]);
        cache.add(during, &[data(0, 10, 100)]);
        assert_eq!(cache.find(5), None);
        let ticket = cache.ticket();
        cache.add(ticket, &[data(0, 10, 100)]);
        assert_eq!(cache.find(5), Some(data(0, 10, 100)));
    }

    #[test]
    fn a_change_cuts_what_it_overlaps() {
        let mut cache = MapCache::default();
        let ticket = cache.ticket();
        cache.add(ticket, &[data(0, 100, 1000)]);
        cache.begin();
        cache.end(40..60, &[data(40, 60, 5000)]);
        let left = cache.find(39).unwrap();
        assert_eq!(left.range(), 0..40);
        let right = cache.find(60).unwrap();
        assert_eq!(right.range(), 60..100);
        assert!(
            matches!(right.content, Content::Data(stored) if stored.offset == 60 && stored.bytenr == 1000)
        );
        assert_eq!(cache.find(45), Some(data(40, 60, 5000)));
        cache.begin();
        cache.end(0..1000, &[]);
        assert!(cache.maps.is_empty());
    }
}
