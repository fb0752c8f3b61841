//! Extent maps: what the file extent items of one file say, in memory.
//!
//! # How it works
//! The cache is filled by readers, who search the tree without a lock that would keep the items
//! from changing. So a search takes a *ticket* before; what it found goes into the cache only if no
//! change began or ended meanwhile. A thread that changes items calls [`MapCache::begin`] before
//! and [`MapCache::end`] after, with what is true then.
//!
//! Besides, the maps that changed are listed with the transaction that changes them, until
//! that is durable: the log tree takes the extents to log from that list. A range in flight is
//! listed as soon as its extent is allocated, with its ordered extent.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::ordered::OrderedExtent;

/// Maps that the cache of one file keeps at most.
const MAX_MAPS: usize = 1024;

/// Where the data of an extent stands, and which part of it a map shows.
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
    /// Where in the uncompressed extent the map begins.
    pub(crate) offset: u64,
    /// Transid in which it was made.
    pub(crate) generation: u64,
}

/// What a range of a file has.
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

/// A range of a file and what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentMap {
    /// First byte.
    pub(crate) start: u64,
    /// Byte after the last; `u64::MAX` for the hole after the last extent.
    pub(crate) end: u64,
    /// What is there.
    pub(crate) content: Content,
}

impl ExtentMap {
    /// The range.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Transid for its item: that of the extent, or `running` if that is not known yet.
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

/// Bytes of a map's nodes with so many entries, which have room for eleven each.
fn nodes<T>(entries: usize) -> usize {
    let nodes = entries.div_ceil(7);
    nodes * 11 * size_of::<(u64, T)>()
}

/// Replaces `range` in a map of ranges that do not overlap: cuts what reaches into it.
fn clear<T: Clone>(
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

/// Right to add what a search finds. See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket(Option<u64>);

/// Extent maps of one file.
#[derive(Debug, Default)]
pub(super) struct MapCache {
    maps: BTreeMap<u64, ExtentMap>,
    version: u64,
    changing: u32,
}

impl MapCache {
    /// The map that covers `offset`, if it is known.
    pub(super) fn find(&self, offset: u64) -> Option<ExtentMap> {
        let (_, map) = self.maps.range(..=offset).next_back()?;
        (map.end > offset).then_some(*map)
    }

    /// Bytes that it takes beside its fields.
    pub(super) fn footprint(&self) -> usize {
        nodes::<ExtentMap>(self.maps.len())
    }

    /// To be taken before a search.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket((self.changing == 0).then_some(self.version))
    }

    /// Adds what a search found, unless something changed since its ticket.
    pub(super) fn add(&mut self, ticket: Ticket, found: &[ExtentMap]) {
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

    /// Items are about to change.
    pub(super) fn begin(&mut self) {
        self.changing += 1;
        self.version += 1;
    }

    /// Items of `range` changed to `now` (which may be less than the range, where it is not
    /// known). Also after an error, with nothing.
    pub(super) fn end(&mut self, range: Range<u64>, now: &[ExtentMap]) {
        self.changing -= 1;
        self.version += 1;
        if self.maps.len() >= MAX_MAPS {
            self.maps.clear();
        }
        self.replace(range, now);
    }
}

/// A map that changed, and may have to be logged.
#[derive(Debug, Clone)]
pub(crate) struct ModifiedMap {
    /// The map as it is now, or will be once its ordered extent is complete.
    pub(crate) map: ExtentMap,
    /// Transid that changed it; `None` while it is in flight.
    pub(crate) transid: Option<u64>,
    /// The ordered extent in flight, which knows the checksums.
    pub(crate) ordered: Option<Arc<OrderedExtent>>,
    /// Transaction whose log has it; 0 for none.
    logged: u64,
}

impl ModifiedMap {
    fn is_due(&self, transid: u64) -> bool {
        self.logged != transid && self.transid.is_none_or(|changed| changed >= transid)
    }
}

/// The maps that changed since the last commit.
#[derive(Debug, Default)]
pub(super) struct ModifiedMaps {
    maps: BTreeMap<u64, ModifiedMap>,
    /// Every map that a log may lack touches one of these.
    unlogged: Vec<Range<u64>>,
    /// Every hole lies within these.
    holes: Vec<Range<u64>>,
    /// Length that it had when it was pruned last.
    pruned: usize,
    /// Transaction up to which it was pruned last.
    pruned_to: u64,
}

/// Ranges that are kept apart; beyond this number they become one. A file that no thread fsyncs
/// must not collect them without end.
const MAX_RANGES: usize = 4096;

/// Adds a range to those that are kept apart.
fn note(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    let range = range.start..range.end.max(range.start.saturating_add(1));
    let full = ranges.len() >= MAX_RANGES;
    match ranges.last_mut() {
        Some(last) if last.start <= range.start && last.end >= range.start => {
            last.end = last.end.max(range.end);
        }
        _ if full => {
            ranges.clear();
            ranges.push(0..u64::MAX);
        }
        _ => ranges.push(range),
    }
}

impl ModifiedMaps {
    /// Bytes that it takes beside its fields.
    pub(super) fn footprint(&self) -> usize {
        let ranges = self.unlogged.capacity() + self.holes.capacity();
        nodes::<ModifiedMap>(self.maps.len()) + ranges * size_of::<Range<u64>>()
    }

    fn clear(&mut self, range: &Range<u64>) {
        let cut = |old: &ModifiedMap, range: &Range<u64>| ModifiedMap {
            map: old.map.cut(range),
            ..old.clone()
        };
        clear(&mut self.maps, range, |old| old.map.range(), cut);
    }

    /// Notes that a range has this content since `transid`.
    pub(super) fn set(
        &mut self,
        map: ExtentMap,
        transid: Option<u64>,
        ordered: Option<Arc<OrderedExtent>>,
    ) {
        self.clear(&map.range());
        note(&mut self.unlogged, map.range());
        if map.content == Content::Hole {
            note(&mut self.holes, map.range());
        }
        self.maps.insert(
            map.start,
            ModifiedMap {
                map,
                transid,
                ordered,
                logged: 0,
            },
        );
    }

    /// The ordered extent is complete in `transid`: what the list still has of it stays.
    pub(super) fn completed(&mut self, ordered: &Arc<OrderedExtent>, transid: u64) {
        for modified in self
            .maps
            .range_mut(ordered.range.clone())
            .map(|(_, modified)| modified)
        {
            if modified
                .ordered
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, ordered))
            {
                modified.transid = Some(transid);
                modified.ordered = None;
                if modified.logged != transid {
                    note(&mut self.unlogged, modified.map.range());
                }
            }
        }
    }

