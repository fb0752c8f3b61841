//! A scrub of a mounted file system: damage is repaired, and changes at any moment of the scrub are
//! neither reported nor overwritten.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::Btrfs;
use sapwood_btrfs::scrub::{ScrubOptions, ScrubReport, ScrubStep, scrub_mounted};
use sapwood_testing::RequestKinds;
use sapwood_testing::device::{Fault, FaultDevice, FaultRule, GateDevice, RequestKind};
use sapwood_vfs::{FileSystem, InodeFlags, SyncKind, WriteMode};

use super::devices::{SIZE, any, clean, get, open, place, put};
use super::mirrors::{mirrored, opened};

const LEN: usize = 512 << 10;

fn scrubbed(fs: &Btrfs) -> ScrubReport {
    let options = ScrubOptions::default();
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    scrub_mounted(fs, &options, go_on).unwrap()
}

fn found(report: &ScrubReport) -> u64 {
    report.devices.values().map(|device| device.found()).sum()
}

/// Content whose sectors differ from each other and from other seeds'.
fn content(seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..LEN).map(|_| rng.u8(..)).collect()
}

fn bytes(device: &MemoryDevice, range: &Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    device.read_at(range.start, &mut bytes).unwrap();
    bytes
}

type Gate<D> = Arc<GateDevice<D>>;

fn gated<D: Device>(device: D) -> Gate<D> {
    Arc::new(GateDevice::new(device))
}

fn hold<D: Device>(gate: &Gate<D>, kinds: RequestKinds, range: Range<u64>) {
    gate.hold_if(move |request| kinds.contains(request.kind.set()) && request.touches(&range));
}

fn durable(fs: &Btrfs, name: &[u8], content: &[u8]) {
    let file = put(fs, name, content);
    fs.fsync(file, SyncKind::All).unwrap();
    fs.sync().unwrap();
    // An unlink then frees its space.
    fs.forget(file, 1);
}

#[test]
fn damage_is_repaired_while_mounted() {
    let pair = mirrored();
    let fs = opened(&pair);
    durable(&fs, b"kept", &content(1));
    let at = place(&pair[1], &content(1));
    assert_eq!(found(&scrubbed(&fs)), 0);
    pair[1].write_at(at.start + 8192, &[7; 8192]).unwrap();
    let only = ScrubOptions {
        read_only: true,
        ..ScrubOptions::default()
    };
    let seen = scrub_mounted(&fs, &only, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((seen.devices[&2].data, seen.devices[&2].repaired), (2, 0));
    let report = scrubbed(&fs);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.devices[&2].data, 2);
    assert_eq!(report.devices[&1].found(), 0);
    assert_eq!(report.files[0].path, b"kept");
    assert!(bytes(&pair[1], &at) == content(1));
    // The mount goes on.
    durable(&fs, b"later", &content(2));
    fs.unmount().unwrap();
    clean(&pair);
}

#[test]
fn space_that_is_reused_during_the_scrub_is_no_error() {
    let pair = mirrored();
    let gate = gated(pair[0].clone());
    let fs = open(vec![gate.clone(), any(&pair[1])]).unwrap();
    durable(&fs, b"old", &content(1));
    let at = place(&pair[0], &content(1));
    hold(&gate, RequestKind::Read.set(), at.clone());
    let report = thread::scope(|scope| {
        let scrub = scope.spawn(|| scrubbed(&fs));
        // The checksums of the old file are looked up, and its bytes not read.
        gate.wait_held(1);
        fs.unlink(fs.root(), b"old").unwrap();
        fs.sync().unwrap();
        durable(&fs, b"new", &content(2));
        let reused = bytes(&pair[0], &at) == content(2);
        gate.open();
        assert!(reused, "the new file lies where the old one was");
        scrub.join().unwrap()
    });
    assert_eq!(found(&report), 0, "{report:?}");
    assert!(report.files.is_empty() && report.lost_blocks.is_empty());
    assert!(get(&fs, b"new") == content(2));
    fs.unmount().unwrap();
    clean(&pair);
}

#[test]
fn a_commit_that_is_being_written_is_no_error() {
    let pair = mirrored();
    let gate = gated(pair[0].clone());
    let fs = open(vec![gate.clone(), any(&pair[1])]).unwrap();
    durable(&fs, b"old", &content(1));
    put(&fs, b"new", b"inline");
    let (begin, begun) = mpsc::channel();
    let report = thread::scope(|scope| {
        let (fs, gate) = (&fs, &gate);
        let commit = scope.spawn(move || {
            begun.recv().unwrap();
            fs.sync().unwrap();
        });
        let scrub = scope.spawn(move || {
            let mut groups = 0;
            let step = &mut |step: &ScrubStep| {
                groups += u32::from(step.position.is_some());
                // The next block groups are listed while the commit is written.
                if groups == 1 && step.position.is_some() {
                    hold(gate, RequestKinds::ANY_WRITE, 0..SIZE);
                    begin.send(()).unwrap();
                    gate.wait_held(1);
                }
                ControlFlow::Continue(())
            };
            let only = ScrubOptions {
                read_only: true,
                ..ScrubOptions::default()
            };
            scrub_mounted(fs, &only, step).unwrap()
        });
        gate.wait_held(1);
        // Time in which blocks that are not written yet show.
        thread::sleep(Duration::from_millis(300));
        gate.open();
        commit.join().unwrap();
        scrub.join().unwrap()
    });
    assert_eq!(found(&report), 0, "{report:?}");
    assert_eq!(report.lost_blocks, []);
    fs.unmount().unwrap();
    clean(&pair);
}

