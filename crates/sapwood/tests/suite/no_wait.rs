//! `statfs` and `getattr` answer from memory: they return while every write to the device is held.
//! On both engines.

use std::sync::Arc;
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::{GateDevice, RequestKind};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, WriteMode};

const SIZE: u64 = 256 << 20;
/// Bytes that the writer writes, and bytes that may be dirty.
const LEN: u64 = 16 << 20;
const DIRTY: usize = 4 << 20;

type Gate = Arc<GateDevice<MemoryDevice>>;

fn btrfs() -> (Gate, Arc<dyn FileSystem>) {
    let device = MemoryDevice::new(SIZE);
    let options = sapwood_btrfs::mkfs::MkfsOptions::default();
    sapwood_btrfs::mkfs::mkfs(&device, &options).unwrap();
    let gate = Arc::new(GateDevice::new(device));
    let options = sapwood_btrfs::Options {
        background: false,
        dirty_bytes: DIRTY,
        ..sapwood_btrfs::Options::default()
    };
    let devices: Vec<Arc<dyn Device>> = vec![gate.clone()];
    let fs = sapwood_btrfs::Btrfs::open(devices, options).unwrap();
    (gate, Arc::new(fs))
}

fn ext4() -> (Gate, Arc<dyn FileSystem>) {
    let device = MemoryDevice::new(SIZE);
    let options = sapwood_ext4::mkfs::MkfsOptions::default();
    sapwood_ext4::mkfs::mkfs(&device, &options).unwrap();
    let gate = Arc::new(GateDevice::new(device));
    let options = sapwood_ext4::Options {
        background: false,
        dirty_bytes: DIRTY,
        ..sapwood_ext4::Options::default()
    };
    let fs = sapwood_ext4::Ext4::open(gate.clone(), options).unwrap();
    (gate, Arc::new(fs))
}

fn file(fs: &dyn FileSystem, name: &str) -> Ino {
    let made = fs.create(
        &Credentials::ROOT,
        fs.root(),
        name.as_bytes(),
        NewInode::Regular,
        0o644,
    );
    made.unwrap().ino()
}

fn write(fs: &dyn FileSystem, file: Ino, len: u64) {
    let block = vec![7; 1 << 20];
    for at in (0..len).step_by(block.len()) {
        fs.write(file, at, &block, WriteMode::default()).unwrap();
    }
}

#[test]
fn statfs_and_getattr_return_while_a_writer_waits_for_the_device() {
    for (gate, fs) in [btrfs(), ext4()] {
        let (written, deleted) = (file(&*fs, "written"), file(&*fs, "deleted"));
        write(&*fs, deleted, LEN);
        fs.sync().unwrap();
        let before = fs.statfs().unwrap();
        gate.hold_if(|request| request.kind == RequestKind::Write);
        thread::scope(|scope| {
            let writer = scope.spawn(|| write(&*fs, written, LEN));
            gate.wait_held(1);
            // A deletion whose space is not durable yet; its blocks are in memory.
            fs.unlink(fs.root(), b"deleted").unwrap();
            fs.forget(deleted, 1);
            let now = fs.statfs().unwrap();
            let (block, kind) = (u64::from(now.block_size), fs.kind());
            let most = before.blocks_free + LEN / block;
            let least = before.blocks_free + (LEN - 2 * DIRTY as u64) / block;
            assert!((least..=most).contains(&now.blocks_free), "{kind}: {now:?}");
            assert!(fs.getattr(written).unwrap().size <= LEN, "{kind}");
            assert!(!writer.is_finished(), "{kind}: the bound holds it");
            gate.open();
            writer.join().unwrap();
        });
        assert_eq!(fs.getattr(written).unwrap().size, LEN);
        fs.unmount().unwrap();
    }
}
