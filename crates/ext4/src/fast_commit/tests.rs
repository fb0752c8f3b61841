//! The area of fast commits: torn, stale and hostile contents, and writes that fail.

use std::sync::Arc;
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::Inode as RawInode;
use sapwood_testing::{
    Action, CountDevice, Fault, FaultDevice, FaultRule, GateDevice, RecordDevice, RequestKind,
    RequestKinds,
};
use sapwood_vfs::{
    Attr, Credentials, FileSystem, Ino, NewInode, SetAttr, SetXattrMode, SyncKind, WriteMode,
};

use super::encode::Encoder;
use crate::oracles::{TOOLS, clean, image, left_out};
use crate::recovery;
use crate::track::{Name, Naming, Range, Record};
use crate::{Error, Ext4, FastCommits, Options, inode_alloc};

const SIZE: u64 = 32 << 20;

fn mount(device: Arc<dyn Device>) -> Result<Ext4, Error> {
    let options = Options {
        background: false,
        noatime: true,
        fast_commit: FastCommits::Full,
        ..Options::default()
    };
    Ext4::open(device, options)
}

/// A file system with a file of 100 bytes, durable.
fn begin() -> Option<(Arc<MemoryDevice>, Ext4, Ino)> {
    if left_out(TOOLS) {
        return None;
    }
    let device = image(SIZE, "-b 1024 -J size=4 -O fast_commit");
    let fs = mount(device.clone()).unwrap();
    let ino = create(&fs, b"a");
    append(&fs, ino, 100);
    fs.sync().unwrap();
    Some((device, fs, ino))
}

fn create(fs: &Ext4, name: &[u8]) -> Ino {
    let who = Credentials::ROOT;
    let made = fs.create(&who, fs.root(), name, NewInode::Regular, 0o644);
    made.unwrap().ino()
}

fn append(fs: &Ext4, ino: Ino, len: usize) {
    let at = fs.getattr(ino).unwrap().size;
    let bytes = vec![b'x'; len];
    fs.write(ino, at, &bytes, WriteMode::default()).unwrap();
}

fn fsync(fs: &Ext4, ino: Ino) -> sapwood_vfs::Result<()> {
    fs.fsync(ino, SyncKind::All)
}

/// Calls fsync, which must make a fast commit.
fn fast(fs: &Ext4, ino: Ino) {
    let before = counter(fs, "fast_commit_commits");
    fsync(fs, ino).unwrap();
    assert_eq!(counter(fs, "fast_commit_commits"), before + 1);
}

fn counter(fs: &Ext4, name: &str) -> u64 {
    let all = fs.counters();
    all.iter().find(|(one, _)| one == name).unwrap().1
}

fn block(fs: &Ext4, index: u64) -> Vec<u8> {
    let mut block = vec![0; 1024];
    let log = fs.engine.journal.log().unwrap();
    log.read_fast_commit(index, &mut block).unwrap();
    block
}

fn put(fs: &Ext4, index: u64, blocks: &[Vec<u8>]) {
    let pieces: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
    let log = fs.engine.journal.log().unwrap();
    log.write_fast_commit(index, &pieces).unwrap();
}

/// The attributes of the file `a` after a power cut at this moment and a recovery.
fn recovered(device: &MemoryDevice) -> Attr {
    let fs = mount(Arc::new(device.snapshot())).unwrap();
    fs.lookup(fs.root(), b"a").unwrap().attr
}

#[test]
fn a_torn_fast_commit_ends_the_area() {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    for _ in 0..3 {
        append(&fs, ino, 100);
        fast(&fs, ino);
    }
    assert_eq!(recovered(&device).size, 400);
    let whole = block(&fs, 1);
    for at in [0, 20, 100, 1000] {
        let mut torn = whole.clone();
        torn.truncate(at);
        torn.resize(1024, 0);
        put(&fs, 1, &[torn.clone()]);
        let intact = torn == whole;
        assert_eq!(
            recovered(&device).size,
            if intact { 400 } else { 200 },
            "{at}"
        );
    }
    put(&fs, 1, &[whole]);
    assert_eq!(recovered(&device).size, 400);
}

#[test]
fn old_fast_commits_are_erased() {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    append(&fs, ino, 100);
    fast(&fs, ino);
    append(&fs, ino, 100);
    fast(&fs, ino);
    append(&fs, ino, 100);
    fs.sync().unwrap();
    assert!(block(&fs, 0).iter().all(|byte| *byte == 0));
    assert!(block(&fs, 1).iter().any(|byte| *byte != 0));
    assert_eq!(recovered(&device).size, 400);
    append(&fs, ino, 100);
    fast(&fs, ino);
    assert_eq!(recovered(&device).size, 500);
}