#[test]
fn a_scrub_with_a_low_limit_ends_at_once() {
    let (sender, ended) = mpsc::channel();
    // A thread of its own, so that a scrub that does not end fails the test.
    thread::spawn(move || {
        let fs = opened(&mirrored());
        let options = ScrubOptions {
            limit: Some(1),
            ..ScrubOptions::default()
        };
        let mut steps = 0;
        let report = scrub_mounted(&fs, &options, &mut |_| {
            steps += 1;
            if steps < 3 {
                return ControlFlow::Continue(());
            }
            ControlFlow::Break(())
        });
        let _ = sender.send(report.unwrap());
    });
    let report = ended.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(report.interrupted);
}

#[test]
fn a_repair_overwrites_no_newer_data() {
    let pair = mirrored();
    let gate = gated(pair[1].clone());
    let fs = open(vec![any(&pair[0]), gate.clone()]).unwrap();
    durable(&fs, b"old", &content(1));
    let at = place(&pair[1], &content(1));
    let other = place(&pair[0], &content(1));
    pair[1].write_at(at.start, &[9; 4096]).unwrap();
    let writes = RequestKinds::ANY_WRITE;
    hold(&gate, writes, at.clone());
    let report = thread::scope(|scope| {
        let scrub = scope.spawn(|| scrubbed(&fs));
        gate.wait_held(1);
        let writer = scope.spawn(|| {
            fs.unlink(fs.root(), b"old").unwrap();
            fs.sync().unwrap();
            durable(&fs, b"new", &content(2));
        });
        // Time in which a missing lock shows.
        thread::sleep(Duration::from_millis(300));
        let kept = bytes(&pair[0], &other) == content(1);
        gate.open();
        assert!(kept, "the space is not reused");
        writer.join().unwrap();
        scrub.join().unwrap()
    });
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.devices[&2].data, 1);
    assert!(get(&fs, b"new") == content(2));
    fs.unmount().unwrap();
    clean(&pair);
}

#[test]
fn a_copy_without_checksums_is_repaired_between_writes() {
    let pair = mirrored();
    let fault = Arc::new(FaultDevice::new(pair[1].clone()));
    let gate = gated(fault.clone());
    let fs = open(vec![any(&pair[0]), gate.clone()]).unwrap();
    let file = put(&fs, b"plain", b"");
    fs.set_flags(file, InodeFlags::NOCOW).unwrap();
    fs.write(file, 0, &content(1), WriteMode::default())
        .unwrap();
    fs.sync().unwrap();
    let at = place(&pair[1], &content(1));
    let other = place(&pair[0], &content(1));
    let sector = at.start..at.start + 4096;
    let rule = FaultRule::new(RequestKinds::READ, 1, Fault::Fail);
    fault.arm(rule.from_then_on().within(sector.clone()));
    hold(&gate, RequestKinds::ANY_WRITE, at.clone());
    let report = thread::scope(|scope| {
        let scrub = scope.spawn(|| scrubbed(&fs));
        gate.wait_held(1);
        let writer = scope.spawn(|| {
            fs.write(file, 0, &content(2), WriteMode::default())
                .unwrap();
            fs.fsync(file, SyncKind::All).unwrap();
        });
        thread::sleep(Duration::from_millis(300));
        let kept = bytes(&pair[0], &other) == content(1);
        gate.open();
        assert!(kept, "the file is written after the repair");
        writer.join().unwrap();
        scrub.join().unwrap()
    });
    assert_eq!(report.devices[&2].unreadable, 1, "{report:?}");
    fault.clear();
    assert!(bytes(&pair[0], &other) == content(2));
    assert!(bytes(&pair[1], &at) == content(2));
    fs.unmount().unwrap();
    clean(&pair);
}

#[test]
fn a_scrub_among_writers_finds_nothing() {
    let pair = mirrored();
    let fs = opened(&pair);
    let fs = &fs;
    thread::scope(|scope| {
        let writers = [0u8, 1].map(|nth| {
            scope.spawn(move || {
                for round in 0..40u64 {
                    let name = [b'f', b'0' + nth, b'0' + (round % 5) as u8];
                    let _ = fs.unlink(fs.root(), &name);
                    let content = content(round * 2 + u64::from(nth));
                    let file = put(fs, &name, &content[..20_000 + round as usize * 9000]);
                    match round % 3 {
                        0 => fs.sync().unwrap(),
                        _ => fs.fsync(file, SyncKind::All).unwrap(),
                    }
                    fs.forget(file, 1);
                }
            })
        });
        while writers.iter().any(|writer| !writer.is_finished()) {
            let report = scrubbed(fs);
            assert_eq!(found(&report), 0, "{report:?}");
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
    fs.unmount().unwrap();
    clean(&pair);
}
