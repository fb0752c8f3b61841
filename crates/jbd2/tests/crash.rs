//! Crashes at every point of random workloads: the recovered state is the state after some
//! transaction, and no acknowledged transaction is missing. The log is small, so that it wraps many
//! times. Blocks are freed and reused, as metadata and as data that the journal does not see.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use common::{BLOCK, FORMS, Notes, attach, cache, formatted, load, options, recovered};
use sapwood_block::{Device, MemoryDevice};
use sapwood_jbd2::{Handle, Incompat, Journal};
use sapwood_testing::{CrashPlan, RecordDevice, RecordLog, Replayer};

const LOG: u64 = 70;
/// Blocks that the workload uses; block 0 counts transactions.
const USED: u64 = 24;
const STEPS: usize = 150;

#[derive(Debug, Clone, PartialEq)]
enum What {
    Meta(Vec<u8>),
    Data(Vec<u8>),
    /// Freed in this transaction.
    Free(u64),
}

type State = BTreeMap<u64, What>;

/// The only thread that makes changes, so that it knows the state after each transaction.
struct Worker {
    journal: Arc<Journal>,
    device: Arc<RecordDevice<MemoryDevice>>,
    notes: Arc<Notes>,
    random: fastrand::Rng,
    tid: u64,
    now: State,
    /// State at the end of each transaction.
    states: BTreeMap<u64, State>,
}

impl Worker {
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![self.random.u8(..); BLOCK as usize];
        if self.random.u8(..4) == 0 {
            bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        }
        bytes
    }

    /// Starts a handle, and records the state if the handle is in a new transaction.
    fn start(&mut self, credits: u32) -> Handle {
        let handle = self.journal.start(credits).unwrap();
        if handle.tid() != self.tid {
            self.states.insert(self.tid, self.now.clone());
            self.tid = handle.tid();
        }
        handle
    }

    fn put(&mut self, handle: &Handle, block: u64, bytes: Vec<u8>, new: bool) {
        let cache = self.journal.cache();
        let buffer = if new {
            cache.get_new(block).unwrap()
        } else {
            cache.get(block).unwrap()
        };
        handle.modify(&buffer).unwrap().copy_from_slice(&bytes);
        self.now.insert(block, What::Meta(bytes));
    }

    /// One operation, which also counts the transaction.
    fn step(&mut self) {
        let handle = self.start(6);
        for _ in 0..self.random.usize(1..4) {
            self.change(&handle);
        }
        let mut bytes = vec![0; BLOCK as usize];
        bytes[..8].copy_from_slice(&handle.tid().to_le_bytes());
        self.put(&handle, 0, bytes, false);
    }

    fn change(&mut self, handle: &Handle) {
        let block = self.random.u64(1..USED);
        let bytes = self.bytes();
        match self.now.get(&block).cloned() {
            Some(What::Meta(_)) if self.random.u8(..3) == 0 => {
                handle.forget(block).unwrap();
                self.now.insert(block, What::Free(handle.tid()));
            }
            Some(What::Meta(_)) => self.put(handle, block, bytes, false),
            Some(What::Data(_)) => {
                self.now.insert(block, What::Free(handle.tid()));
            }
            Some(What::Free(tid)) if self.random.bool() && self.is_reusable(tid) => {
                // Data is written before the transaction that refers to it.
                self.device
                    .write_at(block * u64::from(BLOCK), &bytes)
                    .unwrap();
                self.now.insert(block, What::Data(bytes));
            }
            _ => self.put(handle, block, bytes, true),
        }
    }

    fn is_reusable(&self, freed: u64) -> bool {
        self.notes.committed.lock().unwrap().contains(&freed)
    }
}

/// A workload and what happened on the device.
struct Run {
    base: MemoryDevice,
    log: RecordLog,
    states: BTreeMap<u64, State>,
}

