//! Quota groups after a power cut at every point of a recorded workload, and without a kernel.

use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_btrfs::Btrfs;
use sapwood_btrfs::check::{Finding, check};
use sapwood_btrfs::quota_groups::{Limits, QuotaChange, change, show};
use sapwood_testing::{CrashPlan, RecordDevice, Replayer};
use sapwood_vfs::{
    CopyMode, Credentials, Error, FileSystem, Ino, NewInode, Subvolumes, SyncKind, WriteMode,
};

use crate::image::{formatted, judge, mount, try_mount};

const SIZE: u64 = 256 << 20;

fn file(fs: &Btrfs, dir: Ino, name: &str, bytes: usize) -> Ino {
    let who = Credentials::ROOT;
    let made = fs.create(&who, dir, name.as_bytes(), NewInode::Regular, 0o600);
    let ino = made.unwrap().ino();
    let content: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
    fs.write(ino, 0, &content, WriteMode::default()).unwrap();
    ino
}

/// An image with quotas and two subvolumes.
fn image() -> Arc<MemoryDevice> {
    let memory = formatted(SIZE);
    let fs = mount(memory.clone());
    change(&fs, QuotaChange::Enable).unwrap();
    for name in ["a", "b"] {
        let sub = fs.create_subvolume(fs.root(), name.as_bytes()).unwrap();
        for i in 0..40 {
            file(&fs, sub.ino(), &format!("f{i}"), 9000 + i * 100);
        }
    }
    fs.unmount().unwrap();
    memory
}

fn workload(fs: &Btrfs) {
    let top = fs.root();
    let a = fs.lookup(top, b"a").unwrap().ino();
    fs.snapshot(a, top, b"s", false).unwrap();
    let s = fs.lookup(top, b"s").unwrap().ino();
    for i in 0..10 {
        file(fs, a, &format!("n{i}"), 20_000);
        fs.unlink(s, format!("f{i}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    let x = file(fs, s, "x", 100_000);
    let y = file(fs, a, "y", 5000);
    fs.fsync(y, SyncKind::All).unwrap();
    fs.copy_range(x, 0, y, 8192, 65536, CopyMode::Any).unwrap();
    fs.fsync(y, SyncKind::All).unwrap();
    fs.sync().unwrap();
    for ino in [x, s, s] {
        fs.forget(ino, 1);
    }
    fs.delete_subvolume(top, b"b").unwrap();
    fs.finish_cleaning();
    fs.sync().unwrap();
}

/// Fails unless the numbers are marked as right, and are right.
fn assert_right(image: &MemoryDevice, why: &str) {
    let report = check(&[image], &Default::default(), &mut |_| ()).unwrap();
    // A cut between the copies of the superblock leaves a stale one.
    let stale = |finding: &Finding| matches!(finding, Finding::SuperStale { .. });
    let found = report.findings.iter().find(|finding| !stale(finding));
    assert_eq!(found, None, "{why}");
}

#[test]
fn every_cut_point_has_the_numbers_of_its_commit() {
    let memory = image();
    let base = memory.snapshot();
    let device = Arc::new(RecordDevice::new(memory));
    let fs = mount(device.clone());
    workload(&fs);
    fs.unmount().unwrap();
    let log = device.log();
    drop(fs);
    let mut replayer = Replayer::new(&log, &base);
    let points = log.crash_points();
    assert!(points.len() > 10, "only {} cut points", points.len());
    for (number, at) in points.into_iter().enumerate() {
        let why = format!("cut at step {at}");
        let image = replayer.image(&CrashPlan::at(at));
        assert_right(&image, &why);
        if number % 10 == 0 {
            judge(&image).unwrap_or_else(|error| panic!("{why}: {error}"));
        }
        let image = Arc::new(image);
        let fs = try_mount(image.clone()).unwrap_or_else(|error| panic!("{why}: {error}"));
        fs.sync().unwrap();
        assert!(show(&fs).unwrap().unwrap().consistent, "{why}");
        fs.unmount().unwrap();
        assert_right(&image, &why);
    }
}

#[test]
fn a_limit_counts_dirty_data_and_gives_way_to_deletions() {
    let memory = image();
    let fs = mount(memory.clone());
    let a = fs.lookup(fs.root(), b"a").unwrap().ino();
    let id = "256".parse().unwrap();
    let limits = Limits {
        referenced: Some(Some(4 << 20)),
        exclusive: None,
    };
    change(&fs, QuotaChange::Limit(id, limits)).unwrap();
    let big = file(&fs, a, "big", 2 << 20);
    let piece = vec![1; 2 << 20];
    let refused = fs.write(big, 2 << 20, &piece, WriteMode::default());
    assert_eq!(refused.unwrap_err(), Error::Quota);
    // At the limit, or below it, nothing that was accepted is lost.
    fs.fsync(big, SyncKind::All).unwrap();
    let copy = fs.lookup(fs.root(), b"b").unwrap().ino();
    fs.write(file(&fs, copy, "other", 0), 0, &piece, WriteMode::default())
        .unwrap();
    fs.forget(big, 1);
    fs.unlink(a, b"big").unwrap();
    file(&fs, a, "small", 2 << 20);
    let none = Limits {
        referenced: Some(None),
        ..limits
    };
    change(&fs, QuotaChange::Limit(id, none)).unwrap();
    file(&fs, a, "large", 8 << 20);
    fs.unmount().unwrap();
    assert_right(&memory, "after the limit");
}
