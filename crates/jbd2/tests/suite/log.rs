//! Transactions with a log: the blocks that a recovery restores, and the changes of the next
//! transaction during a commit.

use std::sync::Arc;
use std::thread;

use crate::common;
use crate::common::{
    BLOCK, FORMS, at_home, attach, cache, formatted, layout, load, open, options, put, recovered,
    wait_for_waiting,
};
use sapwood_block::{Device, MemoryDevice};
use sapwood_jbd2::{Error, FastCommitStart, Incompat, Journal, NewJournal, Request};
use sapwood_testing::{Action, GateDevice, RecordDevice, RequestKind};

const LOG: u64 = 130;
const V3: Incompat = Incompat::CSUM_V3;

#[test]
fn committed_blocks_are_recovered_in_all_forms() {
    for form in FORMS {
        let device = Arc::new(formatted(LOG));
        let journal = open(device.clone(), LOG, form);
        let first = put(&journal, 5, 7);
        journal.commit(first).unwrap();
        put(&journal, 5, 8);
        put(&journal, 6, 9);
        journal.commit_all().unwrap();
        put(&journal, 6, 10);
        assert_eq!((at_home(&*device, 5), at_home(&*device, 6)), (0, 0));
        let (copy, recovery) = recovered(&device, LOG);
        assert_eq!((at_home(&*copy, 5), at_home(&*copy, 6)), (8, 9), "{form:?}");
        assert_eq!((recovery.transactions, recovery.blocks), (2, 2));
        assert_eq!((recovery.first, recovery.last), (Some(1), Some(2)));
        // The numbers of new transactions are beyond all that the log may contain.
        let again = open(copy.clone(), LOG, form);
        assert_eq!(again.running_tid() as u32, 4);
        journal.close().unwrap();
        assert!(!load(device.clone(), LOG).needs_recovery());
        assert_eq!((at_home(&*device, 5), at_home(&*device, 6)), (8, 10));
    }
}

#[test]
fn a_transaction_alone_supersedes_the_log_before_it() {
    for form in FORMS {
        let device = Arc::new(formatted(LOG));
        let journal = open(device.clone(), LOG, form);
        put(&journal, 5, 7);
        journal.commit_all().unwrap();
        let cut = Arc::new(device.snapshot());
        let log = load(cut.clone(), LOG);
        let plan = log.scan(&|_| true).unwrap();
        let recovery = plan.replay(&*cut).unwrap();
        let next = recovery.last.unwrap() + 1;
        let most: Vec<(u64, Vec<u8>)> = (200..200 + LOG)
            .map(|block| (block, vec![1; BLOCK as usize]))
            .collect();
        assert!(!log.write_alone(next, &most).unwrap(), "more than fits");
        assert_eq!(recovered(&cut, LOG).1.transactions, 1);
        // One of the blocks looks like a block of the journal.
        let mut marked = vec![9; BLOCK as usize];
        marked[..4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
        let blocks = vec![(5, vec![8; BLOCK as usize]), (6, marked.clone())];
        assert!(log.write_alone(next, &blocks).unwrap());
        let (copy, recovery) = recovered(&cut, LOG);
        assert_eq!((recovery.first, recovery.last), (Some(next), Some(next)));
        assert_eq!(at_home(&*copy, 5), 8, "{form:?}");
        let mut block = vec![0; BLOCK as usize];
        copy.read_at(6 * u64::from(BLOCK), &mut block).unwrap();
        assert_eq!(block, marked);
    }
}

/// The first transaction of the new user ends where one of the older user begins.
#[test]
fn a_new_user_never_recovers_transactions_of_an_older_one() {
    let device = Arc::new(formatted(LOG));
    let journal = open(device.clone(), LOG, V3);
    for (block, value) in [(5, 7), (5, 8), (6, 9)] {
        put(&journal, block, value);
        journal.commit_all().unwrap();
    }
    let taken = Arc::new(device.snapshot());
    let log = load(taken.clone(), LOG);
    log.set_user([9; 16]).unwrap();
    assert_eq!(log.user_ids(), [[9; 16]]);
    let log = load(taken.clone(), LOG);
    assert!(!log.needs_recovery());
    drop(log);
    let journal = open(taken.clone(), LOG, V3);
    let handle = journal.start(8).unwrap();
    let cache = journal.cache();
    for block in 10..14 {
        let buffer = cache.get(block).unwrap();
        handle.modify(&buffer).unwrap().fill(1);
    }
    drop(handle);
    journal.commit_all().unwrap();
    let (copy, recovery) = recovered(&taken, LOG);
    assert_eq!((recovery.transactions, recovery.blocks), (1, 4));
    assert_eq!((at_home(&*copy, 13), at_home(&*copy, 6)), (1, 0));
}

#[test]
fn a_commit_block_replaces_zeros() {
    let device = formatted(LOG);
    // Leftovers of an older journal in the log.
    let old = vec![7; BLOCK as usize];
    for block in 1..LOG {
        let (block, _) = layout(LOG).find(block).unwrap();
        device.write_at(block * u64::from(BLOCK), &old).unwrap();
    }
    let device = Arc::new(RecordDevice::new(device));
    let journal = open(device.clone(), LOG, V3);
    put(&journal, 5, 8);
    journal.commit_all().unwrap();
    // The power is cut when the first sector of the commit block is on disk.
    let log = device.log();
    let is_commit = |action: &Action| match action {
        Action::Write { data, .. } => data.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2]),
        Action::Discard { .. } | Action::Flush => false,
    };
    let mut entries = log.entries().iter();
    let commit = entries.position(|entry| is_commit(&entry.action)).unwrap();
    let (at, len) = log.entries()[commit].action.range().unwrap();
    assert_eq!(len, u64::from(BLOCK));
    let earlier = log.entries()[..commit].iter().map(|entry| &entry.action);
    let mut there = vec![7; BLOCK as usize];
    let mut flushed = false;
    for action in earlier {
        match action {
            Action::Write { offset, data, .. }
                if (*offset..offset + data.len() as u64).contains(&at) =>
            {
                let start = (at - offset) as usize;
                there.copy_from_slice(&data[start..start + BLOCK as usize]);
                flushed = false;
            }
            Action::Flush => flushed = true,
            Action::Write { .. } | Action::Discard { .. } => {}
        }
    }
    assert!(flushed && there.iter().all(|byte| *byte == 0));
}