#[test]
fn sequence_numbers_are_not_reused() {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    for size in [200, 300] {
        append(&fs, ino, 100);
        fast(&fs, ino);
        assert_eq!(recovered(&device).size, size);
    }
    let after = Arc::new(device.snapshot());
    let fs = mount(after.clone()).unwrap();
    let ino = fs.lookup(fs.root(), b"a").unwrap().ino();
    let cut = SetAttr {
        size: Some(250),
        ..SetAttr::default()
    };
    fs.setattr(ino, &cut).unwrap();
    fast(&fs, ino);
    // The second fast commit of the former transaction follows it.
    let former = mount(Arc::new(device.snapshot())).unwrap();
    assert_eq!(block(&fs, 1), block(&former, 1));
    assert_eq!(recovered(&after).size, 250);
}

#[test]
fn a_failed_write_ends_the_mount() {
    if left_out(TOOLS) {
        return;
    }
    let image = image(SIZE, "-b 1024 -J size=4 -O fast_commit");
    for nth in 1..=8 {
        let device = Arc::new(FaultDevice::new(image.snapshot()));
        let fs = mount(device.clone()).unwrap();
        let ino = create(&fs, b"a");
        fs.sync().unwrap();
        append(&fs, ino, 100);
        fast(&fs, ino);
        append(&fs, ino, 2000);
        let kinds = RequestKinds::ANY_CHANGE;
        device.arm(FaultRule::new(kinds, nth, Fault::Fail).from_then_on());
        let failed = fsync(&fs, ino).is_err();
        let size = recovered(device.inner()).size;
        if failed {
            assert!(fs.read_only(), "request {nth}");
            assert!(fsync(&fs, ino).is_err(), "request {nth}");
            assert!(size == 100 || size == 2100, "request {nth}: {size}");
        } else {
            assert!(nth > 3, "request {nth} was not needed");
            assert_eq!(size, 2100);
        }
    }
}

#[test]
fn concurrent_fsyncs_share_the_next_fast_commit() {
    let Some((device, fs, first)) = begin() else {
        return;
    };
    let others: Vec<Ino> = [b"b", b"c", b"d", b"e"]
        .map(|name| create(&fs, name))
        .into();
    for ino in &others {
        append(&fs, *ino, 4096);
    }
    fs.unmount().unwrap();
    let gate = Arc::new(GateDevice::new(CountDevice::new(device)));
    let fs = mount(gate.clone()).unwrap();
    append(&fs, first, 100);
    let before = gate.inner().counts().flushes;
    gate.hold_if(|request| request.kind == RequestKind::Flush);
    thread::scope(|scope| {
        let fs = &fs;
        let leader = scope.spawn(move || fsync(fs, first).unwrap());
        gate.wait_held(1);
        let rest: Vec<_> = others
            .iter()
            .map(|ino| {
                // The write is in place, so only the flush makes it durable.
                fs.write(*ino, 0, &[b'y'; 4096], WriteMode::default())
                    .unwrap();
                scope.spawn(move || fsync(fs, *ino).unwrap())
            })
            .collect();
        while fs.engine.journal.waiting() < rest.len() {
            thread::yield_now();
        }
        // The first flush is for the data, the second for the fast commit.
        gate.release_first();
        gate.wait_held(1);
        assert!(!leader.is_finished());
        gate.release_first();
        leader.join().unwrap();
        gate.wait_held(1);
        assert!(
            rest.iter().all(|one| !one.is_finished()),
            "nothing is durable"
        );
        gate.open();
    });
    assert_eq!(counter(&fs, "fast_commit_commits"), 2);
    assert_eq!(gate.inner().counts().flushes, before + 3);
    for ino in others {
        fsync(&fs, ino).unwrap();
    }
    assert_eq!(
        gate.inner().counts().flushes,
        before + 3,
        "all of it is durable"
    );
}

#[test]
fn blocks_written_back_are_durable_before_the_fast_commit() {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    fs.close().unwrap();
    let device = Arc::new(RecordDevice::new(device.snapshot()));
    let fs = mount(device.clone()).unwrap();
    let other = create(&fs, b"b");
    append(&fs, other, 3000);
    fs.sync().unwrap();
    device.take_log();
    // A change without data, which would need a flush by itself.
    let changes = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(ino, &changes).unwrap();
    fast(&fs, ino);
    let log = device.log();
    let actions = || log.entries().iter().map(|entry| &entry.action);
    // The first block of descriptors.
    let descriptors = |action: &Action| action.range().is_some_and(|(at, _)| at == 2048);
    let home = actions().position(descriptors).unwrap();
    let begins = |action: &Action| match action {
        Action::Write { data, .. } => data.starts_with(&[9, 0, 8, 0]),
        Action::Discard { .. } | Action::Flush => false,
    };
    let head = actions().position(begins).unwrap();
    let mut between = actions().take(head).skip(home);
    assert!(between.any(|action| *action == Action::Flush));
}

