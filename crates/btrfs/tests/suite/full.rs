//! File systems filled until nothing fits, emptied, and filled again: `ENOSPC` comes before
//! anything is half done, removing works, nothing leaks.

use std::sync::Arc;
use std::thread;

use crate::image::{judge, mount};
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_vfs::{Credentials, Error, FileSystem, Ino, NewInode, WriteMode};

const MIB: u64 = 1 << 20;
/// Fillings after which the same space must be free again.
const ROUNDS: usize = 3;

fn formatted(size: u64, options: MkfsOptions) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(size);
    mkfs(&device, &options).unwrap();
    Arc::new(device)
}

fn without_group_tree() -> MkfsOptions {
    MkfsOptions {
        block_group_tree: Some(false),
        ..MkfsOptions::default()
    }
}

/// Both checkers; `btrfs check` where it knows the features.
fn clean(device: &Arc<MemoryDevice>, known: bool, what: &str) {
    let devices: [&dyn Device; 1] = [&**device];
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let report = check(&devices, &options, &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
    if known {
        judge(device).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Whether an operation found no space; any other error ends the test.
fn full<T>(result: Result<T, Error>) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::NoSpace) => true,
        Err(err) => panic!("{err}"),
    }
}

fn create(fs: &Btrfs, dir: Ino, name: &str, what: NewInode<'_>) -> Result<Ino, Error> {
    let made = fs.create(&Credentials::ROOT, dir, name.as_bytes(), what, 0o755)?;
    Ok(made.ino())
}

/// Writes one file until it does not grow any more; its length.
fn one_file(fs: &Btrfs) -> u64 {
    let file = create(fs, fs.root(), "big", NewInode::Regular).unwrap();
    let block = bytes(1 << 20, 7);
    let mut at = 0;
    while !full(fs.write(file, at, &block, WriteMode::default())) {
        at += block.len() as u64;
    }
    let _ = full(fs.sync());
    at
}

/// Creates files of many sizes from several threads until neither names nor data fit; how many.
fn many_files(fs: &Arc<Btrfs>) -> u64 {
    let workers = (0..8).map(|n| {
        let fs = fs.clone();
        thread::spawn(move || {
            let dir = create(&fs, fs.root(), &format!("dir{n}"), NewInode::Directory).unwrap();
            let mut made = 0;
            for i in 0.. {
                let file = match create(&fs, dir, &format!("f{i}"), NewInode::Regular) {
                    Ok(file) => file,
                    Err(Error::NoSpace) => break,
                    Err(err) => panic!("{err}"),
                };
                made += 1;
                let len = [0, 200, 5000, 60_000, 300_000][i % 5];
                if full(fs.write(file, 0, &bytes(len, i as u64 + n), WriteMode::default())) {
                    break;
                }
            }
            made
        })
    });
    let workers: Vec<_> = workers.collect();
    let made = workers.into_iter().map(|w| w.join().unwrap()).sum();
    let _ = full(fs.sync());
    made
}

/// Changes files of a subvolume and takes snapshots of it until nothing fits; how many.
fn many_snapshots(fs: &Arc<Btrfs>) -> u64 {
    let subvolumes = fs.subvolumes().unwrap();
    let source = subvolumes.create_subvolume(fs.root(), b"source").unwrap();
    let source = source.ino();
    let files: Vec<_> = (0..200)
        .map(|i| create(fs, source, &format!("f{i}"), NewInode::Regular).unwrap())
        .collect();
    let mut made = 0;
    for round in 0.. {
        for step in 0..40 {
            let file = files[(round * 7 + step * 3) % files.len()];
            let data = bytes(30_000, (round * 100 + step) as u64);
            if full(fs.write(file, 0, &data, WriteMode::default())) {
                return made;
            }
        }
        let name = format!("snapshot{round}");
        let taken = subvolumes.snapshot(source, fs.root(), name.as_bytes(), round % 2 == 0);
        if full(taken) {
            return made;
        }
        made += 1;
    }
    made
}

fn empty(fs: &Btrfs, dir: Ino) {
    let mut found = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            found.push(entry.name.to_vec());
        }
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    for name in found {
        let inner = fs.lookup(dir, &name).unwrap();
        let subvolumes = fs.subvolumes().unwrap();
        let gone = subvolumes.delete_subvolume(dir, &name).is_ok();
        if !gone && fs.unlink(dir, &name).is_err() {
            empty(fs, inner.ino());
            fs.rmdir(dir, &name).unwrap();
        }
        fs.forget(inner.ino(), 1);
    }
}

fn fill_and_empty(options: MkfsOptions, known: bool, fill: impl Fn(&Arc<Btrfs>) -> u64) {
    let device = formatted(220 * MIB, options);
    let mut first = 0;
    for round in 0..ROUNDS {
        let fs = Arc::new(mount(device.clone()));
        let free = fs.statfs().unwrap().blocks_free;
        let count = fill(&fs);
        fs.unmount().unwrap();
        drop(fs);
        clean(&device, known, &format!("full, round {round}"));
        // With its threads: deleted subvolumes are cleaned in the background.
        let fs = Btrfs::open(vec![device.clone()], Options::default()).unwrap();
        empty(&fs, fs.root());
        while fs.statfs().unwrap().blocks_free + 200 < free {
            fs.sync().unwrap();
            thread::yield_now();
        }
        fs.unmount().unwrap();
        drop(fs);
        clean(&device, known, &format!("empty, round {round}"));
        if round == 0 {
            first = count;
        }
        assert!(
            count * 10 >= first * 9,
            "{count} after {first}: space was lost"
        );
    }
}

#[test]
fn one_file_fills_and_goes() {
    fill_and_empty(without_group_tree(), true, |fs| one_file(fs) / MIB);
}

#[test]
fn many_files_fill_and_go() {
    fill_and_empty(without_group_tree(), true, many_files);
}

#[test]
fn many_files_with_a_block_group_tree() {
    fill_and_empty(MkfsOptions::default(), false, many_files);
}

#[test]
fn many_snapshots_fill_and_go() {
    fill_and_empty(without_group_tree(), true, many_snapshots);
}