#[test]
fn a_block_that_looks_like_the_journals_own_is_escaped() {
    for form in FORMS {
        let device = Arc::new(formatted(LOG));
        let journal = open(device.clone(), LOG, form);
        let buffer = journal.cache().get(5).unwrap();
        let handle = journal.start(1).unwrap();
        // The first words of a commit block of the running transaction.
        let words = [0xC03B_3998, 2, handle.tid() as u32].map(u32::to_be_bytes);
        handle.modify(&buffer).unwrap()[..12].copy_from_slice(words.as_flattened());
        drop(handle);
        journal.commit_all().unwrap();
        assert_eq!(journal.counters().escaped, 1);
        let (copy, _) = recovered(&device, LOG);
        let mut block = vec![0; BLOCK as usize];
        copy.read_at(5 * u64::from(BLOCK), &mut block).unwrap();
        assert_eq!(block, &buffer.read()[..], "{form:?}");
    }
}

/// A journal on a device that holds the `nth` kind of request of a commit.
fn gated() -> (Arc<GateDevice<MemoryDevice>>, Arc<Journal>) {
    let device = Arc::new(GateDevice::new(formatted(LOG)));
    let journal = open(device.clone(), LOG, V3);
    // This sets the superblock to "needs recovery" before the test begins.
    put(&journal, 9, 1);
    journal.commit_all().unwrap();
    (device, journal)
}

#[test]
fn next_transaction_changes_a_block_that_is_being_committed() {
    for kind in [RequestKind::Write, RequestKind::Flush, RequestKind::Fua] {
        let (device, journal) = gated();
        let first = put(&journal, 5, 1);
        device.hold_if(move |request| request.kind == kind);
        thread::scope(|scope| {
            let commit = scope.spawn(|| journal.commit(first));
            device.wait_held(1);
            // The commit holds the block; no thread waits for it.
            let second = put(&journal, 5, 2);
            put(&journal, 6, 2);
            assert_eq!(second, first + 1);
            device.open();
            commit.join().unwrap().unwrap();
        });
        let (copy, _) = recovered(device.inner(), LOG);
        assert_eq!((at_home(&*copy, 5), at_home(&*copy, 6)), (1, 0), "{kind:?}");
        // The checkpoint writes the committed content, too.
        journal.checkpoint().unwrap();
        assert_eq!(at_home(device.inner(), 5), 1);
        journal.commit_all().unwrap();
        let (copy, _) = recovered(device.inner(), LOG);
        assert_eq!((at_home(&*copy, 5), at_home(&*copy, 6)), (2, 2));
    }
}

