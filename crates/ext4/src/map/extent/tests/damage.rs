//! Broken trees end in errors.

use sapwood_ext4_format::{Extent, ExtentIndex, ExtentNodeMut};

use super::{File, depth, lookup, replace_credits};
use crate::Error;

/// A root of depth `depth` with one child.
fn root_over(file: &mut File, depth: u16, logical: u32, child: u64) {
    let mut node = ExtentNodeMut::init(&mut file.root, depth).unwrap();
    node.insert_index(0, &ExtentIndex { logical, child })
        .unwrap();
}

fn inner(depth: u16, entries: &[(u32, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    let mut node = ExtentNodeMut::init(&mut bytes, depth).unwrap();
    for (at, (logical, child)) in entries.iter().enumerate() {
        let entry = ExtentIndex {
            logical: *logical,
            child: *child,
        };
        node.insert_index(at, &entry).unwrap();
    }
    bytes
}

fn leaf(logical: u32, count: u32) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    let mut node = ExtentNodeMut::init(&mut bytes, 0).unwrap();
    for at in 0..count {
        let extent = Extent {
            logical: logical + 2 * at,
            len: 1,
            physical: 500 + 2 * u64::from(logical + at),
            unwritten: false,
        };
        node.insert_extent(at as usize, &extent).unwrap();
    }
    bytes
}

fn is_bad<T>(result: crate::Result<T>, bad: u64) -> bool {
    matches!(result, Err(Error::BadBlock { ino: 12, block, .. }) if block == bad)
}

#[test]
fn a_block_below_itself_ends_in_an_error() {
    let mut file = File::new(1024);
    file.store.plant(77, inner(2, &[(0, 77)]));
    root_over(&mut file, 3, 0, 77);
    assert!(is_bad(lookup(&file.store, &file.root, 0, 9), 77));
    file.store.handle(1000);
    assert!(is_bad(file.tree().insert(4, 9, 1, true), 77));
    assert!(is_bad(file.tree().remove(0..1 << 32), 77));
    assert!(is_bad(file.tree().convert(0..1 << 32, true), 77));
    // Validated as a node of depth 2, it is no node of depth 1.
    assert!(is_bad(lookup(&file.store, &file.root, 0, 9), 77));
}

#[test]
fn a_node_outside_its_range_is_refused() {
    let mut file = File::new(1024);
    // One leaf is named twice; it fits to the first key only.
    file.store.plant(78, leaf(0, 5));
    file.store.plant(77, inner(1, &[(0, 78), (100, 78)]));
    root_over(&mut file, 2, 0, 77);
    assert!(lookup(&file.store, &file.root, 0, 9).is_ok());
    assert!(is_bad(lookup(&file.store, &file.root, 100, 9), 78));
    file.store.handle(1000);
    assert!(is_bad(file.tree().remove(0..1 << 32), 78));
}

#[test]
fn roots_that_are_none() {
    let mut file = File::new(1024);
    root_over(&mut file, 6, 0, 77);
    assert!(matches!(
        lookup(&file.store, &file.root, 0, 9),
        Err(Error::BadInode { ino: 12, .. })
    ));
    root_over(&mut file, 1, 0, 1 << 31);
    assert!(matches!(
        lookup(&file.store, &file.root, 0, 9),
        Err(Error::BadInode { .. })
    ));
    root_over(&mut file, 1, 0, 77);
    assert!(is_bad(lookup(&file.store, &file.root, 0, 9), 77));
}

#[test]
fn empty_leaves_are_passed_and_dropped() {
    let mut file = File::new(1024);
    file.store.plant(78, leaf(0, 5));
    file.store.plant(79, leaf(0, 0));
    file.store.plant(80, leaf(100, 1));
    file.store
        .plant(77, inner(1, &[(0, 78), (50, 79), (90, 80)]));
    root_over(&mut file, 2, 0, 77);
    file.store
        .content
        .borrow_mut()
        .extend([500, 502, 504, 506, 508, 700]);
    file.store.charged.set(10);
    assert_eq!(lookup(&file.store, &file.root, 9, 900).unwrap().len, 91);
    file.store.handle(1000);
    assert!(file.tree().remove(0..1 << 32).unwrap().is_empty());
    assert_eq!(depth(&file.root), 0);
    assert!(file.check().is_empty());
}

/// Whatever the bytes of the nodes are, every operation ends, without a panic.
#[test]
fn random_damage() {
    let mut rng = fastrand::Rng::with_seed(11);
    for round in 0..400 {
        let mut file = File::new(128);
        for at in 0..rng.u64(5..300) {
            file.fill(3 * at, 2, rng.bool(), 1);
        }
        for _ in 0..rng.usize(1..6) {
            let nodes: Vec<u64> = file.store.nodes.borrow().keys().copied().collect();
            match rng.choice(&nodes) {
                Some(block) if rng.u8(..) > 20 => {
                    file.store.corrupt(*block, rng.usize(..128), rng.u8(..))
                }
                _ => file.root[rng.usize(..60)] = rng.u8(..),
            }
        }
        for _ in 0..20 {
            let (at, len) = (rng.u64(..1000), rng.u64(1..50));
            file.store.handle(replace_credits(8) * 40);
            // Each may fail or not.
            let _ = lookup(&file.store, &file.root, at, len);
            let _ = match round % 5 {
                0 => file.tree().insert(at, 400 + at, len, true),
                1 => file.tree().convert(at..at + len, true).map(drop),
                2 => file.tree().remove(at..at + len).map(drop),
                3 => file.tree().shift_left(at + 5..1 << 32, 5).map(drop),
                _ => file.tree().shift_right(at..1 << 32, len).map(drop),
            };
        }
    }
}

#[test]
fn blocks_of_a_group_are_not_content() {
    let mut file = File::new(1024);
    file.store.plant(78, leaf(0, 3));
    file.store.plant(310, leaf(0, 3));
    // The third extent is on block 304.
    file.store
        .corrupt(78, 12 + 2 * 12 + 8, (304_u16 & 0xff) as u8);
    file.store
        .corrupt(78, 12 + 2 * 12 + 9, (304_u16 >> 8) as u8);
    root_over(&mut file, 1, 0, 78);
    assert!(is_bad(lookup(&file.store, &file.root, 0, 1), 78));
    root_over(&mut file, 1, 0, 310);
    let refused = lookup(&file.store, &file.root, 0, 1);
    assert!(matches!(refused, Err(Error::BadInode { ino: 12, .. })));
}
