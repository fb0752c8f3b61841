//! Random operations on an image in memory agree with the in-memory reference, from one
//! thread and from several, before and after a remount; `btrfs check` judges every image.
//!
//! A report names its seed. `SAPWOOD_SEED=N` starts there and `SAPWOOD_COUNT=N` runs this many with
//! one thread.

use std::sync::Arc;

use crate::image;
use sapwood_block::MemoryDevice;
use sapwood_btrfs::{Btrfs, Options};
use sapwood_testing::MemoryFs;
use sapwood_testing::model::{Settings, Threads, compare_trees, minimize, run_sequence};
use sapwood_vfs::FileSystem;

const SIZE: u64 = 1 << 30;

fn mount(device: &Arc<MemoryDevice>) -> Btrfs {
    Btrfs::open(vec![device.clone()], Options::default()).unwrap()
}

fn unmount(fs: Btrfs) {
    fs.unmount().unwrap();
}

fn settings() -> Settings {
    Settings {
        subvolumes: true,
        ..Settings::default()
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().unwrap())
}

/// The failure of a sequence, if any, with as few operations as reproduce it.
fn sequence(seed: u64) -> Result<(), String> {
    let (device, model) = (image::formatted(SIZE), MemoryFs::new());
    let fs = mount(&device);
    run_sequence(seed, 400, &fs, &model, &settings()).map_err(|failure| {
        let fresh = || (mount(&image::formatted(SIZE)), MemoryFs::new());
        minimize(*failure, &settings(), fresh).to_string()
    })?;
    unmount(fs);
    let fs = mount(&device);
    let same = compare_trees(&fs, &model);
    unmount(fs);
    same.map_err(|difference| format!("seed {seed}, after a remount: {difference}"))?;
    image::judge(&device).map_err(|text| format!("seed {seed}: {text}"))
}

#[test]
fn sequences_agree() {
    let first = number("SAPWOOD_SEED", 0);
    let seeds = first..first + number("SAPWOOD_COUNT", 40);
    let faults: Vec<String> = seeds.filter_map(|seed| sequence(seed).err()).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn threads_agree() {
    let first = number("SAPWOOD_SEED", 0);
    for seed in first..first + 6 {
        let device = image::formatted(SIZE);
        let fs = mount(&device);
        let threads = Threads::run(seed, 250, 4, &fs, &settings());
        let threads = threads.unwrap_or_else(|failure| panic!("{failure}"));
        unmount(fs);
        let fs = mount(&device);
        let same = threads.compare(&fs);
        same.unwrap_or_else(|failure| panic!("{failure}"));
        unmount(fs);
        image::judge(&device).unwrap();
    }
}
