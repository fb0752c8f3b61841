use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sapwood_block::{Device, MemoryDevice};

use super::*;
use crate::engine::Engine;
use crate::oracles::{self, KERNEL, MIB, TOOLS, clean, dumped, engine, image, left_out};
use crate::{Options, mount};

/// A small file system without a journal.
fn small(size: u64, args: &str) -> (Arc<MemoryDevice>, Arc<Engine>) {
    let device = image(size, &format!("-O ^has_journal {args}"));
    let engine = engine(&device, Options::default());
    (device, engine)
}

fn in_handle<T>(engine: &Arc<Engine>, groups: u32, body: impl FnOnce(&Handle) -> T) -> T {
    let h = engine.start(CREDITS * groups).unwrap();
    body(&h)
}

fn try_take(engine: &Engine, goal: u64, len: u32, ino: u32) -> Result<Extent> {
    allocate(&engine.groups, &Request { goal, len, ino })
}

fn take(engine: &Engine, goal: u64, len: u32, ino: u32) -> Extent {
    try_take(engine, goal, len, ino).unwrap()
}

fn blocks(extent: Extent) -> impl Iterator<Item = u64> {
    extent.start..extent.start + u64::from(extent.len)
}

#[test]
fn the_goal_is_given_if_it_is_free_and_else_what_is_near() {
    if left_out(TOOLS) {
        return;
    }
    let (device, engine) = small(256 * MIB, "-b 1024");
    let first = engine.groups.group(5).unwrap().first_block + 4000;
    assert_eq!(take(&engine, first, 10, 12).start, first);
    // Small and not a continuation: right after.
    assert_eq!(take(&engine, first, 4, 13).start, first + 10);
    // Large: a chunk of its size in the same group.
    let large = take(&engine, first, 1000, 14);
    assert_eq!(large.len, 1000);
    assert_eq!(engine.geometry.group_of_block(large.start).unwrap().0, 5);
    // More than a group has in one piece: the most that there is nearby.
    let most = take(&engine, first, 20_000, 15);
    assert!(most.len >= 4096, "{most:?}");
    // A goal outside of the file system is ignored.
    assert!(take(&engine, u64::MAX, 4, 16).start < engine.geometry.blocks_count());
    assert!(try_take(&engine, 0, 0, 17).is_err());
    // Nothing was claimed, so nothing is left of it.
    mount::close(&engine).unwrap();
    clean(&device, "nothing claimed");
}

#[test]
fn a_request_goes_to_its_flex_group_before_it_leaves_it() {
    if left_out(TOOLS) {
        return;
    }
    let (_device, engine) = small(256 * MIB, "-b 1024 -G 4");
    let goal = engine.groups.group(9).unwrap().first_block;
    let flex = |extent: Extent| {
        let (group, _) = engine.geometry.group_of_block(extent.start).unwrap();
        engine.geometry.flex_of_group(group)
    };
    let mut got = 0;
    let free: u32 = (8..12)
        .map(|n| engine.groups.group(n).unwrap().free_blocks())
        .sum();
    // Chunks of that size run out a little before blocks do.
    while got < free / 10 * 9 {
        let extent = take(&engine, goal, 500, 12);
        assert_eq!(flex(extent), 2, "{got} of {free} blocks were taken");
        cancel_kept(&engine);
        got += extent.len;
    }
    let len = free - got + 1;
    assert_ne!(flex(take(&engine, goal, len, 12)), 2);
}

/// Releases the blocks kept for streams.
fn cancel_kept(engine: &Engine) {
    for extent in engine.groups.streams().remove_all() {
        give_back(&engine.groups, extent);
    }
}

