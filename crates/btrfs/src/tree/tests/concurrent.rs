//! Many threads in one tree. The stand-in reuses freed addresses at once, the last one first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sapwood_btrfs_format::Key;

use super::env::{Env, Random, items, key};
use super::snapshots::snapshot;
use crate::Error;
use crate::tree::{Change, Root};

const THREADS: u64 = 6;

/// Each thread owns the keys that equal its number modulo the number of threads, so neighbours in a
/// leaf belong to different threads.
fn worker(
    env: &Arc<Env>,
    root: &Arc<Root>,
    nth: u64,
    seed: u64,
    model: &mut BTreeMap<Key, Vec<u8>>,
) {
    let mut random = Random::new(seed * 100 + nth);
    let mut h = env.handle();
    // Phases of growing and shrinking, so that the tree splits and merges.
    for phase in 0..4 {
        let grow = if phase % 2 == 0 { 7 } else { 2 };
        for _ in 0..1200 {
            let n = random.below(3000) * THREADS + nth;
            let k = key(n);
            if random.below(10) < grow {
                let data = random.bytes(200);
                root.put(&mut h, &k, &data).unwrap();
                model.insert(k, data);
            } else {
                let gone = root.delete(&mut h, &k).unwrap();
                assert_eq!(gone, model.remove(&k).is_some());
            }
            if random.below(20) == 0 {
                let k = key(random.below(3000) * THREADS + nth);
                let found = root.get(env, &k).unwrap();
                assert_eq!(found.as_deref(), model.get(&k).map(|d| &d[..]));
            }
        }
    }
}

/// Walks the tree until `stop`: keys must ascend.
fn reader(env: &Arc<Env>, root: &Arc<Root>, stop: &AtomicBool) -> u64 {
    let mut walks = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut cursor = root.seek(env, &Key::MIN).unwrap();
        let mut last = None;
        while let Some(k) = cursor.key() {
            assert!(last < Some(k), "{last:?} {k}");
            last = Some(k);
            cursor.next().unwrap();
        }
        let mut back = root.seek_back(env, &Key::MAX).unwrap();
        let mut last = Some(Key::MAX);
        while let Some(k) = back.key() {
            assert!(Some(k) < last);
            last = Some(k);
            back.prev().unwrap();
        }
        let mut committed = None;
        root.walk_committed(env, &Key::MIN, &mut |k, _| {
            assert!(committed < Some(k));
            committed = Some(k);
            Ok(true)
        })
        .unwrap();
        walks += 1;
    }
    walks
}

#[test]
fn threads_change_one_tree() {
    for seed in 0..3 {
        // A small cache, so that blocks are read again.
        let env = Env::new(4096, 64 * 4 * 4096);
        let root = env.root(256);
        let mut models = vec![BTreeMap::new(); THREADS as usize];
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| reader(&env, &root, &stop)))
                .collect();
            for round in 0..3 {
                std::thread::scope(|scope| {
                    for (nth, model) in models.iter_mut().enumerate() {
                        let (env, root) = (&env, &root);
                        scope.spawn(move || {
                            worker(env, root, nth as u64, seed * 10 + round, model);
                        });
                    }
                });
                env.check(&[&root]);
                env.commit(&[&root]);
            }
            stop.store(true, Ordering::Relaxed);
            for reader in readers {
                assert!(reader.join().unwrap() > 0);
            }
        });
        let all: BTreeMap<_, _> = models.into_iter().flatten().collect();
        let found: BTreeMap<_, _> = items(&env, &root).into_iter().collect();
        assert!(found == all, "seed {seed}");
        let (cache, read) = env.reread(&root);
        assert_eq!(items(&cache, &read).len(), all.len());
    }
}

#[test]
fn counters_lose_no_addition() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(9);
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for nth in 0..THREADS {
            let (env, root, total) = (&env, &root, &total);
            scope.spawn(move || {
                let mut random = Random::new(nth);
                let mut h = env.handle();
                for _ in 0..4000 {
                    let k = key(random.below(500));
                    // Sizes change, so that the leaf is often too small and the path is locked.
                    root.modify(&mut h, &k, |old| {
                        let count =
                            old.map_or(0, |d| u64::from_le_bytes(d[..8].try_into().unwrap()));
                        let mut new = (count + 1).to_le_bytes().to_vec();
                        new.resize(8 + (count as usize * 37) % 400, 0);
                        Ok(Change::Put(new))
                    })
                    .unwrap();
                    total.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    env.check(&[&root]);
    let sum: u64 = items(&env, &root)
        .iter()
        .map(|(_, d)| u64::from_le_bytes(d[..8].try_into().unwrap()))
        .sum();
    assert_eq!(sum, total.load(Ordering::Relaxed));
}

#[test]
fn exactly_one_of_many_threads_inserts_a_key() {
    let env = Env::new(4096, 1 << 20);
    let root = env.root(256);
    let won = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut h = env.handle();
                for n in 0..3000 {
                    match root.insert(&mut h, &key(n), &[3; 40]) {
                        Ok(()) => {
                            won.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::ItemExists { .. }) => {}
                        Err(err) => panic!("{err}"),
                    }
                }
            });
        }
    });
    assert_eq!(won.load(Ordering::Relaxed), 3000);
    assert_eq!(env.check(&[&root])[0].items, 3000);
}

/// If threads leave the same shared blocks at once, exactly one must be the last.
#[test]
fn exactly_one_of_the_trees_that_leave_a_block_is_the_last() {
    for seed in 0..6 {
        let env = Env::new(4096, 1 << 20);
        let first = env.root(256);
        let mut h = env.handle();
        for n in 0..3000 {
            first.insert(&mut h, &key(n), &[1; 30]).unwrap();
        }
        let mut trees = vec![first];
        for round in 0..3 {
            let all: Vec<_> = trees.iter().collect();
            env.commit(&all);
            let new = snapshot(&env, &trees[0], 300 + round);
            trees.push(new);
            let all: Vec<_> = trees.iter().collect();
            env.commit(&all);
            let barrier = std::sync::Barrier::new(trees.len());
            std::thread::scope(|scope| {
                for tree in &trees {
                    let (env, barrier) = (&env, &barrier);
                    scope.spawn(move || {
                        let mut random = Random::new(seed);
                        let mut h = env.handle();
                        barrier.wait();
                        // The same keys in the same order in all trees.
                        for _ in 0..300 {
                            let k = key(random.below(3000));
                            tree.put(&mut h, &k, &random.bytes(60)).unwrap();
                        }
                    });
                }
            });
            env.check(&trees.iter().collect::<Vec<_>>());
        }
    }
}
