//! Block maps against a map in memory.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use sapwood_ext4_format::{IndirectGeometry, indirect_pointers};

use super::{
    PointerPlace, Pointers, WAY_CREDITS, goal, insert_credits, lookup, pointer_block, pointers,
};
use crate::Error;
use crate::map::memory::Memory;
use crate::map::nodes::Blocks;
use crate::map::{Mapped, Run};

struct File {
    store: Memory,
    root: [u8; 60],
    /// Which block each block of the file is.
    model: BTreeMap<u64, u64>,
}

impl File {
    fn new(block_size: u32) -> Self {
        Self {
            store: Memory::new(block_size),
            root: [0; 60],
            model: BTreeMap::new(),
        }
    }

    fn map(&mut self) -> Pointers<'_, Memory> {
        Pointers::new(&self.store, &mut self.root)
    }

    fn max(&self) -> u64 {
        IndirectGeometry::new(self.store.world().block_size).max_blocks()
    }

    fn insert(&mut self, logical: u64, physical: u64, len: u64) -> crate::Result<()> {
        let credits = insert_credits(self.store.world().block_size, len);
        self.store.handle(credits as u32);
        self.map().insert(logical, physical, len)
    }

    /// Fills the holes in the range.
    fn fill(&mut self, range: Range<u64>, apart: u64) {
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
            let physical = self.store.allocate(len, apart);
            self.insert(at, physical, len).unwrap();
            self.model.extend((0..len).map(|i| (at + i, physical + i)));
            at += len;
        }
    }

    fn remove(&mut self, range: Range<u64>) {
        let mut left = range.clone();
        while !left.is_empty() {
            self.store.handle(WAY_CREDITS + 2);
            let before = (
                self.store.content.borrow().len(),
                self.store.nodes.borrow().len(),
            );
            let rest = self.map().remove(left.clone()).unwrap();
            let after = (
                self.store.content.borrow().len(),
                self.store.nodes.borrow().len(),
            );
            assert!(rest.is_empty() || after < before, "no progress: {left:?}");
            left = rest;
        }
        self.model.retain(|at, _| !range.contains(at));
    }

    /// What the map says of every block that may be in it is what the model says, and no block of
    /// pointers is lost or useless.
    fn check(&self) {
        let (mut at, max) = (0, self.max());
        let mut seen = BTreeMap::new();
        while at < max {
            let run = lookup(&self.store, &self.root, at, max - at).unwrap();
            assert!(run.logical == at && run.len > 0, "{run:?} at {at}");
            if let Mapped::Written(physical) = run.what {
                seen.extend((0..run.len).map(|i| (at + i, physical + i)));
            } else {
                assert_eq!(run.what, Mapped::Hole);
            }
            at += run.len;
        }
        assert_eq!(at, max);
        assert_eq!(seen, self.model);
        let content: Vec<u64> = self.store.content.borrow().iter().copied().collect();
        let mut used: Vec<u64> = self.model.values().copied().collect();
        used.sort_unstable();
        assert_eq!(content, used, "blocks of content in use");
        let mut nodes = Vec::new();
        for (depth, index) in [(1, 12), (2, 13), (3, 14)] {
            self.walk(&PointerPlace::Root, index, depth, &mut nodes);
        }
        nodes.sort_unstable();
        let known: Vec<u64> = self.store.nodes.borrow().keys().copied().collect();
        assert_eq!(nodes, known, "blocks of pointers in the map and allocated");
        assert_eq!(self.store.charged.get(), (used.len() + nodes.len()) as i64);
    }

    fn walk(
        &self,
        place: &PointerPlace<<Memory as Blocks>::Node>,
        index: usize,
        depth: u8,
        nodes: &mut Vec<u64>,
    ) {
        let block = pointers(&self.store, &self.root, place, |all| all[index].get()).unwrap();
        if block == 0 {
            return;
        }
        nodes.push(block.into());
        let node = pointer_block(&self.store, block.into()).unwrap();
        let used = indirect_pointers(&self.store.bytes(&node))
            .unwrap()
            .iter()
            .filter(|one| one.get() != 0)
            .count();
        assert!(used > 0, "an empty block of pointers stayed");
        if depth > 1 {
            let count = self.store.world().block_size as usize / 4;
            let place = PointerPlace::Block(node);
            (0..count).for_each(|index| self.walk(&place, index, depth - 1, nodes));
        }
    }
}

