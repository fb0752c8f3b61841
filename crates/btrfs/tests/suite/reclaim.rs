//! Space that deletions are about to give back counts: before `NoSpace` is answered, and for
//! `statfs` before the next commit.

use std::sync::Arc;
use std::thread;

use crate::image;
use crate::image::{formatted, judge};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_vfs::{AllocMode, CopyMode, Credentials, Error, FileSystem, NewInode, WriteMode};

const LEN: u64 = 80 << 20;

fn allocate_and_delete(fs: &Btrfs, name: &str, rounds: u32) -> u32 {
    let root = fs.root();
    let mut full = 0;
    for _ in 0..rounds {
        let made = fs.create(
            &Credentials::ROOT,
            root,
            name.as_bytes(),
            NewInode::Regular,
            0o644,
        );
        let file = made.unwrap().ino();
        let mode = AllocMode::Allocate { keep_size: false };
        match fs.fallocate(file, 0, LEN, mode) {
            Ok(()) => {}
            Err(Error::NoSpace) => full += 1,
            Err(error) => panic!("{error}"),
        }
        fs.unlink(root, name.as_bytes()).unwrap();
        fs.forget(file, 1);
    }
    full
}

fn write_and_delete(fs: &Btrfs, name: &str, rounds: u32) -> u32 {
    let root = fs.root();
    let block = vec![9; 1 << 20];
    let mut full = 0;
    for _ in 0..rounds {
        let made = fs.create(
            &Credentials::ROOT,
            root,
            name.as_bytes(),
            NewInode::Regular,
            0o644,
        );
        let file = made.unwrap().ino();
        for at in (0..LEN).step_by(1 << 20) {
            match fs.write(file, at, &block, WriteMode::default()) {
                Ok(_) => {}
                Err(Error::NoSpace) => {
                    full += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        fs.unlink(root, name.as_bytes()).unwrap();
        fs.forget(file, 1);
    }
    full
}

#[test]
fn statfs_counts_what_was_deleted_since_the_last_commit() {
    let device = formatted(256 << 20);
    let fs = image::mount(device);
    let root = fs.root();
    let free = || fs.statfs().unwrap().blocks_free * u64::from(fs.statfs().unwrap().block_size);
    let before = free();
    let made = fs.create(&Credentials::ROOT, root, b"f", NewInode::Regular, 0o644);
    let file = made.unwrap().ino();
    let data = vec![3; 40 << 20];
    fs.write(file, 0, &data, WriteMode::default()).unwrap();
    let copy = fs.create(&Credentials::ROOT, root, b"copy", NewInode::Regular, 0o644);
    let copy = copy.unwrap().ino();
    fs.sync().unwrap();
    fs.copy_range(file, 0, copy, 0, data.len() as u64, CopyMode::ShareOnly)
        .unwrap();
    fs.sync().unwrap();
    let full = free();
    assert!(full + (38 << 20) < before);
    fs.unlink(root, b"copy").unwrap();
    fs.forget(copy, 1);
    assert_eq!(free(), full, "the other file has the data still");
    fs.unlink(root, b"f").unwrap();
    fs.forget(file, 1);
    assert!(free() + (1 << 20) > before, "{} of {before}", free());
}

#[test]
fn threads_that_delete_before_they_write_again_do_not_run_out() {
    let device = formatted(256 << 20);
    let fs = Btrfs::open(vec![device.clone()], Options::default()).unwrap();
    let fs = Arc::new(fs);
    let other = {
        let fs = Arc::clone(&fs);
        thread::spawn(move || write_and_delete(&fs, "written", 6))
    };
    let allocated = allocate_and_delete(&fs, "allocated", 12);
    let written = other.join().unwrap();
    fs.unmount().unwrap();
    drop(fs);
    judge(&device).unwrap();
    assert_eq!((allocated, written), (0, 0));
}
