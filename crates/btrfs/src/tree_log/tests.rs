//! Waits and contents of a log: proofs with devices that hold or fail chosen requests.

use std::sync::Arc;
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs_format::{Key, kind, objectid};
use sapwood_testing::{
    Action, Fault, FaultDevice, FaultRule, GateDevice, RecordDevice, Replayer, Request,
    RequestKind, RequestKinds,
};
use sapwood_vfs::{FileSystem, Ino, NewInode, RenameMode, SetXattrMode, SyncKind, WriteMode};

mod order;

use super::state::{SubvolumeLog, TransactionLog};
use crate::mkfs::mkfs;
use crate::transaction::State;
use crate::{Btrfs, Options, Result};

type Recorded = RecordDevice<MemoryDevice>;
type Gate = Arc<GateDevice<Recorded>>;

/// Offset of the first superblock.
const SUPER: u64 = 64 << 10;

fn formatted() -> MemoryDevice {
    let device = MemoryDevice::new(256 << 20);
    mkfs(&device, &Default::default()).unwrap();
    device
}

fn open(device: Arc<dyn Device>) -> Result<Btrfs> {
    let options = Options {
        background: false,
        ..Options::default()
    };
    Btrfs::open(vec![device], options)
}

fn gate() -> (Gate, MemoryDevice) {
    let device = formatted();
    let base = device.snapshot();
    (Arc::new(GateDevice::new(RecordDevice::new(device))), base)
}

fn create(fs: &Btrfs, name: &[u8]) -> Ino {
    let who = sapwood_vfs::Credentials::ROOT;
    let made = fs.create(&who, fs.root(), name, NewInode::Regular, 0o644);
    made.unwrap().ino()
}

fn write(fs: &Btrfs, ino: Ino, data: &[u8]) {
    fs.write(ino, 0, data, WriteMode::default()).unwrap();
}

fn content(fs: &Btrfs, name: &[u8]) -> Option<Vec<u8>> {
    let found = fs.lookup(fs.root(), name).ok()?;
    let mut buf = vec![0; found.attr.size as usize];
    fs.read(found.ino(), 0, &mut buf).unwrap();
    Some(buf)
}

fn is_super(offset: u64, kind: RequestKind) -> bool {
    kind == RequestKind::Fua && offset == SUPER
}

/// The log of the top-level subvolume.
fn log_of(fs: &Btrfs) -> Arc<SubvolumeLog> {
    let h = fs.engine.join().unwrap();
    TransactionLog::of(h.trans()).find(5).unwrap()
}

/// Keys of the items that it has of one inode and kind.
fn items(fs: &Btrfs, inode: u64, kind: u8) -> Vec<Key> {
    let log = log_of(fs);
    let mut cursor = log
        .tree
        .seek(&fs.engine, &Key::new(inode, kind, 0))
        .unwrap();
    let mut found = Vec::new();
    while let Some(key) = cursor.key() {
        if key.objectid != inode || key.kind != kind {
            break;
        }
        found.push(key);
        cursor.next().unwrap();
    }
    found
}

fn counter(fs: &Btrfs, name: &str) -> u64 {
    let all = fs.counters();
    all.into_iter().find(|(found, _)| found == name).unwrap().1
}

/// Waits, without a time, for something that another thread does.
fn until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

/// Every image that a power cut may leave from `from` on mounts and passes `must`.
fn every_cut(gate: &Gate, base: &MemoryDevice, must: impl Fn(&Btrfs, &[String])) {
    let log = gate.inner().log();
    let mut replayer = Replayer::new(&log, base);
    for at in log.crash_points() {
        let marks: Vec<String> = log
            .marks_before(at)
            .map(|(_, mark)| mark.to_owned())
            .collect();
        let mut images = vec![replayer.image(&sapwood_testing::CrashPlan::at(at))];
        images.extend((0..3).map(|seed| log.image(base, &log.random_plan(at, seed))));
        for image in images {
            let fs = open(Arc::new(image)).unwrap();
            must(&fs, &marks);
        }
    }
}

