//! Trees that share blocks: contents stay separate, and refs are counted exactly.

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_btrfs_format::{Block, FileExtent, Key, RegularExtent, RootItem, kind};

use super::env::{By, Env, Random, items, key};
use crate::tree::{DataRef, Root, copy_root};

type Model = BTreeMap<Key, Vec<u8>>;

/// A snapshot, as a commit makes one.
pub(super) fn snapshot(env: &Arc<Env>, root: &Arc<Root>, id: u64) -> Arc<Root> {
    let top = copy_root(&mut env.handle(), root, id).unwrap();
    let item = RootItem {
        refs: 1.into(),
        bytenr: top.bytenr().into(),
        ..RootItem::default()
    };
    let new = Arc::new(Root::new(id, env.transid(), top, item));
    for root in [root, &new] {
        root.set_last_snapshot(env.transid());
    }
    new
}

#[test]
fn snapshots_of_snapshots_stay_apart() {
    for seed in 0..6 {
        let env = Env::new(4096, 1 << 20);
        let mut random = Random::new(seed);
        let mut trees: Vec<(Arc<Root>, Model)> = vec![(env.root(256), Model::new())];
        for round in 0..14 {
            for _ in 0..400 {
                let nth = random.below(trees.len() as u64) as usize;
                let (root, model) = &mut trees[nth];
                let mut h = env.handle();
                let k = key(random.below(3000));
                if random.below(3) == 0 {
                    root.delete(&mut h, &k).unwrap();
                    model.remove(&k);
                } else {
                    let data = random.bytes(120);
                    root.put(&mut h, &k, &data).unwrap();
                    model.insert(k, data);
                }
            }
            if round % 2 == 0 {
                let nth = random.below(trees.len() as u64) as usize;
                let (root, model) = &trees[nth];
                let new = snapshot(&env, root, 300 + round);
                let model = model.clone();
                trees.push((new, model));
            }
            let roots: Vec<&Arc<Root>> = trees.iter().map(|(root, _)| root).collect();
            env.check(&roots);
            if round % 3 == 1 {
                env.commit(&roots);
            }
            for (root, model) in &trees {
                let found: BTreeMap<_, _> = items(&env, root).into_iter().collect();
                assert!(
                    found == *model,
                    "tree {} seed {seed} round {round}",
                    root.id()
                );
            }
        }
    }
}

/// File extents of an inode, each with its own extent.
fn extent(n: u64) -> (Key, Vec<u8>) {
    let item = FileExtent::Regular(RegularExtent {
        generation: 10,
        ram_bytes: 8192,
        compression: 0,
        disk_bytenr: (1 << 30) + n * 8192,
        disk_num_bytes: 8192,
        offset: 4096,
        num_bytes: 4096,
    });
    (Key::new(257, kind::EXTENT_DATA, n * 4096), item.encode())
}

fn data_ref(root_id: u64, n: u64) -> DataRef {
    DataRef {
        bytenr: (1 << 30) + n * 8192,
        len: 8192,
        parent: None,
        root_id,
        objectid: 257,
        offset: (n * 4096).wrapping_sub(4096),
    }
}

/// The data refs that the leaves of these trees imply.
fn expected(env: &Arc<Env>, roots: &[&Arc<Root>]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for root in roots {
        for (key, data) in items(env, root) {
            if let (kind::EXTENT_DATA, Ok(FileExtent::Regular(e))) =
                (key.kind, FileExtent::parse(&data))
            {
                *counts.entry(e.disk_bytenr).or_default() += 1;
            }
        }
    }
    counts
}

#[test]
fn leaves_that_are_copied_keep_exact_data_refs() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(256);
    let mut h = env.handle();
    for n in 0..400 {
        let (key, item) = extent(n);
        root.insert(&mut h, &key, &item).unwrap();
        env.note_data(&data_ref(256, n));
    }
    env.commit(&[&root]);
    let one = snapshot(&env, &root, 300);
    env.commit(&[&root, &one]);
    // Each tree in turn changes every leaf.
    for (nth, tree) in [&root, &one].into_iter().enumerate() {
        for n in 0..400 {
            let key = extent(n).0;
            tree.update(&mut h, &key, |data| data[0] = data[0].wrapping_add(1))
                .unwrap();
        }
        if nth == 0 {
            // The owner left its shared leaves: they have refs of their own now.
            let by_parent = env
                .data_refs()
                .keys()
                .filter(|k| matches!(k.1, By::Parent(_)))
                .count();
            assert!(by_parent > 0);
        }
        env.check(&[&root, &one]);
        env.commit(&[&root, &one]);
    }
    // Nothing is shared now, so all refs are by tree again: one per tree for each extent.
    let refs = env.data_refs();
    assert_eq!(refs.len(), 800);
    for n in 0..400 {
        for id in [256, 300] {
            let data = data_ref(id, n);
            let key = (data.bytenr, By::Root(id), 257, data.offset);
            assert_eq!(refs.get(&key), Some(&1));
        }
    }
    assert_eq!(expected(&env, &[&root, &one]).values().sum::<u64>(), 800);
}

#[test]
fn the_copy_of_a_leaf_has_the_new_trees_owner() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(256);
    let mut h = env.handle();
    let (key, item) = extent(1);
    root.insert(&mut h, &key, &item).unwrap();
    env.note_data(&data_ref(256, 1));
    let new = snapshot(&env, &root, 300);
    let bytes = new.node().snapshot();
    let block = Block::new(&bytes).unwrap();
    assert_eq!((block.owner(), block.nritems()), (300, 1));
    let refs = env.data_refs();
    let by: Vec<By> = refs.keys().map(|k| k.1).collect();
    assert_eq!(by, [By::Root(256), By::Root(300)]);
    // In the same transaction again: the top block of a tree is not shared.
    let again = snapshot(&env, &root, 301);
    env.check(&[&root, &new, &again]);
}
