//! Rules that a change keeps.

use super::{File, depth, lookup, replace_credits, written};
use crate::Error;
use crate::map::{Mapped, Run};

#[test]
fn longest_extents() {
    let mut file = File::new(1024);
    let first = file.store.allocate(100_000, 0);
    file.insert(5, first, 40_000, true).unwrap();
    file.insert(40_005, first + 40_000, 10, true).unwrap();
    let lens: Vec<u32> = file.check().iter().map(|extent| extent.len).collect();
    assert_eq!(lens, [32_768, 7_242]);
    let run = Run {
        logical: 5,
        len: 40_010,
        what: written(first),
    };
    assert_eq!(file.lookup(5, 1 << 40), run);
    file.convert(5..40_015, false);
    let lens: Vec<u32> = file.check().iter().map(|extent| extent.len).collect();
    assert_eq!(lens, [32_767, 7_243]);
    let run = Run {
        logical: 6,
        len: 40_009,
        what: Mapped::Unwritten(first + 1),
    };
    assert_eq!(file.lookup(6, 1 << 40), run);
    file.convert(5..40_015, true);
    assert_eq!(file.lookup(5, 1 << 40).what, written(first));
}

#[test]
fn appending_leaves_full_nodes() {
    let mut file = File::new(1024);
    for at in 0..4_000 {
        file.fill(at, 1, true, 1);
    }
    assert_eq!(file.check().len(), 4_000);
    // 83 of 84 entries stay in each.
    let nodes = file.store.nodes.borrow().len() as u64;
    assert!(nodes <= 4_000 / 83 + 3, "{nodes}");
}