#[test]
fn claims_cancels_frees_and_commits_in_any_order_leave_what_a_model_says() {
    if left_out(TOOLS) {
        return;
    }
    for (seed, args) in [
        "-b 1024",
        "-b 1024 -O ^has_journal",
        "-b 1024 -t ext2",
        "-b 4096 -O ^64bit",
        "-b 1024 -O ^flex_bg,^has_journal",
    ]
    .iter()
    .enumerate()
    {
        let device = image(64 * MIB, args);
        let engine = engine(&device, Options::default());
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let before = engine.groups.free_blocks();
        let mut used: Vec<Extent> = Vec::new();
        let mut owned = BTreeSet::new();
        for _ in 0..400 {
            match random.u32(0..10) {
                0..=4 => {
                    let goal = random.u64(0..engine.geometry.blocks_count());
                    let extent = take(&engine, goal, random.u32(1..300), random.u32(12..20));
                    assert!(!engine.groups.is_system(extent.start, extent.len.into()));
                    if random.u32(0..4) == 0 {
                        cancel(&engine.groups, extent);
                        continue;
                    }
                    // No thread has them, and they are not waiting for a commit.
                    assert!(
                        blocks(extent).all(|block| owned.insert(block)),
                        "{extent:?}"
                    );
                    in_handle(&engine, 1, |h| claim(&engine.groups, h, extent).unwrap());
                    used.push(extent);
                }
                5..=7 if !used.is_empty() => {
                    let extent = used.swap_remove(random.usize(0..used.len()));
                    // A part of it, so that freed ranges differ from allocated ones.
                    let keep = random.u32(0..extent.len);
                    let gone = Extent {
                        start: extent.start + u64::from(keep),
                        len: extent.len - keep,
                    };
                    if keep > 0 {
                        used.push(Extent {
                            len: keep,
                            ..extent
                        });
                    }
                    in_handle(&engine, 1, |h| {
                        free(&engine.groups, h, gone, random.bool()).unwrap()
                    });
                }
                _ => {
                    engine.journal.commit_and_settle().unwrap();
                    owned = used.iter().flat_map(|extent| blocks(*extent)).collect();
                    let left = before - owned.len() as u64;
                    assert_eq!(
                        (engine.groups.free_blocks(), engine.groups.freed_blocks()),
                        (left, 0)
                    );
                }
            }
        }
        engine.journal.commit_and_settle().unwrap();
        engine.journal.checkpoint().unwrap();
        let left = engine.groups.free_blocks();
        let says: u64 = dumped(&device)
            .iter()
            .map(|group| u64::from(group.free_blocks))
            .sum();
        assert_eq!(says, left, "{args}");
        for extent in used {
            in_handle(&engine, 1, |h| {
                free(&engine.groups, h, extent, false).unwrap()
            });
        }
        assert_eq!(
            engine
                .journal
                .counters()
                .list()
                .iter()
                .find(|c| c.0 == "overdrafts")
                .map(|c| c.1),
            Some(0)
        );
        mount::close(&engine).unwrap();
        clean(&device, args);
    }
}

#[test]
fn freed_blocks_are_not_given_before_their_commit_and_a_promise_waits_for_freed_blocks() {
    if left_out(TOOLS) {
        return;
    }
    let (_device, engine) = small(16 * MIB, "-b 1024 -m 0");
    let mut used = Vec::new();
    while let Ok(extent) = try_take(&engine, 0, 700, 12) {
        in_handle(&engine, 1, |h| claim(&engine.groups, h, extent).unwrap());
        used.push(extent);
    }
    assert_eq!(engine.groups.free_blocks(), 0);
    assert!(engine.space.reserve(1, true).is_err());
    for extent in used.split_off(2) {
        in_handle(&engine, 1, |h| {
            free(&engine.groups, h, extent, false).unwrap()
        });
    }
    let freed = engine.groups.freed_blocks();
    assert!(freed > 1000);
    let request = Request {
        goal: 0,
        len: 1,
        ino: 12,
    };
    assert!(matches!(
        allocate(&engine.groups, &request),
        Err(Error::NoSpace)
    ));
    // More than a commit would give does not cause one.
    assert!(engine.space.reserve(freed + 1, true).is_err());
    assert_eq!(engine.groups.freed_blocks(), freed);
    let promise = engine.space.reserve(freed / 2, true).unwrap();
    assert_eq!(
        (engine.groups.freed_blocks(), engine.groups.free_blocks()),
        (0, freed)
    );
    assert_eq!(promise.blocks(), freed / 2);
    allocate(&engine.groups, &request).unwrap();
}