#[test]
fn a_log_waits_for_the_commit_before_only_with_its_superblock() {
    let (gate, base) = gate();
    let fs = open(gate.clone()).unwrap();
    write(&fs, create(&fs, b"first"), &[1; 50_000]);
    let second = create(&fs, b"second");
    gate.hold_if(|request| is_super(request.offset, request.kind));
    thread::scope(|scope| {
        let commit = scope.spawn(|| fs.sync().unwrap());
        gate.wait_held(1);
        write(&fs, second, &[2; 50_000]);
        // The next to be held is the flush that follows the blocks of the log.
        gate.hold_if(|request| {
            request.kind == RequestKind::Flush || is_super(request.offset, request.kind)
        });
        let written = gate.inner().position();
        let fsync = scope.spawn(|| {
            fs.fsync(second, SyncKind::All).unwrap();
            gate.inner().mark("second");
        });
        let held = gate.wait_held(2);
        assert_eq!(held[1].kind, RequestKind::Flush);
        assert!(gate.inner().position() > written, "its blocks are written");
        assert_eq!(fs.engine.last_committed() + 1, transid(&fs) - 1);
        gate.release(held[1].ticket);
        // Whatever it does now, the superblock that is held is the first one to be written.
        gate.open();
        commit.join().unwrap();
        fsync.join().unwrap();
    });
    assert_eq!(counter(&fs, "fast_fsyncs"), 1);
    let log = gate.inner().log();
    let supers: Vec<u64> = log.entries().iter().filter_map(super_of).collect();
    assert_eq!(supers.len(), 2, "that of the commit, then that of the log");
    assert_eq!((supers[0], supers[1] != 0), (0, true));
    every_cut(&gate, &base, |after, marks| {
        let second = content(after, b"second");
        if marks.iter().any(|mark| mark == "second") {
            assert!(second == Some(vec![2; 50_000]));
            assert!(content(after, b"first") == Some(vec![1; 50_000]));
        } else if second.as_ref().is_some_and(|data| !data.is_empty()) {
            assert!(second == Some(vec![2; 50_000]));
        }
    });
}

/// Address of the log that a written superblock names.
fn super_of(entry: &sapwood_testing::device::RecordedRequest) -> Option<u64> {
    match &entry.action {
        Action::Write { offset, data, .. } if *offset == SUPER => {
            let sb = sapwood_btrfs_format::SuperBlock::read(data).ok()?;
            Some(sb.log_root.get())
        }
        _ => None,
    }
}

/// The transaction that a handle would get now.
fn transid(fs: &Btrfs) -> u64 {
    fs.engine.join().unwrap().transid()
}

#[test]
fn a_fast_fsync_does_not_wait_for_completions_but_a_commit_does() {
    let (gate, _) = gate();
    let fs = open(gate.clone()).unwrap();
    let ino = create(&fs, b"f");
    fs.sync().unwrap();
    write(&fs, ino, &[7; 100_000]);
    fs.engine.writeback.hold_completions(true);
    fs.fsync(ino, SyncKind::All).unwrap();
    assert_eq!(counter(&fs, "fast_fsyncs"), 1);
    assert_eq!(counter(&fs, "ordered_pinned"), 1);
    let image = gate.inner().inner().snapshot();
    let after = open(Arc::new(image)).unwrap();
    assert!(content(&after, b"f") == Some(vec![7; 100_000]));
    let before = fs.engine.last_committed();
    thread::scope(|scope| {
        let h = fs.engine.join().unwrap();
        let trans = h.trans().clone();
        drop(h);
        let commit = scope.spawn(|| fs.engine.commit(None).unwrap());
        until(|| trans.state() == State::CommitStart);
        assert_eq!(fs.engine.last_committed(), before);
        fs.engine.writeback.hold_completions(false);
        commit.join().unwrap();
    });
    let image = gate.inner().inner().snapshot();
    let after = open(Arc::new(image)).unwrap();
    assert!(content(&after, b"f") == Some(vec![7; 100_000]));
}