#[derive(Debug, Clone)]
enum Change {
    Fill(Range<u64>, u64),
    Remove(Range<u64>),
}

/// Blocks of 128 bytes have 32 pointers, so the map ends at 12 + 32 + 32² + 32³.
const SPAN: u64 = 12 + 32 + 32 * 32 + 32 * 32 * 32;

fn change() -> impl Strategy<Value = Change> {
    let start = prop_oneof![0..60_u64, 0..1200_u64, 0..SPAN];
    let len = prop_oneof![6 => 1..4_u64, 3 => 1..80_u64, 1 => 1..SPAN];
    let range = (start, len).prop_map(|(start, len)| start..(start + len).min(SPAN));
    (range, any::<bool>(), 0..2_u64).prop_map(|(range, fill, apart)| {
        if fill {
            Change::Fill(range, apart)
        } else {
            Change::Remove(range)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn changes_of_all_levels(changes in prop::collection::vec(change(), 1..25)) {
        let mut file = File::new(128);
        for change in changes {
            match change {
                Change::Fill(range, apart) => file.fill(range, apart),
                Change::Remove(range) => file.remove(range),
            }
            file.check();
        }
        file.remove(0..1 << 32);
        file.check();
        prop_assert_eq!(file.root, [0; 60]);
    }
}

#[test]
fn punching_frees_empty_pointer_blocks() {
    let mut file = File::new(1024);
    let triple = 12 + 256 + 256 * 256;
    for at in [
        0,
        11,
        12,
        267,
        268,
        523,
        524,
        triple - 1,
        triple,
        triple + 256,
        triple + 256 * 256,
    ] {
        file.fill(at..at + 1, 1);
    }
    // Single; double: itself and three below; triple: itself, two below, three below these.
    assert_eq!(file.store.nodes.borrow().len(), 1 + 4 + 6);
    for (punch, nodes) in [
        (12..13, 11),
        (200..268, 10),
        (300..524, 10),
        (0..525, 8),
        (triple..triple + 300, 5),
        (triple..1 << 32, 2),
    ] {
        file.remove(punch);
        assert_eq!(file.store.nodes.borrow().len(), nodes);
    }
    file.remove(0..1 << 32);
    file.check();
}

#[test]
fn no_room_leaves_no_block_in_the_map() {
    let mut file = File::new(128);
    let physical = file.store.allocate(200, 0);
    for room in 0..6 {
        file.store.room.set(room);
        // 7 blocks of pointers: single, double and five below.
        assert!(
            matches!(file.insert(10, physical, 160,), Err(Error::NoSpace)),
            "{room}"
        );
        let run = lookup(&file.store, &file.root, 0, SPAN).unwrap();
        assert_eq!(
            run,
            Run {
                logical: 0,
                len: SPAN,
                what: Mapped::Hole
            }
        );
        file.store.handle(1000);
        assert!(file.map().remove(0..1 << 32).unwrap().is_empty());
        assert!(file.store.nodes.borrow().is_empty());
    }
    file.store.room.set(7);
    file.insert(10, physical, 160).unwrap();
}

#[test]
fn limits() {
    let mut file = File::new(1024);
    let max = file.max();
    let large = Error::Vfs(sapwood_vfs::Error::FileTooLarge).to_string();
    let physical = file.store.allocate(2, 0);
    assert_eq!(
        file.insert(max - 1, physical, 2).unwrap_err().to_string(),
        large
    );
    assert_eq!(
        file.insert(1 << 32, physical, 1).unwrap_err().to_string(),
        large
    );
    assert!(matches!(
        file.insert(0, (1 << 32) - 1, 2),
        Err(Error::NoSpace)
    ));
    file.insert(max - 1, physical, 1).unwrap();
    assert!(matches!(
        file.insert(max - 1, physical + 1, 1),
        Err(Error::BadInode { .. })
    ));
    assert_eq!(lookup(&file.store, &file.root, max - 1, 50).unwrap().len, 1);
    let hole = Run {
        logical: max,
        len: 50,
        what: Mapped::Hole,
    };
    assert_eq!(lookup(&file.store, &file.root, max, 50).unwrap(), hole);
}

#[test]
fn goals_follow_the_neighbour() {
    let mut file = File::new(1024);
    assert_eq!(goal(&file.store, &file.root, 3).unwrap(), None);
    let physical = file.store.allocate(20, 0);
    file.insert(0, physical, 20).unwrap();
    assert_eq!(
        goal(&file.store, &file.root, 20).unwrap(),
        Some(physical + 20)
    );
    assert_eq!(
        goal(&file.store, &file.root, 25).unwrap(),
        Some(physical + 25)
    );
}

#[test]
fn a_pointer_block_that_names_itself_is_bounded() {
    let mut file = File::new(1024);
    file.store.plant(77, 77_u32.to_le_bytes().repeat(256));
    // The triple one: every one of 2^24 blocks of the file is block 77.
    file.root[56..60].copy_from_slice(&77_u32.to_le_bytes());
    let first = 12 + 256 + 256 * 256;
    let run = lookup(&file.store, &file.root, first, 1 << 30).unwrap();
    assert_eq!(
        run,
        Run {
            logical: first,
            len: 1,
            what: Mapped::Written(77)
        }
    );
    file.store.handle(1000);
    assert!(matches!(
        file.map().remove(0..1 << 32),
        Err(Error::BadBlock { .. })
    ));
}

#[test]
fn empty_blocks_below_each_other_are_bounded() {
    let mut file = File::new(1024);
    file.store.plant(79, vec![0; 1024]);
    file.store.plant(78, 79_u32.to_le_bytes().repeat(256));
    file.store.plant(77, 78_u32.to_le_bytes().repeat(256));
    file.root[56..60].copy_from_slice(&77_u32.to_le_bytes());
    // Not to the end of the hole, which would be 65,536 blocks to read.
    let first = 12 + 256 + 256 * 256;
    let run = lookup(&file.store, &file.root, first, 1 << 30).unwrap();
    assert_eq!(
        run,
        Run {
            logical: first,
            len: 64 * 256,
            what: Mapped::Hole
        }
    );
    file.store.handle(1000);
    assert!(matches!(
        file.map().remove(0..1 << 32),
        Err(Error::BadBlock { block: 79, .. })
    ));
}

#[test]
fn pointers_out_of_the_device_are_refused() {
    let mut file = File::new(1024);
    let outside = (1_u32 << 31).to_le_bytes();
    file.store.plant(77, outside.repeat(256));
    file.root[48..52].copy_from_slice(&77_u32.to_le_bytes());
    assert!(matches!(
        lookup(&file.store, &file.root, 12, 1),
        Err(Error::BadBlock { block: 77, .. })
    ));
    file.store.handle(100);
    assert!(matches!(
        file.map().remove(0..1 << 32),
        Err(Error::BadBlock { block: 77, .. })
    ));
    assert!(matches!(
        file.insert(12, 5, 1),
        Err(Error::BadBlock { block: 77, .. })
    ));
    file.root[4..8].copy_from_slice(&outside);
    assert!(matches!(
        lookup(&file.store, &file.root, 0, 1),
        Err(Error::BadInode { ino: 12, .. })
    ));
}

#[test]
fn blocks_of_a_group_are_not_content() {
    let mut file = File::new(1024);
    file.root[..4].copy_from_slice(&304_u32.to_le_bytes());
    assert!(matches!(
        lookup(&file.store, &file.root, 0, 1),
        Err(Error::BadInode { ino: 12, .. })
    ));
    file.root[..4].copy_from_slice(&77_u32.to_le_bytes());
    assert!(lookup(&file.store, &file.root, 0, 1).is_ok());
    file.store.plant(77, 304_u32.to_le_bytes().repeat(256));
    file.root[48..52].copy_from_slice(&77_u32.to_le_bytes());
    assert!(matches!(
        lookup(&file.store, &file.root, 12, 1),
        Err(Error::BadBlock { block: 77, .. })
    ));
}
