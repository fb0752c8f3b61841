//! Leaf and node operations against plain vectors as the model.

use proptest::prelude::*;
use sapwood_btrfs_format::{Block, BlockInit, BlockMut, Item, Key, KeyPtr, block, node_ptrs};

const NODESIZE: usize = 4096;

fn new_block(level: u8) -> Vec<u8> {
    let mut bytes = vec![0xff; NODESIZE];
    let init = BlockInit {
        bytenr: 1 << 20,
        level,
        generation: 7,
        owner: 5,
        fsid: [1; 16],
        chunk_tree_uuid: [2; 16],
    };
    BlockMut::init(&mut bytes, &init).unwrap();
    bytes
}

fn contents(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let block = Block::new(bytes).unwrap();
    (0..block.nritems())
        .map(|slot| {
            let (key, data) = block.entry(slot).unwrap();
            (key.objectid, data.to_vec())
        })
        .collect()
}

/// The leaf holds exactly the model, packed, and the rest of it is free.
fn assert_model(bytes: &[u8], model: &[(u64, Vec<u8>)]) {
    assert_eq!(contents(bytes), model);
    let block = Block::new(bytes).unwrap();
    let mut end = NODESIZE - 101;
    for slot in 0..model.len() {
        end -= block.item_size(slot).unwrap();
        assert_eq!(block.item_offset(slot).unwrap(), end);
    }
    assert_eq!(block.free_space(), end - model.len() * Item::SIZE);
}

#[derive(Clone, Debug)]
enum Op {
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Resize(usize, usize, bool),
    Right(usize),
    Left(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let data = prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        4 => (any::<usize>(), data).prop_map(|(slot, data)| Op::Insert(slot, data)),
        1 => (any::<usize>(), 0usize..4).prop_map(|(slot, n)| Op::Remove(slot, n)),
        2 => (any::<usize>(), 0usize..400, any::<bool>()).prop_map(|(s, n, f)| Op::Resize(s, n, f)),
        1 => (0usize..6).prop_map(Op::Right),
        1 => (0usize..6).prop_map(Op::Left),
    ]
}

fn resized(data: &[u8], size: usize, at_front: bool) -> Vec<u8> {
    let mut out = data.to_vec();
    if at_front {
        out.reverse();
    }
    out.resize(size, 0);
    if at_front {
        out.reverse();
    }
    out
}

