//! The data path over a gate device: the waits between its steps, and the place of data during
//! them.

mod content;
mod encoded;
mod promised_size;

use std::sync::Arc;
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs_format::{BlockGroupFlags, Incompat, Key};
use sapwood_testing::{CountDevice, GateDevice, RequestKind};
use sapwood_vfs::{AllocMode, Credentials, InodeFlags, NewInode};

use super::{Wait, flush, flush_complete, items};
use crate::file_data::{Content, Stored};
use crate::inode::Inode;
use crate::mkfs::{MkfsOptions, Profile, mkfs};
use crate::mount::Engine;
use crate::transaction::State;
use crate::{Error, Options, Result};

type Gate = Arc<GateDevice<MemoryDevice>>;

fn device(options: &MkfsOptions) -> Gate {
    let device = GateDevice::new(MemoryDevice::new(256 << 20));
    mkfs(&device, options).unwrap();
    Arc::new(device)
}

fn open(device: &Gate) -> Arc<Engine> {
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let options = Options {
        background: false,
        ..Options::default()
    };
    let (engine, _) = Engine::open(devices, options).unwrap();
    engine.volume.begin_repairs();
    engine
}

/// Without the state in memory: as after a power cut.
fn reopen(device: &Gate) -> Arc<Engine> {
    let copy = Arc::new(GateDevice::new(device.inner().snapshot()));
    open(&copy)
}

fn top(engine: &Arc<Engine>) -> Arc<Inode> {
    let root = engine.roots.get(5).unwrap();
    engine.inodes.load(engine, &root, 256).unwrap()
}

fn create(engine: &Arc<Engine>, name: &[u8]) -> Arc<Inode> {
    let dir = top(engine);
    let place = crate::namespace::rename::NameInDir { dir: &dir, name };
    let _io = dir.io.write();
    crate::namespace::create::create(engine, &Credentials::ROOT, place, NewInode::Regular, 0o644)
        .unwrap()
}

fn load(engine: &Arc<Engine>, objectid: u64) -> Arc<Inode> {
    let root = engine.roots.get(5).unwrap();
    engine.inodes.load(engine, &root, objectid).unwrap()
}

fn write(engine: &Arc<Engine>, inode: &Arc<Inode>, offset: u64, data: &[u8]) {
    let _io = inode.io.write();
    super::write(engine, inode, offset, data.into()).unwrap();
}

fn read(engine: &Arc<Engine>, inode: &Arc<Inode>, offset: u64, len: usize) -> Result<Vec<u8>> {
    let _io = inode.io.read();
    let mut buf = vec![0xee; len];
    let len = super::read(engine, inode, offset, &mut buf)?;
    buf.truncate(len);
    Ok(buf)
}

fn stored(engine: &Engine, inode: &Inode, offset: u64) -> Stored {
    match items::find(engine, inode, offset).unwrap().content {
        Content::Data(stored) | Content::Prealloc(stored) => stored,
        other => panic!("no extent at {offset}: {other:?}"),
    }
}

fn has_item(engine: &Engine, inode: &Inode, offset: u64) -> bool {
    let key: Key = items::key_of(inode, offset);
    inode.root.get(engine, &key).unwrap().is_some()
}

/// Holds writes that begin with this byte: data, not tree blocks.
fn hold(gate: &Gate, byte: u8) {
    gate.hold_if(move |request| {
        request.kind == RequestKind::Write
            && request
                .bytes
                .is_some_and(|b| b.iter().take(64).all(|b| *b == byte))
    });
}

#[test]
fn data_on_its_way_is_read_from_memory() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'a'; 100_000]);
    hold(&gate, b'a');
    flush(&engine, &file, 0..u64::MAX, Wait::None).unwrap();
    gate.wait_held(1);
    assert_eq!(read(&engine, &file, 0, 200_000).unwrap(), [b'a'; 100_000]);
    write(&engine, &file, 5000, &[b'b'; 10]);
    let mut expected = vec![b'a'; 100_000];
    expected[5000..5010].fill(b'b');
    assert_eq!(read(&engine, &file, 0, 200_000).unwrap(), expected);
    assert!(!has_item(&engine, &file, 0));
    gate.open();
    flush_complete(&engine, &file).unwrap();
    assert!(has_item(&engine, &file, 0) && file.data.pending_bytes() == 0);
    assert_eq!(read(&engine, &file, 0, 200_000).unwrap(), expected);
    engine.commit(None).unwrap();
    let again = reopen(&gate);
    assert_eq!(
        read(&again, &load(&again, file.objectid), 0, 200_000).unwrap(),
        expected
    );
}

