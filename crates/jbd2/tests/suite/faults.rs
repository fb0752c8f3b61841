//! Every write and every flush fails once: all later calls return the first error, nothing more is
//! written to the log, and acknowledged transactions are recovered.

use std::sync::Arc;

use crate::common::{Notes, at_home, attach, cache, formatted, load, options, put};
use sapwood_block::MemoryDevice;
use sapwood_jbd2::{Error, Incompat, Journal, Result};
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds, Torn};

const LOG: u64 = 70;

/// Result of a workload: the newest acknowledged value of each of its blocks.
struct Outcome {
    acked: [u8; 8],
    result: Result<()>,
}

fn workload(journal: &Arc<Journal>) -> Outcome {
    let mut acked = [0; 8];
    let mut go = || -> Result<()> {
        for round in 1..=30u8 {
            let block = u64::from(round % 8);
            let buffer = journal.cache().get(block)?;
            let handle = journal.start(1)?;
            handle.modify(&buffer)?.fill(round);
            let tid = handle.tid();
            drop(handle);
            journal.commit(tid)?;
            acked[block as usize] = round;
            if round % 7 == 0 {
                journal.checkpoint()?;
            }
        }
        journal.close()
    };
    let result = go();
    Outcome { acked, result }
}

fn run(device: &Arc<FaultDevice<MemoryDevice>>) -> (Arc<Journal>, Arc<Notes>, Outcome) {
    let mut log = load(device.clone(), LOG);
    log.set_form(Incompat::CSUM_V3).unwrap();
    let journal = Journal::with_log(cache(device.clone()), log, options()).unwrap();
    let notes = attach(&journal);
    let outcome = workload(&journal);
    (journal, notes, outcome)
}

fn changes() -> u64 {
    let device = Arc::new(FaultDevice::new(formatted(LOG)));
    let (_, _, outcome) = run(&device);
    outcome.result.unwrap();
    device.seen(RequestKinds::ANY_CHANGE)
}

fn check(device: &Arc<FaultDevice<MemoryDevice>>, nth: u64) {
    let (journal, notes, outcome) = run(device);
    assert_eq!(device.fired(), 1, "request {nth}");
    assert!(matches!(
        outcome.result,
        Err(Error::Device(_) | Error::Aborted(_))
    ));
    assert_eq!(notes.failures.lock().unwrap().len(), 1);
    let seen = device.seen(RequestKinds::ANY_CHANGE);
    for err in [
        journal.start(1).map(drop).unwrap_err(),
        journal.commit_all().unwrap_err(),
        journal.checkpoint().unwrap_err(),
        journal.close().unwrap_err(),
    ] {
        let device_failed =
            matches!(&err, Error::Aborted(first) if matches!(**first, Error::Device(_)));
        assert!(device_failed, "{err}");
    }
    assert_eq!(device.seen(RequestKinds::ANY_CHANGE), seen, "request {nth}");
    let copy = Arc::new(device.inner().snapshot());
    load(copy.clone(), LOG).recover(&|_| true).unwrap();
    for (block, acked) in (0..).zip(outcome.acked) {
        let value = at_home(&*copy, block);
        // The next round's commit may be on disk without being acknowledged.
        let first = if block == 0 { 8 } else { block as u8 };
        let next = if acked == 0 { first } else { acked + 8 };
        assert!(
            [acked, next].contains(&value),
            "request {nth}: {value} for {acked}"
        );
    }
}

#[test]
fn every_change_fails_once() {
    let changes = changes();
    assert!(changes > 100);
    for nth in 1..=changes {
        let device = Arc::new(FaultDevice::new(formatted(LOG)));
        device.arm(FaultRule::new(RequestKinds::ANY_CHANGE, nth, Fault::Fail));
        check(&device, nth);
    }
}

#[test]
fn every_write_is_torn_once() {
    let changes = changes();
    for nth in 1..=changes {
        let device = Arc::new(FaultDevice::new(formatted(LOG)));
        let torn = Fault::Tear {
            torn: Torn::Prefix(1),
            fail: true,
        };
        device.arm(FaultRule::new(RequestKinds::ANY_CHANGE, nth, torn));
        check(&device, nth);
    }
}

#[test]
fn a_failed_recovery_is_done_again() {
    let device = formatted(LOG);
    let device = Arc::new(FaultDevice::new(device));
    let mut log = load(device.clone(), LOG);
    log.set_form(Incompat::CSUM_V3).unwrap();
    let journal = Journal::with_log(cache(device.clone()), log, options()).unwrap();
    for block in 0..20 {
        put(&journal, block * 3, 7);
        journal.commit_all().unwrap();
    }
    let base = device.inner().snapshot();
    let mut failed = 0;
    for nth in 1.. {
        let device = Arc::new(FaultDevice::new(base.snapshot()));
        device.arm(FaultRule::new(RequestKinds::ANY_CHANGE, nth, Fault::Fail));
        let log = load(device.clone(), LOG);
        let done = log.recover(&|_| true).is_ok();
        failed += u64::from(!done);
        device.clear();
        load(device.clone(), LOG).recover(&|_| true).unwrap();
        for block in 0..20 {
            assert_eq!(at_home(&*device, block * 3), 7);
        }
        if done {
            break;
        }
    }
    // Blocks that are not contiguous, a flush, the superblock.
    assert_eq!(failed, 22);
}