proptest! {
    #[test]
    fn leaf_operations_equal_a_vector(ops in prop::collection::vec(op(), 1..80)) {
        let (mut left, mut right) = (new_block(0), new_block(0));
        let (mut lm, mut rm): (Vec<(u64, Vec<u8>)>, Vec<_>) = (Vec::new(), Vec::new());
        for (n, op) in ops.into_iter().enumerate() {
            let mut l = BlockMut::new(&mut left).unwrap();
            let mut r = BlockMut::new(&mut right).unwrap();
            let free = l.view().free_space();
            match op {
                Op::Insert(slot, data) => {
                    let slot = slot % (lm.len() + 1);
                    let key = Key::new(n as u64, 1, 0);
                    let fits = data.len() + Item::SIZE <= free;
                    prop_assert_eq!(l.insert(slot, &key, &data).is_ok(), fits);
                    if fits {
                        lm.insert(slot, (n as u64, data));
                    }
                }
                Op::Remove(slot, count) => {
                    let slot = slot % (lm.len() + 1);
                    let fits = slot + count <= lm.len();
                    prop_assert_eq!(l.remove_items(slot, count).is_ok(), fits);
                    if fits {
                        lm.drain(slot..slot + count);
                    }
                }
                Op::Resize(slot, size, front) => {
                    let slot = slot % (lm.len() + 1);
                    let fits = lm.get(slot).is_some_and(|i| size <= i.1.len() + free);
                    prop_assert_eq!(l.resize_item(slot, size, front).is_ok(), fits);
                    if fits {
                        lm[slot].1 = resized(&lm[slot].1, size, front);
                    }
                }
                Op::Right(count) => {
                    if l.push_right(&mut r, count).is_ok() {
                        let moved = lm.split_off(lm.len() - count);
                        rm.splice(0..0, moved);
                    }
                }
                Op::Left(count) => {
                    if r.push_left(&mut l, count).is_ok() {
                        lm.extend(rm.drain(..count));
                    }
                }
            }
            assert_model(&left, &lm);
            assert_model(&right, &rm);
        }
    }

    #[test]
    fn any_bytes_are_read_and_changed_without_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..2000),
        level in 0u8..3,
        nritems in 0u32..30,
        slot in 0usize..32,
        size in 0usize..500,
    ) {
        if bytes.len() > 101 {
            bytes[96..100].copy_from_slice(&nritems.to_le_bytes());
            bytes[100] = level;
        }
        if let Ok(block) = Block::new(&bytes) {
            let _ = (block.entry(slot), block.child(slot), block.free_space(), block.used_space());
            let _ = (block.search(&Key::new(1, 2, 3)), block.child_slot(&Key::MAX));
        }
        let mut other = new_block(level);
        if let Ok(mut block) = BlockMut::new(&mut bytes) {
            let _ = block.insert_item(slot, &Key::MIN, size);
            let _ = block.resize_item(slot, size, true);
            let _ = block.resize_item(slot, size, false);
            let _ = block.remove_items(slot, 2);
            let _ = block.insert_ptr(slot, &Key::MIN, 1, 2);
            let _ = block.remove_ptr(slot);
            let mut other = BlockMut::new(&mut other).unwrap();
            let _ = block.push_right(&mut other, slot);
            let _ = block.push_left(&mut other, slot);
            let _ = other.push_left(&mut block, 1);
            block.header_mut().nritems = u32::MAX.into();
            let _ = block.insert_item(slot, &Key::MIN, size);
            let _ = block.remove_items(slot, 2);
            block.zero_free_space();
        }
    }
}

#[test]
fn node_pointers_move_and_search() {
    let (mut left, mut right) = (new_block(1), new_block(1));
    let mut l = BlockMut::new(&mut left).unwrap();
    let mut r = BlockMut::new(&mut right).unwrap();
    let full = node_ptrs(NODESIZE);
    for n in 0..full {
        l.insert_ptr(n, &Key::new(n as u64 * 2, 1, 0), n as u64, 9)
            .unwrap();
    }
    assert!(matches!(
        l.insert_ptr(0, &Key::MIN, 0, 0),
        Err(block::Error::NoSpace { .. })
    ));
    assert_eq!(l.view().free_space(), 0);
    assert_eq!(l.view().search(&Key::new(6, 1, 0)), Ok(3));
    assert_eq!(l.view().search(&Key::new(7, 1, 0)), Err(4));
    assert_eq!(l.view().child_slot(&Key::new(7, 1, 0)), Some(3));
    assert_eq!(l.view().child_slot(&Key::MIN), Some(0));
    assert_eq!(l.view().child_slot(&Key::MAX), Some(full - 1));
    l.split_at(10, &mut r).unwrap();
    assert_eq!((l.view().nritems(), r.view().nritems()), (10, full - 10));
    r.push_left(&mut l, 2).unwrap();
    l.push_right(&mut r, 1).unwrap();
    assert_eq!(l.view().last_key(), Some(Key::new(20, 1, 0)));
    assert_eq!(r.view().first_key(), Some(Key::new(22, 1, 0)));
    l.set_child(0, 77, 8).unwrap();
    l.set_key(0, &Key::new(0, 0, 1)).unwrap();
    l.remove_ptr(1).unwrap();
    let ptr: &KeyPtr = l.view().child(0).unwrap();
    assert_eq!((ptr.blockptr.get(), ptr.generation.get()), (77, 8));
    assert!(matches!(
        l.set_child(10, 0, 0),
        Err(block::Error::Slot { slot: 10, .. })
    ));
    assert!(matches!(
        l.insert_item(0, &Key::MIN, 1),
        Err(block::Error::WrongLevel { .. })
    ));
}