#[test]
fn newer_data_overtakes_older_on_the_device_but_not_in_the_tree() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'a'; 40960]);
    hold(&gate, b'a');
    flush(&engine, &file, 0..u64::MAX, Wait::None).unwrap();
    gate.wait_held(1);
    write(&engine, &file, 8192, &[b'b'; 8192]);
    flush(&engine, &file, 0..u64::MAX, Wait::None).unwrap();
    // Its I/O is done while the older one's is held; its completion waits.
    let newer = loop {
        let newest = file
            .data
            .ordered()
            .into_iter()
            .find(|ordered| ordered.range.start == 8192);
        match newest {
            Some(ordered) if file.data.state.lock().in_flight.is_io_done(ordered.entry) => {
                break ordered;
            }
            _ => thread::yield_now(),
        }
    };
    assert_eq!(newer.range, 8192..16384);
    assert!(!has_item(&engine, &file, 0) && !has_item(&engine, &file, 8192));
    gate.open();
    flush_complete(&engine, &file).unwrap();
    let mut expected = vec![b'a'; 40960];
    expected[8192..16384].fill(b'b');
    assert_eq!(read(&engine, &file, 0, 50_000).unwrap(), expected);
    assert_eq!(stored(&engine, &file, 8192).offset, 0);
    assert_eq!(stored(&engine, &file, 16384).offset, 16384);
}

#[test]
fn a_flush_for_io_does_not_wait_for_completion_but_a_commit_does() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    engine.commit(None).unwrap();
    engine.writeback.hold_completions(true);
    write(&engine, &file, 0, &[b'a'; 12288]);
    flush(&engine, &file, 0..u64::MAX, Wait::Io).unwrap();
    assert!(!has_item(&engine, &file, 0));
    let ordered = file.data.ordered();
    let [ordered] = &ordered[..] else {
        panic!("{ordered:?}")
    };
    let sum = engine.checksum.compute(&[b'a'; 4096]);
    assert_eq!(ordered.sums(), sum.as_bytes().repeat(3));
    let modified = file.data.modified(engine.last_committed());
    assert_eq!(modified.len(), 1);
    assert!(modified[0].ordered.is_some() && modified[0].transid.is_none());

    let h = engine.start(1).unwrap();
    let (trans, transid) = (Arc::clone(h.trans()), h.transid());
    assert!(ordered.pin(&h) && ordered.pin(&h));
    h.end().unwrap();
    thread::scope(|scope| {
        let commit = scope.spawn(|| engine.commit(Some(transid)));
        while trans.state() == State::Running {
            thread::yield_now();
        }
        assert!(engine.last_committed() < transid);
        assert_eq!(trans.state(), State::CommitStart);
        engine.writeback.hold_completions(false);
        commit.join().unwrap().unwrap();
    });
    let h = engine.start(1).unwrap();
    assert!(!ordered.pin(&h));
    h.end().unwrap();
    let again = reopen(&gate);
    let file = load(&again, file.objectid);
    assert_eq!(read(&again, &file, 0, 20_000).unwrap(), [b'a'; 12288]);
}

#[test]
fn the_size_on_disk_does_not_pass_what_is_on_its_way() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'a'; 8192]);
    hold(&gate, b'a');
    flush(&engine, &file, 0..u64::MAX, Wait::None).unwrap();
    gate.wait_held(1);
    write(&engine, &file, 20480, &[b'b'; 4096]);
    flush(&engine, &file, 20480..24576, Wait::None).unwrap();
    while file.data.state.lock().in_flight.overlaps(20480..24576) {
        thread::yield_now();
    }
    assert_eq!(file.state.lock().disk_size, 0);
    gate.open();
    flush_complete(&engine, &file).unwrap();
    assert_eq!(file.state.lock().disk_size, 24576);
}

