//! Commits that are held, that fail, and that a power cut ends: on a device in memory.
//!
//! Every state of the image that may be left behind is opened, listed and checked.

use std::sync::Arc;
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::Error::{LogPresent, LogReplay, NoReplayNeedsReadOnly};
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_btrfs_format::{SUPER_OFFSETS, SUPER_SIZE, SuperBlock};
use sapwood_testing::{
    CrashPlan, Fault, FaultDevice, FaultRule, GateDevice, RecordDevice, RecordLog, Replayer,
    RequestKind, RequestKinds,
};
use sapwood_vfs::{Credentials, Error, FileSystem, NewInode, Result, WriteMode};

const SIZE: u64 = 256 << 20;

fn new_image() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    mkfs(&device, &MkfsOptions::default()).unwrap();
    device
}

fn open(device: Arc<dyn Device>) -> sapwood_btrfs::Result<Btrfs> {
    let options = Options {
        background: false,
        ..Options::default()
    };
    Btrfs::open(vec![device], options)
}

fn create(fs: &Btrfs, name: &str) -> Result<()> {
    let who = Credentials::ROOT;
    let made = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Regular, 0o644)?;
    let written = fs.write(made.ino(), 0, name.as_bytes(), WriteMode::default());
    fs.forget(made.ino(), 1);
    written.map(|_| ())
}

/// Names in the top directory of an image, whose content is right.
fn names(device: &MemoryDevice) -> Vec<String> {
    let report = check(
        &[device],
        &CheckOptions {
            check_data_csum: true,
            ..CheckOptions::default()
        },
        &mut |_| {},
    )
    .unwrap();
    // A crash may leave superblocks of different age, and tear one: the others make up for it.
    let torn = |code: &str| code == "SuperBad";
    let errors: Vec<_> = report.errors().filter(|e| !torn(e.code())).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let fs = open(Arc::new(device.snapshot())).unwrap();
    let mut names = Vec::new();
    fs.readdir(fs.root(), 0, &mut |entry| {
        names.push(String::from_utf8(entry.name).unwrap());
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    for name in &names {
        let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino();
        let mut buf = vec![0; 100];
        let len = fs.read(ino, 0, &mut buf).unwrap();
        assert_eq!(&buf[..len], name.as_bytes());
    }
    // It takes changes.
    create(&fs, "later").unwrap();
    fs.unmount().unwrap();
    names
}

#[test]
fn the_next_transaction_runs_while_a_superblock_is_held() {
    let device = Arc::new(GateDevice::new(new_image()));
    let fs = open(device.clone()).unwrap();
    create(&fs, "one").unwrap();
    device.hold_if(|request| request.kind == RequestKind::Fua);
    thread::scope(|scope| {
        let first = scope.spawn(|| fs.sync());
        device.wait_held(1);
        // The first commit is in progress; this change belongs to the next one.
        create(&fs, "two").unwrap();
        let second = scope.spawn(|| fs.sync());
        assert!(!first.is_finished() && !second.is_finished());
        assert_eq!(names(device.inner()), Vec::<String>::new());
        device.release_first();
        first.join().unwrap().unwrap();
        assert_eq!(names(device.inner()), ["one"]);
        device.wait_held(1);
        assert!(!second.is_finished());
        device.open();
        second.join().unwrap().unwrap();
    });
    assert_eq!(names(device.inner()), ["one", "two"]);
}

#[test]
fn concurrent_callers_share_a_commit() {
    let device = Arc::new(GateDevice::new(new_image()));
    let fs = open(device.clone()).unwrap();
    create(&fs, "one").unwrap();
    device.hold_if(|request| request.kind == RequestKind::Fua);
    thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| fs.sync())).collect();
        device.wait_held(1);
        device.open();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
    let stats = fs.stats_json();
    assert!(stats.contains("\"commits\":1"), "{stats}");
}

/// Makes the changes that the fault and crash tests look at: "old" is durable before.
fn change(fs: &Btrfs) -> Result<()> {
    create(fs, "new1")?;
    create(fs, "new2")?;
    fs.unlink(fs.root(), b"gone")
}