#[test]
fn attributes_stand_in_the_log_and_are_written_once() {
    let fs = open(Arc::new(formatted())).unwrap();
    let ino = create(&fs, b"f");
    for nth in 0..10 {
        let name = format!("user.{nth}");
        fs.setxattr(ino, name.as_bytes(), &[nth; 50], SetXattrMode::Any)
            .unwrap();
    }
    for round in 0..5 {
        write(&fs, ino, &[round; 5000]);
        fs.fsync(ino, SyncKind::All).unwrap();
    }
    assert_eq!(items(&fs, 257, kind::XATTR_ITEM).len(), 10);
    assert_eq!(counter(&fs, "log_xattrs"), 10);
}

#[test]
fn renames_touch_single_names() {
    let fs = open(Arc::new(formatted())).unwrap();
    let name = |nth: usize| format!("file{nth}").into_bytes();
    for nth in 0..100 {
        create(&fs, &name(nth));
    }
    fs.sync().unwrap();
    create(&fs, b"new");
    fs.fsync(fs.root(), SyncKind::All).unwrap();
    assert_eq!(counter(&fs, "log_dir_items"), 1);
    for nth in 0..100 {
        let to = [&name(nth)[..], b"-gone"].concat();
        fs.rename(fs.root(), &name(nth), fs.root(), &to, RenameMode::Replace)
            .unwrap();
    }
    // One range for all removed entries, because they were contiguous.
    fs.fsync(fs.root(), SyncKind::All).unwrap();
    assert_eq!(items(&fs, 256, kind::DIR_LOG_INDEX).len(), 1);
    assert_eq!(items(&fs, 256, kind::DIR_INDEX).len(), 101);
    let logged = counter(&fs, "log_dir_items");
    assert!(logged <= 210, "{logged} entries logged");
}

#[test]
fn a_rename_of_what_was_not_logged_logs_nothing() {
    let fs = open(Arc::new(formatted())).unwrap();
    create(&fs, b"a");
    let other = create(&fs, b"b");
    fs.sync().unwrap();
    write(&fs, other, b"x");
    fs.fsync(other, SyncKind::All).unwrap();
    let root = fs.root();
    fs.rename(root, b"a", root, b"c", RenameMode::Replace)
        .unwrap();
    write(&fs, other, b"y");
    fs.fsync(other, SyncKind::All).unwrap();
    assert_eq!(counter(&fs, "log_dir_items"), 0);
    assert!(items(&fs, 257, kind::INODE_ITEM).is_empty());
    assert!(items(&fs, 256, kind::INODE_ITEM).is_empty());
}

/// Names that one client removed are not logged, so not locked, for an fsync of another client.
#[test]
fn an_fsync_beside_others_logs_what_is_its_own() {
    let memory = Arc::new(formatted());
    let fs = open(memory.clone()).unwrap();
    let who = sapwood_vfs::Credentials::ROOT;
    let [mine, theirs] = [&b"mine"[..], b"theirs"].map(|name| {
        let made = fs.create(&who, fs.root(), name, NewInode::Directory, 0o755);
        made.unwrap().ino()
    });
    let file = |dir, name: &[u8]| {
        let made = fs.create(&who, dir, name, NewInode::Regular, 0o644);
        made.unwrap().ino()
    };
    let kept = file(theirs, b"kept");
    file(mine, b"old");
    fs.sync().unwrap();
    for dir in [mine, theirs] {
        file(dir, b"new");
        fs.fsync(dir, SyncKind::All).unwrap();
    }
    fs.unlink(mine, b"old").unwrap();
    fs.rename(mine, b"new", mine, b"newer", RenameMode::Replace)
        .unwrap();
    write(&fs, kept, b"written");
    let other = fs.engine.fsyncs.begin();
    fs.fsync(kept, SyncKind::All).unwrap();
    assert_eq!(counter(&fs, "full_fsyncs"), 0);
    assert!(log_of(&fs).pending().concerns(mine.0));
    let names = |expected: [&[u8]; 2], gone: [&[u8]; 2]| {
        let after = open(Arc::new(memory.snapshot())).unwrap();
        let dir = after.lookup(after.root(), b"mine").unwrap().ino();
        assert!(expected.iter().all(|name| after.lookup(dir, name).is_ok()));
        assert!(gone.iter().all(|name| after.lookup(dir, name).is_err()));
        let dir = after.lookup(after.root(), b"theirs").unwrap().ino();
        let kept = after.lookup(dir, b"kept").unwrap();
        assert_eq!(kept.attr.size, 7);
    };
    names([b"old", b"new"], [b"newer", b"last"]);
    let last = file(mine, b"last");
    fs.fsync(last, SyncKind::All).unwrap();
    assert!(!log_of(&fs).pending().concerns(mine.0));
    names([b"newer", b"last"], [b"old", b"new"]);
    drop(other);
    fs.rename(mine, b"newer", mine, b"newest", RenameMode::Replace)
        .unwrap();
    fs.fsync(kept, SyncKind::All).unwrap();
    names([b"newest", b"last"], [b"newer", b"new"]);
}

