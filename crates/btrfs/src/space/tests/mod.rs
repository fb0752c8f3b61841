//! Space on real images: created by `mkfs.btrfs`, filled by the kernel, verified by both.

mod alloc;
mod commits;
mod images;
mod refs;
mod world;

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};

use crate::Options;
use crate::mount::Engine;
use sapwood_testing::oracle::TempImage;

const MIB: u64 = 1 << 20;

/// An engine without background threads on a copy of the image in memory.
fn open(image: &TempImage) -> (Arc<MemoryDevice>, Arc<Engine>) {
    let device = Arc::new(MemoryDevice::load(image.path()).unwrap());
    open_device(&device)
}

/// An engine without background threads.
fn open_device(device: &Arc<MemoryDevice>) -> (Arc<MemoryDevice>, Arc<Engine>) {
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let options = Options {
        background: false,
        ..Options::default()
    };
    let (engine, _) = Engine::open(devices, options).unwrap();
    (device.clone(), engine)
}

/// Runs `btrfs check` on the device's contents.
fn checked(device: &MemoryDevice, what: &str) {
    let image = TempImage::blank(0);
    device.save(image.path()).unwrap();
    if let Err(why) = image.try_check() {
        panic!("{what}: {why}");
    }
}
