//! The extent maps of a file that changed since the last commit.
//!
//! A map is listed with the transaction that changes it, until that transaction is durable. The log
//! takes the extents to log from this list. A range in flight is listed as soon as its extent is
//! allocated, with its ordered extent.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::extent_map::{Content, ExtentMap, clear, nodes};
use super::ordered::OrderedExtent;

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
pub(crate) struct ModifiedMaps {
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

/// Most ranges that are kept apart; beyond this number they become one. This bounds the memory of a
/// file that is never synced.
const MAX_RANGES: usize = 4096;

/// Adds a range. Joins it with the last one if they touch.
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
    /// Bytes that it holds on the heap.
    pub(crate) fn footprint(&self) -> usize {
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

    /// Records that a range has this content since `transid`.
    pub(crate) fn set(
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

    /// Records that the parts of the ordered extent that are still listed are in the tree since
    /// `transid`.
    pub(crate) fn completed(&mut self, ordered: &Arc<OrderedExtent>, transid: u64) {
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

    /// Removes the parts of a failed ordered extent from the list.
    pub(crate) fn failed(&mut self, ordered: &Arc<OrderedExtent>) {
        self.maps.retain(|_, modified| {
            !modified
                .ordered
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, ordered))
        });
    }

    /// Forgets changes of transactions up to `durable`. It walks the list only if there are more of
    /// them than the last time: later entries belong to later transactions.
    pub(crate) fn prune(&mut self, durable: u64) {
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

    /// Whether a search for obsolete entries is worth it: the list doubled since the last one.
    pub(crate) fn is_long(&self) -> bool {
        self.maps.len() > 2 * self.pruned.max(256)
    }

    /// Whether anything changed after transaction `durable`, or is in flight.
    pub(crate) fn has_changed(&self, durable: u64) -> bool {
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
    pub(crate) fn has_unlogged(&self, transid: u64) -> bool {
        let mut all = self.unlogged.iter().flat_map(|range| self.touching(range));
        all.any(|(_, modified)| modified.is_due(transid))
    }

    /// Takes the maps that the log of transaction `transid` lacks, and marks them as logged. Takes
    /// only holes before `end`.
    pub(crate) fn take_unlogged(&mut self, transid: u64, end: u64) -> Vec<ModifiedMap> {
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
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ModifiedMap> {
        self.maps.values()
    }
}

#[cfg(test)]
mod tests {
    use super::super::extent_map::Stored;
    use super::super::extent_map::tests::data;
    use super::super::ordered::Target;
    use super::*;

    #[test]
    fn the_list_of_changes_keeps_what_is_not_durable() {
        let mut list = ModifiedMaps::default();
        list.set(data(0, 100, 1000), Some(7), None);
        list.set(data(50, 60, 2000), Some(8), None);
        list.prune(7);
        let left: Vec<_> = list.iter().map(|modified| modified.map).collect();
        assert_eq!(left, [data(50, 60, 2000)]);
    }

    /// The maps that the log lacks, by looking at all of them.
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