#[test]
fn old_extents_are_not_logged_again() {
    let fs = open(Arc::new(formatted())).unwrap();
    let ino = create(&fs, b"f");
    for round in 0..20u64 {
        fs.write(ino, round * 8192, &[1; 8192], WriteMode::default())
            .unwrap();
        fs.fsync(ino, SyncKind::All).unwrap();
    }
    assert_eq!(counter(&fs, "log_extents"), 20);
    fs.fsync(ino, SyncKind::All).unwrap();
    assert_eq!(counter(&fs, "log_extents"), 20);
}

#[test]
fn fsyncs_that_come_meanwhile_share_the_next_log() {
    let (gate, base) = gate();
    let fs = open(gate.clone()).unwrap();
    let files: Vec<Ino> = (b'a'..=b'f').map(|name| create(&fs, &[name])).collect();
    fs.sync().unwrap();
    for ino in &files {
        write(&fs, *ino, &[5; 9000]);
    }
    gate.hold_if(|request| request.kind == RequestKind::Flush);
    thread::scope(|scope| {
        let fsync = |ino: Ino| {
            let (fs, gate) = (&fs, &gate);
            move || {
                fs.fsync(ino, SyncKind::All).unwrap();
                gate.inner().mark(format!("{}", ino.0));
            }
        };
        scope.spawn(fsync(files[0]));
        gate.wait_held(1);
        scope.spawn(fsync(files[1]));
        gate.wait_held(2);
        for ino in &files[2..] {
            scope.spawn(fsync(*ino));
        }
        // Two logs are in progress; the four others have logged into the third.
        let log = log_of(&fs);
        let third = |ino: &Ino| {
            let found = log.find(ino.0);
            found.is_some_and(|inode| inode.logged.lock().number == 3)
        };
        until(|| files[2..].iter().all(third));
        gate.open();
    });
    assert_eq!(counter(&fs, "fast_fsyncs"), 6);
    let commits = counter(&fs, "log_commits");
    assert!((2..=3).contains(&commits), "{commits} logs");
    every_cut(&gate, &base, |after, marks| {
        for (nth, ino) in files.iter().enumerate() {
            if marks.contains(&format!("{}", ino.0)) {
                let name = [b'a' + nth as u8];
                assert!(content(after, &name) == Some(vec![5; 9000]));
            }
        }
    });
}

