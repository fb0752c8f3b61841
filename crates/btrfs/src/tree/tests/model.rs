//! Random operations on a tree and on a map, whose contents must agree.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use sapwood_btrfs_format::Key;

use super::env::{Env, Random, items, key};
use crate::Error;
use crate::tree::{Change, Root};

type Model = BTreeMap<Key, Vec<u8>>;

#[derive(Clone, Copy)]
struct Shape {
    nodesize: u32,
    keys: u64,
    size: usize,
}

/// One random operation on both sides.
fn step(env: &Arc<Env>, root: &Arc<Root>, model: &mut Model, random: &mut Random, shape: Shape) {
    let mut h = env.handle();
    let k = key(random.below(shape.keys));
    let data = random.bytes(shape.size);
    match random.below(13) {
        0..=3 => match root.insert(&mut h, &k, &data) {
            Ok(()) => assert!(model.insert(k, data).is_none()),
            Err(Error::ItemExists { .. }) => assert!(model.contains_key(&k)),
            Err(err) => panic!("{err}"),
        },
        4 => {
            root.put(&mut h, &k, &data).unwrap();
            model.insert(k, data);
        }
        5 | 6 => assert_eq!(root.delete(&mut h, &k).unwrap(), model.remove(&k).is_some()),
        7 => {
            let to = key(random.below(shape.keys)).max(k);
            let gone: Vec<Key> = model.range(k..=to).map(|(k, _)| *k).take(200).collect();
            let to = gone.last().copied().unwrap_or(to);
            assert_eq!(root.delete_range(&mut h, &k, &to).unwrap(), gone.len());
            gone.iter().for_each(|k| {
                model.remove(k);
            });
        }
        8 => {
            let change = |data: &mut [u8]| data.iter_mut().for_each(|b| *b = !*b);
            match root.update(&mut h, &k, change) {
                Ok(()) => change(model.get_mut(&k).unwrap()),
                Err(Error::ItemNotFound { .. }) => assert!(!model.contains_key(&k)),
                Err(err) => panic!("{err}"),
            }
        }
        9 => modify(root, &mut h, model, &k, &data, shape),
        10 => batch(root, &mut h, model, random, shape),
        11 => match root.append(&mut h, &k, &data) {
            Ok(()) => model.get_mut(&k).unwrap().extend(data),
            Err(Error::ItemNotFound { .. }) => assert!(!model.contains_key(&k)),
            Err(Error::ItemTooLarge { size, .. }) => {
                assert_eq!(model.get(&k).unwrap().len() + data.len(), size);
            }
            Err(err) => panic!("{err}"),
        },
        _ => assert_eq!(root.delete(&mut h, &k).unwrap(), model.remove(&k).is_some()),
    }
}

fn modify(
    root: &Arc<Root>,
    h: &mut super::env::TestHandle,
    model: &mut Model,
    k: &Key,
    d: &[u8],
    shape: Shape,
) {
    let change = |old: Option<&[u8]>| {
        Ok(match old {
            Some(old) if old.len() > 100 => Change::Delete,
            Some(old) if old.len() == 5 => Change::Keep,
            Some(old) => {
                let mut both = [old, d].concat();
                both.truncate(shape.size.max(200));
                Change::Put(both)
            }
            None => Change::Put(b"12345".to_vec()),
        })
    };
    root.modify(h, k, change).unwrap();
    match change(model.get(k).map(|d| &d[..])).unwrap() {
        Change::Keep => {}
        Change::Put(data) => {
            model.insert(*k, data);
        }
        Change::Delete => {
            model.remove(k);
        }
    }
}

fn batch(
    root: &Arc<Root>,
    h: &mut super::env::TestHandle,
    model: &mut Model,
    random: &mut Random,
    shape: Shape,
) {
    let start = random.below(shape.keys);
    let mut new = Model::new();
    for n in start..start + random.below(60) {
        if !model.contains_key(&key(n)) {
            new.insert(key(n), random.bytes(shape.size));
        }
    }
    let list: Vec<_> = new.clone().into_iter().collect();
    root.insert_batch(h, &list).unwrap();
    model.extend(new);
}

fn compare(env: &Arc<Env>, root: &Arc<Root>, model: &Model, random: &mut Random, shape: Shape) {
    env.check(&[root]);
    let found = items(env, root);
    assert_eq!(found.len(), model.len());
    for ((k, d), (mk, md)) in found.iter().zip(model) {
        assert_eq!((k, d), (mk, md));
    }
    for _ in 0..50 {
        let k = key(random.below(shape.keys));
        let got = root.get(env, &k).unwrap();
        assert_eq!(got.as_deref(), model.get(&k).map(|d| &d[..]));
        let at = root.seek(env, &k).unwrap().key();
        assert_eq!(at, model.range(k..).next().map(|(k, _)| *k));
        let mut back = root.seek_back(env, &k).unwrap();
        let mut expect = model.range(..=k).rev();
        for _ in 0..10 {
            assert_eq!(back.key(), expect.next().map(|(k, _)| *k));
            back.prev().unwrap();
        }
    }
}

fn run(seed: u64, steps: usize, id: u64, shape: Shape) {
    let env = Env::new(shape.nodesize, 1 << 20);
    let root = env.root(id);
    let mut model = Model::new();
    let mut random = Random::new(seed);
    for n in 0..steps {
        step(&env, &root, &mut model, &mut random, shape);
        if random.below(150) == 0 {
            env.commit(&[&root]);
        }
        if n % 500 == 0 {
            compare(&env, &root, &model, &mut random, shape);
        }
    }
    env.commit(&[&root]);
    compare(&env, &root, &model, &mut random, shape);
    let (cache, read) = env.reread(&root);
    assert_eq!(items(&cache, &read).len(), model.len());
    let mut h = env.handle();
    assert_eq!(
        root.delete_range(&mut h, &Key::MIN, &Key::MAX).unwrap(),
        model.len()
    );
    model.clear();
    compare(&env, &root, &model, &mut random, shape);
    root.insert(&mut h, &key(1), b"again").unwrap();
    assert_eq!((root.node().level(), env.allocated()), (0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn small_items(seed in any::<u64>()) {
        let shape = Shape { nodesize: 4096, keys: 20_000, size: 60 };
        run(seed, 4000, 256, shape);
    }

    #[test]
    fn large_items(seed in any::<u64>()) {
        let shape = Shape { nodesize: 4096, keys: 2000, size: 3900 };
        run(seed, 3000, 256, shape);
    }

    #[test]
    fn many_levels(seed in any::<u64>()) {
        let shape = Shape { nodesize: 4096, keys: 40_000, size: 1300 };
        run(seed, 6000, 9, shape);
    }

    #[test]
    fn large_nodes(seed in any::<u64>()) {
        let shape = Shape { nodesize: 65536, keys: 20_000, size: 300 };
        run(seed, 4000, 9, shape);
    }
}
