//! Trees with real space and real transactions: threads change trees while commits run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs_format::{Key, objectid};

use super::env::{Random, items, key};
use crate::Options;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::mount::Engine;
use crate::tree::Root;
use crate::tree::verify::verify_tree;
use sapwood_testing::machine::{Need, part_left_out};
use sapwood_testing::oracle::TempImage;

const THREADS: u64 = 4;

fn open(device: &Arc<MemoryDevice>) -> Arc<Engine> {
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let options = Options {
        background: false,
        cache_bytes: 4 << 20,
        ..Options::default()
    };
    Engine::open(devices, options).unwrap().0
}

type Model = BTreeMap<Key, Vec<u8>>;

fn worker(engine: &Arc<Engine>, root: &Arc<Root>, nth: u64, seed: u64) -> Model {
    let mut random = Random::new(seed * 100 + nth);
    let mut model = Model::new();
    for step in 0..1500 {
        let grow = if step / 400 % 2 == 0 { 8 } else { 3 };
        let mut h = engine.start(4).unwrap();
        let k = key(random.below(2000) * THREADS + nth);
        if random.below(10) < grow {
            let data = random.bytes(300);
            root.put(&mut h, &k, &data).unwrap();
            model.insert(k, data);
        } else {
            assert_eq!(root.delete(&mut h, &k).unwrap(), model.remove(&k).is_some());
        }
        h.end().unwrap();
    }
    model
}

#[test]
fn threads_change_a_tree_while_commits_run() {
    for (seed, nodesize) in [(1, 4096), (2, 16384)] {
        let device = Arc::new(MemoryDevice::new(1 << 30));
        let options = MkfsOptions {
            node_size: Some(nodesize),
            ..MkfsOptions::default()
        };
        mkfs(&*device, &options).unwrap();
        let engine = open(&device);
        let root = engine.roots.get(objectid::UUID_TREE).unwrap();
        let before: Model = items(&*engine, &root).into_iter().collect();
        let stop = AtomicBool::new(false);
        let mut all = std::thread::scope(|scope| {
            let commits = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    engine.commit(None).unwrap();
                }
            });
            let workers: Vec<_> = (0..THREADS)
                .map(|nth| {
                    let (engine, root) = (&engine, &root);
                    scope.spawn(move || worker(engine, root, nth, seed))
                })
                .collect();
            let models: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
            stop.store(true, Ordering::Relaxed);
            commits.join().unwrap();
            let models = models.into_iter().map(Result::unwrap);
            models.flatten().collect::<Model>()
        });
        all.extend(before);
        engine.commit(None).unwrap();
        verify_tree(&*engine, &root).unwrap();
        drop((root, engine));
        let engine = open(&device);
        for id in engine.roots.ids().unwrap() {
            verify_tree(&*engine, &engine.roots.get(id).unwrap()).unwrap();
        }
        let root = engine.roots.get(objectid::UUID_TREE).unwrap();
        let found: Model = items(&*engine, &root).into_iter().collect();
        assert!(found == all, "seed {seed}");
        if part_left_out("btrfs check", &[Need::Program("btrfs")]) {
            return;
        }
        let image = TempImage::blank(0);
        device.save(image.path()).unwrap();
        image.check();
    }
}