#[test]
fn promises_never_exceed_what_is_free() {
    if left_out(TOOLS) {
        return;
    }
    let (_device, engine) = small(16 * MIB, "-b 1024 -m 10");
    let free = engine.groups.free_blocks();
    let pool = engine.geometry.blocks_count() / 50;
    let mut all = engine.space.reserve(0, false).unwrap();
    while let Ok(more) = engine.space.reserve(7, false) {
        all.merge(more);
    }
    let ordinary = all.blocks();
    let reserved = engine.geometry.blocks_count() / 10;
    assert!(ordinary + reserved + pool <= free);
    // Seven blocks more, and one tree block for each 42 of data, do not fit.
    assert!(ordinary + ordinary / 42 + 8 + reserved + pool > free);
    while let Ok(more) = engine.space.reserve(7, true) {
        all.merge(more);
    }
    assert!(all.blocks() >= ordinary + reserved * 9 / 10);
    // A file that was promised blocks gets them.
    let mut left = all.blocks();
    while left > 0 {
        let len = u32::try_from(left.min(100)).unwrap();
        let extent = take(&engine, 0, len, 12);
        all.give_back(extent.len.into());
        left -= u64::from(extent.len);
    }
    assert_eq!(engine.space.promised(), 0);
    // The reserve for metadata is still there.
    assert!(engine.groups.free_blocks() >= pool);
    in_handle(&engine, 1, |h| allocate_meta(&engine.groups, h, 0).unwrap());
}

/// Number of extents that the blocks of a file make up.
fn extents(blocks: &[u64]) -> usize {
    1 + blocks
        .windows(2)
        .filter(|pair| pair[1] != pair[0] + 1)
        .count()
}

#[test]
fn files_that_grow_at_once_are_kept_apart() {
    if left_out(TOOLS) {
        return;
    }
    let (device, engine) = small(256 * MIB, "-b 4096");
    let goal = engine.groups.group(0).unwrap().first_block;
    let mut files: Vec<Vec<u64>> = vec![Vec::new(); 8];
    for _ in 0..256 {
        for (ino, file) in (12..).zip(&mut files) {
            let goal = file.last().map_or(goal, |last| last + 1);
            let extent = take(&engine, goal, 1, ino);
            in_handle(&engine, 1, |h| claim(&engine.groups, h, extent).unwrap());
            file.extend(blocks(extent));
        }
    }
    for file in &files {
        assert!(
            extents(file) <= 8,
            "{} extents of 256 blocks",
            extents(file)
        );
    }
    // Small files that are written once are contiguous.
    let goal = engine.groups.group(1).unwrap().first_block;
    let mut last = 0;
    for ino in 100..200 {
        let extent = take(&engine, goal, 3, ino);
        assert!(
            last == 0 || extent.start == last,
            "a gap of {}",
            extent.start - last
        );
        last = extent.start + 3;
        cancel_kept(&engine);
    }
    for block in files.concat() {
        let extent = Extent {
            start: block,
            len: 1,
        };
        in_handle(&engine, 1, |h| {
            free(&engine.groups, h, extent, false).unwrap()
        });
    }
    mount::close(&engine).unwrap();
    clean(&device, "streams");
}