#[test]
fn a_recovery_erases_the_area_before_it_writes_back() {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    append(&fs, ino, 3000);
    fast(&fs, ino);
    let cut = device.snapshot();
    let device = Arc::new(RecordDevice::new(cut.snapshot()));
    drop(mount(device.clone()).unwrap());
    let log = device.log();
    let writes = log
        .entries()
        .iter()
        .filter_map(|entry| match &entry.action {
            Action::Write { offset, data, .. } => Some((*offset, data)),
            Action::Discard { .. } | Action::Flush => None,
        });
    let is_commit = |data: &[u8]| data.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2]);
    let mut writes = writes.skip_while(|(_, data)| !is_commit(data)).skip(1);
    let (erased, data) = writes.next().unwrap();
    assert!(data.iter().all(|byte| *byte == 0));
    // The erased block was the begin of the area before the recovery.
    let mut head = [0; 4];
    cut.read_at(erased, &mut head).unwrap();
    assert_eq!(head, [9, 0, 8, 0]);
}

#[test]
fn stale_fast_commits_are_erased_before_anything_is_written_back() {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    append(&fs, ino, 3000);
    fast(&fs, ino);
    let stale = block(&fs, 0);
    append(&fs, ino, 100);
    fs.sync().unwrap();
    // The state after a power cut right after the commit block. The kernel erases the area later.
    put(&fs, 0, &[stale]);
    let device = Arc::new(RecordDevice::new(device.snapshot()));
    let fs = mount(device.clone()).unwrap();
    assert_eq!(fs.lookup(fs.root(), b"a").unwrap().attr.size, 3200);
    let log = device.take_log();
    let mut actions = log.entries().iter().map(|entry| &entry.action);
    let Some(Action::Write {
        offset, data, fua, ..
    }) = actions.next()
    else {
        panic!("{log:?}");
    };
    let area = fs.engine.journal.log().unwrap();
    let mut first = vec![0xee; 1024];
    area.read_fast_commit(0, &mut first).unwrap();
    assert!(*fua && first.iter().chain(data.iter()).all(|byte| *byte == 0));
    let mut there = vec![0xee; 1024];
    device.inner().read_at(*offset, &mut there).unwrap();
    assert_eq!(there, first);
}

#[test]
fn old_attributes_are_not_left_to_a_new_inode() {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    drop(device);
    // The kernel clears no field of a deleted inode.
    let number = u32::try_from(ino.0).unwrap();
    let value = fs.setxattr(ino, b"user.x", b"y", SetXattrMode::Any);
    value.unwrap();
    fs.sync().unwrap();
    let before = counter(&fs, "fast_commit_whole_xattrs");
    {
        let h = fs.engine.start_tracked(4).unwrap();
        let old_xattrs = inode_alloc::has_old_xattrs(&fs.engine, number).unwrap();
        fs.engine.fast_commits.created(&h, number, old_xattrs);
        assert!(h.requires_whole());
    }
    append(&fs, ino, 10);
    fsync(&fs, ino).unwrap();
    assert_eq!(counter(&fs, "fast_commit_whole_xattrs"), before + 1);
}

#[test]
fn without_the_option_no_fast_commit_is_written() {
    let Some((device, fs, _)) = begin() else {
        return;
    };
    fs.close().unwrap();
    let options = Options {
        background: false,
        fast_commit: FastCommits::Off,
        ..Options::default()
    };
    let fs = Ext4::open(device.clone(), options).unwrap();
    let ino = fs.lookup(fs.root(), b"a").unwrap().ino();
    append(&fs, ino, 100);
    fsync(&fs, ino).unwrap();
    assert_eq!(counter(&fs, "fast_commit_commits"), 0);
    assert_eq!(counter(&fs, "fsyncs_committed"), 1);
    assert_eq!(recovered(&device).size, 200);
}

/// A record with invalid contents: the mount is refused, and the image stays unchanged.
fn refused(what: &str, write: impl Fn(&mut Encoder, u32)) {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    append(&fs, ino, 100);
    fast(&fs, ino);
    let tid = fs.engine.journal.durable_tid() as u32 + 1;
    let mut encoder = Encoder::new(1024);
    write(&mut encoder, u32::try_from(ino.0).unwrap());
    put(&fs, 1, &encoder.finish(tid));
    let crashed = Arc::new(device.snapshot());
    let before = crashed.snapshot();
    let error = mount(crashed.clone()).err();
    let error = error.unwrap_or_else(|| panic!("{what}: mounted"));
    assert!(!error.to_string().is_empty());
    let named = matches!(
        error,
        Error::BadFastCommit {
            block: 1,
            offset: 0,
            ..
        } | Error::BadInode { .. }
            | Error::Vfs(_)
            | Error::BadGroup { .. }
    );
    assert!(named, "{what}: {error:?}");
    assert_eq!(crashed.first_difference(&before), None, "{what}");
}

