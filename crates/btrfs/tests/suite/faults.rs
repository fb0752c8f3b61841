//! A device that fails, at every write and every flush in turn. The mount becomes read-only,
//! acknowledged data stays, and the next mount is consistent.

use std::sync::Arc;

use crate::image::{formatted, judge, mount, try_mount};
use sapwood_block::MemoryDevice;
use sapwood_btrfs::Btrfs;
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds, Torn};
use sapwood_vfs::{
    Credentials, Entry, FileSystem, Ino, NewInode, RenameMode, Result, SyncKind, WriteMode,
};

const SIZE: u64 = 256 << 20;

fn create(fs: &Btrfs, dir: Ino, name: &[u8], what: NewInode<'_>) -> Result<Entry> {
    fs.create(&Credentials::ROOT, dir, name, what, 0o644)
}

/// Data that was acknowledged before the device failed.
#[derive(Default)]
struct Acknowledged {
    first: bool,
    second: bool,
}

/// Small, but with data, names, a commit by fsync, one by sync, and overwriting.
fn workload(fs: &Btrfs, done: &mut Acknowledged) -> Result<()> {
    let root = fs.root();
    let file = create(fs, root, b"first", NewInode::Regular)?.ino();
    fs.write(file, 0, &[1; 10_000], WriteMode::default())?;
    fs.fsync(file, SyncKind::All)?;
    done.first = true;
    let dir = create(fs, root, b"dir", NewInode::Directory)?.ino();
    for number in 0..20_u8 {
        let name = [b'n', b'0' + number / 10, b'0' + number % 10];
        let file = create(fs, dir, &name, NewInode::Regular)?.ino();
        fs.write(file, 0, &[number; 5000], WriteMode::default())?;
    }
    fs.sync()?;
    done.second = true;
    fs.write(file, 4096, &[2; 4096], WriteMode::default())?;
    fs.unlink(dir, b"n03")?;
    fs.rename(dir, b"n04", root, b"moved", RenameMode::Replace)?;
    fs.sync()
}

fn content(fs: &Btrfs, dir: Ino, name: &[u8]) -> Vec<u8> {
    let file = fs.lookup(dir, name).unwrap();
    let mut buf = vec![0; file.attr.size as usize];
    assert_eq!(fs.read(file.ino(), 0, &mut buf).unwrap(), buf.len());
    buf
}

/// The next mount must have the acknowledged state, or a newer one.
fn verify(device: Arc<MemoryDevice>, done: &Acknowledged, why: &str) {
    judge(&device).unwrap_or_else(|error| panic!("{why}: {error}"));
    let fs = try_mount(device).unwrap_or_else(|error| panic!("{why}: {error}"));
    let root = fs.root();
    if done.first {
        let first = content(&fs, root, b"first");
        assert_eq!(first.len(), 10_000, "{why}");
        assert!(first[..4096].iter().all(|byte| *byte == 1), "{why}");
        assert!(
            first[4096..8192].iter().all(|byte| *byte == first[4096]),
            "{why}: torn"
        );
    }
    if done.second {
        let dir = fs.lookup(root, b"dir").unwrap().ino();
        assert_eq!(content(&fs, dir, b"n07"), vec![7; 5000], "{why}");
        let kept = fs.lookup(dir, b"n04").is_ok();
        let moved = fs.lookup(root, b"moved").is_ok();
        assert!(
            kept != moved,
            "{why}: renamed file is there {kept} and {moved}"
        );
    }
    fs.unmount().unwrap();
}

fn countdown(kinds: RequestKinds, fault: &dyn Fn() -> Fault, must_notice: bool) {
    let base = formatted(SIZE);
    for nth in 1.. {
        let memory = Arc::new(base.snapshot());
        let device = Arc::new(FaultDevice::new(memory.clone()));
        let fs = mount(device.clone());
        device.arm(FaultRule::new(kinds, nth, fault()).from_then_on());
        let mut done = Acknowledged::default();
        let result = workload(&fs, &mut done);
        let why = format!("{kinds:?} {nth}");
        if device.fired() == 0 {
            device.clear();
            result.unwrap();
            fs.unmount().unwrap();
            assert!(nth > 3, "the workload writes more than that");
            return;
        }
        if must_notice {
            assert!(result.is_err(), "{why}: not noticed");
            assert!(fs.read_only(), "{why}: still writable");
            let refused = create(&fs, fs.root(), b"late", NewInode::Regular);
            assert_eq!(refused.unwrap_err(), sapwood_vfs::Error::ReadOnly, "{why}");
            assert!(fs.lookup(fs.root(), b"no such name").is_err(), "{why}");
        }
        // The unmount cannot succeed; the workload's error was checked already.
        let _ = fs.unmount();
        drop(fs);
        verify(memory, &done, &why);
    }
}

#[test]
fn every_write_fails_in_turn() {
    countdown(RequestKinds::ANY_WRITE, &|| Fault::Fail, true);
}

#[test]
fn every_flush_fails_in_turn() {
    countdown(RequestKinds::FLUSH, &|| Fault::Fail, true);
}

#[test]
fn every_write_is_torn_in_turn() {
    countdown(
        RequestKinds::ANY_WRITE,
        &|| Fault::Tear {
            torn: Torn::Prefix(512),
            fail: true,
        },
        true,
    );
}
