//! What may be on the device before what, and which thread waits for which. Requests are held at a
//! gate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::{CountDevice, GateDevice, RequestKind};
use sapwood_vfs::{AllocMode, SyncKind};

use super::fixture::{FILES, MemoryImage, content, file, open, quiet, write};
use crate::map::{self, Mapped};
use crate::mount::sync;
use crate::{Error, Ext4, data};

type Gate = Arc<GateDevice<MemoryDevice>>;

fn mounted() -> Option<(MemoryImage, Gate, Ext4)> {
    let image = MemoryImage::new(&["-t", "ext4", "-b", "4096"], "32M")?;
    let gate = Arc::new(GateDevice::new(image.device.snapshot()));
    let fs = open(Arc::clone(&gate) as Arc<dyn Device>, &quiet());
    Some((image, gate, fs))
}

/// Holds writes that carry nothing but this byte: file data.
fn hold_data(gate: &Gate, byte: u8) {
    gate.hold_if(move |request| {
        request.kind == RequestKind::Write
            && request
                .bytes
                .is_some_and(|bytes| bytes.iter().all(|found| *found == byte))
    });
}

#[test]
fn extents_follow_their_data() {
    let Some((_image, gate, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[7; 3 * 4096]).unwrap();
    hold_data(&gate, 7);
    thread::scope(|scope| {
        let flushing = scope.spawn(|| data::flush(&fs.engine, &inode));
        let held = gate.wait_held(1);
        assert_eq!(held[0].len, 3 * 4096);
        // A commit meanwhile waits for no data, and has nothing of the file.
        fs.engine.journal.commit_and_settle().unwrap();
        let run = map::lookup(&fs.engine, &inode, 0, 3).unwrap();
        assert_eq!(run.what, Mapped::Hole);
        assert_eq!(inode.state.lock().raw.size(&fs.engine.geometry), 0);
        assert_eq!(content(&fs, &inode), [7; 3 * 4096]);
        gate.open();
        flushing.join().unwrap().unwrap();
    });
    let run = map::lookup(&fs.engine, &inode, 0, 3).unwrap();
    assert!(matches!(run.what, Mapped::Written(_)));
    assert_eq!(inode.state.lock().raw.size(&fs.engine.geometry), 3 * 4096);
    assert_eq!(inode.data.pending_bytes(), 0);
}

/// Blocks of three small files are side by side. The files are `failed` with the request that has
/// their data, or are all complete after it.
fn small_files_share_a_request(fails: bool) {
    let Some((image, gate, fs)) = mounted() else {
        return;
    };
    let files = FILES.map(|name| file(&fs, name));
    for inode in &files {
        write(&fs, inode, 0, &[7; 4096]).unwrap();
    }
    hold_data(&gate, 7);
    data::flush::begin_all(&fs.engine, &files);
    let held = gate.wait_held(1);
    assert_eq!(held[0].len, 3 * 4096);
    if fails {
        assert_eq!(gate.fail_all(), 1)
    } else {
        gate.open()
    }
    for inode in &files {
        assert_eq!(data::flush(&fs.engine, inode).is_err(), fails);
        assert_eq!(inode.data.pending_bytes(), 0);
    }
    if !fails {
        fs.engine.journal.commit_and_settle().unwrap();
        image.check(&gate.inner().snapshot());
        let crashed = Arc::new(gate.inner().snapshot());
        let fs = open(crashed, &quiet());
        for name in FILES {
            assert_eq!(content(&fs, &file(&fs, name)), [7; 4096]);
        }
    }
}

#[test]
fn small_files_are_written_with_one_request() {
    small_files_share_a_request(false);
}

#[test]
fn a_failed_write_of_small_files_fails_each() {
    small_files_share_a_request(true);
}

#[test]
fn an_allocation_writes_back_all_that_the_size_waits_for() {
    let Some((image, gate, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    // Two calls, each dirty, and blocks for a part of the first one.
    write(&fs, &inode, 0, &[7; 20000]).unwrap();
    write(&fs, &inode, 40000, &[8; 100]).unwrap();
    {
        let _io = inode.io.write();
        let mode = AllocMode::Allocate { keep_size: false };
        data::fallocate(&fs.engine, &inode, 4096, 8192, mode).unwrap();
    }
    fs.engine.journal.commit_and_settle().unwrap();
    let crashed = Arc::new(gate.inner().snapshot());
    let fs = open(Arc::clone(&crashed) as Arc<dyn Device>, &quiet());
    let found = content(&fs, &file(&fs, "a"));
    let wanted = [vec![7; 20000], vec![0; 20000], vec![8; 100]].concat();
    assert!(found == wanted, "a size of {}", found.len());
    // Blocks for what is on disk already write nothing back.
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[9; 8192]).unwrap();
    write(&fs, &inode, 50000, &[9; 100]).unwrap();
    {
        let _io = inode.io.write();
        let mode = AllocMode::Allocate { keep_size: false };
        data::fallocate(&fs.engine, &inode, 0, 4096, mode).unwrap();
    }
    assert!(inode.data.dirty_bytes() > 4096);
    fs.close().unwrap();
    image.check(&crashed);
}

#[test]
fn blocks_in_flight_are_counted_once() {
    let Some((_image, gate, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    let allocated = || inode.attr(&fs.engine).allocated;
    write(&fs, &inode, 0, &[7; 3 * 4096]).unwrap();
    assert_eq!(allocated(), 3 * 4096);
    hold_data(&gate, 7);
    let flushed = AtomicBool::new(false);
    thread::scope(|scope| {
        let flushing = scope.spawn(|| {
            let result = data::flush(&fs.engine, &inode);
            flushed.store(true, Ordering::Release);
            result
        });
        gate.wait_held(1);
        assert_eq!(allocated(), 3 * 4096);
        gate.open();
        // From the ranges in flight into the map: the sum is the same at any moment.
        while !flushed.load(Ordering::Acquire) {
            assert_eq!(allocated(), 3 * 4096);
        }
        flushing.join().unwrap().unwrap();
    });
    assert_eq!(allocated(), 3 * 4096);
    assert_eq!(inode.state.lock().charged, 0);
}

#[test]
fn what_is_written_again_in_flight_is_kept() {
    let Some((image, gate, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[7; 2 * 4096]).unwrap();
    hold_data(&gate, 7);
    thread::scope(|scope| {
        let flushing = scope.spawn(|| data::flush(&fs.engine, &inode));
        gate.wait_held(1);
        write(&fs, &inode, 4096, &[8; 4096]).unwrap();
        write(&fs, &inode, 100, b"in between").unwrap();
        // The newer bytes wait for the older ones: they go to the same blocks.
        let again = scope.spawn(|| data::flush(&fs.engine, &inode));
        gate.release_first();
        flushing.join().unwrap().unwrap();
        again.join().unwrap().unwrap();
    });
    assert_eq!(inode.data.pending_bytes(), 0);
    let wanted = content(&fs, &inode);
    assert_eq!(wanted[100..110], *b"in between");
    assert_eq!(wanted[4096..], [8; 4096]);
    gate.open();
    fs.close().unwrap();
    image.check(gate.inner());
    let fs = open(Arc::new(gate.inner().snapshot()), &quiet());
    assert_eq!(content(&fs, &file(&fs, "a")), wanted);
}

#[test]
fn fsync_waits_for_its_file_only() {
    let Some((_image, gate, fs)) = mounted() else {
        return;
    };
    let (slow, fast) = (file(&fs, "a"), file(&fs, "b"));
    write(&fs, &slow, 0, &[7; 4096]).unwrap();
    write(&fs, &fast, 0, &[8; 4096]).unwrap();
    hold_data(&gate, 7);
    thread::scope(|scope| {
        let flushing = scope.spawn(|| data::flush(&fs.engine, &slow));
        gate.wait_held(1);
        crate::mount::sync::fsync(&fs.engine, &fast, sapwood_vfs::SyncKind::All).unwrap();
        assert_eq!(
            (fast.data.pending_bytes(), slow.data.pending_bytes()),
            (0, 4096)
        );
        gate.open();
        flushing.join().unwrap().unwrap();
    });
}

#[test]
fn overwrites_need_no_handle() {
    let Some((_image, _gate, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[7; 4096]).unwrap();
    data::flush(&fs.engine, &inode).unwrap();
    fs.engine.journal.commit_and_settle().unwrap();
    let before = inode.datasync_tid();
    write(&fs, &inode, 5, b"again").unwrap();
    data::flush(&fs.engine, &inode).unwrap();
    assert_eq!(inode.datasync_tid(), before);
    assert!(inode.data.owes_flush());
    sync::fsync(&fs.engine, &inode, SyncKind::Data).unwrap();
    assert!(!inode.data.owes_flush());
}

#[test]
fn a_writeback_of_all_hides_no_failure_from_the_file() {
    let Some((_image, gate, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[7; 4096]).unwrap();
    hold_data(&gate, 7);
    thread::scope(|scope| {
        let flushing = scope.spawn(|| data::flush_all(&fs.engine));
        gate.wait_held(1);
        gate.fail_all();
        let result = flushing.join().unwrap();
        assert!(matches!(result, Err(Error::WriteFailed(_))));
    });
    let told = data::flush(&fs.engine, &inode);
    assert!(matches!(told, Err(Error::WriteFailed(ino)) if ino == inode.ino));
    assert!(data::flush(&fs.engine, &inode).is_ok(), "reported once");
    gate.open();
}

#[test]
fn a_failed_write_is_told_once() {
    let Some((_image, gate, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    let free = fs.engine.groups.free_blocks();
    write(&fs, &inode, 0, &[7; 4096]).unwrap();
    hold_data(&gate, 7);
    thread::scope(|scope| {
        let flushing = scope.spawn(|| data::flush(&fs.engine, &inode));
        gate.wait_held(1);
        gate.fail_all();
        let result = flushing.join().unwrap();
        assert!(matches!(result, Err(Error::WriteFailed(ino)) if ino == inode.ino));
    });
    assert!(data::flush(&fs.engine, &inode).is_ok());
    assert!(fs.engine.health.failed());
    assert_eq!(
        fs.engine.groups.free_blocks(),
        free,
        "its block is given back"
    );
    assert_eq!(inode.data.pending_bytes(), 0);
    assert!(write(&fs, &inode, 0, b"more").is_err());
    gate.open();
}

#[test]
fn a_growing_file_is_completed_in_order() {
    let Some((_image, gate, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[7; 4096]).unwrap();
    hold_data(&gate, 7);
    thread::scope(|scope| {
        let first = scope.spawn(|| data::flush(&fs.engine, &inode));
        gate.wait_held(1);
        write(&fs, &inode, 4096, &[8; 4096]).unwrap();
        let second = scope.spawn(|| data::flush(&fs.engine, &inode));
        // The second part is written, but the file does not reach over the first one yet.
        while !data::is_waiting_to_complete(&inode) {
            thread::yield_now();
        }
        assert_eq!(inode.state.lock().raw.size(&fs.engine.geometry), 0);
        gate.open();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(inode.state.lock().raw.size(&fs.engine.geometry), 8192);
}

#[test]
fn only_a_big_writeback_has_the_device_begin_at_once() {
    let options = ["-t", "ext4", "-b", "4096"];
    let Some(image) = MemoryImage::new(&options, "32M") else {
        return;
    };
    let behind = |len: usize| {
        let device = Arc::new(CountDevice::new(image.device.snapshot()));
        let fs = open(Arc::clone(&device) as Arc<dyn Device>, &quiet());
        let inode = file(&fs, "a");
        write(&fs, &inode, 0, &vec![1; len]).unwrap();
        data::flush(&fs.engine, &inode).unwrap();
        // Its threads may say it after the I/O is complete.
        fs.engine.writeback.stop();
        device.counts().behind_bytes
    };
    assert_eq!(behind(256 << 10), 0);
    assert_eq!(behind(8 << 20), 8 << 20);
}
