//! Reads images that the kernel wrote.

use sapwood_btrfs_format::BlockGroupFlags;

use super::{MIB, checked, open};
use sapwood_testing::machine::{Need, left_out};
use sapwood_testing::oracle::{Kind, TempImage};

/// Features that affect space.
pub(super) const VARIANTS: &[(u64, &[&str])] = &[
    (512, &[]),
    (2048, &[]),
    (300, &["-m", "single"]),
    (400, &["-d", "dup"]),
    (200, &["--mixed"]),
    (400, &["-n", "4096"]),
    (600, &["-n", "65536"]),
    (400, &["-R", "^free-space-tree"]),
    (400, &["-O", "^skinny-metadata"]),
];

/// Creates files with holes between them, so that free space is fragmented.
pub(super) const FILL: &str =
    "for i in $(seq 1 60); do head -c $((i * 7000)) /dev/urandom > f$i; done
    sync
    for i in $(seq 1 3 60); do rm f$i; done
    mkdir d; for i in $(seq 1 800); do echo $i > d/$i; done
    sync";

#[test]
fn statfs_agrees_with_the_kernel() {
    if left_out(&[Need::Kernel(Kind::Btrfs)]) {
        return;
    }
    for &(mib, args) in VARIANTS {
        let image = TempImage::new(mib * MIB, args);
        image.mount().shell(FILL);
        let kernel = image.mount().shell("stat -f -c '%S %b %f %a %l' .");
        let (_, engine) = open(&image);
        let ours = engine.space.statfs(&engine.fsid, 5);
        let ours = format!(
            "{} {} {} {} {}",
            ours.block_size, ours.blocks, ours.blocks_free, ours.blocks_available, ours.name_max
        );
        assert_eq!(ours, kernel.trim(), "{mib} MiB {args:?}");
    }
}

#[test]
fn statfs_of_a_full_image_agrees() {
    if left_out(&[Need::Kernel(Kind::Btrfs)]) {
        return;
    }
    for args in [&[][..], &["--mixed"], &["-m", "single"]] {
        let image = TempImage::new(200 * MIB, args);
        let fill = "for i in 1 2 3; do head -c 150M /dev/zero > f$i || true; sync; done 2>&1";
        image.mount().shell(fill);
        let kernel = image.mount().shell("stat -f -c '%b %f %a' .");
        let (_, engine) = open(&image);
        let ours = engine.space.statfs(&engine.fsid, 5);
        let ours = (ours.blocks, ours.blocks_free, ours.blocks_available);
        let ours = format!("{} {} {}", ours.0, ours.1, ours.2);
        assert_eq!(ours, kernel.trim(), "{args:?}");
    }
}

#[test]
fn free_space_tree_and_extent_tree_agree() {
    if left_out(&[Need::Kernel(Kind::Btrfs)]) {
        return;
    }
    for &(mib, args) in VARIANTS {
        let image = TempImage::new(mib * MIB, args);
        image.mount().shell(FILL);
        let (_, engine) = open(&image);
        let space = &engine.space;
        for group in space.all_groups() {
            let gaps = space.read_gaps(&group).unwrap();
            if let Some(tree) = &space.trees.free_space {
                let items = space.read_free_space_items(tree, &group).unwrap();
                assert_eq!(items, gaps, "{mib} MiB {args:?} group {}", group.start);
            }
            space.ensure_loaded(&group).unwrap();
            let state = group.lock();
            let free = group.len - state.used - group.super_bytes();
            assert_eq!(state.free.bytes(), free, "{mib} MiB {args:?}");
        }
        let info = space.info_of(BlockGroupFlags::METADATA);
        assert!(info.sums().used > 0);
        assert_eq!(
            space.bytes_used(),
            engine.super_block.lock().bytes_used.get()
        );
    }
}

#[test]
fn space_cache_of_the_first_version_is_dropped() {
    let test = "space_cache_of_the_first_version_is_dropped";
    if left_out(&[Need::Kernel(Kind::Btrfs), Need::Program("btrfs")]) {
        return;
    }
    // The kernel keeps caches only for groups from 100 MiB on.
    let image = TempImage::new(4096 * MIB, &["-R", "^free-space-tree"]);
    image.mount_with("rw,space_cache=v1").shell(FILL);
    let (device, engine) = open(&image);
    assert!(engine.space.has_v1_cache().unwrap(), "the kernel made none");
    let used = engine.space.data.sums().used;
    engine.drop_stale_caches().unwrap();
    assert!(!engine.space.has_v1_cache().unwrap());
    engine.commit_and_unpin(None).unwrap();
    assert!(engine.space.data.sums().used < used);
    assert_eq!(engine.super_block.lock().cache_generation.get(), 0);
    checked(&device, test);
    let again = TempImage::blank(0);
    device.save(again.path()).unwrap();
    again
        .mount()
        .shell("cat f2 > /dev/null; echo new > new; sync");
    again.check();
}
