//! File systems in memory for tests, made by our own mkfs, and judged by `btrfs check` where it
//! is installed.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_vfs::FileSystem;

use sapwood_testing::machine::{Need, part_left_out};
use sapwood_testing::process;

/// A new file system of `size` bytes. Without a block-group tree, which older `btrfs check`
/// does not know.
pub fn formatted(size: u64) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(size);
    let options = MkfsOptions {
        block_group_tree: Some(false),
        ..MkfsOptions::default()
    };
    mkfs(&device, &options).unwrap();
    Arc::new(device)
}

/// Mounts it without background threads, so that only the test changes it.
pub fn mount(device: Arc<dyn Device>) -> Btrfs {
    try_mount(device).unwrap()
}

/// Mounts like [`mount`], for images that may be refused.
pub fn try_mount(device: Arc<dyn Device>) -> Result<Btrfs, sapwood_btrfs::Error> {
    let options = Options {
        background: false,
        ..Options::default()
    };
    Btrfs::open(vec![device], options)
}

/// The findings of `btrfs check`; left out, by the test's name, where it is not installed.
pub fn judge(device: &MemoryDevice) -> Result<(), String> {
    if part_left_out("btrfs check", &[Need::Program("btrfs")]) {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    device.save(&path).map_err(|error| error.to_string())?;
    let path = path.to_string_lossy().into_owned();
    process::run("btrfs", &["check", "--check-data-csum", &path]).map(drop)
}

/// Mounts, runs `work`, unmounts, and judges the image.
pub fn with_mounted(device: &Arc<MemoryDevice>, work: impl FnOnce(&Btrfs)) {
    let fs = mount(device.clone());
    work(&fs);
    fs.unmount().unwrap();
    drop(fs);
    judge(device).unwrap();
}

/// Shows the engine's log, so that a failing test shows why.
pub fn show_log() {
    struct Stderr;
    impl log::Log for Stderr {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            eprintln!("{}: {}", record.level(), record.args());
        }
        fn flush(&self) {}
    }
    let _ = log::set_logger(&Stderr);
    log::set_max_level(log::LevelFilter::Warn);
}
