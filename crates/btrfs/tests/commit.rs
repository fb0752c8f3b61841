//! What our commits leave on disk, judged by `btrfs check` and the kernel.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Arguments;
use sapwood_block::{Device, FileDevice, MemoryDevice, OpenOptions};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{Kind, TempImage};
use sapwood_vfs::{Credentials, Entry, FileSystem, Ino, NewInode, WriteMode};

const MIB: u64 = 1 << 20;
const ALL: &[Need] = &[
    Need::Program("mkfs.btrfs"),
    Need::Program("btrfs"),
    Need::Kernel(Kind::Btrfs),
];

fn open(path: &Path) -> Btrfs {
    let device = FileDevice::open(path, OpenOptions::default()).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    Btrfs::open(devices, Options::default()).unwrap()
}

fn make(fs: &Btrfs, dir: Ino, name: &str, what: NewInode<'_>) -> Entry {
    fs.create(&Credentials::ROOT, dir, name.as_bytes(), what, 0o755)
        .unwrap()
}

fn empty_commit_changes_nothing() {
    let image = TempImage::new(256 * MIB, &[]);
    let before = std::fs::read(image.path()).unwrap();
    let fs = open(image.path());
    fs.sync().unwrap();
    fs.unmount().unwrap();
    drop(fs);
    assert!(before == std::fs::read(image.path()).unwrap());
}

fn names_reach_the_disk(args: &'static [&'static str]) {
    let image = TempImage::new(512 * MIB, args);
    let fs = open(image.path());
    let dir = make(&fs, fs.root(), "d", NewInode::Directory).ino();
    for i in 0..300 {
        make(&fs, dir, &format!("file{i}"), NewInode::Regular);
        if i % 50 == 0 {
            fs.sync().unwrap();
        }
    }
    make(&fs, fs.root(), "link", NewInode::Symlink(b"d/file7"));
    for i in (0..300).step_by(3) {
        fs.unlink(dir, format!("file{i}").as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    image.check();
    let mount = image.mount();
    assert_eq!(mount.shell("ls d | wc -l; readlink link"), "200\nd/file7\n");
    mount.shell("touch d/more; rm d/file7; sync");
    drop(mount);
    image.check();
}

/// A single small write, and then nothing: it is written back and committed by itself.
fn what_is_left_alone_becomes_durable() {
    let device = Arc::new(MemoryDevice::new(256 * MIB));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let options = Options {
        commit_interval: Duration::from_millis(200),
        ..Options::default()
    };
    let fs = Btrfs::open(vec![device.clone()], options).unwrap();
    let file = make(&fs, fs.root(), "f", NewInode::Regular).ino();
    fs.write(file, 0, &[7; 5000], WriteMode::default()).unwrap();
    let durable = || {
        let options = Options {
            read_only: true,
            ..Options::default()
        };
        let copy = Btrfs::open(vec![Arc::new(device.snapshot())], options).ok()?;
        let file = copy.lookup(copy.root(), b"f").ok()?;
        let mut bytes = vec![0; 5000];
        copy.read(file.ino(), 0, &mut bytes).ok()?;
        (bytes == [7; 5000]).then_some(())
    };
    let begun = Instant::now();
    while durable().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(50));
    }
    fs.unmount().unwrap();
}

fn main() {
    let mut tests = vec![trial(
        "empty_commit_changes_nothing",
        &[Need::Program("mkfs.btrfs")],
        empty_commit_changes_nothing,
    )];
    tests.push(trial(
        "what_is_left_alone_becomes_durable",
        &[],
        what_is_left_alone_becomes_durable,
    ));
    let variants: &[(&str, &[&str])] = &[
        ("default", &[]),
        ("nodesize_4k", &["-n", "4096"]),
        ("nodesize_64k", &["-n", "65536"]),
        ("single", &["-m", "single"]),
        ("mixed", &["--mixed"]),
        ("no_free_space_tree", &["-R", "^free-space-tree"]),
        ("old_extent_items", &["-O", "^skinny-metadata"]),
        ("sha256", &["--csum", "sha256"]),
    ];
    for &(name, args) in variants {
        let test = move || names_reach_the_disk(args);
        tests.push(trial(format!("names_reach_the_disk::{name}"), ALL, test));
    }
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
