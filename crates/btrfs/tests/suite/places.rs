//! Changed tree blocks that return to their old addresses, and data that is overwritten in place.

use std::collections::BTreeSet;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs};
use sapwood_btrfs::{Btrfs, Options, places};
use sapwood_vfs::{
    Credentials, FileSystem, Ino, NewInode, SetAttr, Timestamp, TrimRange, WriteMode,
};

use super::devices::{MIB, SIZE, any};
use super::relocation::{filled, noise, whole};

const BLOCK: usize = 4096;
const FILES: u64 = 3000;
const LARGE: usize = 2 << 20;

fn open(device: &Arc<dyn Device>) -> Btrfs {
    let mut options = Options {
        background: false,
        in_place: true,
        noatime: true,
        ..Options::default()
    };
    options.set_reproducible(Timestamp { sec: 1, nsec: 0 });
    Btrfs::open(vec![Arc::clone(device)], options).unwrap()
}

fn create(fs: &Btrfs, name: &str, content: &[u8]) {
    let (user, dir) = (&Credentials::ROOT, fs.root());
    let made = fs.create(user, dir, name.as_bytes(), NewInode::Regular, 0o600);
    write(fs, made.unwrap().ino(), 0, content);
}

fn write(fs: &Btrfs, ino: Ino, offset: u64, bytes: &[u8]) {
    fs.write(ino, offset, bytes, WriteMode::default()).unwrap();
}

fn ino(fs: &Btrfs, dir: Ino, name: &str) -> Ino {
    fs.lookup(dir, name.as_bytes()).unwrap().ino()
}

fn read(fs: &Btrfs, ino: Ino, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), len);
    bytes
}

/// Changes of files all over the tree.
fn change(fs: &Btrfs) {
    for number in (0..FILES).step_by(40) {
        let changes = SetAttr {
            perm: Some(0o640),
            ..SetAttr::default()
        };
        let file = ino(fs, fs.root(), &format!("file{number}"));
        fs.setattr(file, &changes).unwrap();
    }
    for number in 100..110 {
        fs.unlink(fs.root(), format!("file{number}").as_bytes())
            .unwrap();
        create(fs, &format!("new{number}"), b"new");
    }
    let large = ino(fs, fs.root(), "large");
    for (nth, offset) in [0, 8192, 1 << 20].into_iter().enumerate() {
        write(fs, large, offset, &noise(nth as u64 + 10, 3 * BLOCK));
    }
    fs.sync().unwrap();
}

fn expected_large() -> Vec<u8> {
    let mut expected = noise(1, LARGE);
    for (nth, offset) in [0, 8192, 1 << 20].into_iter().enumerate() {
        let part = &mut expected[offset..offset + 3 * BLOCK];
        part.copy_from_slice(&noise(nth as u64 + 10, 3 * BLOCK));
    }
    expected
}

/// Blocks that differ.
fn differing(one: &dyn Device, other: &dyn Device) -> BTreeSet<u64> {
    let mut buffers = [vec![0; MIB as usize], vec![0; MIB as usize]];
    let mut found = BTreeSet::new();
    for start in (0..SIZE).step_by(MIB as usize) {
        let [a, b] = &mut buffers;
        one.read_at(start, a).unwrap();
        other.read_at(start, b).unwrap();
        let blocks = a.chunks(BLOCK).zip(b.chunks(BLOCK)).enumerate();
        let blocks = blocks.filter(|(_, (a, b))| a != b);
        found.extend(blocks.map(|(nth, _)| start / BLOCK as u64 + nth as u64));
    }
    found
}

fn assert_whole(device: &dyn Device) {
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let report = check(&[device], &options, &mut |_| ()).unwrap();
    assert_eq!(report.findings, []);
}

#[test]
fn only_changed_blocks_differ() {
    let old = Arc::new(MemoryDevice::new(SIZE));
    let options = MkfsOptions {
        metadata: Some(Profile::Dup),
        ..MkfsOptions::default()
    };
    mkfs(&*old, &options).unwrap();
    let fs = open(&any(&old));
    create(&fs, "large", &noise(1, LARGE));
    for number in 0..FILES {
        create(&fs, &format!("file{number}"), &noise(number, 300));
    }
    fs.sync().unwrap();
    fs.trim(&TrimRange::default()).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let mut images = Vec::new();
    for restored in [false, true, true] {
        let new = Arc::new(old.snapshot());
        let fs = open(&any(&new));
        change(&fs);
        if restored {
            places::restore(&fs, &any(&old)).unwrap();
        }
        fs.trim(&TrimRange::default()).unwrap();
        assert!(read(&fs, ino(&fs, fs.root(), "large"), LARGE) == expected_large());
        fs.unmount().unwrap();
        drop(fs);
        assert_whole(&*new);
        let fs = open(&any(&new));
        assert!(read(&fs, ino(&fs, fs.root(), "large"), LARGE) == expected_large());
        drop(fs);
        images.push(new);
    }
    assert_eq!(
        images[1].first_difference(&images[2]),
        None,
        "not reproducible"
    );
    let [moved, back] = [0, 1].map(|nth| differing(&*old, &*images[nth]).len());
    // Every copy of a node would change its old and its new address.
    assert!(back * 2 < moved, "{back} blocks of {moved}");
}

#[test]
fn shared_blocks_and_extents_stay() {
    let devices = filled(1, Profile::Single, Profile::Dup);
    let old = Arc::new(MemoryDevice::new(SIZE));
    let mut piece = vec![0; MIB as usize];
    for start in (0..SIZE).step_by(piece.len()) {
        devices[0].read_at(start, &mut piece).unwrap();
        old.write_at(start, &piece).unwrap();
    }
    let new = any(&Arc::new(old.snapshot()));
    let fs = open(&new);
    let dir = ino(&fs, fs.root(), "volume");
    let clone = ino(&fs, dir, "clone");
    write(&fs, clone, 0, &noise(9, 8192));
    write(&fs, ino(&fs, dir, "many7"), 0, &noise(8, 3000));
    for number in 0..500 {
        create(&fs, &format!("more{number}"), &noise(number, 100));
    }
    fs.sync().unwrap();
    places::restore(&fs, &any(&old)).unwrap();
    assert!(read(&fs, clone, 8192) == noise(9, 8192));
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&*new);
    let fs = open(&new);
    write(&fs, clone, 0, &noise(1, 8192));
    write(&fs, ino(&fs, dir, "many7"), 0, &noise(7, 3000));
    fs.unmount().unwrap();
    drop(fs);
    // The snapshot and the clone's source have their content.
    whole(&[new], "shared blocks");
}