#[test]
fn files_that_threads_append_to_are_kept_apart() {
    if left_out(TOOLS) {
        return;
    }
    let (device, engine) = small(256 * MIB, "-b 4096");
    let goal = engine.groups.group(0).unwrap().first_block;
    let append = |ino: u32| {
        let mut file: Vec<u64> = Vec::new();
        while file.len() < 600 {
            let goal = file.last().map_or(goal, |last| last + 1);
            let extent = take(&engine, goal, 3, ino);
            in_handle(&engine, 1, |h| claim(&engine.groups, h, extent).unwrap());
            file.extend(blocks(extent));
        }
        file
    };
    let files: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (12..18)
            .map(|ino| scope.spawn(move || append(ino)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let all: BTreeSet<u64> = files.iter().flatten().copied().collect();
    assert_eq!(all.len(), files.iter().map(Vec::len).sum::<usize>());
    for file in &files {
        assert!(
            extents(file) <= 8,
            "{} extents of {} blocks",
            extents(file),
            file.len()
        );
    }
    for ino in 12..18 {
        end_stream(&engine.groups, ino);
    }
    let free_now = engine.groups.free_blocks();
    let buddies: u64 = (0..engine.groups.count())
        .map(|number| u64::from(engine.groups.group(number).unwrap().free_blocks()))
        .sum();
    assert_eq!(buddies, free_now);
    for block in all {
        let extent = Extent {
            start: block,
            len: 1,
        };
        in_handle(&engine, 1, |h| {
            free(&engine.groups, h, extent, false).unwrap()
        });
    }
    mount::close(&engine).unwrap();
    clean(&device, "threads");
}

#[test]
fn what_is_kept_is_given_back_before_anyone_fails() {
    if left_out(TOOLS) {
        return;
    }
    let (_device, engine) = small(16 * MIB, "-b 1024");
    let first = take(&engine, 0, 64, 12);
    let second = take(&engine, first.start + 64, 64, 12);
    assert_eq!(second.start, first.start + 64);
    let buddies = || -> u64 {
        let all = (0..engine.groups.count()).map(|n| engine.groups.group(n).unwrap().free_blocks());
        all.map(u64::from).sum()
    };
    assert!(buddies() < engine.groups.free_blocks());
    let free = engine.groups.free_blocks();
    let mut got = 0;
    while let Ok(extent) = try_take(&engine, 0, 100, 13) {
        got += u64::from(extent.len);
    }
    assert_eq!((got, engine.groups.free_blocks(), buddies()), (free, 0, 0));
}

#[test]
fn what_contradicts_the_bitmap_is_an_error_and_puts_the_group_out_of_use() {
    if left_out(TOOLS) {
        return;
    }
    let (_device, engine) = small(64 * MIB, "-b 1024");
    let group = engine.groups.group(2).unwrap();
    let goal = group.first_block + 4000;
    let extent = take(&engine, goal, 8, 12);
    in_handle(&engine, 1, |h| claim(&engine.groups, h, extent).unwrap());
    // Metadata of groups, blocks that do not exist, blocks of two groups.
    let system = Extent { start: 2, len: 1 };
    let nowhere = Extent {
        start: u64::MAX - 3,
        len: 8,
    };
    let border = Extent {
        start: group.first_block - 1,
        len: 2,
    };
    let h = engine.start(8).unwrap();
    assert!(free(&engine.groups, &h, system, false).is_err());
    assert!(free(&engine.groups, &h, nowhere, true).is_err());
    assert!(claim(&engine.groups, &h, border).is_err());
    assert!(engine.groups.lock_blocks(group).is_ok());
    // Claimed again, which the buddy would never allow.
    let before = engine.groups.free_blocks();
    let lost = u64::from(group.free_blocks());
    assert!(claim(&engine.groups, &h, extent).is_err());
    assert_eq!(engine.groups.free_blocks(), before - lost);
    // From now on freed blocks there stay used, and none is allocated.
    free(&engine.groups, &h, extent, false).unwrap();
    assert_eq!(engine.groups.freed_blocks(), 0);
    let other = take(&engine, goal, 8, 13);
    assert_ne!(engine.geometry.group_of_block(other.start).unwrap().0, 2);
    // Freed twice.
    claim(&engine.groups, &h, other).unwrap();
    free(&engine.groups, &h, other, false).unwrap();
    assert!(free(&engine.groups, &h, other, false).is_err());
}

#[test]
fn what_is_freed_is_discarded_after_its_commit() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(64 * MIB, "-b 4096 -O ^has_journal");
    let options = Options {
        discard: true,
        ..Options::default()
    };
    let engine = engine(&device, options);
    let extent = take(&engine, 5000, 2, 12);
    in_handle(&engine, 1, |h| claim(&engine.groups, h, extent).unwrap());
    device.write_at(extent.start * 4096, &[7; 8192]).unwrap();
    in_handle(&engine, 1, |h| {
        free(&engine.groups, h, extent, false).unwrap()
    });
    let mut bytes = [0; 8192];
    device.read_at(extent.start * 4096, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8192]);
    engine.journal.commit_and_settle().unwrap();
    device.read_at(extent.start * 4096, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8192]);
}

