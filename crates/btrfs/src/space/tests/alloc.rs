//! Allocation from many threads, chunks, and a full file system.

use std::sync::Arc;
use std::thread;

use sapwood_btrfs_format::{BlockGroupFlags, objectid};

use super::world::{Numbers, SLOT, World};
use super::{MIB, checked, open};
use crate::Error;
use crate::mount::Engine;
use sapwood_base::RangeSet;
use sapwood_testing::machine::{Need, left_out};
use sapwood_testing::oracle::TempImage;

/// Allocates blocks and data extents and frees some of them. Returns the ones that remain at the
/// end.
fn take_and_give(engine: &Arc<Engine>, seed: u64) -> Vec<(u64, u64)> {
    let mut numbers = Numbers(seed);
    let space = &engine.space;
    let mut mine = Vec::new();
    for _ in 0..300 {
        let want = 4096 * (1 + numbers.below(64));
        if numbers.below(3) == 0 {
            let mut h = engine.start(1).unwrap();
            let tree = objectid::FS_TREE;
            let at = space.alloc_tree_block(&mut h, tree, None, 0).unwrap();
            mine.push((at, space.nodesize));
            h.end().unwrap();
        } else {
            let promise = space.reserve_data(engine.store(), want).unwrap();
            let hint = mine.last().map_or(0, |(at, len)| at + len);
            let found = space.reserve_data_extent(&promise, 4096, want, hint);
            mine.push(found.unwrap());
        }
        if numbers.below(3) == 0 {
            let n = numbers.below(mine.len() as u64) as usize;
            let (at, len) = mine.swap_remove(n);
            space.group_at(at).unwrap().untake(at, len).unwrap();
        }
    }
    mine
}

#[test]
fn threads_never_get_the_same_space() {
    if left_out(&[Need::Program("mkfs.btrfs")]) {
        return;
    }
    let image = TempImage::new(2048 * MIB, &[]);
    let (_, engine) = open(&image);
    let workers: Vec<_> = (0..8)
        .map(|n| {
            let engine = engine.clone();
            thread::spawn(move || take_and_give(&engine, 1000 + n))
        })
        .collect();
    let mut all = RangeSet::new();
    let mut bytes = 0;
    for worker in workers {
        for (at, len) in worker.join().unwrap() {
            assert!(all.within(at, at + len).is_empty(), "{at} was given twice");
            all.insert(at, at + len);
            bytes += len;
        }
    }
    let space = &engine.space;
    let sums = [space.data.sums(), space.metadata.sums()];
    assert_eq!(sums.iter().map(|s| s.reserved).sum::<u64>(), bytes);
    assert_eq!(sums[0].promised, 0);
    for group in space.all_groups() {
        let state = group.lock();
        for (at, len) in state.free.iter() {
            assert!(
                all.within(at, at + len).is_empty(),
                "{at} is free and taken"
            );
            let copies = group.excluded.within(at, at + len);
            assert!(copies.is_empty(), "{at} is free under a superblock");
        }
    }
}

#[test]
fn chunks_are_allocated_and_freed() {
    if left_out(&[Need::Program("mkfs.btrfs"), Need::Program("btrfs")]) {
        return;
    }
    for args in [&[][..], &["-m", "single"], &["-d", "dup"], &["--mixed"]] {
        let image = TempImage::new(700 * MIB, args);
        let (device, engine) = open(&image);
        let groups = engine.space.all_groups().len();
        let mut world = World::new(engine.clone(), 40);
        let mut numbers = Numbers(3);
        for round in 0..6 {
            for _ in 0..300 {
                let promise = engine.space.reserve_data(engine.store(), SLOT).unwrap();
                let mut h = engine.start(8).unwrap();
                world.fill(&mut h, &mut numbers, Some(&promise));
                h.end().unwrap();
            }
            engine.commit_and_unpin(None).unwrap();
            if round % 3 == 2 {
                checked(&device, &format!("{args:?} filled"));
            }
        }
        let most = engine.space.all_groups().len();
        assert!(most > groups, "{args:?}: no chunk was allocated");
        while world.used() > 0 {
            let mut h = engine.start_urgent(8).unwrap();
            world.clear(&mut h, &mut numbers);
            h.end().unwrap();
        }
        engine.commit_and_unpin(None).unwrap();
        let before = engine.space.devices.lock().unallocated();
        while engine.space.has_empty_block_groups() {
            let mut h = engine.start_urgent(8).unwrap();
            let count = engine.space.delete_empty_block_groups(&mut h).unwrap();
            h.end().unwrap();
            if count == 0 {
                break;
            }
        }
        assert!(engine.space.all_groups().len() < most, "{args:?}");
        engine.commit_and_unpin(None).unwrap();
        checked(&device, &format!("{args:?} emptied"));
        let (_, again) = super::open_device(&device);
        let now = engine.space.devices.lock().unallocated();
        assert!(now > before);
        assert_eq!(again.space.devices.lock().unallocated(), now);
        assert!(again.space.volume.chunks() == engine.space.volume.chunks());
    }
}

#[test]
fn a_full_file_system_fails_at_the_reservation() {
    if left_out(&[Need::Program("mkfs.btrfs"), Need::Program("btrfs")]) {
        return;
    }
    for args in [&[][..], &["-m", "single"], &["--mixed"]] {
        let image = TempImage::new(200 * MIB, args);
        let (device, engine) = open(&image);
        let mut world = World::new(engine.clone(), 40);
        let mut numbers = Numbers(11);
        let mut full = 0;
        for round in 0..2 {
            let used = world.used();
            loop {
                let promise = match engine.space.reserve_data(engine.store(), SLOT) {
                    Ok(promise) => promise,
                    Err(Error::NoSpace) => break,
                    Err(err) => panic!("{err}"),
                };
                let mut h = match engine.start(8) {
                    Ok(h) => h,
                    Err(Error::NoSpace) => break,
                    Err(err) => panic!("{err}"),
                };
                world.fill(&mut h, &mut numbers, Some(&promise));
                h.end().unwrap();
            }
            assert!(world.used() > used + 100, "{args:?} round {round}");
            engine.commit_and_unpin(None).unwrap();
            checked(&device, &format!("{args:?} full"));
            full = world.used();
            let info = engine.space.info_of(BlockGroupFlags::METADATA).clone();
            // Everything that ordinary operations could get is taken. Deletions still work.
            let sums = info.sums();
            let rest = sums.total.saturating_sub(sums.taken() + sums.global);
            let rest = info.promise(rest);
            while world.used() > 10 {
                let mut h = engine.start_urgent(8).unwrap();
                world.clear(&mut h, &mut numbers);
                h.end().unwrap();
            }
            drop(rest);
            engine.commit_and_unpin(None).unwrap();
        }
        assert!(full > 1000, "{args:?}: {full} extents");
        checked(&device, &format!("{args:?} emptied"));
    }
}
