//! Random refs of data extents through real commits.

use super::images::{FILL, VARIANTS};
use super::world::{Numbers, SLOT, World};
use super::{MIB, checked, open};
use sapwood_testing::machine::{Need, left_out};
use sapwood_testing::oracle::{Kind, TempImage};

/// Random fills, clones and clears over several commits.
fn churn(world: &mut World, seed: u64, commits: usize, steps: usize) {
    let mut numbers = Numbers(seed);
    for _ in 0..commits {
        for _ in 0..steps {
            let kind = numbers.below(5);
            let engine = world.engine.clone();
            let promise =
                (kind == 0).then(|| engine.space.reserve_data(engine.store(), SLOT).unwrap());
            let mut h = engine.start(6).unwrap();
            match kind {
                0 => world.fill(&mut h, &mut numbers, promise.as_ref()),
                1 | 2 => world.fill(&mut h, &mut numbers, None),
                _ if world.used() > 60 => world.clear(&mut h, &mut numbers),
                _ => {}
            }
            if numbers.below(40) == 0 {
                engine.space.run_delayed_refs(&mut h, Some(20)).unwrap();
            }
            h.end().unwrap();
        }
        world.engine.commit(None).unwrap();
        world.verify();
    }
}

#[test]
fn random_data_refs_are_clean() {
    if left_out(&[Need::Kernel(Kind::Btrfs), Need::Program("btrfs")]) {
        return;
    }
    for (n, &(mib, args)) in VARIANTS.iter().enumerate() {
        let image = TempImage::new(mib * MIB, args);
        image.mount().shell(FILL);
        let (device, engine) = open(&image);
        let mut world = World::new(engine, 12);
        churn(&mut world, 77 + n as u64, 6, 120);
        checked(&device, &format!("{mib} MiB {args:?}"));
        // A new engine must read the same from disk.
        let sums = world.engine.space.data.sums();
        let (_, again) = super::open_device(&device);
        assert_eq!(again.space.data.sums().used, sums.used, "{args:?}");
        assert_eq!(sums.reserved, 0, "{args:?}");
        assert_eq!(sums.pinned, 0, "{args:?}");
    }
}

#[test]
fn emptied_files_leave_no_refs() {
    if left_out(&[Need::Program("mkfs.btrfs"), Need::Program("btrfs")]) {
        return;
    }
    let image = TempImage::new(600 * MIB, &[]);
    let (device, engine) = open(&image);
    let before = engine.space.data.sums().used;
    let mut world = World::new(engine, 8);
    churn(&mut world, 5, 4, 200);
    assert!(world.engine.space.data.sums().used > before);
    let mut numbers = Numbers(9);
    while world.used() > 0 {
        let engine = world.engine.clone();
        let mut h = engine.start_urgent(6).unwrap();
        world.clear(&mut h, &mut numbers);
        h.end().unwrap();
    }
    world.engine.commit_and_unpin(None).unwrap();
    let sums = world.engine.space.data.sums();
    assert_eq!((sums.used, sums.reserved, sums.pinned), (before, 0, 0));
    checked(&device, "emptied");
}

#[test]
fn threads_run_delayed_refs_while_others_commit() {
    if left_out(&[Need::Program("mkfs.btrfs"), Need::Program("btrfs")]) {
        return;
    }
    for args in [&[][..], &["--mixed"], &["-n", "4096"]] {
        let image = TempImage::new(900 * MIB, args);
        let (device, engine) = open(&image);
        let workers: Vec<_> = (0..4)
            .map(|n| {
                let engine = engine.clone();
                let mut world = World::with_first(engine, 5000 + 100 * n, 8);
                std::thread::spawn(move || {
                    let mut numbers = Numbers(n + 1);
                    for step in 0..400 {
                        work(&mut world, &mut numbers);
                        if step % 90 == n as usize {
                            world.engine.commit(None).unwrap();
                        }
                    }
                    world
                })
            })
            .collect();
        let worlds: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        engine.commit_and_unpin(None).unwrap();
        worlds.iter().for_each(World::verify);
        let sums = engine.space.metadata.sums();
        assert_eq!((sums.reserved, sums.pinned), (0, 0));
        checked(&device, &format!("{args:?}"));
    }
}

/// Makes one random change and now and then runs delayed refs.
fn work(world: &mut World, numbers: &mut Numbers) {
    let engine = world.engine.clone();
    let kind = numbers.below(5);
    let promise = (kind == 0).then(|| engine.space.reserve_data(engine.store(), SLOT).unwrap());
    let mut h = engine.start(6).unwrap();
    match kind {
        0 => world.fill(&mut h, numbers, promise.as_ref()),
        1 | 2 => world.fill(&mut h, numbers, None),
        _ => world.clear(&mut h, numbers),
    }
    if numbers.below(10) == 0 {
        engine.space.run_delayed_refs(&mut h, Some(10)).unwrap();
    }
    h.end().unwrap();
}
