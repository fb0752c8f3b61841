//! Random changes, compared with a map in memory block by block.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::{File, depth};
use crate::map::{Mapped, Run};

/// Blocks that the random changes are within.
const SPAN: u64 = 3000;

#[derive(Debug, Clone)]
enum Change {
    /// Fills the holes in the range. `apart`: unused blocks before, so that nothing merges.
    Fill {
        range: Range<u64>,
        written: bool,
        apart: bool,
    },
    Convert {
        range: Range<u64>,
        written: bool,
    },
    Remove {
        range: Range<u64>,
    },
    Collapse {
        range: Range<u64>,
    },
    Insert {
        range: Range<u64>,
    },
}

/// State of each block that is mapped.
type Model = BTreeMap<u64, (u64, bool)>;

struct Both {
    file: File,
    model: Model,
}

impl Both {
    fn new(block_size: u32) -> Self {
        Self {
            file: File::new(block_size),
            model: Model::new(),
        }
    }

    /// Every second block, so that there are many extents.
    fn scatter(&mut self, count: u64) {
        for at in 0..count {
            self.fill(2 * at..2 * at + 1, at % 3 != 0, false);
        }
    }

    fn fill(&mut self, range: Range<u64>, written: bool, apart: bool) {
        let mut at = range.start;
        while at < range.end {
            if self.model.contains_key(&at) {
                at += 1;
                continue;
            }
            let next = self
                .model
                .range(at..)
                .next()
                .map_or(u64::MAX, |(next, _)| *next);
            let len = next.min(range.end) - at;
            let physical = self.file.store.allocate(len, u64::from(apart));
            self.file.insert(at, physical, len, written).unwrap();
            self.model
                .extend((0..len).map(|i| (at + i, (physical + i, written))));
            at += len;
        }
    }

    fn remove(&mut self, range: Range<u64>) {
        self.file.remove(range.clone()).unwrap();
        self.model.retain(|at, _| !range.contains(at));
    }

    /// Moves everything from `from` on, with few credits.
    fn shift(&mut self, from: u64, by: i64) {
        let mut range = from..u64::from(u32::MAX);
        while !range.is_empty() {
            self.file
                .store
                .handle(super::replace_credits(depth(&self.file.root) + 2));
            let mut tree = self.file.tree();
            range = if by < 0 {
                tree.shift_left(range, by.unsigned_abs()).unwrap()
            } else {
                tree.shift_right(range, by.unsigned_abs()).unwrap()
            };
            self.file.check_nodes();
        }
        let moved = self.model.split_off(&from);
        self.model.extend(
            moved
                .into_iter()
                .map(|(at, what)| (at.wrapping_add_signed(by), what)),
        );
    }

    fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::Fill {
                range,
                written,
                apart,
            } => self.fill(range, written, apart),
            Change::Convert { range, written } => {
                self.file.convert(range.clone(), written);
                self.model
                    .range_mut(range)
                    .for_each(|(_, what)| what.1 = written);
            }
            Change::Remove { range } => self.remove(range),
            Change::Collapse { range } => {
                self.remove(range.clone());
                self.shift(range.end, -((range.end - range.start) as i64));
            }
            Change::Insert { range } => self.shift(range.start, (range.end - range.start) as i64),
        }
    }

    /// The tree is in order, and maps every block as the model.
    fn check(&self) {
        self.file.check();
        let end = self.model.keys().next_back().map_or(0, |last| last + 1);
        let expected = expected_runs(&self.model, end + 10);
        assert_eq!(self.file.runs(end + 10), expected);
        let content: Vec<u64> = self.file.store.content.borrow().iter().copied().collect();
        let mut used: Vec<u64> = self.model.values().map(|what| what.0).collect();
        used.sort_unstable();
        assert_eq!(content, used, "blocks of content in use");
    }
}

/// Runs as long as they can be.
fn expected_runs(model: &Model, end: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for at in 0..end {
        let what = match model.get(&at) {
            None => Mapped::Hole,
            Some((physical, true)) => Mapped::Written(*physical),
            Some((physical, false)) => Mapped::Unwritten(*physical),
        };
        match runs.last_mut() {
            Some(run) if goes_on(run, what) => run.len += 1,
            _ => runs.push(Run {
                logical: at,
                len: 1,
                what,
            }),
        }
    }
    runs
}