#[test]
fn an_overwrite_in_memory_keeps_the_size_of_what_is_in_the_tree() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'a'; 11000]);
    hold(&gate, b'a');
    flush(&engine, &file, 0..u64::MAX, Wait::None).unwrap();
    gate.wait_held(1);
    // The last sector is dirty again, with more at its end.
    write(&engine, &file, 11000, &[b'b'; 100]);
    gate.open();
    while !file.data.state.lock().in_flight.is_empty() {
        thread::yield_now();
    }
    assert_eq!(file.state.lock().disk_size, 11000);
    engine.commit(None).unwrap();
    assert_eq!(file.state.lock().disk_size, 11000);
    flush_complete(&engine, &file).unwrap();
    assert_eq!(file.state.lock().disk_size, 11100);
}

#[test]
fn a_failed_write_is_told_and_ends_all_changes() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'0'; 8192]);
    flush_complete(&engine, &file).unwrap();
    engine.commit(None).unwrap();
    write(&engine, &file, 0, &[b'a'; 8192]);
    hold(&gate, b'a');
    thread::scope(|scope| {
        let flusher = scope.spawn(|| flush_complete(&engine, &file));
        gate.wait_held(1);
        assert_eq!(gate.fail_all(), 1);
        assert!(matches!(
            flusher.join().unwrap(),
            Err(Error::WriteFailed { .. })
        ));
    });
    assert!(engine.read_only() && engine.commit(None).is_err());
    assert_eq!(engine.writeback.bytes(), 0);
    let again = reopen(&gate);
    assert_eq!(
        read(&again, &load(&again, file.objectid), 0, 9000).unwrap(),
        [b'0'; 8192]
    );
}

/// A file with five sectors of `a`, none adjacent to another.
fn scattered(engine: &Arc<Engine>) -> Arc<Inode> {
    let file = create(engine, b"f");
    for nth in 0..5 {
        write(engine, &file, nth * 12_288, &[b'a'; 4096]);
    }
    file
}

#[test]
fn a_flush_writes_neighbours_with_one_request() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = scattered(&engine);
    hold(&gate, b'a');
    thread::scope(|scope| {
        let flusher = scope.spawn(|| flush(&engine, &file, 0..u64::MAX, Wait::Io));
        let held = gate.wait_held(1);
        assert_eq!(held.len(), 1);
        assert_eq!(held[0].len, 5 * 4096);
        gate.open();
        flusher.join().unwrap().unwrap();
    });
    flush_complete(&engine, &file).unwrap();
    engine.commit(None).unwrap();
    let again = reopen(&gate);
    let file = load(&again, file.objectid);
    let first = stored(&again, &file, 0).bytenr;
    for nth in 0..5 {
        assert_eq!(
            stored(&again, &file, nth * 12_288).bytenr,
            first + nth * 4096
        );
        let found = read(&again, &file, nth * 12_288, 8192).unwrap();
        assert!(found.iter().take(4096).all(|b| *b == b'a'));
        assert!(found.iter().skip(4096).all(|b| *b == 0));
    }
}

#[test]
fn a_writeback_for_space_hides_no_failure_from_the_file() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'a'; 8192]);
    hold(&gate, b'a');
    thread::scope(|scope| {
        let pressure = scope.spawn(|| crate::space::Pressure::write_back(engine.store()));
        gate.wait_held(1);
        assert_eq!(gate.fail_all(), 1);
        assert!(pressure.join().unwrap().is_err(), "the mount is read-only");
    });
    let told = flush_complete(&engine, &file);
    assert!(matches!(told, Err(Error::WriteFailed { .. })));
    assert!(flush_complete(&engine, &file).is_ok(), "reported once");
}

#[test]
fn a_failed_write_of_neighbours_fails_each() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = scattered(&engine);
    hold(&gate, b'a');
    thread::scope(|scope| {
        let flusher = scope.spawn(|| flush(&engine, &file, 0..u64::MAX, Wait::Io));
        gate.wait_held(1);
        assert_eq!(gate.fail_all(), 1);
        let told = flusher.join().unwrap();
        assert!(matches!(told, Err(Error::WriteFailed { .. })));
    });
    assert_eq!(file.data.state.lock().failures, 5);
    assert!(flush_complete(&engine, &file).is_ok(), "told once");
    assert!(engine.read_only() && engine.writeback.bytes() == 0);
}