#[test]
fn statfs_is_what_the_kernel_says() {
    if left_out(KERNEL) {
        return;
    }
    for args in [
        "",
        "-b 1024",
        "-b 1024 -O ^has_journal -m 1",
        "-t ext3 -b 2048",
        "-t ext2 -b 1024 -m 0",
        "-b 1024 -O meta_bg,^resize_inode",
        "-b 1024 -O ^flex_bg -N 3000",
    ] {
        let device = image(80 * MIB, args);
        let ours = engine(
            &device,
            Options {
                read_only: true,
                ..Options::default()
            },
        )
        .space
        .statfs();
        let kernel = oracles::kernel(&device, |path| rustix::fs::statvfs(path).unwrap());
        assert_eq!(u64::from(ours.block_size), kernel.f_bsize, "{args}");
        assert_eq!(ours.blocks, kernel.f_blocks, "{args}");
        assert_eq!(ours.blocks_free, kernel.f_bfree, "{args}");
        // Without the tree blocks of this much data, which the kernel does not reserve.
        let tree = kernel.f_bavail / (kernel.f_bsize / 24 + 1);
        let most = kernel.f_bavail - tree;
        assert!((most - 1..=most).contains(&ours.blocks_available), "{args}");
        assert_eq!(
            (ours.inodes, ours.inodes_free),
            (kernel.f_files, kernel.f_ffree),
            "{args}"
        );
        assert_eq!(u64::from(ours.name_max), kernel.f_namemax, "{args}");
        assert_eq!(ours.fsid, kernel.f_fsid, "{args}");
    }
}

#[test]
fn threads_that_allocate_free_and_commit_never_share_a_block() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(32 * MIB, "-b 1024 -m 0");
    let engine = engine(&device, Options::default());
    let before = engine.groups.free_blocks();
    // Per block: 0 never used, the largest number in use, else the transaction that freed it.
    let owners: Vec<AtomicU64> = (0..engine.geometry.blocks_count())
        .map(|_| AtomicU64::new(0))
        .collect();
    let done = AtomicBool::new(false);
    let work = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut own: Vec<Extent> = Vec::new();
        for _ in 0..400 {
            let request = Request {
                goal: random.u64(0..engine.geometry.blocks_count()),
                len: random.u32(1..200),
                ino: random.u32(12..30),
            };
            if let Ok(extent) = allocate(&engine.groups, &request) {
                let durable = engine.journal.durable_tid();
                for block in blocks(extent) {
                    let before = owners[block as usize].swap(u64::MAX, Ordering::SeqCst);
                    assert!(
                        before <= durable,
                        "block {block}: freed in {before} of {durable}"
                    );
                }
                in_handle(&engine, 1, |h| claim(&engine.groups, h, extent).unwrap());
                own.push(extent);
            }
            while own.len() > 20 || (!own.is_empty() && random.u32(0..3) == 0) {
                let extent = own.swap_remove(random.usize(0..own.len()));
                in_handle(&engine, 1, |h| {
                    for block in blocks(extent) {
                        owners[block as usize].store(h.tid(), Ordering::SeqCst);
                    }
                    free(&engine.groups, h, extent, false).unwrap();
                });
            }
        }
        own
    };
    let left: Vec<Extent> = std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                engine.journal.commit_and_settle().unwrap();
            }
        });
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(seed))).collect();
        let left = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        done.store(true, Ordering::SeqCst);
        committer.join().unwrap();
        left
    });
    for extent in left {
        in_handle(&engine, 1, |h| {
            free(&engine.groups, h, extent, false).unwrap()
        });
    }
    engine.journal.commit_and_settle().unwrap();
    assert_eq!(
        (engine.groups.free_blocks(), engine.groups.freed_blocks()),
        (before, 0)
    );
    mount::close(&engine).unwrap();
    clean(&device, "threads");
}
