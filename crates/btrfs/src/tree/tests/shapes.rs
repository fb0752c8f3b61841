//! Orders of insertion and deletion that produce certain shapes.

use sapwood_btrfs_format::Key;

use super::env::{Env, items, key};
use crate::Error;

#[test]
fn ascending_insertion_fills_leaves() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(256);
    let mut h = env.handle();
    for n in 0..60_000 {
        root.insert(&mut h, &key(n), &n.to_le_bytes()).unwrap();
    }
    let stats = env.check(&[&root])[0];
    assert_eq!(stats.items, 60_000);
    let capacity = 4096 - 101;
    assert!(stats.used > stats.leaves * capacity * 9 / 10, "{stats:?}");
    assert!(root.node().level() >= 2);
}

#[test]
fn descending_insertion_does_not_make_leaves_of_one_item() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(256);
    let mut h = env.handle();
    // Between two existing keys, so that the leaf to the left fills up first.
    root.insert(&mut h, &Key::new(1, 253, 0), &[0; 3900])
        .unwrap();
    root.insert(&mut h, &Key::new(1, 253, u64::MAX), b"end")
        .unwrap();
    for n in (1..5000).rev() {
        root.insert(&mut h, &Key::new(1, 253, n), b"12345678")
            .unwrap();
    }
    let stats = env.check(&[&root])[0];
    assert_eq!(stats.items, 5001);
    assert!(stats.leaves < 100, "{stats:?}");
    // And before all keys.
    let root = env.root(257);
    for n in (1..20_000).rev() {
        root.insert(&mut h, &key(n), b"12345678").unwrap();
    }
    let keys: Vec<Key> = items(&env, &root).into_iter().map(|(k, _)| k).collect();
    assert!(keys.is_sorted() && keys.len() == 19_999);
}

#[test]
fn a_large_item_in_the_middle_splits_a_leaf_in_three() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(256);
    let mut h = env.handle();
    for n in [0, 1, 3, 4] {
        root.insert(&mut h, &key(n), &[n as u8; 900]).unwrap();
    }
    assert_eq!(root.node().level(), 0);
    root.insert(&mut h, &key(2), &[2; 3900]).unwrap();
    let stats = env.check(&[&root])[0];
    assert_eq!((stats.leaves, stats.items), (3, 5));
    // One that grows does the same.
    root.put(&mut h, &key(1), &[9; 3900]).unwrap();
    let stats = env.check(&[&root])[0];
    assert_eq!((stats.leaves, stats.items), (4, 5));
    assert_eq!(root.get(&env, &key(1)).unwrap().unwrap().len(), 3900);
}

#[test]
fn sizes_at_the_limit() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(256);
    let mut h = env.handle();
    let most = 4096 - 101 - 25;
    root.insert(&mut h, &key(1), &vec![1; most]).unwrap();
    for err in [
        root.insert(&mut h, &key(2), &vec![1; most + 1]),
        root.put(&mut h, &key(1), &vec![1; most + 1]),
    ] {
        assert!(matches!(err, Err(Error::ItemTooLarge { .. })), "{err:?}");
    }
    for n in [0, 3, 2] {
        root.insert(&mut h, &key(n), &vec![n as u8; most]).unwrap();
    }
    root.insert(&mut h, &key(4), &[]).unwrap();
    assert_eq!(env.check(&[&root])[0].items, 5);
}

#[test]
fn deleting_from_either_end_frees_all_blocks() {
    for back in [false, true] {
        let env = Env::new(4096, 1 << 20);
        let root = env.root(256);
        let mut h = env.handle();
        let count = 30_000;
        for n in 0..count {
            root.insert(&mut h, &key(n), b"0123456789").unwrap();
        }
        assert!(root.node().level() >= 2);
        env.commit(&[&root]);
        for n in 0..count {
            let n = if back { count - 1 - n } else { n };
            assert!(root.delete(&mut h, &key(n)).unwrap());
            if n % 5000 == 0 {
                env.check(&[&root]);
            }
        }
        assert!(items(&env, &root).is_empty());
        // The next change that needs the path from the top removes the last node.
        root.insert(&mut h, &key(5), b"x").unwrap();
        env.check(&[&root]);
        assert!(env.allocated() <= 3, "{}", env.allocated());
    }
}

#[test]
fn a_cursor_survives_changes_around_it() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(256);
    let mut h = env.handle();
    for n in 0..2000 {
        root.insert(&mut h, &key(n * 2), &[1; 50]).unwrap();
    }
    let mut cursor = root.seek(&env, &Key::MIN).unwrap();
    let mut last = None;
    let mut seen = 0;
    while let Some(key_now) = cursor.key() {
        assert!(last < Some(key_now));
        last = Some(key_now);
        seen += 1;
        let n = key_now.offset;
        root.delete(&mut h, &key_now).unwrap();
        if seen < 5000 {
            root.put(&mut h, &key(n + 4001), &[2; 70]).unwrap();
        }
        cursor.next().unwrap();
    }
    assert!(seen >= 2000);
    env.check(&[&root]);
}
