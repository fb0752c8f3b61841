//! Dropping a tree that shares blocks, in small steps, each followed by a crash.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs_format::{Key, kind, objectid};
use sapwood_vfs::{AllocMode, Credentials, FileSystem, NewInode, Subvolumes};

use super::cleaner;
use super::dropping::Dropping;
use crate::check::{CheckOptions, check};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::mount::Engine;
use crate::tree::Root;
use crate::{Btrfs, Options, Result};
use sapwood_testing::machine::{Need, part_left_out};
use sapwood_testing::oracle::{Kind, TempImage};

fn open(device: &Arc<MemoryDevice>) -> Arc<Engine> {
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let options = Options {
        background: false,
        ..Options::default()
    };
    Engine::open(devices, options).unwrap().0
}

/// A file system on 4 KiB nodes with two trees of three levels that share most blocks; the one
/// that the other is a snapshot of is deleted.
fn with_dead_origin() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let options = MkfsOptions {
        node_size: Some(4096),
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options).unwrap();
    let engine = open(&device);
    let top = engine.roots.get(objectid::FS_TREE).unwrap();
    let dir = engine.inodes.load(&engine, &top, 256).unwrap();
    let made = super::create::create(&engine, &dir, b"a").unwrap();
    fill(&engine, &made.root, 0);
    let source = made.root.clone();
    let snap = super::snapshot::snapshot(&engine, &source, &dir, b"b", false).unwrap();
    fill(&engine, &snap.root, 1);
    fill(&engine, &source, 2);
    drop((made, snap));
    super::delete::delete(&engine, &dir, b"a").unwrap();
    engine.commit(None).unwrap();
    device
}

/// Trees that nothing holds leave memory, and come back as they were.
#[test]
fn very_many_subvolumes_do_not_stay_in_memory() {
    const COUNT: u64 = 2500;
    let device = Arc::new(MemoryDevice::new(1 << 30));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let mount = || {
        let options = Options {
            background: false,
            ..Options::default()
        };
        let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
        Btrfs::open(devices, options).unwrap()
    };
    let fs = mount();
    for i in 0..COUNT {
        let name = i.to_string();
        let made = fs.create_subvolume(fs.root(), name.as_bytes()).unwrap();
        fs.create(
            &Credentials::ROOT,
            made.ino(),
            name.as_bytes(),
            NewInode::Directory,
            0o700,
        )
        .unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    let fs = mount();
    assert_eq!(fs.list().unwrap().len() as u64, COUNT);
    assert!(fs.engine.roots.all_cached().len() < COUNT as usize);
    for i in 0..COUNT {
        let name = i.to_string();
        let top = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino();
        fs.lookup(top, name.as_bytes()).unwrap();
        fs.rmdir(top, name.as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    assert_clean(&device, "after all");
}

/// Xattrs of the top directory fill a tree; each `round` changes others of them.
fn fill(engine: &Arc<Engine>, root: &Arc<Root>, round: u64) {
    let step = if round == 0 { 1 } else { 97 };
    for i in (round..9000).step_by(step) {
        let mut h = engine.start(1).unwrap();
        let name = format!("user.{i}");
        let item = sapwood_btrfs_format::DirItemRef {
            location: Key::MIN,
            transid: h.transid(),
            kind: sapwood_btrfs_format::file_type::XATTR,
            name: name.as_bytes(),
            data: &[round as u8; 400],
        };
        let hash = sapwood_btrfs_format::name_hash(name.as_bytes());
        let key = Key::new(256, kind::XATTR_ITEM, hash.into());
        root.put(&mut h, &key, &item.encode()).unwrap();
        h.end().unwrap();
    }
    engine.commit(None).unwrap();
}

/// One step of a walk that begins where the last one, before the crash, came.
fn step(engine: &Arc<Engine>, root: &Arc<Root>, budget: usize) -> Result<bool> {
    let mut h = engine.start_urgent(16)?;
    let mut dropping = Dropping::new(root.clone());
    let done = dropping.step(&mut h, budget).and_then(|done| {
        if done {
            cleaner::forget(&mut h, root)?;
        }
        Ok(done)
    });
    let done = h.finish(done)?;
    engine.commit(None)?;
    Ok(done)
}

fn assert_clean(device: &MemoryDevice, what: &str) {
    let report = check(&[device], &CheckOptions::default(), &mut |_| {}).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
}

#[test]
fn each_step_can_be_the_last_before_a_crash() {
    let check = !part_left_out("btrfs check", &[Need::Program("btrfs")]);
    let mount = !part_left_out("the kernel", &[Need::Kernel(Kind::Btrfs)]);
    let mut device = with_dead_origin();
    assert_clean(&device, "before");
    let mut steps = 0;
    loop {
        let engine = open(&device);
        let dead = cleaner::dead_ids(&engine).unwrap();
        let [id] = dead[..] else { break };
        let root = engine.roots.get(id).unwrap();
        assert!(root.is_dead());
        if steps == 0 {
            assert!(root.node().level() >= 2, "level {}", root.node().level());
        }
        step(&engine, &root, 900).unwrap();
        steps += 1;
        assert!(steps < 1000, "it does not end");
        // Whatever memory held is lost.
        device = Arc::new(device.snapshot());
        let image = TempImage::blank(0);
        device.save(image.path()).unwrap();
        if check {
            image.check();
        }
        if check && mount && steps == 7 {
            // The kernel goes on where we came.
            image.mount().shell("btrfs subvolume sync .; ls b");
            image.check();
            assert!(!image.dump(Some("root")).contains("ORPHAN"));
        }
        assert_clean(&device, &format!("after step {steps}"));
    }
    assert!(steps > 10, "{steps} steps");
    let engine = open(&device);
    assert_eq!(
        engine
            .roots
            .ids()
            .unwrap()
            .iter()
            .filter(|id| **id >= 256 && **id < 1000)
            .count(),
        1
    );
}

/// The cleaner removes groups that a deletion emptied in a transaction of its own.
#[test]
fn space_of_groups_that_are_being_removed_is_available() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let options = Options {
        background: false,
        ..Options::default()
    };
    let fs = Btrfs::open(vec![device], options).unwrap();
    let file = fs.create(
        &Credentials::ROOT,
        fs.root(),
        b"file",
        NewInode::Regular,
        0o644,
    );
    let file = file.unwrap().ino();
    let mode = AllocMode::Allocate { keep_size: true };
    fs.fallocate(file, 0, 130 << 20, mode).unwrap();
    fs.sync().unwrap();
    fs.unlink(fs.root(), b"file").unwrap();
    fs.forget(file, 1);
    fs.engine.commit_and_unpin(None).unwrap();
    let available = || fs.statfs().unwrap().blocks_available;
    let groups = || fs.engine.space.all_groups().len();
    let (freed, before) = (available(), groups());
    cleaner::round(&fs.engine).unwrap();
    assert!(groups() < before, "no group was empty");
    assert_eq!(available(), freed);
    fs.engine.commit_and_unpin(None).unwrap();
    assert_eq!(available(), freed);
}
