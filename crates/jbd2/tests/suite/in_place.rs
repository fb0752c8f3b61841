//! Transactions without a log, and the cache.

use std::sync::Arc;
use std::thread;

use crate::common::{BLOCK, at_home, attach, cache, put, wait_for_waiting};
use sapwood_block::MemoryDevice;
use sapwood_jbd2::{Cache, Error, Journal, Options, Request, Seal};
use sapwood_testing::{CountDevice, FaultDevice, GateDevice, RequestKind, RequestKinds};

const SIZE: u64 = 1024 * BLOCK as u64;

fn few() -> Options {
    Options {
        closing_credits: 4,
        max_transaction: 64,
        ..Options::default()
    }
}

#[test]
fn a_commit_writes_blocks_in_place_and_calls_the_host() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let journal = Journal::in_place(cache(device.clone()), few());
    let notes = attach(&journal);
    let tid = put(&journal, 5, 7);
    put(&journal, 6, 8);
    assert_eq!(at_home(&*device, 5), 0);
    journal.commit(tid).unwrap();
    assert_eq!((at_home(&*device, 5), at_home(&*device, 6)), (7, 8));
    assert_eq!(*notes.committed.lock().unwrap(), [tid]);
    assert_eq!(journal.durable_tid(), tid);
    // Nothing changed: there is no commit, and the same tid continues.
    journal.commit_all().unwrap();
    journal.commit(tid + 1).unwrap();
    drop(journal.start(1).unwrap());
    journal.commit_all().unwrap();
    assert_eq!(journal.counters().commits, 1);
    assert_eq!(journal.running_tid(), tid + 1);
}

#[test]
fn a_sealed_block_gets_its_checksum_at_commit() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let journal = Journal::in_place(cache(device.clone()), few());
    let _notes = attach(&journal);
    let (plain, sealed) = (
        journal.cache().get(1).unwrap(),
        journal.cache().get(2).unwrap(),
    );
    sealed.set_seal(Some(Seal {
        kind: 1,
        owner: 2,
        extra: 0,
    }));
    put(&journal, 1, 1);
    put(&journal, 2, 1);
    journal.commit_all().unwrap();
    let last = BLOCK as usize - 1;
    assert_eq!(plain.read()[last], 1);
    assert_eq!(sealed.read()[last], (last % 256) as u8);
}

#[test]
fn two_threads_read_a_block_once() {
    let device = Arc::new(GateDevice::new(CountDevice::new(MemoryDevice::new(SIZE))));
    device.hold_if(|request| request.kind == RequestKind::Read);
    let cache = cache(device.clone());
    thread::scope(|scope| {
        let first = scope.spawn(|| cache.get(3).unwrap());
        device.wait_held(1);
        // The entry exists, but is not loaded yet.
        assert!(cache.peek(3).is_none());
        let second = scope.spawn(|| cache.get(3).unwrap());
        device.release_first();
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert!(Arc::ptr_eq(&first, &second));
    });
    device.open();
    assert_eq!(device.inner().counts().reads, 1);
    assert!(cache.peek(3).is_some());
}

#[test]
fn a_held_buffer_is_not_evicted() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let small = Arc::new(Cache::new(device.clone(), BLOCK, 0));
    let journal = Journal::in_place(small.clone(), few());
    put(&journal, 9, 1);
    let held = small.get(10).unwrap();
    for block in 100..900 {
        small.get(block).unwrap();
    }
    assert!(small.resident_bytes() < 200 * u64::from(BLOCK));
    // Changed and held buffers keep their content; the device has a different one.
    assert_eq!(small.get(9).unwrap().read()[0], 1);
    assert!(Arc::ptr_eq(&held, &small.get(10).unwrap()));
    journal.commit_all().unwrap();
    for block in 100..900 {
        small.get(block).unwrap();
    }
    assert_eq!(small.get(9).unwrap().read()[0], 1);
    assert!(small.get(1024).is_err());
}

#[test]
fn a_failed_read_is_tried_again() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(SIZE)));
    let cache = cache(device.clone());
    device.fail_all(RequestKinds::READ);
    assert!(matches!(cache.get(1), Err(Error::Device(_))));
    device.clear();
    assert_eq!(cache.get(1).unwrap().read()[0], 0);
}