#[test]
fn callers_during_a_commit_share_the_next() {
    let (device, journal) = gated();
    let notes = attach(&journal);
    let before = journal.counters().commits;
    let first = put(&journal, 5, 1);
    device.hold_if(|request| request.kind == RequestKind::Fua);
    thread::scope(|scope| {
        scope.spawn(|| journal.commit(first).unwrap());
        let held = device.wait_held(1);
        for block in 10..18 {
            let journal = &journal;
            scope.spawn(move || {
                let tid = put(journal, block, 3);
                journal.commit(tid).unwrap();
            });
        }
        wait_for_waiting(&journal, 8);
        assert_eq!(journal.durable_tid(), first - 1);
        device.hold_if(|_| false);
        device.release(held[0].ticket);
    });
    assert_eq!(journal.counters().commits, before + 2);
    assert_eq!(*notes.committed.lock().unwrap(), [first, first + 1]);
}

#[test]
fn starts_wait_while_the_handles_of_a_closing_transaction_end() {
    let (_device, journal) = gated();
    thread::scope(|scope| {
        let handle = journal.start(2).unwrap();
        let tid = handle.tid();
        let buffer = journal.cache().get(5).unwrap();
        handle.modify(&buffer).unwrap().fill(1);
        let commit = scope.spawn(|| journal.commit_all());
        wait_for_waiting(&journal, 1);
        let other = scope.spawn(|| journal.start(1).unwrap().tid());
        wait_for_waiting(&journal, 2);
        // The handle is still part of the transaction, which waits for its end.
        handle.modify(&buffer).unwrap().fill(2);
        assert!(!handle.extend(1));
        drop(handle);
        commit.join().unwrap().unwrap();
        assert_eq!(other.join().unwrap(), tid + 1);
    });
    assert_eq!(journal.cache().get(5).unwrap().read()[0], 2);
}

#[test]
fn a_forgotten_block_is_revoked_and_not_replayed() {
    let (device, journal) = gated();
    let device = device.inner();
    put(&journal, 5, 1);
    journal.commit_all().unwrap();
    let handle = journal.start(1).unwrap();
    handle.forget(5).unwrap();
    // Never logged: there is nothing to revoke.
    handle.forget(6).unwrap();
    drop(handle);
    journal.commit_all().unwrap();
    assert_eq!(journal.counters().revokes, 1);
    // The block is data now, written without the journal.
    device.write_at(5 * u64::from(BLOCK), &[99; 1024]).unwrap();
    let (copy, recovery) = recovered(device, LOG);
    assert_eq!(at_home(&*copy, 5), 99);
    assert_eq!(recovery.revoked, 1);
    journal.checkpoint().unwrap();
    assert_eq!(at_home(device, 5), 99);
    // The log has no copy any more: no revoke.
    let handle = journal.start(1).unwrap();
    handle.forget(5).unwrap();
    drop(handle);
    journal.commit_all().unwrap();
    assert_eq!(journal.counters().revokes, 1);
}

#[test]
fn a_forgotten_block_may_be_reused_in_the_same_transaction() {
    let (device, journal) = gated();
    put(&journal, 5, 1);
    journal.commit_all().unwrap();
    let handle = journal.start(2).unwrap();
    handle.forget(5).unwrap();
    let again = journal.cache().get_new(5).unwrap();
    handle.modify(&again).unwrap().fill(2);
    drop(handle);
    journal.commit_all().unwrap();
    let counters = journal.counters();
    assert_eq!((counters.revokes, counters.cancelled_revokes), (0, 1));
    let (copy, _) = recovered(device.inner(), LOG);
    assert_eq!(at_home(&*copy, 5), 2);
    // And again in a later transaction.
    let handle = journal.start(2).unwrap();
    handle.forget(5).unwrap();
    drop(handle);
    journal.commit_all().unwrap();
    let third = journal.cache().get_new(5).unwrap();
    let handle = journal.start(2).unwrap();
    handle.modify(&third).unwrap().fill(3);
    drop(handle);
    journal.commit_all().unwrap();
    let (copy, recovery) = recovered(device.inner(), LOG);
    assert_eq!((at_home(&*copy, 5), recovery.revoked), (3, 0));
}