fn goes_on(run: &Run, what: Mapped) -> bool {
    match (run.what, what) {
        (Mapped::Hole, Mapped::Hole) => true,
        (Mapped::Written(first), Mapped::Written(next))
        | (Mapped::Unwritten(first), Mapped::Unwritten(next)) => first + run.len == next,
        _ => false,
    }
}

fn range() -> impl Strategy<Value = Range<u64>> {
    (
        0..SPAN,
        prop_oneof![4 => 1..4_u64, 2 => 1..60_u64, 1 => 1..SPAN],
    )
        .prop_map(|(start, len)| start..(start + len).min(SPAN + 1))
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (range(), any::<bool>(), any::<bool>())
            .prop_map(|(range, written, apart)| Change::Fill { range, written, apart }),
        3 => (range(), any::<bool>()).prop_map(|(range, written)| Change::Convert { range, written }),
        3 => range().prop_map(|range| Change::Remove { range }),
        1 => range().prop_map(|range| Change::Collapse { range }),
        1 => range().prop_map(|range| Change::Insert { range }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Nodes of 9 entries, so that few extents make a deep tree.
    #[test]
    fn changes_of_a_deep_tree(before in 0..1500_u64, changes in prop::collection::vec(change(), 1..40)) {
        let mut both = Both::new(128);
        both.scatter(before);
        both.check();
        for change in &changes {
            both.apply(change);
            both.check();
        }
        both.remove(0..1 << 32);
        both.check();
        prop_assert_eq!(depth(&both.file.root), 0);
    }

    #[test]
    fn changes_on_blocks_of_1024(changes in prop::collection::vec(change(), 1..60)) {
        let mut both = Both::new(1024);
        for change in &changes {
            both.apply(change);
        }
        both.check();
    }
}

/// Blocks of a file in no order.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}

#[test]
fn splits_reach_every_depth() {
    let mut both = Both::new(1024);
    let count = 30_000;
    for at in shuffled(count, 4) {
        both.fill(2 * at..2 * at + 1, at % 5 != 0, true);
    }
    both.check();
    assert_eq!(depth(&both.file.root), 3);
    // Holes are filled, and extents that can be one become one.
    for at in shuffled(2_000, 5) {
        both.fill(2 * at..2 * at + 2, true, false);
    }
    both.check();
    for at in shuffled(count / 4, 6) {
        let range = 8 * at..8 * at + 7;
        both.file.store.handle(1000);
        let rest = both.file.tree().remove(range.clone()).unwrap();
        assert!(rest.is_empty());
        both.model.retain(|at, _| !range.contains(at));
        if at % 500 == 0 {
            both.check();
        }
    }
    both.check();
    both.remove(0..1 << 32);
    both.check();
    assert_eq!(depth(&both.file.root), 0);
}

/// Nodes of 9 entries: the deepest tree there can be, and one extent too many for it.
#[test]
fn a_tree_that_cannot_grow() {
    let mut file = File::new(128);
    let mut refused = None;
    for at in shuffled(60_000, 7) {
        let physical = file.store.allocate(1, 1);
        if let Err(err) = file.insert(2 * at, physical, 1, true) {
            refused = Some(err);
            break;
        }
    }
    assert_eq!(depth(&file.root), 5);
    let large = crate::Error::Vfs(sapwood_vfs::Error::FileTooLarge).to_string();
    assert_eq!(refused.map(|err| err.to_string()), Some(large));
    let extents = file.check();
    assert!(extents.len() > 5_000, "{}", extents.len());
    for extent in extents.iter().step_by(97) {
        let at = u64::from(extent.logical);
        assert_eq!(file.lookup(at, 1).what, Mapped::Written(extent.physical));
    }
    file.store.handle(1_000_000);
    assert!(file.tree().remove(0..1 << 32).unwrap().is_empty());
    assert!(file.check().is_empty());
}