#[test]
fn a_start_that_finds_the_transaction_full_commits_it() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let journal = Journal::in_place(cache(device), few());
    let notes = attach(&journal);
    assert_eq!(journal.most_credits(), 60);
    assert!(matches!(
        journal.start(61),
        Err(Error::TooManyCredits { .. })
    ));
    for block in 0..60 {
        assert_eq!(put(&journal, block, 1), 1);
    }
    assert_eq!(*notes.requests.lock().unwrap(), [Request::Commit]);
    let handle = journal.start(0).unwrap();
    assert!(!handle.extend(1));
    drop(handle);
    assert_eq!(put(&journal, 0, 2), 2);
    let mut handle = journal.start(30).unwrap();
    assert!(handle.extend(29) && !handle.ensure(60));
    handle.restart(60).unwrap();
    assert_eq!((handle.tid(), handle.credits()), (3, 60));
}

#[test]
fn a_start_waits_for_credits_that_others_hold() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let journal = Journal::in_place(cache(device), few());
    thread::scope(|scope| {
        // Nothing changed in it: a commit would free nothing.
        let handle = journal.start(50).unwrap();
        let second = scope.spawn(|| journal.start(20).unwrap().tid());
        wait_for_waiting(&journal, 1);
        drop(handle);
        assert_eq!(second.join().unwrap(), 1);
    });
}

#[test]
fn a_forgotten_block_is_not_written() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let journal = Journal::in_place(cache(device.clone()), few());
    put(&journal, 5, 7);
    put(&journal, 6, 7);
    let handle = journal.start(0).unwrap();
    handle.forget(5).unwrap();
    assert_eq!(handle.credits(), 1);
    drop(handle);
    assert!(journal.cache().peek(5).is_none());
    journal.commit_all().unwrap();
    assert_eq!((at_home(&*device, 5), at_home(&*device, 6)), (0, 7));
    let again = journal.cache().get_new(6).unwrap();
    assert_eq!(again.read()[0], 0);
}

#[test]
fn more_changes_than_credits_are_counted() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let journal = Journal::in_place(cache(device.clone()), few());
    let handle = journal.start(1).unwrap();
    for block in 1..=9 {
        let buffer = journal.cache().get(block).unwrap();
        handle.modify(&buffer).unwrap().fill(1);
        handle.modify(&buffer).unwrap().fill(2);
    }
    drop(handle);
    assert_eq!(journal.counters().overdrafts, 1);
    journal.commit_all().unwrap();
    assert_eq!(at_home(&*device, 9), 2);
}

#[test]
fn a_failed_write_ends_all_changes() {
    for kinds in [RequestKinds::WRITE, RequestKinds::FLUSH] {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(SIZE)));
        let journal = Journal::in_place(cache(device.clone()), few());
        let notes = attach(&journal);
        let tid = put(&journal, 1, 1);
        device.fail_all(kinds);
        assert!(matches!(journal.commit(tid), Err(Error::Device(_))));
        device.clear();
        let buffer = journal.cache().get(1).unwrap();
        assert_eq!(buffer.read()[0], 1, "a changed block can still be read");
        for err in [
            journal.commit(tid).unwrap_err(),
            journal.commit_all().unwrap_err(),
            journal.start(1).map(drop).unwrap_err(),
        ] {
            assert!(matches!(&err, Error::Aborted(first) if matches!(**first, Error::Device(_))));
        }
        assert_eq!(notes.failures.lock().unwrap().len(), 1);
        assert!(notes.committed.lock().unwrap().is_empty());
    }
}

#[test]
fn committed_content_stays_readable_after_a_change() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let journal = Journal::in_place(cache(device), few());
    let buffer = journal.cache().get(1).unwrap();
    let set = |value| {
        let handle = journal.start(1).unwrap();
        handle.undo_access(&buffer).unwrap();
        handle.modify(&buffer).unwrap()[0] = value;
    };
    assert!(buffer.committed().is_none());
    set(1);
    set(2);
    assert_eq!(buffer.committed().unwrap()[0], 0);
    journal.commit_all().unwrap();
    assert_eq!(buffer.committed().unwrap()[0], 2);
    set(3);
    assert_eq!(buffer.committed().unwrap()[0], 2);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "open handle")]
fn a_second_handle_of_a_thread_panics() {
    let journal = Journal::in_place(cache(Arc::new(MemoryDevice::new(SIZE))), few());
    let _first = journal.start(1).unwrap();
    let _second = journal.start(1);
}