#[test]
fn a_forgotten_block_in_flight_is_waited_for() {
    let (device, journal) = gated();
    let notes = attach(&journal);
    put(&journal, 5, 1);
    journal.commit_all().unwrap();
    let home = 5 * u64::from(BLOCK);
    device.hold_if(move |r| r.kind == RequestKind::Write && r.offset == home);
    thread::scope(|scope| {
        let checkpoint = scope.spawn(|| journal.checkpoint());
        device.wait_held(1);
        let handle = journal.start(1).unwrap();
        handle.forget(5).unwrap();
        let tid = handle.tid();
        drop(handle);
        let settle = scope.spawn(|| journal.commit_and_settle());
        while journal.durable_tid() < tid {
            thread::yield_now();
        }
        // The commit is durable, but the block may not be reused, however long the committer runs.
        for _ in 0..5000 {
            assert_eq!(notes.committed.lock().unwrap().last(), Some(&(tid - 1)));
            thread::yield_now();
        }
        device.open();
        settle.join().unwrap().unwrap();
        checkpoint.join().unwrap().unwrap();
        assert_eq!(notes.committed.lock().unwrap().last(), Some(&tid));
    });
}

#[test]
fn a_block_committed_again_during_its_checkpoint_stays() {
    let (device, journal) = gated();
    put(&journal, 5, 1);
    journal.commit_all().unwrap();
    let home = 5 * u64::from(BLOCK);
    device.hold_if(move |r| r.kind == RequestKind::Write && r.offset == home);
    thread::scope(|scope| {
        let checkpoint = scope.spawn(|| journal.checkpoint());
        device.wait_held(1);
        put(&journal, 5, 2);
        journal.commit_all().unwrap();
        device.open();
        checkpoint.join().unwrap().unwrap();
    });
    assert_eq!(at_home(device.inner(), 5), 1);
    assert_eq!(journal.tail_tid(), journal.durable_tid());
    let (copy, recovery) = recovered(device.inner(), LOG);
    assert_eq!((at_home(&*copy, 5), recovery.transactions), (2, 1));
    journal.checkpoint().unwrap();
    assert_eq!(at_home(device.inner(), 5), 2);
    assert_eq!(recovered(device.inner(), LOG).1.transactions, 0);
}

#[test]
fn a_start_that_finds_the_log_full_checkpoints_it() {
    let device = Arc::new(formatted(LOG));
    let journal = open(device.clone(), LOG, V3);
    let notes = attach(&journal);
    for round in 0..200 {
        let block = round % 40;
        put(&journal, block, round as u8);
        journal.commit_all().unwrap();
    }
    let counters = journal.counters();
    assert!(
        counters.checkpoints > 3 && counters.waits_for_log > 3,
        "{counters:?}"
    );
    assert_eq!(counters.overdrafts, 0);
    assert!(
        notes
            .requests
            .lock()
            .unwrap()
            .contains(&Request::Checkpoint)
    );
    let (copy, _) = recovered(&device, LOG);
    for block in 0..40 {
        assert_eq!(at_home(&*copy, block), 160 + block as u8);
    }
}

#[test]
fn revokes_that_fill_blocks_cost_credits() {
    let device = Arc::new(formatted(900));
    let journal = open(device.clone(), 900, V3);
    for block in 0..600 {
        put(&journal, block, 1);
    }
    journal.commit_all().unwrap();
    // A block of 1024 bytes has room for 251 records.
    let handle = journal.start(3).unwrap();
    for block in 0..600 {
        handle.forget(block).unwrap();
    }
    assert_eq!(handle.credits(), 0);
    drop(handle);
    journal.commit_all().unwrap();
    assert_eq!(journal.counters().overdrafts, 0);
    assert_eq!(recovered(&device, 900).1.revoked, 600);
}