#[test]
fn no_room_leaves_the_tree_as_it_was() {
    let mut file = File::new(128);
    let mut refused = 0;
    for at in 0..2_000_u64 {
        // A hole in the middle of an extent needs room as well as a new extent.
        file.store.room.set(u64::MAX);
        file.fill(10 * at, 5, true, 1);
        let before = file.check();
        file.store.room.set(at % 2);
        let middle = 10 * (at / 2);
        file.store
            .handle(replace_credits(depth(&file.root) + 2) + 1);
        match file.tree().remove(middle + 1..middle + 2) {
            Ok(rest) => assert!(rest.is_empty()),
            Err(Error::NoSpace) => {
                refused += 1;
                assert_eq!(file.check(), before);
            }
            Err(err) => panic!("{err}"),
        }
        file.check();
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn an_insertion_in_pieces_is_undone() {
    let mut file = File::new(128);
    for at in 0..4 {
        file.fill(200_000 + 2 * at, 1, true, 1);
    }
    file.store.room.set(0);
    let physical = file.store.allocate(70_000, 5);
    let before = file.check();
    assert!(matches!(
        file.insert(0, physical, 70_000, false),
        Err(Error::NoSpace)
    ));
    assert_eq!(file.check(), before);
    // The blocks are still the caller's.
    assert!(file.store.content.borrow().contains(&physical));
    // The first pieces fit, the last one does not.
    file.remove(200_004..200_010).unwrap();
    let before = file.check();
    assert_eq!(before.len(), 2);
    assert!(matches!(
        file.insert(0, physical, 70_000, false),
        Err(Error::NoSpace)
    ));
    assert_eq!(file.check(), before);
    assert!(
        (physical..physical + 70_000).all(|block| file.store.content.borrow().contains(&block))
    );
}

#[test]
fn removing_all_leaves_an_empty_root() {
    let mut file = File::new(128);
    for at in 0..700 {
        file.fill(3 * at, 2, at % 2 == 0, 1);
    }
    assert!(depth(&file.root) >= 3);
    file.remove(0..1 << 32).unwrap();
    assert_eq!(file.root, super::empty_root());
    assert_eq!(file.store.charged.get(), 0);
    assert!(file.store.content.borrow().is_empty());
}

#[test]
fn a_small_tree_goes_back_into_the_inode() {
    let mut file = File::new(1024);
    for at in 0..2_000 {
        file.fill(2 * at, 1, true, 1);
    }
    assert_eq!(depth(&file.root), 2);
    file.remove(8..1 << 32).unwrap();
    assert_eq!(file.check().len(), 4);
    assert_eq!(depth(&file.root), 0);
}

#[test]
fn what_is_in_the_way_is_refused() {
    let mut file = File::new(1024);
    file.fill(10, 10, true, 0);
    let physical = file.store.allocate(20, 0);
    for (logical, len) in [(10, 1), (5, 6), (19, 3), (5, 20), (12, 3)] {
        let refused = file.insert(logical, physical, len, true);
        assert!(
            matches!(refused, Err(Error::BadInode { ino: 12, .. })),
            "{logical}+{len}"
        );
    }
    assert_eq!(file.check().len(), 1);
}

#[test]
fn files_end_below_the_last_block_number() {
    let mut file = File::new(1024);
    let physical = file.store.allocate(4, 0);
    let large = Error::Vfs(sapwood_vfs::Error::FileTooLarge).to_string();
    for (logical, len) in [
        (u64::from(u32::MAX), 1),
        (u64::from(u32::MAX) - 1, 2),
        (u64::MAX, 2),
        (1 << 40, 1),
    ] {
        assert_eq!(
            file.insert(logical, physical, len, true)
                .unwrap_err()
                .to_string(),
            large
        );
    }
    let last = u64::from(u32::MAX) - 1;
    file.insert(last, physical, 1, true).unwrap();
    assert_eq!(file.lookup(last, 100).len, 1);
    let hole = Run {
        logical: last + 1,
        len: 100,
        what: Mapped::Hole,
    };
    assert_eq!(file.lookup(last + 1, 100), hole);
    assert_eq!(file.lookup(1 << 40, 100).len, 100);
    file.store.handle(100);
    let shifted = file.tree().shift_right(0..1 << 32, 1);
    assert_eq!(shifted.unwrap_err().to_string(), large);
    assert_eq!(file.lookup(last, 1).what, written(physical));
    file.remove(0..1 << 32).unwrap();
}

#[test]
fn a_shift_over_blocks_in_use_is_refused() {
    let mut file = File::new(1024);
    file.fill(0, 10, true, 0);
    file.fill(20, 10, true, 1);
    file.store.handle(100);
    assert!(file.tree().shift_left(20..1 << 32, 11).is_err());
    assert!(file.tree().shift_left(25..1 << 32, 2).is_err());
    assert!(file.tree().shift_left(5..1 << 32, 6).is_err());
    file.tree().shift_left(20..1 << 32, 10).unwrap();
    assert_eq!(file.lookup(10, 100).len, 10);
}

#[test]
fn a_shift_goes_on_with_the_next_handle() {
    let mut file = File::new(128);
    for at in 0..400 {
        file.fill(100 + 2 * at, 1, true, 1);
    }
    let before = file.check();
    for (to, back) in [(50_i64, false), (0, true)] {
        let (mut range, mut handles) = (if back { 150..1 << 32 } else { 100..1 << 32 }, 0);
        while !range.is_empty() {
            file.store.handle(12);
            range = if back {
                file.tree().shift_left(range, 50).unwrap()
            } else {
                file.tree().shift_right(range, 50).unwrap()
            };
            handles += 1;
            file.check();
        }
        assert!(handles > 5, "{handles}");
        let moved = file.check();
        let expected = before.iter().map(|extent| i64::from(extent.logical) + to);
        assert!(
            moved
                .iter()
                .map(|extent| i64::from(extent.logical))
                .eq(expected)
        );
    }
}

#[test]
fn lookup_of_nothing() {
    let file = File::new(1024);
    let hole = |logical, len| Run {
        logical,
        len,
        what: Mapped::Hole,
    };
    assert_eq!(file.lookup(7, 0), hole(7, 0));
    assert_eq!(file.lookup(7, u64::MAX), hole(7, u64::MAX - 7));
    assert_eq!(
        super::super::goal(&file.store, &file.root, 7).unwrap(),
        None
    );
    assert!(lookup(&file.store, &[0; 60], 0, 1).is_err());
}

#[test]
fn goals_follow_the_neighbour() {
    let mut file = File::new(1024);
    let physical = file.store.allocate(10, 90_000);
    file.insert(100, physical, 10, true).unwrap();
    let goal = |file: &File, at| super::super::goal(&file.store, &file.root, at).unwrap();
    assert_eq!(goal(&file, 110), Some(physical + 10));
    assert_eq!(goal(&file, 115), Some(physical + 15));
    assert_eq!(goal(&file, 95), Some(physical - 5));
}

#[test]
fn an_extent_in_many_groups_goes_piece_by_piece() {
    let mut file = File::new(1024);
    file.fill(100, 32_768, true, 3_000);
    let (mut range, mut handles) = (0..1 << 32, 0);
    while !range.is_empty() {
        file.store.handle(replace_credits(1) + 2);
        range = file.tree().remove(range).unwrap();
        handles += 1;
        file.check();
    }
    // 4 groups' worth of blocks that begin within a group.
    assert_eq!(handles, 5);
    assert!(file.store.content.borrow().is_empty());
}