fn prepared() -> MemoryDevice {
    let device = Arc::new(new_image());
    let fs = open(device.clone()).unwrap();
    create(&fs, "old").unwrap();
    create(&fs, "gone").unwrap();
    fs.unmount().unwrap();
    drop(fs);
    device.snapshot()
}

fn is_old_or_new(names: &[String], must_be_new: bool) {
    let old = ["old", "gone"];
    let new = ["old", "new1", "new2"];
    assert!(
        names == new || (!must_be_new && names == old),
        "{names:?}, has to be new: {must_be_new}"
    );
}

#[test]
fn every_failing_request_makes_it_read_only_and_tells_all_who_wait() {
    let base = prepared();
    for nth in 1.. {
        let device = Arc::new(FaultDevice::new(base.snapshot()));
        let fs = open(device.clone()).unwrap();
        change(&fs).unwrap();
        device.arm(FaultRule::new(RequestKinds::ANY_CHANGE, nth, Fault::Fail).from_then_on());
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let all: Vec<_> = (0..3).map(|_| scope.spawn(|| fs.sync())).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        if device.fired() == 0 {
            assert!(nth > 8, "a commit takes more requests than {nth}");
            assert!(results.iter().all(Result::is_ok));
            break;
        }
        assert!(fs.read_only());
        assert!(matches!(create(&fs, "more"), Err(Error::ReadOnly)));
        assert!(fs.sync().is_err());
        // Cached data still reads.
        assert!(fs.lookup(fs.root(), b"new1").is_ok());
        assert!(fs.unmount().is_err());
        drop(fs);
        let acknowledged = results.iter().any(Result::is_ok);
        is_old_or_new(&names(device.inner()), acknowledged);
    }
}

fn recorded(base: &MemoryDevice) -> RecordLog {
    let device = Arc::new(RecordDevice::new(base.snapshot()));
    let fs = open(device.clone()).unwrap();
    change(&fs).unwrap();
    fs.sync().unwrap();
    device.mark("synced");
    create(&fs, "later1").unwrap();
    drop(fs);
    device.log()
}

#[test]
fn every_crash_leaves_the_old_or_the_new_state() {
    let base = prepared();
    let log = recorded(&base);
    let mut replayer = Replayer::new(&log, &base);
    for at in log.crash_points() {
        let synced = log.marks_before(at).next().is_some();
        is_old_or_new(&names(&replayer.image(&CrashPlan::at(at))), synced);
    }
    for (seed, at) in log.crash_points().into_iter().enumerate() {
        let synced = log.marks_before(at).next().is_some();
        let plan = log.random_plan(at, seed as u64);
        is_old_or_new(&names(&replayer.image(&plan)), synced);
    }
}

/// Writes a superblock that names a log.
fn with_log(image: &MemoryDevice) -> Arc<MemoryDevice> {
    let device = image.snapshot();
    let mut bytes = vec![0; SUPER_SIZE];
    device.read_at(SUPER_OFFSETS[0], &mut bytes).unwrap();
    let mut sb = SuperBlock::read(&bytes).unwrap();
    sb.log_root = sb.root;
    let mut bytes = sb.bytes().to_vec();
    sb.checksum_kind().unwrap().seal_block(&mut bytes);
    device.write_at(SUPER_OFFSETS[0], &bytes).unwrap();
    Arc::new(device)
}

#[test]
fn a_log_that_cannot_be_replayed_is_not_dropped() {
    let device = with_log(&prepared());
    let before = device.snapshot();
    let mount = |read_only, no_log_replay| {
        let options = Options {
            read_only,
            no_log_replay,
            ..Options::default()
        };
        Btrfs::open(vec![device.clone()], options).map(|fs| fs.unmount())
    };
    assert!(matches!(mount(false, false), Err(LogReplay { .. })));
    assert!(matches!(mount(true, false), Err(LogPresent)));
    assert!(matches!(mount(false, true), Err(NoReplayNeedsReadOnly)));
    mount(true, true).unwrap().unwrap();
    assert_eq!(device.first_difference(&before), None);
}