fn named(parent: u32, ino: u32, name: &[u8]) -> Record {
    let name = Name {
        parent,
        ino,
        name: name.to_vec(),
    };
    let how = Naming::Link;
    Record::Name { name, how }
}

fn blocks(ino: u32, logical: u64, physical: u64, len: u32) -> Record {
    Record::Add(Range {
        ino,
        logical,
        len,
        physical,
        written: true,
    })
}

#[test]
fn invalid_records_are_refused() {
    let long = [b'n'; 256];
    for name in [&b"x/y"[..], b"", b".", b"..", b"x\0y", &long] {
        refused("a name", |to, ino| to.change(&named(2, ino, name)));
    }
    for inode in [0, 1, 7, 8, 10, 1 << 30] {
        refused("an inode", |to, _| to.change(&named(2, inode, b"x")));
        refused("a directory", |to, ino| to.change(&named(inode, ino, b"x")));
        refused("blocks of an inode", |to, _| {
            to.change(&blocks(inode, 0, 20_000, 1));
        });
        refused("fields of an inode", |to, _| to.inode(inode, &[0; 160]));
    }
    refused("a free inode", |to, _| to.change(&named(2, 1000, b"x")));
    refused("a file as a directory", |to, ino| {
        to.change(&named(ino, ino, b"x"))
    });
    refused("the root as a child", |to, _| {
        to.change(&named(11, 2, b"x"))
    });
    refused("blocks after the end", |to, ino| {
        to.change(&blocks(ino, 0, 32_767, 2));
    });
    refused("blocks of a group", |to, ino| {
        to.change(&blocks(ino, 5, 1, 1))
    });
    refused("no blocks", |to, ino| to.change(&blocks(ino, 5, 20_000, 0)));
    refused("blocks too far in the file", |to, ino| {
        to.change(&blocks(ino, u64::from(u32::MAX), 20_000, 1));
    });
    refused("a short inode", |to, ino| to.inode(ino, &[0; 100]));
    refused("a long inode", |to, ino| to.inode(ino, &[0; 300]));
}

/// The bytes of an inode in its table, changed.
fn fields(fs: &Ext4, ino: u32, change: impl FnOnce(&mut RawInode)) -> Vec<u8> {
    let geometry = &fs.engine.geometry;
    let mut raw = recovery::table_inode(&fs.engine, ino).unwrap();
    change(&mut raw);
    let mut bytes = vec![0; usize::from(geometry.inode_size())];
    raw.write(&mut bytes).unwrap();
    bytes
}

/// Recovers after a power cut that follows a fast commit with this record; `e2fsck` reports
/// nothing.
fn recovers_cleanly(device: &MemoryDevice, fs: &Ext4, ino: u32, fields: &[u8], what: &str) {
    let tid = fs.engine.journal.durable_tid() as u32 + 1;
    let mut encoder = Encoder::new(1024);
    encoder.head(tid);
    encoder.inode(ino, fields);
    put(fs, 0, &encoder.finish(tid));
    let crashed = Arc::new(device.snapshot());
    let recovered = mount(crashed.clone()).unwrap();
    recovered.unmount().unwrap();
    clean(&crashed, what);
}

#[test]
fn replay_ignores_fragment_and_deletion_time() {
    let Some((device, fs, ino)) = begin() else {
        return;
    };
    let ino = u32::try_from(ino.0).unwrap();
    let same = fields(&fs, ino, |_| ());
    recovers_cleanly(&device, &fs, ino, &same, "as it is");
    let invalid = fields(&fs, ino, |raw| {
        raw.base_mut().obso_faddr = 7.into();
        raw.set_dtime(99);
    });
    recovers_cleanly(&device, &fs, ino, &invalid, "invalid");
}

/// In the list of orphans the time of deletion names the next orphan.
#[test]
fn a_record_of_an_orphan_keeps_the_list() {
    for same_generation in [true, false] {
        let Some((device, fs, _)) = begin() else {
            return;
        };
        let orphans = [b"x", b"y", b"z"].map(|name| {
            let ino = create(&fs, name);
            if same_generation {
                append(&fs, ino, 5000);
            }
            fs.unlink(fs.root(), name).unwrap();
            u32::try_from(ino.0).unwrap()
        });
        fs.sync().unwrap();
        for ino in orphans {
            let stale = fields(&fs, ino, |raw| {
                let generation = raw.generation() + u32::from(!same_generation);
                raw.set_generation(generation);
            });
            let what = format!("{ino} {same_generation}");
            recovers_cleanly(&device, &fs, ino, &stale, &what);
        }
    }
}