fn run(seed: u64, threads: bool) -> Run {
    let form = FORMS[seed as usize % FORMS.len()];
    let memory = formatted(LOG);
    let base = memory.snapshot();
    let device = Arc::new(RecordDevice::new(memory));
    let mut log = load(device.clone(), LOG);
    log.set_form(form).unwrap();
    let journal = Journal::with_log(cache(device.clone()), log, options()).unwrap();
    let notes = attach(&journal);
    let mut worker = Worker {
        tid: journal.running_tid(),
        journal: journal.clone(),
        device: device.clone(),
        notes,
        random: fastrand::Rng::with_seed(seed),
        now: State::new(),
        states: BTreeMap::from([(0, State::new())]),
    };
    let commit = |tid: u64| {
        journal.commit(tid).unwrap();
        device.mark(tid.to_string());
    };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel::<Option<u64>>();
        let (journal, commit) = (&journal, &commit);
        scope.spawn(move || {
            for wanted in receiver {
                match wanted {
                    Some(tid) => commit(tid),
                    None => journal.checkpoint().unwrap(),
                }
            }
        });
        for _ in 0..STEPS {
            worker.step();
            let wanted = match worker.random.u8(..8) {
                0..3 => Some(worker.tid),
                3 => None,
                _ => continue,
            };
            match wanted {
                _ if threads => sender.send(wanted).unwrap(),
                Some(tid) => commit(tid),
                None => journal.checkpoint().unwrap(),
            }
        }
    });
    journal.commit_all().unwrap();
    assert_eq!(journal.counters().overdrafts, 0);
    worker.states.insert(worker.tid, worker.now);
    Run {
        base,
        log: device.take_log(),
        states: worker.states,
    }
}

/// The number of the transaction that block 0 has.
fn counter(device: &MemoryDevice) -> u64 {
    let mut raw = [0; 8];
    device.read_at(0, &mut raw).unwrap();
    u64::from_le_bytes(raw)
}

fn check(run: &Run, image: &MemoryDevice, plan: &CrashPlan) {
    let (device, recovery) = recovered(image, LOG);
    let tid = counter(&device);
    let acked = run.log.marks_before(plan.at).last();
    let acked = acked.map_or(0, |(_, tid)| tid.parse().unwrap());
    assert!(
        tid >= acked,
        "{tid} of {acked} after {plan:?}: {recovery:?}"
    );
    for (block, what) in &run.states[&tid] {
        let (What::Meta(wanted) | What::Data(wanted)) = what else {
            continue;
        };
        let mut seen = vec![0; BLOCK as usize];
        device.read_at(block * u64::from(BLOCK), &mut seen).unwrap();
        assert!(
            seen == *wanted,
            "block {block} of {tid} after {plan:?}: {recovery:?}"
        );
    }
}

fn explore(run: &Run, seeds: u64) {
    let mut replayer = Replayer::new(&run.log, &run.base);
    for at in run.log.crash_points() {
        let mut plans = vec![CrashPlan::at(at)];
        let volatile = run.log.volatile(at);
        plans.push(CrashPlan::at(at).without(volatile));
        plans.extend((0..seeds).map(|seed| run.log.random_plan(at, seed)));
        for plan in plans {
            check(run, &replayer.image(&plan), &plan);
        }
    }
}

#[test]
fn every_crash_recovers_a_committed_state() {
    for seed in 0..6 {
        explore(&run(seed, false), 3);
    }
}

#[test]
fn every_crash_recovers_a_committed_state_with_commits_beside() {
    for seed in 6..12 {
        explore(&run(seed, true), 3);
    }
}

#[test]
fn a_crash_during_recovery_changes_nothing() {
    let run = run(5, false);
    let mut replayer = Replayer::new(&run.log, &run.base);
    for at in run.log.crash_points().into_iter().step_by(23) {
        let plan = CrashPlan::at(at);
        let image = replayer.image(&plan);
        let device = Arc::new(RecordDevice::new(image.snapshot()));
        load(device.clone(), LOG).recover(&|_| true).unwrap();
        let log = device.take_log();
        let mut again = Replayer::new(&log, &image);
        for at in log.crash_points() {
            for seed in 0..3 {
                check(&run, &again.image(&log.random_plan(at, seed)), &plan);
            }
        }
    }
}

#[test]
fn a_lost_flush_is_found_by_a_checksum() {
    // The device loses log blocks of acknowledged transactions, but not their commit blocks.
    let mut found = 0;
    let run = run(4, false);
    assert!(FORMS[4].contains(Incompat::CSUM_V3));
    for entry in 0..run.log.entries().len() {
        let all = run.log.entries();
        let log_write = |(start, _)| start >= 1000 * u64::from(BLOCK);
        if !all[entry].action.range().is_some_and(log_write) {
            continue;
        }
        let device = Arc::new(run.base.snapshot());
        for other in all.iter().take(entry + 4).enumerate() {
            if let (index, sapwood_testing::device::RecordedRequest { action, .. }) = other
                && index != entry
                && let sapwood_testing::Action::Write { offset, data, .. } = action
            {
                device.write_at(*offset, data).unwrap();
            }
        }
        let log = load(device.clone(), LOG);
        let before = device.snapshot();
        if let Err(err) = log.recover(&|_| true) {
            assert!(err.to_string().starts_with("journal: "), "{err}");
            assert_eq!(device.first_difference(&before), None);
            found += 1;
        }
    }
    assert!(found > 10, "{found}");
}