#[test]
fn many_that_fsync_share_one_log_after_another() {
    let (gate, base) = gate();
    let fs = open(gate.clone()).unwrap();
    let files: Vec<Ino> = (b'a'..=b'p').map(|name| create(&fs, &[name])).collect();
    fs.sync().unwrap();
    for ino in &files {
        write(&fs, *ino, &[5; 9000]);
    }
    // All of them are in progress before the first has written its data.
    let is_data = |request: &Request<'_>| {
        let bytes = request.bytes.unwrap_or_default();
        request.kind == RequestKind::Write && bytes.iter().take(64).eq([5; 64].iter())
    };
    gate.hold_if(is_data);
    thread::scope(|scope| {
        for ino in &files {
            let (fs, gate) = (&fs, &gate);
            scope.spawn(move || {
                fs.fsync(*ino, SyncKind::All).unwrap();
                gate.inner().mark(format!("{}", ino.0));
            });
        }
        gate.wait_held(files.len());
        // No new predicate for those that are held: they continue one by one.
        gate.hold_if(|request| request.kind == RequestKind::Flush);
        let first = gate.held()[0].ticket;
        assert!(gate.release(first));
        until(|| {
            gate.held()
                .iter()
                .any(|held| held.kind == RequestKind::Flush)
        });
        for held in gate.held() {
            if held.kind == RequestKind::Write {
                gate.release(held.ticket);
            }
        }
        let log = log_of(&fs);
        let in_second = || {
            let logged = files.iter().filter_map(|ino| log.find(ino.0));
            logged
                .filter(|inode| inode.logged.lock().number == 2)
                .count()
        };
        until(|| in_second() == files.len() - 1);
        let held = gate.held();
        let flushes = held.iter().filter(|h| h.kind == RequestKind::Flush);
        assert_eq!(flushes.count(), 1, "nobody begins the second log");
        gate.open();
    });
    assert_eq!(counter(&fs, "fast_fsyncs"), 16);
    assert_eq!(counter(&fs, "log_commits"), 2);
    every_cut(&gate, &base, |after, marks| {
        for (nth, ino) in files.iter().enumerate() {
            if marks.contains(&format!("{}", ino.0)) {
                let name = [b'a' + nth as u8];
                assert!(content(after, &name) == Some(vec![5; 9000]));
            }
        }
    });
}

#[test]
fn a_failed_log_write_falls_back_to_a_commit() {
    for kinds in [RequestKinds::WRITE, RequestKinds::FLUSH, RequestKinds::FUA] {
        for nth in 1..=6 {
            let memory = Arc::new(formatted());
            let device = Arc::new(FaultDevice::new(memory.clone()));
            let fs = open(device.clone()).unwrap();
            let ino = create(&fs, b"f");
            write(&fs, ino, &[3; 10]);
            device.arm(FaultRule::new(kinds, nth, Fault::Fail));
            let done = fs.fsync(ino, SyncKind::All);
            let fired = device.fired() > 0;
            device.clear();
            if done.is_err() {
                assert!(fired);
                continue;
            }
            let causes = counter(&fs, "full_fsyncs_log_write");
            assert_eq!(causes > 0, fired, "{kinds:?} {nth}");
            let after = open(Arc::new(memory.snapshot())).unwrap();
            assert_eq!(content(&after, b"f"), Some(vec![3; 10]), "{kinds:?} {nth}");
        }
    }
}

#[test]
fn a_device_that_fails_for_good_is_never_said_to_be_done() {
    for kinds in [RequestKinds::ANY_WRITE, RequestKinds::FLUSH] {
        let memory = Arc::new(formatted());
        let device = Arc::new(FaultDevice::new(memory.clone()));
        let fs = open(device.clone()).unwrap();
        let ino = create(&fs, b"f");
        write(&fs, ino, &[3; 10]);
        device.arm(FaultRule::new(kinds, 1, Fault::Fail).from_then_on());
        assert!(fs.fsync(ino, SyncKind::All).is_err());
        assert!(fs.engine.read_only());
        assert!(fs.fsync(ino, SyncKind::All).is_err());
        device.clear();
        open(Arc::new(memory.snapshot())).unwrap();
    }
}

#[test]
fn space_and_memory_of_old_logs_come_back() {
    let fs = open(Arc::new(formatted())).unwrap();
    let ino = create(&fs, b"f");
    fs.sync().unwrap();
    for round in 0..2000u32 {
        write(&fs, ino, &round.to_le_bytes());
        fs.fsync(ino, SyncKind::All).unwrap();
        let taken = fs.engine.join().unwrap().trans().log_blocks.taken();
        assert!(fs.engine.blocks.count_of(objectid::TREE_LOG) <= taken);
        assert!(taken < 10, "{taken} blocks after {round} logs");
    }
    assert_eq!(counter(&fs, "fast_fsyncs"), 2000);
    assert_eq!(counter(&fs, "commits"), 1);
}