/// Writes four sectors, damages the second of them on one copy, and opens the image again.
fn with_bad_sector(options: &MkfsOptions) -> (Gate, Arc<Engine>, Arc<Inode>, u64) {
    let gate = device(options);
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'a'; 16384]);
    flush_complete(&engine, &file).unwrap();
    engine.commit(None).unwrap();
    let logical = stored(&engine, &file, 0).bytenr + 4096;
    let physical = engine.volume.map(logical, 4096, 0).unwrap()[0].physical;
    gate.write_at(physical + 7, b"X").unwrap();
    let engine = open(&gate);
    let file = load(&engine, file.objectid);
    (gate, engine, file, physical)
}

#[test]
fn a_bad_sector_fails_only_reads_of_it() {
    let (_gate, engine, file, physical) = with_bad_sector(&MkfsOptions::default());
    let error = read(&engine, &file, 0, 16384).unwrap_err();
    match error {
        Error::DataChecksum {
            physical: at,
            objectid,
            offset,
            ..
        } => {
            assert_eq!((at, objectid, offset), (physical, file.objectid, 4096));
        }
        other => panic!("{other}"),
    }
    assert!(matches!(
        sapwood_vfs::Error::from(read(&engine, &file, 5000, 1).unwrap_err()),
        sapwood_vfs::Error::Io(_)
    ));
    assert_eq!(read(&engine, &file, 0, 4096).unwrap(), [b'a'; 4096]);
    assert_eq!(read(&engine, &file, 8192, 9000).unwrap(), [b'a'; 8192]);
}

#[test]
fn a_bad_sector_is_repaired_from_the_other_copy() {
    let options = MkfsOptions {
        data: Some(Profile::Dup),
        ..MkfsOptions::default()
    };
    let (gate, engine, file, physical) = with_bad_sector(&options);
    assert_eq!(read(&engine, &file, 0, 20_000).unwrap(), [b'a'; 16384]);
    let mut byte = [0];
    gate.inner().read_at(physical + 7, &mut byte).unwrap();
    assert_eq!(byte, [b'a']);
}

#[test]
fn nodatacow_overwrites_in_place_until_a_snapshot() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    crate::namespace::attr::set_flags(&engine, &file, InodeFlags::NOCOW).unwrap();
    let put = |byte: u8, offset: u64| {
        write(&engine, &file, offset, &[byte; 8192]);
        flush_complete(&engine, &file).unwrap();
        stored(&engine, &file, offset).bytenr
    };
    write(&engine, &file, 0, &[b'0'; 40960]);
    let first = put(b'a', 0);
    assert_eq!(put(b'b', 4096), first);
    engine.commit(None).unwrap();
    assert_eq!(put(b'c', 8192), first);
    crate::subvolume::snapshot::snapshot(&engine, &file.root, &top(&engine), b"snap", false)
        .unwrap();
    let second = put(b'd', 4096);
    assert_ne!(second, first);
    assert_eq!(put(b'e', 4096), second);
    let mut expected = vec![b'a'; 4096];
    expected.extend([b'e'; 8192]);
    expected.extend([b'c'; 4096]);
    expected.extend([b'0'; 24576]);
    assert_eq!(read(&engine, &file, 0, 50_000).unwrap(), expected);
}

