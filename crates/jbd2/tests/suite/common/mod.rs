//! Shared parts of the journal's tests.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use sapwood_block::{Device, MemoryDevice};
use sapwood_jbd2::{
    Buffer, Cache, Closing, Error, Host, HostError, Incompat, Journal, LayoutMap, LayoutRun, Log,
    NewJournal, Options, Recovery, Request,
};

pub(crate) const BLOCK: u32 = 1024;

/// A host that records its calls.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) committed: Mutex<Vec<u64>>,
    pub(crate) failures: Mutex<Vec<String>>,
    pub(crate) requests: Mutex<Vec<Request>>,
    pub(crate) closings: AtomicU64,
}

impl Host for Notes {
    fn before_commit(&self, _closing: &Closing<'_>) -> Result<(), HostError> {
        self.closings.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The last byte is the sum of the others.
    fn seal(&self, _buffer: &Buffer, content: &mut [u8]) {
        let (last, rest) = content.split_last_mut().unwrap();
        *last = rest.iter().fold(0, |sum: u8, b| sum.wrapping_add(*b));
    }

    fn after_commit(&self, tid: u64) {
        self.committed.lock().unwrap().push(tid);
    }

    fn failed(&self, error: &Error) {
        self.failures.lock().unwrap().push(error.to_string());
    }

    fn wake(&self, request: Request) {
        self.requests.lock().unwrap().push(request);
    }
}

/// Attaches a host that records its calls.
pub(crate) fn attach(journal: &Journal) -> Arc<Notes> {
    let notes = Arc::new(Notes::default());
    let host: Arc<dyn Host> = notes.clone();
    let weak: Weak<dyn Host> = Arc::downgrade(&host);
    journal.attach(weak);
    notes
}

pub(crate) fn cache(device: Arc<dyn Device>) -> Arc<Cache> {
    Arc::new(Cache::new(device, BLOCK, 256 * BLOCK as usize))
}

/// Fills the block with `value` in a handle of its own. Returns the tid.
pub(crate) fn put(journal: &Arc<Journal>, block: u64, value: u8) -> u64 {
    let buffer = journal.cache().get(block).unwrap();
    let handle = journal.start(1).unwrap();
    handle.modify(&buffer).unwrap().fill(value);
    handle.tid()
}

/// First byte of the block on the device.
pub(crate) fn at_home(device: &dyn Device, block: u64) -> u8 {
    let mut byte = [0];
    device.read_at(block * u64::from(BLOCK), &mut byte).unwrap();
    byte[0]
}

/// Waits until `n` threads wait in the journal.
pub(crate) fn wait_for_waiting(journal: &Journal, n: usize) {
    while journal.waiting() < n {
        std::thread::yield_now();
    }
}

/// Blocks of the device.
pub(crate) const BLOCKS: u64 = 2048;
/// First block of the first half of the journal; the other half begins at [`SECOND`].
const FIRST: u64 = 1500;
const SECOND: u64 = 1000;

/// All forms of tags and checksums.
pub(crate) const FORMS: [Incompat; 6] = [
    Incompat::empty(),
    Incompat::WIDE,
    Incompat::CSUM_V2,
    Incompat::CSUM_V2.union(Incompat::WIDE),
    Incompat::CSUM_V3,
    Incompat::CSUM_V3.union(Incompat::WIDE),
];

/// A journal in two pieces: `blocks` blocks, including the superblock.
pub(crate) fn layout(blocks: u64) -> LayoutMap {
    let half = blocks / 2;
    let runs = [(0, FIRST, half), (half, SECOND, blocks - half)];
    let run = |(logical, physical, len)| LayoutRun {
        logical,
        physical,
        len,
    };
    LayoutMap::new(runs.map(run).to_vec(), BLOCKS).unwrap()
}

/// A device with an empty journal of `blocks` blocks.
pub(crate) fn formatted(blocks: u64) -> MemoryDevice {
    let device = MemoryDevice::new(BLOCKS * u64::from(BLOCK));
    let new = NewJournal {
        block_size: BLOCK,
        blocks: blocks as u32,
        fast_commit_blocks: 0,
        uuid: [0x5a; 16],
        external_at: None,
    };
    let superblock = new.superblock().unwrap();
    device
        .write_at(FIRST * u64::from(BLOCK), &superblock)
        .unwrap();
    device
}

pub(crate) fn load(device: Arc<dyn Device>, blocks: u64) -> Log {
    Log::load(device, layout(blocks), BLOCK).unwrap()
}

pub(crate) fn options() -> Options {
    Options {
        closing_credits: 2,
        ..Options::default()
    }
}

/// Opens the journal, which is empty, to be written in `form`.
pub(crate) fn open(device: Arc<dyn Device>, blocks: u64, form: Incompat) -> Arc<Journal> {
    let mut log = load(device.clone(), blocks);
    log.set_form(form).unwrap();
    Journal::with_log(cache(device), log, options()).unwrap()
}

/// Recovers a copy of the device.
pub(crate) fn recovered(device: &MemoryDevice, blocks: u64) -> (Arc<MemoryDevice>, Recovery) {
    let copy = Arc::new(device.snapshot());
    let recovery = load(copy.clone(), blocks).recover(&|_| true).unwrap();
    assert!(!load(copy.clone(), blocks).needs_recovery());
    (copy, recovery)
}
