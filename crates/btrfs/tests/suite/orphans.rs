//! Files that were open and unlinked at a power cut: the next mount gives their space back.

use std::sync::Arc;

use crate::image::{judge, try_mount};
use crate::small::Small;
use sapwood_block::MemoryDevice;
use sapwood_vfs::{FileSystem, SyncKind, WriteMode};

const SIZE: usize = 8 << 20;

/// Writes and unlinks a file in `dir` that stays open.
fn open_and_unlinked(small: &Small, dir: &str) {
    let path = format!("{dir}open");
    small.write(&path, &vec![7; SIZE]);
    let held = small.ino(&path);
    small.sync();
    let (parent, name) = match dir.strip_suffix('/') {
        Some(dir) => (small.ino(dir), "open"),
        None => (small.fs.root(), "open"),
    };
    small.fs.unlink(parent, name.as_bytes()).unwrap();
    // The unlinked file is still there.
    small.fs.write(held, 0, b"x", WriteMode::default()).unwrap();
}

fn free(fs: &dyn FileSystem) -> u64 {
    let stat = fs.statfs().unwrap();
    stat.blocks_free * u64::from(stat.block_size)
}

/// A file system with the subvolume `sub`, just committed, and its free bytes.
fn with_subvolume() -> (Small, u64) {
    let small = Small::new();
    let subvolumes = small.fs.subvolumes().unwrap();
    let root = small.fs.root();
    subvolumes.create_subvolume(root, b"sub").unwrap();
    small.sync();
    let before = free(&small.fs);
    (small, before)
}

/// Mounts `small` after a power cut, and judges it before and after.
fn after_a_cut(small: &Small, look: impl FnOnce(&dyn FileSystem)) {
    let device: Arc<MemoryDevice> = Arc::new(small.device.snapshot());
    judge(&device).unwrap();
    let fs = try_mount(device.clone()).unwrap();
    look(&fs);
    fs.unmount().unwrap();
    drop(fs);
    judge(&device).unwrap();
}

fn assert_free(fs: &dyn FileSystem, before: u64) {
    assert!(free(fs) + (1 << 20) > before, "{} of {before}", free(fs));
}

/// Mounts `small` after a power cut. `enter`: a subvolume to look into.
fn space_comes_back(small: &Small, before: u64, enter: Option<&str>) {
    after_a_cut(small, |fs| {
        if let Some(name) = enter {
            fs.lookup(fs.root(), name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        assert_free(fs, before);
    });
}

#[test]
fn a_commit_leaves_an_orphan_that_the_mount_deletes() {
    let small = Small::new();
    let before = free(&small.fs);
    open_and_unlinked(&small, "");
    small.sync();
    space_comes_back(&small, before, None);
}

#[test]
fn a_mount_that_replays_a_log_deletes_orphans_too() {
    let small = Small::new();
    small.write("logged", b"1");
    let before = free(&small.fs);
    open_and_unlinked(&small, "");
    small.sync();
    small.write("logged", b"2");
    small.fs.fsync(small.ino("logged"), SyncKind::All).unwrap();
    assert_eq!(small.counter("log_commits"), 1);
    space_comes_back(&small, before, None);
}

#[test]
fn orphans_of_another_subvolume_go_when_it_is_entered() {
    let (small, before) = with_subvolume();
    open_and_unlinked(&small, "sub/");
    small.sync();
    space_comes_back(&small, before, Some("sub"));
}

#[test]
fn a_snapshot_of_an_orphan_knows_it_as_one() {
    let (small, before) = with_subvolume();
    open_and_unlinked(&small, "sub/");
    let (root, source) = (small.fs.root(), small.ino("sub"));
    let subvolumes = small.fs.subvolumes().unwrap();
    subvolumes.snapshot(source, root, b"copy", false).unwrap();
    small.sync();
    after_a_cut(&small, |fs| {
        for name in [&b"sub"[..], b"copy"] {
            let shared = free(fs) + (SIZE as u64) / 2 < before;
            assert!(shared, "both share the space");
            fs.lookup(fs.root(), name).unwrap();
            fs.sync().unwrap();
        }
        assert_free(fs, before);
    });
}

#[test]
fn a_file_without_a_name_may_outlive_commits_and_go_in_any_of_them() {
    for commits in 0..3 {
        let small = Small::new();
        let before = free(&small.fs);
        small.write("open", &vec![7; SIZE]);
        let held = small.ino("open");
        small.sync();
        small.fs.unlink(small.fs.root(), b"open").unwrap();
        for _ in 0..commits {
            small.sync();
        }
        small.fs.forget(held, u64::MAX);
        small.sync();
        assert_free(&small.fs, before);
        space_comes_back(&small, before, None);
    }
}