#[test]
fn preallocated_space_takes_data_on_a_full_file_system() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    {
        let _io = file.io.write();
        let mode = AllocMode::Allocate { keep_size: false };
        super::fallocate(&engine, &file, 0, 8 << 20, mode).unwrap();
    }
    let bytenr = stored(&engine, &file, 0).bytenr;
    let filler = create(&engine, b"filler");
    let mut at = 0;
    loop {
        let _io = filler.io.write();
        match super::write(&engine, &filler, at, [b'f'; 1 << 20][..].into()) {
            Ok(()) => at += 1 << 20,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(at > 50 << 20, "{at}");
    flush_complete(&engine, &filler).unwrap();
    for i in 0..8u64 {
        write(&engine, &file, i << 20, &[b'p'; 1 << 20]);
    }
    flush_complete(&engine, &file).unwrap();
    assert_eq!(stored(&engine, &file, 5 << 20).bytenr, bytenr);
    engine.commit(None).unwrap();
    {
        let _io = filler.io.write();
        super::truncate(&engine, &filler, 0).unwrap();
    }
    engine.commit(None).unwrap();
    write(&engine, &filler, 0, &[b'g'; 1 << 20]);
    flush_complete(&engine, &filler).unwrap();
    assert_eq!(
        read(&engine, &file, 0, 8 << 20).unwrap(),
        vec![b'p'; 8 << 20]
    );
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "may wait here")]
fn starting_a_handle_with_an_inode_state_locked_panics() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"file");
    let _state = file.state.lock();
    let _ = engine.start(1);
}

#[test]
fn only_a_big_writeback_has_the_device_begin_at_once() {
    let behind = |data: Profile, len: usize| {
        let device = Arc::new(CountDevice::new(MemoryDevice::new(256 << 20)));
        let options = MkfsOptions {
            data: Some(data),
            ..MkfsOptions::default()
        };
        mkfs(&device, &options).unwrap();
        let (engine, _) = Engine::open(vec![device.clone()], Options::default()).unwrap();
        engine.volume.begin_repairs();
        let inode = create(&engine, b"f");
        write(&engine, &inode, 0, &vec![1; len]);
        flush_complete(&engine, &inode).unwrap();
        // Its threads may report it after the I/O is complete.
        engine.writeback.stop();
        device.counts().behind_bytes
    };
    assert_eq!(behind(Profile::Single, 256 << 10), 0);
    assert_eq!(behind(Profile::Single, 8 << 20), 8 << 20);
    assert_eq!(behind(Profile::Dup, 8 << 20), 16 << 20);
}

#[test]
fn what_a_transaction_frees_is_not_free_before_it_is_durable() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[1; 100_000]);
    flush_complete(&engine, &file).unwrap();
    engine.commit(None).unwrap();
    let old = stored(&engine, &file, 0);
    {
        let _io = file.io.write();
        super::truncate(&engine, &file, 0).unwrap();
    }
    let mut h = engine.join().unwrap();
    engine.space.run_delayed_refs(&mut h, None).unwrap();
    h.end().unwrap();
    let take = || {
        let space = &engine.space;
        space.take_exactly(old.bytenr, old.disk_len, BlockGroupFlags::DATA)
    };
    assert!(take().is_err());
    engine.commit_and_unpin(None).unwrap();
    take().unwrap();
}

#[test]
fn a_hole_takes_data_that_is_not_written_yet_away() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[1; 20_480]);
    {
        let _io = file.io.write();
        super::fallocate(&engine, &file, 4096, 4096, AllocMode::PunchHole).unwrap();
    }
    assert_eq!(read(&engine, &file, 4096, 4096).unwrap(), [0; 4096]);
}

#[test]
fn an_allocation_without_space_waits_for_deletions_under_way() {
    const LEN: u64 = 130 << 20;
    let device = device(&MkfsOptions::default());
    let engine = open(&device);
    let allocate = |inode: &Arc<Inode>, engine: &Arc<Engine>| {
        let _io = inode.io.write();
        super::fallocate(
            engine,
            inode,
            0,
            LEN,
            AllocMode::Allocate { keep_size: true },
        )
    };
    let (victim, other) = (create(&engine, b"victim"), create(&engine, b"other"));
    allocate(&victim, &engine).unwrap();
    assert!(matches!(allocate(&other, &engine), Err(Error::NoSpace)));
    // The thread that deletes a file is stopped after it began.
    let deletion = engine.space.deletions.begin();
    let waiting = {
        let (engine, other) = (Arc::clone(&engine), Arc::clone(&other));
        thread::spawn(move || allocate(&other, &engine))
    };
    while engine.space.deletions.waiting() == 0 {
        assert!(!waiting.is_finished(), "no space, beside a deletion");
        thread::yield_now();
    }
    crate::namespace::remove::remove(&engine, &top(&engine), b"victim", false).unwrap();
    drop(deletion);
    waiting.join().unwrap().unwrap();
}