    /// The ordered extent failed: its range is not what the list says.
    pub(super) fn failed(&mut self, ordered: &Arc<OrderedExtent>) {
        self.maps.retain(|_, modified| {
            !modified
                .ordered
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, ordered))
        });
    }

    /// Forgets what transactions up to `durable` changed. It goes through the list only if they
    /// are more than the last time: what comes later was changed by later ones.
    pub(super) fn prune(&mut self, durable: u64) {
        if durable <= self.pruned_to {
            return;
        }
        self.pruned_to = durable;
        self.maps
            .retain(|_, modified| modified.transid.is_none_or(|transid| transid > durable));
        self.pruned = self.maps.len();
        self.holes.clear();
        for modified in self.maps.values() {
            if modified.map.content == Content::Hole {
                note(&mut self.holes, modified.map.range());
            }
        }
    }

    /// Whether it is worth looking what can be forgotten: it became twice as long since.
    pub(super) fn is_long(&self) -> bool {
        self.maps.len() > 2 * self.pruned.max(256)
    }

    /// Whether anything changed after transaction `durable`, or is in flight.
    pub(super) fn has_changed(&self, durable: u64) -> bool {
        let mut all = self.maps.values();
        all.any(|modified| modified.transid.is_none_or(|transid| transid > durable))
    }

    /// Starts of the maps that touch a range.
    fn touching(&self, range: &Range<u64>) -> impl Iterator<Item = (&u64, &ModifiedMap)> {
        let before = self.maps.range(..range.start).next_back();
        let before = before.filter(|(_, modified)| modified.map.end > range.start);
        before.into_iter().chain(self.maps.range(range.clone()))
    }

    /// Whether the log of transaction `transid`, the running one, lacks something.
    pub(super) fn has_unlogged(&self, transid: u64) -> bool {
        let mut all = self.unlogged.iter().flat_map(|range| self.touching(range));
        all.any(|(_, modified)| modified.is_due(transid))
    }

    /// Takes what the log of transaction `transid` lacks: from now on it has it. Of holes it has
    /// only what is before `end`.
    pub(super) fn take_unlogged(&mut self, transid: u64, end: u64) -> Vec<ModifiedMap> {
        let mut ranges = std::mem::take(&mut self.unlogged);
        let long = self.holes.iter().filter(|range| range.end > end);
        ranges.extend(long.map(|range| range.start.max(end)..range.end));
        let starts = ranges.iter().flat_map(|range| self.touching(range));
        let mut starts: Vec<u64> = starts.map(|(start, _)| *start).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut due = Vec::new();
        for start in starts {
            let Some(modified) = self.maps.get_mut(&start) else {
                continue;
            };
            let is_hole = modified.map.content == Content::Hole;
            if modified.is_due(transid) || (is_hole && modified.map.end > end) {
                modified.logged = transid;
                due.push(modified.clone());
            }
            // In flight, it may yet be completed in another transaction.
            if modified.transid.is_none() {
                note(&mut self.unlogged, modified.map.range());
            }
        }
        due
    }

    /// The list, in the order of the file.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &ModifiedMap> {
        self.maps.values()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ordered::Target;
    use super::*;

    fn data(start: u64, end: u64, bytenr: u64) -> ExtentMap {
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

    #[test]
    fn the_list_of_changes_keeps_what_is_not_durable() {
        let mut list = ModifiedMaps::default();
        list.set(data(0, 100, 1000), Some(7), None);
        list.set(data(50, 60, 2000), Some(8), None);
        list.prune(7);
        let left: Vec<_> = list.iter().map(|modified| modified.map).collect();
        assert_eq!(left, [data(50, 60, 2000)]);
    }

    /// What the log lacks, by looking at everything.
    fn lacking(list: &ModifiedMaps, transid: u64, end: u64) -> Vec<ExtentMap> {
        let is_hole = |map: &ExtentMap| map.content == Content::Hole && map.end > end;
        let due = list.iter().filter(|m| m.is_due(transid) || is_hole(&m.map));
        due.map(|modified| modified.map).collect()
    }

    #[test]
    fn what_a_log_lacks_is_found_without_looking_at_everything() {
        let mut seed = 7u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut list = ModifiedMaps::default();
        let (mut transid, mut flying) = (2, Vec::new());
        for step in 0..20_000 {
            let start = random(1000);
            let end = start + 1 + random(30);
            match random(10) {
                0..4 => list.set(data(start, end, step), Some(transid), None),
                4 => {
                    let content = Content::Hole;
                    let hole = ExtentMap {
                        start,
                        end,
                        content,
                    };
                    list.set(hole, Some(transid), None);
                }
                5 | 6 => {
                    let target = Target::New(Stored::default());
                    let ordered = OrderedExtent::new(start..end, end, target, 0, 0);
                    let ordered = Arc::new(ordered);
                    list.set(data(start, end, step), None, Some(Arc::clone(&ordered)));
                    flying.push(ordered);
                }
                7 if !flying.is_empty() => {
                    let at = usize::try_from(random(flying.len() as u64)).unwrap();
                    list.completed(&flying.swap_remove(at), transid);
                }
                8 if random(20) == 0 => {
                    transid += 1;
                    list.prune(transid - 1);
                }
                _ => {
                    let end = match random(2) {
                        0 => u64::MAX,
                        _ => random(1100),
                    };
                    let expected = lacking(&list, transid, end);
                    let any = list.iter().any(|modified| modified.is_due(transid));
                    assert_eq!(list.has_unlogged(transid), any, "step {step}");
                    let taken = list.take_unlogged(transid, end);
                    let taken: Vec<_> = taken.iter().map(|modified| modified.map).collect();
                    assert_eq!(taken, expected, "step {step}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_never_fsynced_does_not_collect_ranges() {
        let mut list = ModifiedMaps::default();
        for at in 0..3 * MAX_RANGES as u64 {
            list.set(data(at * 10, at * 10 + 1, at), Some(5), None);
        }
        assert!(list.unlogged.len() <= MAX_RANGES);
        assert_eq!(list.take_unlogged(5, 0).len(), 3 * MAX_RANGES);
        assert!(!list.has_unlogged(5));
    }
}