#[test]
fn the_commit_includes_the_hosts_last_changes() {
    use sapwood_jbd2::{Buffer, Closing, Host, HostError};
    struct Counts(Arc<Buffer>);
    impl Host for Counts {
        fn before_commit(&self, closing: &Closing<'_>) -> Result<(), HostError> {
            closing.modify(&self.0)?[0] += 1;
            Ok(())
        }
        fn seal(&self, _: &Buffer, _: &mut [u8]) {}
        fn after_commit(&self, _: u64) {}
        fn failed(&self, _: &Error) {}
    }
    let device = Arc::new(formatted(LOG));
    let journal = open(device.clone(), LOG, V3);
    let host: Arc<dyn Host> = Arc::new(Counts(journal.cache().get(3).unwrap()));
    journal.attach(Arc::downgrade(&host));
    for _ in 0..3 {
        put(&journal, 5, 1);
        journal.commit_all().unwrap();
    }
    assert_eq!(at_home(&*recovered(&device, LOG).0, 3), 3);
}

#[test]
fn a_log_that_needs_recovery_is_not_opened() {
    let device = Arc::new(formatted(LOG));
    let journal = open(device.clone(), LOG, V3);
    put(&journal, 1, 1);
    journal.commit_all().unwrap();
    let mut log = load(device.clone(), LOG);
    assert!(log.needs_recovery());
    assert!(matches!(log.set_form(V3), Err(Error::NeedsRecovery)));
    let opened = Journal::with_log(cache(device.clone()), log, options());
    assert!(matches!(opened, Err(Error::NeedsRecovery)));
    let none = load(device, LOG).scan(&|block| block != 1).map(drop);
    assert!(matches!(none, Err(Error::Target { target: 1, .. })));
}

#[test]
fn a_commit_waits_for_a_fast_commit() {
    let device = Arc::new(MemoryDevice::new(2048 * u64::from(BLOCK)));
    let new = NewJournal {
        block_size: BLOCK,
        blocks: 130,
        fast_commit_blocks: 20,
        uuid: [1; 16],
        external_at: None,
    };
    let at = common::layout(130).find(0).unwrap().0 * u64::from(BLOCK);
    device.write_at(at, &new.superblock().unwrap()).unwrap();
    let journal = open(device.clone(), 130, V3);
    assert_eq!(journal.log().unwrap().size(), 109);
    let FastCommitStart::Leader(leader) = journal.begin_fast_commit().unwrap() else {
        panic!("not the leader");
    };
    let tid = leader.tid();
    let block = [7; BLOCK as usize];
    leader.log().write_fast_commit(18, &[&block]).unwrap();
    assert!(
        leader
            .log()
            .write_fast_commit(18, &[&block, &block])
            .is_err()
    );
    thread::scope(|scope| {
        assert_eq!(put(&journal, 5, 1), tid);
        let commit = scope.spawn(|| journal.commit_all());
        wait_for_waiting(&journal, 1);
        // A crash here leaves nothing in the log, and a fast commit of the running transaction.
        let log = load(Arc::new(device.snapshot()), 130);
        let recovery = log.scan(&|_| true).unwrap().replay(&*device).unwrap();
        let area = recovery.fast_commit.unwrap();
        assert_eq!((area.blocks, area.expected), (19, tid as u32));
        drop(leader);
        commit.join().unwrap().unwrap();
    });
    assert_eq!(journal.durable_tid(), tid);
    let mut seen = [0; BLOCK as usize];
    journal
        .log()
        .unwrap()
        .read_fast_commit(18, &mut seen)
        .unwrap();
    assert_eq!(seen, block);
    let none = gated().1;
    let none = none.begin_fast_commit().unwrap();
    assert!(matches!(none, FastCommitStart::NoArea));
}

#[test]
fn a_checkpoint_during_a_commit_writes_the_committed_content_home() {
    let (device, journal) = gated();
    put(&journal, 5, 1);
    journal.commit_all().unwrap();
    let second = put(&journal, 5, 2);
    device.hold_if(|request| request.kind == RequestKind::Fua);
    thread::scope(|scope| {
        let commit = scope.spawn(|| journal.commit(second));
        // The log has the whole transaction except its commit block.
        device.wait_held(1);
        device.hold_if(|_| false);
        journal.checkpoint().unwrap();
        let (copy, _) = recovered(device.inner(), LOG);
        device.open();
        commit.join().unwrap().unwrap();
        assert_eq!(at_home(&*copy, 5), 1);
    });
    let (copy, _) = recovered(device.inner(), LOG);
    assert_eq!(at_home(&*copy, 5), 2);
}
